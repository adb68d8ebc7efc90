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
from dualpath_cli.options import Overrides, number, seed_number, whole_number

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
        found = _READERS[key](f"--intervention {key}", text)
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


def _gates(place: str, text: str) -> dict[str, Any]:
    shuffled, colon, seed = text.partition(":")
    if shuffled == SHUFFLED:
        return {"gates": SHUFFLED} | ({"seed": seed_number(place, seed)} if colon else {})
    try:
        deep, wide = map(float, text.split(","))
    except ValueError:
        raise UserError(f"{place} must be such as 1,0 or {SHUFFLED}, not '{text:.60}'") from None
    return {"gates": (deep, wide)}


def _experts(place: str, text: str) -> dict[str, Any]:
    chosen, colon, seed = text.partition(":")
    if chosen == RANDOM:
        return {"experts": RANDOM} | ({"seed": seed_number(place, seed)} if colon else {})
    if not text.isdecimal() or int(text) == 0:
        raise UserError(f"{place} must be a number such as 1, or {RANDOM}, not '{text:.60}'")
    return {"experts": int(text)}


def _layers(place: str, text: str) -> dict[str, Any]:
    try:
        return {"layers": tuple(map(int, text.split(",")))}
    except ValueError:
        raise UserError(f"{place} must be such as 0,2, not '{text:.60}'") from None


_READERS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "K": lambda place, text: {"loops": whole_number(place, text, 1, 1000)},
    "gates": _gates,
    "experts": _experts,
    "halting": lambda place, text: {"halting": number(place, text, "from 0 to 1", 0, 1)},
    "skip": lambda place, text: {"skip": number(place, text, "from 0 to 1", 0, 1)},
    "kv_slots": lambda place, text: {"kv_slots": whole_number(place, text, 1, 1000)},
    "layers": _layers,
    "seed": lambda place, text: {"seed": seed_number(place, text)},
    "tokens": lambda place, text: {"tokens": text},
}
"""Each makes fields of an Intervention; the first text says where the second one stands."""
