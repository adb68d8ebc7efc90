"""Passes over the sequences of the page alone: the logit lens, and what forcing would cost.

Attention is causal, so that the first tokens of a sequence give what they give in the whole of it.
These passes read no more of a sequence than the page has room for.

Shapes: N text tokens of a batch or of a source, D model width, L layers with gates, K loops, S
states of a layer, V vocabulary.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from dualpath_cli.config import ModelConfig
from dualpath_cli.intervention import Intervention
from dualpath_cli.model import RoutingTrace
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.study.passes import FILLER, Arrays, Pass
from dualpath_cli.study.routing.options import Routing
from dualpath_cli.study.routing.page.encoding import likely_tokens
from dualpath_cli.study.routing.readouts import (
    EXPERT_READOUTS,
    dual_layers,
    experts_by_layer,
    experts_of,
    is_text,
    most_steps,
)
from dualpath_cli.training.data.windows import Windows
from dualpath_cli.training.module import DualPathModule
from dualpath_cli.training.state.integrity import from_all_ranks

TOP = 3
"""Tokens of a state's prediction that are kept, the likeliest ones."""
LOGITS = 2**25
"""Logits held at once, 128 MiB in float32."""
GATES = {(1.0, 0.0): "deep only", (0.0, 1.0): "wide only", (1.0, 1.0): "both open"}
"""(g_d, g_w) that are forced, and what the page calls them."""


def first_tokens(windows: Windows, numbers: Sequence[int], tokens: int, ranks: int) -> Windows:
    """Returns the windows of some sequences of a source, in their order, cut to first tokens.

    One more token is kept: what really came after the last one. `numbers` count from 0.
    """
    by_number = dict(zip(windows.numbers, windows.windows, strict=False))  # fillers have none
    return Windows((by_number[number][: tokens + 2] for number in numbers), multiple_of=ranks)


def forced(config: ModelConfig) -> list[list[Intervention]]:
    """Returns what is forced: in all layers, then in each layer with gates alone, a list each.

    Every list has fewer loops than any layer was trained with, then constant gates.
    """
    places = [None, *((n,) for n, kind in enumerate(config.block_kinds) if kind == "dual")]
    least = min(layer.loops for layer in config.layers if layer.block != "wide")
    return [
        [
            *(Intervention(loops=count, layers=layers) for count in range(1, least)),
            *(Intervention(gates=gates, layers=layers) for gates in GATES),
        ]
        for layers in places
    ]


def page_passes(
    source: str,
    windows: Windows,
    shown: Sequence[int],
    of_all: int,
    config: ModelConfig,
    options: Routing,
    vocabulary: int,
    ranks: int = 1,
) -> "list[PagePass]":
    """Returns the passes over the sequences of a source that are on the page.

    `shown` are their numbers, `of_all` is how many sequences all sources have on it.
    """
    changes = [row for rows in forced(config) for row in rows] if not options.no_costs else []
    beside = [] if options.beside_loops is None else [Intervention(loops=options.beside_loops)]
    room = likely_tokens(
        of_all,
        config.block_kinds.count("dual"),
        [most_steps(config), *(change.loops or 0 for change in beside)],
        len(changes),
    )
    first = first_tokens(windows, shown, room, ranks)
    return [
        Lens(source, first, room, vocabulary=vocabulary),
        *(Lens(source, first, room, change, vocabulary=vocabulary) for change in beside),
        *(Forced(source, first, room, change) for change in changes),
    ]


