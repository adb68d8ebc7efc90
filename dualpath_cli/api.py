"""A trained model in Python: `dualpath_cli.load(RUN)`.

    import dualpath_cli as dualpath

    m = dualpath.load("runs/quickstart/default")
    m.routing("Tom has 5 apples.").gate_deep

Shapes: N ids of a text, end-of-text the first of them, V ids of the tokenizer, L
applications of layers in the order of a pass, K loops, R repetitions of the core.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import torch
import torch.nn.functional as F

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.ranges import check_range
from dualpath_cli.data.documents import clean
from dualpath_cli.data.losses import LanguageModelLoss
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.data.windows import Windows, collate, document_windows
from dualpath_cli.decoding.decoder import Decoder
from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.decoding.options import Sampling
from dualpath_cli.decoding.writing import Limits, Sampler, generate_batch
from dualpath_cli.flops import count
from dualpath_cli.model import DualPathLM, RoutingTrace
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.run.run_folder import Run
from dualpath_cli.run.trained import find_trained
from dualpath_cli.run.weights import device_of, load_model
from dualpath_cli.spec.config import ModelConfig, by_layer
from dualpath_cli.spec.intervention import Intervention, parse_overrides

if TYPE_CHECKING:
    import pandas

MICRO_BATCH = 8  # windows that `loss` scores at once
Texts = list[str] | tuple[str, ...]
"""Several texts. A single one is a Sequence of texts itself, to a type checker."""


class Loss(NamedTuple):
    """A loss over texts."""

    nats_per_token: float
    bits_per_byte: float
    tokens: int


@dataclass(frozen=True)
class Routing:
    """The routing of each token of a text; NaN where a layer's block has no such
    choice.

    Row n is about the n-th id, of which the first is end-of-text. A layer of the core
    is applied once a repetition, with a column each.
    """

    tokens: list[str]
    """The text of each id, N; broken UTF-8 shows as U+FFFD."""
    gate_deep: torch.Tensor
    """g_d, (N, L) (Eq. 5)."""
    gate_wide: torch.Tensor
    """g_w, (N, L) (Eq. 5)."""
    step_weights: torch.Tensor
    """Weight of each step in h_deep, (N, L, K) (Eq. 3); 0 for steps that a layer did
    not run."""
    expected_loops: torch.Tensor
    """Mean step number under these weights, (N, L)."""
    update_deep: torch.Tensor
    """‖h_deep - x‖, (N, L)."""
    update_wide: torch.Tensor
    """‖h_wide - x‖, (N, L)."""
    cosine: torch.Tensor
    """Cosine of both updates, (N, L) (Eq. 7)."""
    deep_share: torch.Tensor
    """The deep path's part of the gated update, (N, L) (Eq. 6)."""
    layers: list[int]
    """The layer of each application, from 0, L."""
    repetitions: list[int]
    """The repetition of the core of each application, from 1, L; 1 outside the core."""
    core_weights: torch.Tensor
    """Weight of each repetition in the core's output, (N, R); R is 0 without a core."""

    def frame(self) -> "pandas.DataFrame":
        """A row for each token and application of a layer, with columns
        `step_weight_1` .. `step_weight_K`; with a core also `repetition`.

        Raises ImportError without pandas, which dualpath itself does not need.
        """
        import pandas as pd

        n_tokens, n_layers, _ = self.step_weights.shape
        columns: dict[str, Any] = {
            "position": torch.arange(n_tokens).repeat_interleave(n_layers),
            "token": [token for token in self.tokens for _ in range(n_layers)],
            "layer": torch.tensor(self.layers).repeat(n_tokens),
        }
        if self.core_weights.shape[-1]:
            repetitions = torch.tensor(self.repetitions)
            columns["repetition"] = repetitions.repeat(n_tokens)

        for name in BY_APPLICATION:
            columns[name] = getattr(self, name).flatten()
        for k, weights_NL in enumerate(self.step_weights.unbind(-1), 1):
            columns[f"step_weight_{k}"] = weights_NL.flatten()

        return pd.DataFrame(columns)


BY_APPLICATION = (
    "gate_deep",
    "gate_wide",
    "expected_loops",
    "update_deep",
    "update_wide",
    "cosine",
    "deep_share",
)
"""Fields of Routing and of LayerTrace, (N, L) each."""


