"""The YAML of recipes and of the command line: how values are read and written."""

import re
from collections.abc import Hashable
from typing import Any

import yaml

from dualpath_cli.base.errors import content_fault
from dualpath_cli.base.ranges import Size


class Loader(yaml.SafeLoader):
    """YAML with numbers as people write them, in recipes as on the command line; no key
    twice.

    Whole numbers are decimal: 010 is ten, and neither 0x10 nor 1:30 is a number. 5e-4
    is a number, though text for PyYAML. There are no dates, and keys are texts.
    """

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Hashable, Any]:
        """Refuses a repeated key; PyYAML would keep the last value."""
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key '{key.value}' appears twice",
                    problem_mark=key.start_mark,
                )
            seen.add(key.value)
            if key.tag != "tag:yaml.org,2002:merge":
                key.tag = "tag:yaml.org,2002:str"

        content = super().construct_mapping(node, deep)
        return {str(key): value for key, value in content.items()}


class Dumper(yaml.SafeDumper):
    """Puts quotes around a text that `Loader`, or PyYAML, would read as something
    else."""


Dumper.add_representer(Size, Dumper.represent_int)
_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"
_DATE = "tag:yaml.org,2002:timestamp"

# PyYAML's own forms of numbers and dates give way to those below.
Loader.yaml_implicit_resolvers = {
    first: [form for form in forms if form[0] not in (_INT, _FLOAT, _DATE)]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_constructor(_INT, lambda loader, node: int(node.value.replace("_", "")))
_NUMBERS = {
    _INT: r"[-+]?[0-9][0-9_]*",
    _FLOAT: r"[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}
for _tag, _form in _NUMBERS.items():
    for _kind in (Loader, Dumper):
        _kind.add_implicit_resolver(
            _tag, re.compile(f"^({_form})$"), list("-+.0123456789")
        )


def yaml_fault(error: Exception) -> str:
    """The fault of YAML text in words, by PyYAML's words where it has some."""
    problem = getattr(error, "problem", None)
    reason = problem or getattr(error, "reason", None)
    return str(reason or content_fault(error))
