"""The facts of a key, at its field: its range, its effect, who may change it.

`key(...)` is `dataclasses.field` with these facts as metadata. The sections of a recipe
are made of such fields, so that a new key is one field. `recipe/keys.py` reads the
facts of all sections. Torch-free.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal

from dualpath_cli.base.ranges import Range

ModelPart = Literal["dual_gate", "wide_path", "deep_path", "loops", "core", "experts"]
"""Parts that some models lack: a gate of two paths, either path, more than one step of
a deep path, more than one repetition of a core, experts."""


@dataclass(frozen=True)
class OnlyWith:
    """Another key, with a value under which a key has an effect."""

    key: str
    value: Any = None  # None: any value but null and 0
    otherwise: str = ""
    """The end of the message after "KEY=VALUE has no effect", if it is not the usual
    one."""

    def is_met(self, value: Any) -> bool:
        """Whether the other key has the value."""
        return bool(value) if self.value is None else value == self.value


@dataclass(frozen=True)
class KeyFacts:
    """What is known about a key beside its type, default and docstring."""

    range: Range | None = None
    """The least and the most of its number, or of the numbers in its list."""
    free: bool = False
    """Whether a continued run may change it, as it decides no numbers."""
    in_sweep: Literal["varies", "decided", "scaled"] = "varies"
    """decided: the sweep sets it, or solves widths for it, so --set cannot; scaled: a
    learning rate, which keeps its ratio to optim.lr."""
    only_with: OnlyWith | None = None
    """What it needs to have an effect."""
    matters_in: tuple[ModelPart, ...] = ()
    """It has an effect on models with one of these parts; by default on all."""
    entries_matter_in: Mapping[str, tuple[ModelPart, ...]] = field(default_factory=dict)
    """`matters_in` of each entry of a mapping, by the entry's name."""
    cuts_texts: bool = False
    """Whether it only says how texts are cut: the same weights fit any value."""


def key(
    default: Any = MISSING, *, factory: Callable[[], Any] | None = None, **facts: Any
) -> Any:
    """A dataclass field with facts, the arguments of `KeyFacts`.

    A default that is a list or a mapping is made by `factory`.
    """
    metadata = {"key": KeyFacts(**facts)}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def keys_of(section: Any) -> dict[str, KeyFacts]:
    """The facts of a dataclass's fields, by name; of plain fields, the usual ones."""
    return {
        field.name: field.metadata.get("key", KeyFacts()) for field in fields(section)
    }


def ranges_of(section: Any) -> dict[str, Range]:
    """The ranges of a dataclass's fields that have one, by name."""
    return {
        name: facts.range
        for name, facts in keys_of(section).items()
        if facts.range is not None
    }
