"""Passes over only the page's sequences: the logit lens, and the cost of forcing.

These passes read no more of a sequence than the page has room for. Their results are
kept in page/SOURCE.npz.

Shapes: N text tokens of a batch or of a source, M those of a source on the page, D
model width, L places of layers with gates, K loops, S = K + 3 states of a place, F
interventions, V vocabulary.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from dualpath_cli.base.errors import UserError
from dualpath_cli.data.windows import Windows
from dualpath_cli.model import RoutingTrace
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.study.bench import (
    FILLER,
    Arrays,
    Pass,
    found_by_all_ranks,
    write_arrays,
)
from dualpath_cli.study.routing.options import RoutingOptions
from dualpath_cli.study.routing.page import tokens_with_room
from dualpath_cli.study.routing.page.examples import details_of
from dualpath_cli.study.routing.readouts import (
    core_repetitions,
    gated_places,
    is_text,
    most_experts,
    most_steps,
)
from dualpath_cli.training.module import DualPathModule
from dualpath_cli.training.parallel import whole_weight

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
    changes = [] if options.no_costs else _forced(config)
    count = min(options.sequences, windows.n_filled)
    shown = sources * count  # a source has its share of the page
    places = len(gated_places(config))
    in_all_layers = [change for change in changes if change.layers is None]
    forced = len(in_all_layers) * (1 + places)
    chosen = most_experts(config)
    room = tokens_with_room(
        shown, places, most_steps(config), forced, core_repetitions(config), chosen
    )
    if not room:
        raise UserError(
            f"a page has no room for {count:,} sequences of {source}; give fewer "
            "--sequences"
        )

    # Attention is causal, so first tokens have the same numbers without the rest. One
    # more token is kept: the actual next one of the last. Fillers have no number.
    window_of_number = dict(zip(windows.numbers, windows.windows, strict=False))
    cut = [window_of_number[number][: room + 2] for number in range(count)]
    first_tokens = Windows(cut, multiple_of=ranks)
    return [
        PagePass(source, first_tokens, room, vocabulary, change)
        for change in (None, *changes)
    ]


def _forced(config: ModelConfig) -> list[Intervention]:
    """Fewer loops than any layer was trained with, then gates: in all layers, then in
    each with gates. In all layers also fewer repetitions of the core."""
    least = min(layer.loops for layer in config.deep_layers)
    changes: list[Intervention] = []
    in_each_layer = dict.fromkeys((place.layer,) for place in gated_places(config))
    for layers in (None, *in_each_layer):
        changes += [Intervention(loops=k, layers=layers) for k in range(1, least)]
        if layers is None:
            fewer = range(1, config.core_loops)
            changes += [Intervention(core_loops=r) for r in fewer]
        changes += [Intervention(gates=gates, layers=layers) for gates in GATES]

    return changes


@dataclass
class PagePass(Pass):
    """First tokens of some sequences of a source, read early or under an intervention.

    The results of an intervention are `next_nats`, (N,), the loss of each next token.
    Without one they are also the predictions of each state of a layer by
    ``head(norm(state))``: `said` and `shares`, (N, L, S, TOP) each, the ids of the
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
        super().begin(module, files)
        self._found: dict[int, Arrays] = {}  # by place of the sequence
        if self.intervention is not None:
            return

        self._norm_D = whole_weight(self.model, "norm.weight")
        self._head_VD = whole_weight(self.model, "head.weight")

    def step(
        self, tokens: torch.Tensor, targets: torch.Tensor, places: list[int]
    ) -> None:
        bytes_of_token = self._module.train_loss.bytes_of_token
        text_BT = is_text(tokens, targets, bytes_of_token)
        # A cut window has a token more, which is only the next one of the last.
        text_BT[:, 1 + self.tokens :] = False

        trace = None
        if self.intervention is None:
            trace = RoutingTrace(keeps_states=True)
        nll_BT = self.model(
            tokens, targets, trace=trace, intervention=self.intervention
        )
        found = {"next_nats": nll_BT[text_BT].float()}
        if trace is not None:
            found |= self._lens(trace, text_BT)
            next_N = targets[text_BT]
            found["next_ids"] = next_N.where(next_N != IGNORE, -1).int()

        # The rows of all sequences of the batch follow each other: split them again.
        counts = text_BT.sum(1).tolist()
        by_row = {name: values.cpu().split(counts) for name, values in found.items()}
        for row, place in enumerate(places):
            if place != FILLER:
                own = {name: rows[row].numpy() for name, rows in by_row.items()}
                self._found[place] = own

    def end(self) -> Arrays:
        """Returns the rows of all tokens, sequence by sequence, and `counts`, those of
        each.

        Sequences are in the order of the source.
        """
        found = found_by_all_ranks(self._found)
        order = np.argsort(self.windows.numbers)  # windows go from longest to shortest
        in_order = [found[place] for place in order.tolist()]
        arrays = {
            name: np.concatenate([sequence[name] for sequence in in_order])
            for name in in_order[0]
        }
        counts = [len(sequence["next_nats"]) for sequence in in_order]
        return arrays | {"counts": np.array(counts)}

    def _lens(
        self, trace: RoutingTrace, text_BT: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """`said` and `shares` of all states, (N, L, S, TOP) each."""
        # A layer's output is the next one's input: each is read once.
        predictions: dict[int, Prediction] = {}
        layers = list(_states_by_place(trace, self._module.config))
        for layer in layers:
            for state_BTD in layer:
                if id(state_BTD) not in predictions:
                    likeliest = self._likeliest_next(state_BTD[text_BT])
                    predictions[id(state_BTD)] = likeliest

        ids = []
        shares = []
        for layer in layers:
            of_layer = [predictions[id(state_BTD)] for state_BTD in layer]
            ids.append(torch.stack([state.ids for state in of_layer], 1))
            shares.append(torch.stack([state.shares for state in of_layer], 1))

        return {"said": torch.stack(ids, 1).int(), "shares": torch.stack(shares, 1)}

    def _likeliest_next(self, state_ND: torch.Tensor) -> "Prediction":
        """The likeliest next tokens of states by ``head(norm(state))``."""
        norm_D = self._norm_D
        eps = self._module.config.norm_eps
        ids = []
        shares = []

        rows = max(1, 2**25 // len(self._head_VD))  # 128 MiB of logits in float32
        for part_ND in state_ND.split(rows):
            normed_ND = F.rms_norm(part_ND.to(norm_D.dtype), norm_D.shape, norm_D, eps)
            logits_NV = F.linear(normed_ND, self._head_VD)[:, : self.vocabulary]
            exact = torch.promote_types(logits_NV.dtype, torch.float32)
            logits_NV = logits_NV.to(exact)

            top = logits_NV.topk(TOP)
            total_N1 = logits_NV.logsumexp(-1, keepdim=True)
            ids.append(top.indices)
            shares.append((top.values - total_N1).exp())

        return Prediction(torch.cat(ids), torch.cat(shares))


class Prediction(NamedTuple):
    """The likeliest next tokens of states."""

    ids: torch.Tensor  # (N, TOP), likeliest first
    shares: torch.Tensor  # their probabilities, (N, TOP)


def _states_by_place(
    trace: RoutingTrace, config: ModelConfig
) -> Iterator[list[torch.Tensor]]:
    """Yields the states of each place, (B, T, D) each: input, loops, wide, output.

    A layer of fewer steps than another repeats its last one.
    """
    most = most_steps(config)
    for layer, output in zip(trace.layers, _outputs(trace, config), strict=True):
        if layer.gate_deep is None:
            continue
        assert layer.x is not None
        assert layer.wide_state is not None
        assert output is not None

        missing = most - len(layer.deep_states)
        repeated = layer.deep_states[-1:] * missing
        yield [layer.x, *layer.deep_states, *repeated, layer.wide_state, output]


def _outputs(trace: RoutingTrace, config: ModelConfig) -> Iterator[torch.Tensor | None]:
    """Yields the output of each application of a layer, (B, T, D)."""
    _, core, _ = config.stretches
    inputs = [layer.x for layer in trace.layers]
    for layer, following in zip(trace.layers, [*inputs[1:], trace.output], strict=True):
        ends_repetition = bool(core) and layer.layer == core[-1]
        if ends_repetition and trace.core is not None:
            # What follows may be injected into, or a mixture of repetitions.
            yield trace.core.deep_states[layer.repetition]
        else:
            yield following


def write_details(
    folder: Path, source: str, passes: Sequence[PagePass], config: ModelConfig
) -> None:
    """Writes the results of a source's passes over the page's sequences.

    ==============================  ====================================================
    counts                          how many tokens of each sequence were read
    said, shares                    (M, L, S, TOP), next_ids, next_nats (M,): see
                                    `PagePass`
    costs                           (M, 1 + L, F): nats that forcing adds to the loss of
                                    the next token, in all layers and in the layer of
                                    each place; nan where there is none
    forced                          (F,): names of the interventions
    ==============================  ====================================================
    """
    learned_pass, *forced_passes = passes
    arrays = dict(learned_pass.arrays)
    if forced_passes:
        has_next_M = arrays["next_ids"] >= 0
        learned_M = np.where(has_next_M, arrays["next_nats"], np.nan)
        costs = {}
        for pass_ in forced_passes:
            assert pass_.intervention is not None
            key = (_name_of_forced(pass_.intervention), pass_.intervention.layers)
            costs[key] = pass_.arrays["next_nats"] - learned_M

        names = [name for name, layers in costs if layers is None]
        rows = [None, *((place.layer,) for place in gated_places(config))]
        # Repetitions of the core are forced in all layers only.
        none_M = np.full_like(learned_M, np.nan)
        by_row = [
            np.stack([costs.get((name, layers), none_M) for name in names], 1)
            for layers in rows
        ]
        arrays["costs"] = np.stack(by_row, 1)
        arrays["forced"] = np.array(names)

    write_arrays(details_of(folder, source), arrays)


def remove_other_details(folder: Path, sources: Collection[str]) -> None:
    """Removes the results of sources that only an earlier call read."""
    kept = {details_of(folder, source) for source in sources}
    for path in (folder / "page").glob("*.npz"):
        if path not in kept:
            path.unlink()


def _name_of_forced(change: Intervention) -> str:
    """The name of an intervention on the page."""
    if change.core_loops is not None:
        return f"R = {change.core_loops}"
    return GATES.get(change.gates, f"K = {change.loops}")