class LoadedModel:
    """A trained model with its tokenizer, in float32, for reading: no gradients are
    kept."""

    def __init__(self, model: DualPathLM, tokenizer: Tokenizer, run: Run) -> None:
        self.model = model
        """An `nn.Module`; ``model(tokens, trace=RoutingTrace())`` gives all that it
        writes down."""
        self.tokenizer = tokenizer
        self.config: ModelConfig = model.config
        """Widths, loops, kinds of blocks."""
        self._run = run

    def __repr__(self) -> str:
        config = self.config
        millions = count.parameters(config) / 1e6
        loops = ""
        if config.deep_layers:
            loops = f", K = {by_layer(config.loops)}"
        if config.core is not None:
            loops += f", R = {config.core_loops}"
        return (
            f"{self._run.folder}, step {self._run.step:,}: {millions:,.1f}M "
            f"parameters, {config.n_layers} layers, width {config.d_model}{loops}"
        )

    @overload
    def logits(
        self, text: str, intervention: Intervention | str | None = None
    ) -> torch.Tensor: ...
    @overload
    def logits(
        self, text: Texts, intervention: Intervention | str | None = None
    ) -> list[torch.Tensor]: ...
    def logits(
        self, text: str | Texts, intervention: Intervention | str | None = None
    ) -> torch.Tensor | list[torch.Tensor]:
        """The logits after end-of-text and each token of a text, (N, V); of several
        texts, a list.

        `intervention` is an override of loops or gates, in the words of the command
        line (``"K=1"``, ``"R=2"``, ``"gates=1,0 layers=0,2"``) or as an object.

        Raises UserError for a text longer than the model, or an override that it cannot
        obey; TypeError for anything but texts and an override.
        """
        found = []
        for single in _as_list("text", text):
            logits_1NV = self._forward(self._ids(single), intervention)
            found.append(logits_1NV[0, :, : self.tokenizer.vocab_size])

        return found[0] if isinstance(text, str) else found

    @overload
    def routing(
        self, text: str, intervention: Intervention | str | None = None
    ) -> Routing: ...
    @overload
    def routing(
        self, text: Texts, intervention: Intervention | str | None = None
    ) -> list[Routing]: ...
    def routing(
        self, text: str | Texts, intervention: Intervention | str | None = None
    ) -> Routing | list[Routing]:
        """Gates, weights of steps and of repetitions, and norms of each token of a
        text; of several texts, a list.

        Raises as `logits`.
        """
        texts = _as_list("text", text)
        found = [self._routing(single, intervention) for single in texts]
        return found[0] if isinstance(text, str) else found

    def _routing(self, text: str, intervention: Intervention | str | None) -> Routing:
        ids = self._ids(text)
        trace = RoutingTrace()
        self._forward(ids, intervention, trace=trace)

        tokens = [self.tokenizer.decode([id]) for id in ids]
        by_application = {
            name: _by_application(trace, name, len(ids)) for name in BY_APPLICATION
        }
        return Routing(
            tokens,
            step_weights=_step_weights(trace, len(ids)),
            layers=[layer.layer for layer in trace.layers],
            repetitions=[layer.repetition + 1 for layer in trace.layers],
            core_weights=_core_weights(trace, len(ids)),
            **by_application,
        )

    @torch.no_grad()
    def loss(
        self, texts: str | Sequence[str], intervention: Intervention | str | None = None
    ) -> Loss:
        """The loss of one or more texts, cleaned and cut into windows as `validate`
        does.

        Raises UserError for texts without a token, or an override that the model cannot
        obey; TypeError as `logits`.
        """
        change = self._change(intervention)
        window = self.config.max_seq_len
        documents = map(clean, _as_list("texts", texts))
        cut, _ = document_windows(documents, self.tokenizer, window)
        windows = Windows(cut)
        if not windows.n_tokens:
            raise UserError("the texts have no token to be scored")

        loss = LanguageModelLoss(self.tokenizer.token_bytes()).to(self._device)
        for places in windows.batches(MICRO_BATCH, window):
            tokens, targets = collate([windows[place] for place in places])
            tokens = tokens.to(self._device)
            targets = targets.to(self._device)
            scored = targets != IGNORE
            nll = forward(
                self.model, tokens, targets, intervention=change, token_mask=scored
            )
            loss.update(nll, targets)

        values = loss.compute()
        return Loss(
            nats_per_token=float(values["loss"]),
            bits_per_byte=float(values["bits_per_byte"]),
            tokens=windows.n_tokens,
        )

    @overload
    def generate(
        self,
        prompt: str = "",
        max_new_tokens: int = 100,
        seed: int = 0,
        intervention: Intervention | str | None = None,
        **sampling: Any,
    ) -> str: ...
    @overload
    def generate(
        self,
        prompt: Texts,
        max_new_tokens: int = 100,
        seed: int = 0,
        intervention: Intervention | str | None = None,
        **sampling: Any,
    ) -> list[str]: ...
    def generate(
        self,
        prompt: str | Texts = "",
        max_new_tokens: int = 100,
        seed: int = 0,
        intervention: Intervention | str | None = None,
        **sampling: Any,
    ) -> str | list[str]:
        """The text that the model writes after a prompt, up to its end-of-text.

        Of several prompts, a list: each text is the one that its prompt gets with this
        seed by itself. `sampling` are fields of `decoding.options.Sampling`, such as
        ``temperature=0.8`` or ``greedy=True``; the default draws from the model's own
        probabilities.

        Raises as `logits`; also TypeError for another name, ValueError for a number out
        of range.
        """
        check_range("max_new_tokens", max_new_tokens, (1, 1 << 24))
        change = self._change(intervention)
        sampler = Sampler(Sampling(**sampling), self.tokenizer.vocab_size)
        limits = Limits(max_new_tokens, self.config.max_seq_len, self.tokenizer.eot_id)

        found = [
            self._generate(self._ids(single), change, sampler, limits, seed)
            for single in _as_list("prompt", prompt)
        ]
        return found[0] if isinstance(prompt, str) else found

    def _generate(
        self,
        ids: list[int],
        change: Intervention | None,
        sampler: Sampler,
        limits: Limits,
        seed: int,
    ) -> str:
        decoder = Decoder(self.model, change)
        decoder.begin(limits.positions([len(ids)]))
        generator = torch.Generator().manual_seed(seed)
        token_values = self.tokenizer.token_values()
        new_tokens = generate_batch(
            decoder.next_logits, [ids], sampler, [generator], token_values, limits
        )
        return "".join(token.text for token in new_tokens)

    @property
    def _device(self) -> torch.device:
        return self.model.embed.weight.device

    def _ids(self, text: str) -> list[int]:
        ids = self.tokenizer.encode(text)
        room = self.config.max_seq_len - 1
        if len(ids) > room:
            raise UserError(
                f"the text has {len(ids):,} tokens, the model takes {room:,}; "
                "`loss` cuts longer ones"
            )
        return [self.tokenizer.eot_id, *ids]

    def _change(self, intervention: Intervention | str | None) -> Intervention | None:
        """The intervention as an object, checked against the model."""
        change = intervention
        if isinstance(change, str):
            change = parse_overrides([change])
        if change is None:
            return None
        if not isinstance(change, Intervention):
            kind = type(change).__name__
            raise TypeError(f"intervention must be text such as 'K=1', not {kind}")

        problem = change.problem(self.config)
        if problem:
            raise UserError(f"{change.name}: {problem}")
        if change.tokens is not None:
            raise UserError(
                f"{change.name}: only `dualpath ablate` tags classes of tokens"
            )
        if change.blind is not None:
            raise UserError(f"{change.name}: only `dualpath ablate` plans schedules")
        return change

    @torch.no_grad()
    def _forward(
        self,
        ids: list[int],
        intervention: Intervention | str | None,
        trace: RoutingTrace | None = None,
    ) -> torch.Tensor:
        change = self._change(intervention)
        tokens = torch.tensor([ids], device=self._device)
        return forward(self.model, tokens, trace=trace, intervention=change)


