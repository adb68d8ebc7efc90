"""Passes over the sequences of the page alone: the logit lens, and what forcing would cost.

Attention is causal, so that the first tokens of a sequence give what they give in the whole of it.
These passes read no more of a sequence than the page has room for. What they give is kept in
page/SOURCE.npz, which examples are joined to.

Shapes: N text tokens of a batch or of a source, M those of a source on the page, D model width, L
layers with gates, K loops, S = K + 3 states of a layer, F things that are forced, V vocabulary.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from dualpath_cli.base.system import replacing
from dualpath_cli.data.windows import Windows
from dualpath_cli.model import RoutingTrace
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.run.weights import from_all_ranks
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.study.passes import FILLER, Arrays, Pass, read_arrays
from dualpath_cli.study.routing.options import RoutingOptions
from dualpath_cli.study.routing.page.page import likely_tokens
from dualpath_cli.study.routing.readouts import experts_by_layer, gated_layers, is_text, most_steps
from dualpath_cli.study.routing.tokens import TOKENS, Example, Model, read_examples
from dualpath_cli.training.module import DualPathModule

TOP = 3  # tokens of a state's prediction that are kept, the likeliest ones
GATES = {(1.0, 0.0): "deep only", (0.0, 1.0): "wide only", (1.0, 1.0): "both open"}
"""(g_d, g_w) that are forced, and what the page calls them."""


def page_passes(
    source: str,
    windows: Windows,
    shown: Sequence[int],
    of_all: int,
    config: ModelConfig,
    options: RoutingOptions,
    vocabulary: int,
    ranks: int = 1,
) -> "list[PagePass]":
    """The passes over the sequences of a source that are on the page.

    `shown` are their numbers, `of_all` is how many sequences all sources have on it.
    """
    # In all layers, then in each with gates: fewer loops than any was trained with, then gates.
    least = min(layer.loops for layer in config.layers if layer.block != "wide")
    changes = [] if options.no_costs else [
        change
        for layers in (None, *((n,) for n in gated_layers(config)))
        for change in (
            *(Intervention(loops=count, layers=layers) for count in range(1, least)),
            *(Intervention(gates=gates, layers=layers) for gates in GATES),
        )
    ]  # fmt: skip
    layers = config.block_kinds.count("dual")
    room = likely_tokens(of_all, layers, most_steps(config), len(changes))
    # One more token is kept: what really came after the last one. Fillers have no number.
    by_number = dict(zip(windows.numbers, windows.windows, strict=False))
    first = Windows((by_number[number][: room + 2] for number in shown), multiple_of=ranks)
    return [
        Lens(source, first, room, vocabulary=vocabulary),
        *(Forced(source, first, room, change) for change in changes),
    ]


@dataclass
class PagePass(Pass):
    """First tokens of some sequences of a source, under an intervention."""

    tokens: int  # the most that are read of a sequence; `windows` have one more
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

        Sequences are in the order in which `page_passes` was given them.
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
    of a layer.
    """

    vocabulary: int = 0  # ids that the tokenizer has; further rows of the head stand for nothing

    def begin(self, module: DualPathModule, files: ExitStack) -> None:
        super().begin(module, files)
        model = module.model
        assert model is not None
        if isinstance(model, FSDPModule):
            model.reshard()  # what is gathered from an earlier forward would be freed under us
        self._norm, self._head = (
            weight.full_tensor() if isinstance(weight, DTensor) else weight.detach()
            for weight in (model.norm.weight, model.head.weight)
        )

    def read(
        self, tokens: torch.Tensor, targets: torch.Tensor, text_BT: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        assert self._module.model is not None
        trace = RoutingTrace(keeps_states=True)
        nll_BT = self._module.model(tokens, targets, trace=trace)
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
        return {
            "said": said.int(),
            "shares": shares,
            "next": next_N.where(next_N != IGNORE, -1).int(),
            "nats": nll_BT[text_BT].float(),
        }

    def end(self) -> Arrays:
        experts = experts_by_layer(self._module.config)
        return super().end() | {"steps": np.array(self._steps), "n_experts": np.array(experts)}

    def _most_likely(self, state_ND: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and probabilities of the likeliest tokens, (N, TOP) each."""
        norm, eps, found = self._norm, self._module.config.norm_eps, []
        rows = max(1, 2**25 // len(self._head))  # 128 MiB of logits in float32
        for part_ND in state_ND.split(rows):
            normed_ND = F.rms_norm(part_ND.to(norm.dtype), norm.shape, norm, eps)
            logits_NV = F.linear(normed_ND, self._head)[:, : self.vocabulary]
            logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
            top = logits_NV.topk(TOP)
            shares_N3 = (top.values - logits_NV.logsumexp(-1, keepdim=True)).exp()
            found.append((top.indices, shares_N3))
        ids, shares = zip(*found, strict=True)
        return torch.cat(ids), torch.cat(shares)


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


def write_details(
    folder: Path, source: str, numbers: Sequence[int], passes: Sequence[PagePass]
) -> None:
    """Writes the arrays of a source's passes over the page's sequences, which `numbers` are.

    ==============================  ==========================================================
    numbers, counts                 the sequences, and how many tokens of each were read
    said, shares                    (M, L, S, 3), next, nats (M,), steps (L,): as `Lens` gives
                                    them, as n_experts (L,)
    costs                           (M, 1 + L, F): nats that forcing adds to the loss of the
                                    next token, in all layers and in each; nan where there is none
    forced                          (F,): what is forced
    ==============================  ==========================================================
    """
    arrays: Arrays = {"numbers": np.array(numbers)}
    for pass_ in passes:
        if isinstance(pass_, Lens):
            arrays |= pass_.arrays
    by_layer: dict[tuple[int, ...] | None, list[Forced]] = {}
    for pass_ in passes:
        if isinstance(pass_, Forced) and pass_.intervention is not None:
            by_layer.setdefault(pass_.intervention.layers, []).append(pass_)
    if by_layer:
        learned = np.where(arrays["next"] >= 0, arrays["nats"], np.nan)[:, None, None]
        nats = [[pass_.arrays["nats"] for pass_ in row] for row in by_layer.values()]
        arrays["costs"] = np.moveaxis(np.array(nats), -1, 0) - learned
        arrays["forced"] = np.array([_name(pass_.intervention) for pass_ in by_layer[None]])
    with replacing(folder / "page" / f"{source}.npz") as partial, partial.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read_page(folder: Path, sources: Sequence[str]) -> Model:
    """What is on the page of a run, read from its folder."""
    found: list[Example] = []
    for source in sources:
        details = read_arrays(folder / "page" / f"{source}.npz")
        examples = read_examples(folder / TOKENS, source, details["numbers"].tolist())
        found += _joined(examples, details)
    forced = details["forced"].tolist() if "forced" in details else []
    return Model(details["steps"].tolist(), found, forced, details["n_experts"].tolist())


def _joined(examples: Sequence[Example], details: Arrays) -> list[Example]:
    """Examples with what was said and what forcing costs, cut to the tokens that have it."""
    counts = details["counts"]
    place = {number: n for n, number in enumerate(details["numbers"].tolist())}
    starts = np.cumsum(counts) - counts
    names = {"said": "said", "shares": "shares", "next_ids": "next", "next_nats": "nats"}
    names |= {"costs": "costs"} if "costs" in details else {}
    found = []
    for example in examples:
        start, count = (array[place[example.number]] for array in (starts, counts))
        rows = slice(start, start + count)
        values: dict[str, Any] = {name: details[of][rows] for name, of in names.items()}
        found.append(replace(example.first(count), **values))
    return found


def _name(intervention: Intervention | None) -> str:
    assert intervention is not None
    if intervention.gates is None:
        return f"K = {intervention.loops}"
    assert isinstance(intervention.gates, tuple)
    return GATES[intervention.gates]
