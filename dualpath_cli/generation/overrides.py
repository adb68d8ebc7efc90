"""What is done to a model as it answers, from the words `--loops` and `--intervention`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.generation.values import whole_number
from dualpath_cli.intervention import SHUFFLED, Criterion, Intervention

OVERRIDES_HELP = (
    "Other overrides: gates=1,0, gates=shuffled, halting=0.1, halting=0.1:change, skip=0.1, "
    "layers=0,2, seed=1."
)


def intervention_of(
    loops: str | None, words: Sequence[str], others: Mapping[str, Any] | None = None
) -> Intervention | None:
    """Reads `--loops K` and the words KEY=VALUE of `--intervention`; None where there are none.

    `others` are fields that options of their own gave.

    Raises:
        UserError: for the first mistake in them.
    """
    fields = dict(others or {})
    if loops is not None:
        fields["loops"] = whole_number("--loops", loops, 1, 1000)
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in _READERS:
            hint = did_you_mean(key, _READERS) or f"; keys are {', '.join(_READERS)}"
            raise UserError(f"--intervention '{word}': give KEY=VALUE{hint}")
        try:
            read = _READERS[key](value)
        except ValueError:
            raise UserError(f"--intervention '{word}': such as {_EXAMPLES[key]}") from None
        if not fields.keys().isdisjoint(read):
            raise UserError(
                f"--intervention '{word}': {key} is given already, or by its own option"
            )
        fields |= read
    try:
        return Intervention(**fields) if fields else None
    except ValueError as error:
        raise UserError(f"--intervention: {error}") from None


def _gates(text: str) -> dict[str, Any]:
    if text == SHUFFLED:
        return {"gates": text}
    deep, wide = text.split(",")
    return {"gates": (float(deep), float(wide))}


def _halting(text: str) -> dict[str, Any]:
    threshold, colon, criterion = text.partition(":")
    if colon and criterion not in get_args(Criterion):
        raise ValueError(criterion)
    return {"halting": float(threshold)} | ({"halting_by": criterion} if colon else {})


def _layers(text: str) -> dict[str, Any]:
    return {"layers": tuple(int(layer) for layer in text.split(","))}


_READERS: dict[str, Callable[[str], dict[str, Any]]] = {
    "gates": _gates,
    "halting": _halting,
    "skip": lambda text: {"skip": float(text)},
    "layers": _layers,
    "seed": lambda text: {"seed": int(text)},
}
"""From the text after KEY= to fields of an Intervention."""
_EXAMPLES = {
    "gates": "gates=1,0 or gates=shuffled",
    "halting": "halting=0.1 or halting=0.1:change",
    "skip": "skip=0.1",
    "layers": "layers=0,2",
    "seed": "seed=1",
}
