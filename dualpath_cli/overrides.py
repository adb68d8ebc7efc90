"""Overrides in words, written alike on the command line, in files and in results.

`Intervention.name` writes them and `parse` reads them:

    K=3             three loops of every deep path
    gates=1,0       g_d and g_w of every dual block
    shuffled:7      learned gates, permuted by seed 7; `shuffled` by seed 0
    experts=1       each token takes its one best expert; `experts=random:7` as many as trained,
                    drawn by seed 7
    halting=0.1     a token stops looping once at most this mass remains
    skip=0.1        a token leaves out the path of a dual block whose gate is below this
    kv_slots=1      so many keys and values of a deep path's steps
    layers=0,2      in these layers alone
    tokens=verbs    of this class of tokens alone

`learned` changes nothing. `gates=shuffled seed=7` is read as `shuffled:7`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.intervention import LEARNED, RANDOM, SHUFFLED, Intervention
from dualpath_cli.options import Overrides
from dualpath_cli.ranges import check_range

SHORT_FORMS = {
    "loops": "loops", "kv_slots": "kv_slots", "skip_below": "skip", "exit_below": "halting"
}  # fmt: skip
"""Options that stand for a word, and the field that they are: `--loops 3` is `K=3`."""


def read(options: Overrides) -> Intervention | None:
    """Reads `--intervention` and its short forms; None where nothing is changed."""
    given = {name: getattr(options, name, None) for name in SHORT_FORMS}
    fields = {SHORT_FORMS[name]: value for name, value in given.items() if value is not None}
    change = parse(options.intervention, fields)
    if change is not None and change.tokens is not None:
        raise UserError(
            f"--intervention tokens={change.tokens}: classes of tokens are tagged by `dualpath "
            "ablate --suite token-classes` alone"
        )
    return change


def parse(words: Sequence[str], given: Mapping[str, Any] | None = None) -> Intervention | None:
    """Reads words, one or more in a text; `given` are fields that are known already."""
    fields = dict(given or {})
    for word in " ".join(words).split():
        key, equals, text = word.partition("=")
        if word == LEARNED:
            continue
        if word.partition(":")[0] == SHUFFLED:
            key, equals, text = "gates", "=", word
        if not equals or key not in _READERS:
            hint = did_you_mean(key, _READERS) or f"; keys are {', '.join(_READERS)}"
            raise UserError(f"--intervention '{word}': give KEY=VALUE or {SHUFFLED}{hint}")
        reader, example = _READERS[key]
        try:
            found = reader(text)
        except ValueError:
            raise UserError(f"--intervention '{word:.60}': give it as in {example}") from None
        if not fields.keys().isdisjoint(found):
            raise UserError(
                f"--intervention '{word}': {key} is given already, or by its own option"
            )
        fields |= found
    try:
        change = Intervention(**fields) if fields else None
        if "seed" in fields and not (change and change.needs_whole_text):
            raise ValueError("seed=0 goes with shuffled gates and random experts alone")
    except ValueError as error:
        raise UserError(f"--intervention: {error}") from None
    return change


def _gates(text: str) -> dict[str, Any]:
    kind, colon, seed = text.partition(":")
    if kind == SHUFFLED:
        return {"gates": SHUFFLED} | (_seed(seed) if colon else {})
    return {"gates": tuple(map(float, text.split(",")))}


def _experts(text: str) -> dict[str, Any]:
    kind, colon, seed = text.partition(":")
    if kind == RANDOM:
        return {"experts": RANDOM} | (_seed(seed) if colon else {})
    return {"experts": int(text)}


def _seed(text: str) -> dict[str, Any]:
    check_range("seed", seed := int(text), (0, (1 << 62) - 1))
    return {"seed": seed}


def _count(text: str) -> int:
    check_range("steps", count := int(text), (1, 1000))
    return count


_READERS: dict[str, tuple[Callable[[str], dict[str, Any]], str]] = {
    "K": (lambda text: {"loops": _count(text)}, "K=3, from 1 to 1,000"),
    "gates": (_gates, "gates=1,0, shuffled or shuffled:7"),
    "experts": (_experts, "experts=1, experts=random or experts=random:7"),
    "halting": (lambda text: {"halting": float(text)}, "halting=0.1"),
    "skip": (lambda text: {"skip": float(text)}, "skip=0.1"),
    "kv_slots": (lambda text: {"kv_slots": _count(text)}, "kv_slots=1, from 1 to 1,000"),
    "layers": (lambda text: {"layers": tuple(map(int, text.split(",")))}, "layers=0,2"),
    "seed": (_seed, "seed=7"),
    "tokens": (lambda text: {"tokens": text}, ""),
}
"""Each makes fields of an Intervention, which checks them; and an example of its word."""