def _by_application(trace: RoutingTrace, name: str, n_tokens: int) -> torch.Tensor:
    """A read-out of a text, (N, L); NaN where a layer has none."""
    values_NL = torch.full((n_tokens, len(trace.layers)), torch.nan)
    for place, layer in enumerate(trace.layers):
        value_1N = getattr(layer, name)
        if value_1N is not None:
            values_NL[:, place] = value_1N[0].cpu()

    return values_NL


def _step_weights(trace: RoutingTrace, n_tokens: int) -> torch.Tensor:
    """The weights of all steps of a text, (N, L, K); NaN where a layer has none."""
    weights = [layer.step_weights for layer in trace.layers]
    most = max(0 if w_1NK is None else w_1NK.shape[-1] for w_1NK in weights)
    weights_NLK = torch.full((n_tokens, len(weights), most), torch.nan)
    for place, weights_1NK in enumerate(weights):
        if weights_1NK is not None:
            # Layers may run unequal numbers of steps, also by an override.
            missing = most - weights_1NK.shape[-1]
            weights_NLK[:, place] = F.pad(weights_1NK, (0, missing))[0].cpu()

    return weights_NLK


def _core_weights(trace: RoutingTrace, n_tokens: int) -> torch.Tensor:
    """The weights of the core's repetitions of a text, (N, R)."""
    if trace.core is None or trace.core.step_weights is None:
        return torch.empty(n_tokens, 0)
    return trace.core.step_weights[0].cpu()


def _as_list(name: str, texts: object) -> list[str]:
    """The only text, or those of a list; `name` is that of the argument."""
    if isinstance(texts, str):
        return [texts]
    # Keys of a mapping are not texts, and a set has no order for the results.
    if not isinstance(texts, Iterable) or isinstance(texts, Mapping | Set | bytes):
        kind = type(texts).__name__
        raise TypeError(f"{name} must be a string or a list of strings, not {kind}")

    listed = list(texts)
    for place, text in enumerate(listed):
        if not isinstance(text, str):
            kind = type(text).__name__
            raise TypeError(f"{name}[{place}] must be a string, not {kind}")

    return listed


def load(
    run: str | Path, own_classes: bool = False, device: str = "cpu"
) -> LoadedModel:
    """Loads a trained model: a run folder, a checkpoint in one, or an exported folder.

    `own_classes` allows to import, and so to run, the custom classes that a run names.
    `device` is ``"cpu"`` or ``"cuda"``.

    Raises UserError for a missing or damaged run, or one that names classes.
    """
    trained = find_trained(str(run), own_classes=own_classes)
    model = load_model(trained, device_of(device))
    return LoadedModel(model, trained.run.tokenizer, trained.run)
