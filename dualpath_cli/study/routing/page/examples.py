"""The sequences of a page: their first tokens, from rows of `TOKENS` and from the
results of the page's passes.

Shapes: N tokens, L places of layers with gates, K loops, R repetitions of the core, F
interventions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.study.bench import read_arrays
from dualpath_cli.study.routing.readouts import (
    CORE_READOUTS,
    EXPERT_READOUTS,
    READOUTS,
    STEP_READOUTS,
    core_repetitions,
    experts_by_place,
    gated_places,
)
from dualpath_cli.study.routing.tokens import TOKENS


class Example(NamedTuple):
    """The first tokens of a sequence, and their read-outs in the layers with gates."""

    source: str
    number: int  # of the sequence in the source, from 0 on
    length: int  # tokens of the whole sequence
    tokens: list[str]  # the text of each token, see `token_texts`
    # part of speech of each token; None where nothing was tagged
    upos: list[str] | None
    values: dict[str, npt.NDArray[Any]]
    """By name: `nats`, the loss of each token after those before it, (N,); the
    read-outs as in `TokenTable`, (N, L, ...); on the page also the arrays of
    `page.passes.write_details`."""


@dataclass(frozen=True)
class PageData:
    """A model's read-outs of the sequences of a page."""

    steps: Sequence[int]  # of each place, (L,); K is the largest
    examples: Sequence[Example]
    forced: Sequence[str] = ()  # names of the interventions whose costs are known, (F,)
    experts: Sequence[int] = ()  # of each place, (L,)
    repetitions: int = 0  # R; 0 where no layers repeat


def details_of(folder: Path, source: str) -> Path:
    return folder / "page" / f"{source}.npz"


def read_page(folder: Path, sources: Sequence[str], config: ModelConfig) -> PageData:
    """The first tokens of the page's sequences: rows of `TOKENS`, and arrays of
    `write_details`.

    Sequences without text tokens are left out.
    """
    examples: list[Example] = []
    for source in sources:
        details = read_arrays(details_of(folder, source))
        counts = details.pop("counts").tolist()
        forced = details.pop("forced", np.array([])).tolist()
        ends = np.cumsum(counts)
        details_by_sequence = {
            name: np.split(rows, ends[:-1]) for name, rows in details.items()
        }

        # The table has rows of all sequences, of which the page has the first ones.
        chosen = (ds.field("source") == source) & (ds.field("sequence") < len(counts))
        table = ds.dataset(folder / TOKENS).to_table(filter=chosen).sort_by("position")
        for number, count in enumerate(counts):
            rows = table.filter(pc.equal(table["sequence"], number))
            if not len(rows):
                continue
            example = _example(source, number, rows, count)
            for name, by_sequence in details_by_sequence.items():
                example.values[name] = by_sequence[number]
            examples.append(example)

    steps = [config.layers[place.layer].loops for place in gated_places(config)]
    return PageData(
        steps, examples, forced, experts_by_place(config), core_repetitions(config)
    )


def _example(source: str, number: int, rows: pa.Table, count: int) -> Example:
    """The first `count` tokens of a sequence, with the read-outs in its rows."""
    first = rows.slice(0, count)
    numeric = {
        "nats",
        *READOUTS,
        *STEP_READOUTS,
        *EXPERT_READOUTS,
        *CORE_READOUTS,
    }
    values = {
        name: np.array(first[name].to_pylist(), np.float32)
        for name in rows.schema.names
        if name in numeric
    }

    # Recomputed: the column in float32 lacks digits that the page shows.
    steps_K = np.arange(1, values["step_weights"].shape[-1] + 1)
    values["expected_loops"] = (values["step_weights"] * steps_K).sum(-1)

    is_tagged = rows["upos"].null_count < len(rows)
    upos = [tag or "" for tag in first["upos"].to_pylist()] if is_tagged else None
    texts = first["token"].to_pylist()
    return Example(source, number, len(rows), texts, upos, values)
