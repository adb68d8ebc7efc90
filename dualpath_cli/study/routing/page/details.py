"""The page's data beyond the rows of tokens: page/SOURCE.npz, and examples that are joined to it.

Shapes: M tokens of a source's sequences on the page, L layers with gates, S = K + 3 states of a
layer, F things that are forced.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dualpath_cli.files import replacing
from dualpath_cli.intervention import Intervention
from dualpath_cli.study.passes import Arrays, read_arrays
from dualpath_cli.study.routing.page.examples import Example, Model
from dualpath_cli.study.routing.page.passes import GATES, Forced, Lens, PagePass
from dualpath_cli.study.routing.readouts import EXPERT_READOUTS, by_name
from dualpath_cli.study.routing.tokens import TOKENS, read_examples

DETAILS = "page"
"""Folder of the files, one a source."""
BESIDE = "beside_"
"""The beginning of the names of arrays of the model with other loops."""


def write(folder: Path, source: str, numbers: Sequence[int], passes: Sequence[PagePass]) -> None:
    """Writes the arrays of a source's passes over the page's sequences, which `numbers` are.

    ==============================  ==========================================================
    numbers, counts                 the sequences, and how many tokens of each were read
    said, shares                    (M, L, S, 3), next, nats (M,), steps (L,): as `Lens` gives
                                    them, as n_experts (L,)
    costs                           (M, 1 + L, F): nats that forcing adds to the loss of the
                                    next token, in all layers and in each; nan where there is none
    forced                          (F,): what is forced
    beside_said and so on           the same of the model with other loops, and its read-outs
    ==============================  ==========================================================
    """
    arrays: Arrays = {"numbers": np.array(numbers)}
    for pass_ in passes:
        if isinstance(pass_, Lens):
            lead = BESIDE if pass_.intervention else ""
            arrays |= {lead + name: values for name, values in pass_.arrays.items()}
    by_layer: dict[tuple[int, ...] | None, list[Forced]] = {}
    for pass_ in passes:
        if isinstance(pass_, Forced) and pass_.intervention is not None:
            by_layer.setdefault(pass_.intervention.layers, []).append(pass_)
    if by_layer:
        learned = np.where(arrays["next"] >= 0, arrays["nats"], np.nan)[:, None, None]
        nats = [[pass_.arrays["nats"] for pass_ in row] for row in by_layer.values()]
        arrays["costs"] = np.moveaxis(np.array(nats), -1, 0) - learned
        arrays["forced"] = np.array([_name(pass_.intervention) for pass_ in by_layer[None]])
    with replacing(_path(folder, source)) as partial, partial.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def models(folder: Path, sources: Sequence[str], name: str, beside: str = "") -> tuple[Model, ...]:
    """Returns what is on the page of a run, read from its folder: its model under its `name`.

    Where it was read with other loops as well, these are a second model, whose name is `beside`.
    """
    found: dict[str, list[Example]] = {}
    steps: dict[str, list[int]] = {}
    experts: list[int] = []
    forced: list[str] = []
    for source in sources:
        details = read_arrays(_path(folder, source))
        examples = read_examples(folder / TOKENS, source, details["numbers"].tolist())
        found.setdefault("", []).extend(joined(examples, details))
        if f"{BESIDE}said" in details:
            found.setdefault(BESIDE, []).extend(joined(examples, details, BESIDE))
        steps |= {lead: details[f"{lead}steps"].tolist() for lead in found}
        experts = details["n_experts"].tolist()
        forced = details["forced"].tolist() if "forced" in details else []
    names = {"": (name, forced), BESIDE: (beside, [])}
    return tuple(
        Model(names[lead][0], steps[lead], examples, names[lead][1], experts)
        for lead, examples in found.items()
    )


def joined(examples: Sequence[Example], details: Arrays, lead: str = "") -> list[Example]:
    """Returns examples with what was said and what forcing costs, cut to the tokens that have it.

    With `BESIDE` they are what the model with other loops made of the same tokens.
    """
    counts = details["counts"]
    place = {number: n for n, number in enumerate(details["numbers"].tolist())}
    starts = np.cumsum(counts) - counts
    found = []
    for example in examples:
        start, count = (array[place[example.number]] for array in (starts, counts))
        kept = example.first(count)
        rows = slice(start, start + count)
        values: dict[str, Any] = {
            "said": details[f"{lead}said"][rows],
            "shares": details[f"{lead}shares"][rows],
            "next_ids": details[f"{lead}next"][rows],
            "next_nats": details[f"{lead}nats"][rows],
        }
        if lead:
            read_outs = details[f"{lead}read_outs"][rows]
            fields = Example.__dataclass_fields__
            values |= {n: array for n, array in by_name(read_outs).items() if n in fields}
            if example.experts is not None:
                values |= {n: details[f"{lead}{n}"][rows] for n in EXPERT_READOUTS}
            values |= {"nats": details[f"{lead}own_nats"][rows]}
        elif "costs" in details:
            values["costs"] = details["costs"][rows]
        found.append(replace(kept, **values))
    return found


def _name(intervention: Intervention | None) -> str:
    assert intervention is not None
    if intervention.gates is None:
        return f"K = {intervention.loops}"
    assert isinstance(intervention.gates, tuple)
    return GATES[intervention.gates]


def _path(folder: Path, source: str) -> Path:
    return folder / DETAILS / f"{source}.npz"
