"""Passes over the sequences of the page alone: the logit lens, and the cost of forcing.

Attention is causal, so the first tokens of a sequence have the same numbers without the
rest. These passes read no more of a sequence than the page has room for. Their results
are kept in page/SOURCE.npz.

Shapes: N text tokens of a batch or of a source, M those of a source on the page, D
model width, L layers with gates, K loops, S = K + 3 states of a layer, F interventions,
V vocabulary.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.dataset as ds
import torch
import torch.nn.functional as F
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import replacing
from dualpath_cli.data.windows import Windows
from dualpath_cli.model import RoutingTrace
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.run.weights import from_all_ranks
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.study.bench import FILLER, Arrays, Pass, read_arrays
from dualpath_cli.study.routing.options import RoutingOptions
from dualpath_cli.study.routing.page import tokens_with_room
from dualpath_cli.study.routing.readouts import (
    EXPERT_READOUTS,
    READOUTS,
    STEP_READOUTS,
    experts_by_layer,
    gated_layers,
    is_text,
    most_steps,
)
from dualpath_cli.study.routing.tokens import TOKENS, Example, Model
from dualpath_cli.training.module import DualPathModule

TOP = 3  # likeliest tokens of a state's prediction that are kept
GATES: Mapping[Any, str] = {
    (1.0, 0.0): "deep only",
    (0.0, 1.0): "wide only",
    (1.0, 1.0): "both open",
}
"""Forced (g_d, g_w), and their names on the page."""


def page_passes(
    source: str,
    windows: Windows,
    config: ModelConfig,
    options: RoutingOptions,
    sources: int,
    vocabulary: int,
    ranks: int,
) -> "list[PagePass]":
    """The passes over the sequences of a source that are on the page; `sources` counts
    all."""
    # In all layers, then in each with gates: fewer loops than any was trained with,
    # then gates.
    least = min(layer.loops for layer in config.layers if layer.block != "wide")
    changes = (
        []
        if options.no_costs
        else [
            change
            for layers in (None, *((n,) for n in gated_layers(config)))
            for change in (
                *(
                    Intervention(loops=count, layers=layers)
                    for count in range(1, least)
                ),
                *(Intervention(gates=gates, layers=layers) for gates in GATES),
            )
        ]
    )
    count = min(options.sequences, windows.n_filled)
    shown = sources * count  # a source has its share of the page
    room = tokens_with_room(
        shown, len(gated_layers(config)), most_steps(config), len(changes)
    )
    if not room:
        raise UserError(
            f"a page has no room for {count:,} sequences of {source}; give fewer "
            "--sequences"
        )
    # One more token is kept: the actual next one of the last. Fillers have no number.
    by_number = dict(zip(windows.numbers, windows.windows, strict=False))
    first = Windows(
        (by_number[number][: room + 2] for number in range(count)), multiple_of=ranks
    )
    return [
        PagePass(source, first, room, vocabulary, change) for change in (None, *changes)
    ]


@dataclass
class PagePass(Pass):
    """First tokens of some sequences of a source, read early or under an intervention.

    The results of an intervention are `next_nats`, (N,), the loss of each next token.
    Without one they are also the predictions of each state of a layer by
    ``head(norm(state))``: `said` and `shares`, (N, L, S, TOP) each, are ids of the
    likeliest next tokens, likeliest first, and their probabilities. The S = K + 3
    states of a layer are its input, h_1 .. h_K, h_wide and its output; K is the largest
    of these layers, and a layer of fewer steps repeats its last one. `next_ids` (N,)
    are the actual next tokens, -1 at the end of a window.
    """

    tokens: int  # read of a sequence at most; `windows` have one more
    vocabulary: int  # ids of the tokenizer; the head may have further rows
    intervention: Intervention | None

    last_is_input = True

    @property
    def title(self) -> str:
        name = "" if self.intervention is None else f", {self.intervention.name}"
        return f"{self.source}, page{name}"

    @property
    def decisive(self) -> Mapping[str, Any]:
        change = None if self.intervention is None else asdict(self.intervention)
        is_cut = any(len(window) > 1 + self.tokens for window in self.windows.windows)
        return {"page": True, "cut": is_cut, "intervention": change}

    def begin(self, module: DualPathModule, files: ExitStack) -> None:
        self._module = module
        self._found: dict[int, Arrays] = {}
        model = module.model
        assert model is not None
        if self.intervention is not None:
            return
        if isinstance(model, FSDPModule):
            # an earlier forward gathered these weights, and may free them
            model.reshard()
        self._norm, self._head = (
            weight.full_tensor() if isinstance(weight, DTensor) else weight.detach()
            for weight in (model.norm.weight, model.head.weight)
        )

    def step(
        self, tokens: torch.Tensor, targets: torch.Tensor, places: list[int]
    ) -> None:
        assert self._module.model is not None
        text_BT = is_text(tokens, targets, self._module.train_loss.bytes_of_token)
        text_BT[:, 1 + self.tokens :] = False
        trace = RoutingTrace(keeps_states=True) if self.intervention is None else None
        nll_BT = self._module.model(
            tokens, targets, trace=trace, intervention=self.intervention
        )
        found = {"next_nats": nll_BT[text_BT].float()}
        if trace is not None:
            next_N = targets[text_BT]
            found |= self._lens(trace, text_BT)
            found["next_ids"] = next_N.where(next_N != IGNORE, -1).int()
        counts = text_BT.sum(1).tolist()
        parts = {name: values.cpu().split(counts) for name, values in found.items()}
        for row, place in enumerate(places):
            if place != FILLER:
                self._found[place] = {
                    name: rows[row].numpy() for name, rows in parts.items()
                }

    def end(self) -> Arrays:
        """Returns the rows of all tokens, sequence by sequence, and `counts`, those of
        each.

        Sequences are in the order of the source.
        """
        found = {
            place: a
            for part in from_all_ranks(self._found)
            for place, a in part.items()
        }
        order = np.argsort(self.windows.numbers)  # they go from longest to shortest
        inorder = [found[place] for place in order.tolist()]
        arrays = {
            name: np.concatenate([a[name] for a in inorder]) for name in inorder[0]
        }
        return arrays | {"counts": np.array([len(a["next_nats"]) for a in inorder])}

    def _lens(
        self, trace: RoutingTrace, text_BT: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        layers = list(_states(trace))
        # A layer's output is the next one's input: each is read once.
        states = {id(state_BTD): state_BTD for layer in layers for state_BTD in layer}
        read = {
            key: self._most_likely(state_BTD[text_BT])
            for key, state_BTD in states.items()
        }
        said, shares = (
            torch.stack(
                [
                    torch.stack([read[id(state)][n] for state in layer], 1)
                    for layer in layers
                ],
                1,
            )
            for n in (0, 1)
        )
        return {"said": said.int(), "shares": shares}

    def _most_likely(self, state_ND: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and probabilities of the likeliest tokens, (N, TOP) each."""
        norm, eps, found = self._norm, self._module.config.norm_eps, []
        rows = max(1, 2**25 // len(self._head))  # 128 MiB of logits in float32
        for part_ND in state_ND.split(rows):
            normed_ND = F.rms_norm(part_ND.to(norm.dtype), norm.shape, norm, eps)
            logits_NV = F.linear(normed_ND, self._head)[:, : self.vocabulary]
            logits_NV = logits_NV.to(
                torch.promote_types(logits_NV.dtype, torch.float32)
            )
            top = logits_NV.topk(TOP)
            shares_N3 = (top.values - logits_NV.logsumexp(-1, keepdim=True)).exp()
            found.append((top.indices, shares_N3))
        ids, shares = zip(*found, strict=True)
        return torch.cat(ids), torch.cat(shares)


def _states(trace: RoutingTrace) -> Iterator[list[torch.Tensor]]:
    """Yields the states of each layer with gates, (B, T, D) each: input, loops, wide,
    output.

    A layer of fewer steps than another repeats its last one.
    """
    most = max(
        len(layer.deep_states) for layer in trace.layers if layer.gate_deep is not None
    )
    outputs = [*(layer.x for layer in trace.layers[1:]), trace.output]
    for layer, output in zip(trace.layers, outputs, strict=True):
        if layer.gate_deep is not None:
            assert layer.x is not None
            assert layer.wide_state is not None
            assert output is not None
            repeated = layer.deep_states[-1:] * (most - len(layer.deep_states))
            yield [layer.x, *layer.deep_states, *repeated, layer.wide_state, output]


def write_details(folder: Path, source: str, passes: Sequence[PagePass]) -> None:
    """Writes the results of a source's passes over the page's sequences.

    ==============================  ====================================================
    counts                          how many tokens of each sequence were read
    said, shares                    (M, L, S, TOP), next_ids, next_nats (M,): see
                                    `PagePass`
    costs                           (M, 1 + L, F): nats that forcing adds to the loss of
                                    the next token, in all layers and in each; nan where
                                    there is none
    forced                          (F,): names of the interventions
    ==============================  ====================================================
    """
    early, *others = passes
    arrays = dict(early.arrays)
    if others:
        learned = np.where(arrays["next_ids"] >= 0, arrays["next_nats"], np.nan)
        changes = [
            pass_.intervention for pass_ in others if pass_.intervention is not None
        ]
        forced = [
            GATES.get(change.gates, f"K = {change.loops}")
            for change in changes
            if change.layers is None
        ]
        costs = np.stack([pass_.arrays["next_nats"] - learned for pass_ in others], 1)
        arrays["costs"] = costs.reshape(len(learned), -1, len(forced))
        arrays["forced"] = np.array(forced)
    with (
        replacing(folder / "page" / f"{source}.npz") as partial,
        partial.open("wb") as file,
    ):
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read_page(folder: Path, sources: Sequence[str], config: ModelConfig) -> Model:
    """The first tokens of the page's sequences, from their rows and what
    `write_details` wrote.

    Sequences without text tokens are left out.
    """
    examples: list[Example] = []
    for source in sources:
        details = read_arrays(folder / "page" / f"{source}.npz")
        counts = details.pop("counts").tolist()
        forced = details.pop("forced", np.array([])).tolist()
        parts = {
            name: np.split(rows, np.cumsum(counts)[:-1])
            for name, rows in details.items()
        }
        chosen = (ds.field("source") == source) & (ds.field("sequence") < len(counts))
        table = ds.dataset(folder / TOKENS).to_table(filter=chosen).sort_by("position")
        names = {"nats", *READOUTS, *STEP_READOUTS, *EXPERT_READOUTS} & {
            *table.schema.names
        }
        for number, count in enumerate(counts):
            rows = table.filter(pc.equal(table["sequence"], number))
            if not len(rows):
                continue
            first = rows.slice(0, count)
            tagged = rows["upos"].null_count < len(rows)
            values = {
                name: np.array(first[name].to_pylist(), np.float32) for name in names
            }
            steps_K = np.arange(1, values["step_weights"].shape[-1] + 1)
            # all digits
            values["expected_loops"] = (values["step_weights"] * steps_K).sum(-1)
            examples.append(
                Example(
                    source,
                    number,
                    len(rows),
                    first["token"].to_pylist(),
                    [tag or "" for tag in first["upos"].to_pylist()]
                    if tagged
                    else None,
                    values | {name: of[number] for name, of in parts.items()},
                )
            )
    steps = [config.layers[n].loops for n in gated_layers(config)]
    return Model(steps, examples, forced, experts_by_layer(config))