@dataclass
class PagePass(Pass):
    """First tokens of some sequences of a source, under an intervention."""

    tokens: int
    """The most tokens that are read of a sequence; `first_tokens` has one more."""
    intervention: Intervention | None = None

    last_is_input = True

    @property
    def title(self) -> str:
        name = "" if self.intervention is None else f", {self.intervention.name}"
        return f"{self.source}, page{name}"

    @property
    def decisive(self) -> Mapping[str, Any]:
        change = None if self.intervention is None else asdict(self.intervention)
        is_cut = any(len(window) > 1 + self.tokens for window in self.windows.windows)
        return {"page": type(self).__name__, "cut": is_cut, "intervention": change}

    def begin(self, module: DualPathModule, files: ExitStack) -> None:
        self._module = module
        self._found: dict[int, Arrays] = {}

    def step(self, tokens: torch.Tensor, targets: torch.Tensor, places: list[int]) -> None:
        text_BT = is_text(tokens, targets, self._module.train_loss.bytes_of_token)
        text_BT[:, 1 + self.tokens :] = False
        found = self.read(tokens, targets, text_BT)
        parts = {
            name: values.cpu().split(text_BT.sum(1).tolist()) for name, values in found.items()
        }
        for row, place in enumerate(places):
            if place != FILLER:
                self._found[place] = {name: rows[row].numpy() for name, rows in parts.items()}

    @abstractmethod
    def read(
        self, tokens: torch.Tensor, targets: torch.Tensor, text_BT: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Runs the model; returns arrays with a row for each text token of the batch, (N, ...)."""

    def end(self) -> Arrays:
        """Returns the rows of all tokens, sequence by sequence, and `counts`, those of each.

        Sequences are in the order in which they were given to `first_tokens`.
        """
        found = {place: a for part in from_all_ranks(self._found) for place, a in part.items()}
        order = np.argsort(self.windows.numbers)  # from longest first to the order that was given
        inorder = [found[place] for place in order.tolist()]
        arrays = {name: np.concatenate([a[name] for a in inorder]) for name in inorder[0]}
        counts = [len(next(iter(a.values()))) for a in inorder]
        return arrays | {"counts": np.array(counts)}


@dataclass
class Forced(PagePass):
    """The loss of every next token under an intervention: `nats`, (N,)."""

    def read(
        self, tokens: torch.Tensor, targets: torch.Tensor, text_BT: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        assert self._module.model is not None
        nll_BT = self._module.model(tokens, targets, intervention=self.intervention)
        return {"nats": nll_BT[text_BT].float()}


@dataclass
class Lens(PagePass):
    """The next tokens that each state of a layer predicts: ``head(norm(state))``.

    Gives `said` and `shares`, (N, L, S, TOP) each: ids of the likeliest next tokens, likeliest
    first, and their probabilities. The S = K + 3 states of a layer are its input, h_1 .. h_K,
    h_wide and its output; K is the largest of these layers, and one of fewer steps, whose numbers
    are `steps`, (L,), repeats its last one. `next` is the id of the token that really comes next,
    -1 at the end of a window, and `nats` its loss, (N,) each. `n_experts` (L,) counts the experts
    of a layer. Under an intervention also `read_outs`, (N, L, columns), `experts` and
    `expert_weights`, (N, L, C), and `own_nats`, the loss of the token itself, (N,).
    """

    vocabulary: int = 0
    """Ids that the tokenizer has; further rows of the head stand for nothing."""

    def begin(self, module: DualPathModule, files: ExitStack) -> None:
        super().begin(module, files)
        model = module.model
        assert model is not None
        if isinstance(model, FSDPModule):
            model.reshard()  # what is gathered from an earlier forward would be freed under us
        self._norm, self._head = _whole(model.norm.weight), _whole(model.head.weight)

    def read(
        self, tokens: torch.Tensor, targets: torch.Tensor, text_BT: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        assert self._module.model is not None
        trace = RoutingTrace(keeps_states=True)
        nll_BT = self._module.model(tokens, targets, trace=trace, intervention=self.intervention)
        gated = [layer for layer in trace.layers if layer.gate_deep is not None]
        self._steps = [len(layer.deep_states) for layer in gated]
        layers = list(_states(trace))
        # A layer's output is the next one's input: each is read once.
        states = {id(state_BTD): state_BTD for layer in layers for state_BTD in layer}
        read = {key: self._most_likely(state_BTD[text_BT]) for key, state_BTD in states.items()}
        said, shares = (
            torch.stack(
                [torch.stack([read[id(state)][n] for state in layer], 1) for layer in layers], 1
            )
            for n in (0, 1)
        )
        next_N = targets[text_BT]
        found = {
            "said": said.int(),
            "shares": shares,
            "next": next_N.where(next_N != IGNORE, -1).int(),
            "nats": nll_BT[text_BT].float(),
        }
        if self.intervention is not None:
            found["read_outs"] = dual_layers(trace)[text_BT].float()
            chosen = zip(EXPERT_READOUTS, experts_of(trace), strict=True)
            found |= {name: values[text_BT].float() for name, values in chosen}
            found["own_nats"] = nll_BT.roll(1, 1)[text_BT].float()
        return found

    def end(self) -> Arrays:
        experts = experts_by_layer(self._module.config)
        return super().end() | {"steps": np.array(self._steps), "n_experts": np.array(experts)}

    def _most_likely(self, state_ND: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and probabilities of the likeliest tokens, (N, TOP) each."""
        rows = max(1, LOGITS // len(self._head))
        found = [_top(self._logits(part_ND)) for part_ND in state_ND.split(rows)]
        ids, shares = zip(*found, strict=True)
        return torch.cat(ids), torch.cat(shares)

    def _logits(self, state_ND: torch.Tensor) -> torch.Tensor:
        eps = self._module.config.norm_eps
        normed_ND = F.rms_norm(state_ND.to(self._norm.dtype), self._norm.shape, self._norm, eps)
        logits_NV = F.linear(normed_ND, self._head)[:, : self.vocabulary]
        return logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))


def _top(logits_NV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    top = logits_NV.topk(TOP)
    return top.indices, (top.values - logits_NV.logsumexp(-1, keepdim=True)).exp()


def _states(trace: RoutingTrace) -> Iterator[list[torch.Tensor]]:
    """Yields the states of each layer with gates, (B, T, D) each: input, loops, wide, output.

    All have as many: a layer of fewer steps repeats its last one.
    """
    most = max(len(layer.deep_states) for layer in trace.layers if layer.gate_deep is not None)
    outputs = [*(layer.x for layer in trace.layers[1:]), trace.output]
    for layer, output in zip(trace.layers, outputs, strict=True):
        if layer.gate_deep is not None:
            assert layer.x is not None
            assert layer.wide_state is not None
            assert output is not None
            repeated = layer.deep_states[-1:] * (most - len(layer.deep_states))
            yield [layer.x, *layer.deep_states, *repeated, layer.wide_state, output]


def _whole(parameter: torch.Tensor) -> torch.Tensor:
    """A parameter, gathered from all ranks where it is sharded."""
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter.detach()
