"""DualPathForCausalLM: the model behind the interface of transformers.

An exported folder holds this file and what it imports of this project as one,
`modeling_dualpath.py`; nothing of the project has to be installed.

Shapes: B batch, T positions, S positions with those cached before, V vocabulary, H heads, N head
size.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache as TransformersCache
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from dualpath_cli.config import ModelConfig
from dualpath_cli.decoding.cache import Cache, LayerCache
from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.export.hf.configuration import DualPathConfig
from dualpath_cli.intervention import Intervention
from dualpath_cli.model.language_model import DualPathLM
from dualpath_cli.model.parameters import initial_value
from dualpath_cli.model.routing import RoutingTrace

CASTED_WEIGHT = {
    "dual": "wide.sublayer.attn.q_proj.weight",
    "wide": "wide.sublayer.attn.q_proj.weight",
    "loop": "deep.sublayer.attn.q_proj.weight",
}
"""A weight of a block of each kind that has the type that the model was loaded in."""
KEPT = (
    "embed", "norm", "attn_norm", "ffn_norm", "q_norm", "k_norm", "router", "gate", "gains", "gain",
    "film", "balance_bias",
)  # fmt: skip
"""Modules and parameters that stay float32 where the model is loaded in half precision."""
CACHE = next(n for n in ("cache", "past_key_values") if hasattr(CausalLMOutputWithPast, n))
"""What transformers calls a cache: the latter before 5.24."""


class DualPathCache(DynamicCache):
    """transformers' growing cache with K + 1 slots a dual layer: its steps and its wide path.

    Slot 0 holds the number of each token's document, -1 for padding, so that all that transformers
    does to a cache (beams, cropping, repeating) is done to these numbers as well.
    """

    def __init__(self) -> None:
        super().__init__()
        self.slots: dict[tuple[int, int], int] = {}
        self.intervention: Intervention | None = None

    def append(
        self, layer: int, step: int, k_BTHN: torch.Tensor, v_BTHN: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds keys and values of a step of a layer; step -1 is its wide path."""
        slot = self.slots.setdefault((layer, step), 1 + len(self.slots))
        k_BHSN, v_BHSN = self.update(k_BTHN.transpose(1, 2), v_BTHN.transpose(1, 2), slot)
        return k_BHSN.transpose(1, 2), v_BHSN.transpose(1, 2)

    def number(self, documents_BT: torch.Tensor) -> torch.Tensor:
        """Adds the documents' numbers of T positions and returns those of all S, (B, S)."""
        numbers_B1T1 = documents_BT[:, None, :, None]
        return self.update(numbers_B1T1, numbers_B1T1, 0)[0][:, 0, :, 0]

    @property
    def numbers(self) -> torch.Tensor | None:
        """The documents' numbers so far, (B, S); None while all are 0."""
        keys: torch.Tensor | None = getattr(self.layers[0], "keys", None) if self.layers else None
        return None if keys is None or not keys.any() else keys[:, 0, :, 0]


@dataclass
class _Slot:
    """Keys and values of one attention, as the model asks for them."""

    past: DualPathCache
    layer: int
    step: int = -1

    def append(
        self, k_BTHN: torch.Tensor, v_BTHN: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.past.append(self.layer, self.step, k_BTHN, v_BTHN)


class _LayerSlots(LayerCache):
    def __init__(self, past: DualPathCache, layer: int) -> None:
        super().__init__(wide=_Slot(past, layer))
        self.past, self.layer = past, layer

    def step(self, number: int) -> _Slot:
        return _Slot(self.past, self.layer, number)


class _Past(Cache):
    """The model's own cache for one pass, whose contents lie in one of transformers."""

    def __init__(self, past: DualPathCache, config: ModelConfig, tokens: torch.Tensor) -> None:
        super().__init__(config)
        self.past, self.tokens = past, tokens
        self.layers: list[LayerCache] = [
            _LayerSlots(past, layer) for layer in range(config.n_layers)
        ]
        self.length = past.get_seq_length()
        self.documents_BS = past.numbers
        self.intervention = past.intervention

    def begin(self, intervention: Intervention | None) -> None:
        """Begins a pass, as the model's own cache does. Raises ValueError for fewer slots."""
        if intervention is not None and intervention.kv_slots is not None:
            raise ValueError("kv_slots: transformers' cache keeps the keys and values of all steps")
        super().begin(intervention)
        self.past.intervention = intervention

    def open(self) -> None:
        """Nothing: the slots are made as they are asked for."""

    def extend(self, count: int, documents_BT: torch.Tensor | None) -> torch.Tensor | None:
        """Enters `count` positions; returns the numbers of all S, None if nothing is padding."""
        self.length += count
        if documents_BT is None:
            self.past.number(torch.zeros_like(self.tokens))
            return None
        return self.past.number(documents_BT)


@dataclass
class DualPathOutput(CausalLMOutputWithPast):
    """Logits, and what was asked for beside them."""

    routing: RoutingTrace | None = None
    """With `output_routing`: gates, step weights, updates and states of every layer."""


class DualPathForCausalLM(PreTrainedModel, GenerationMixin):
    """A decoder-only language model whose layers are dual-path, loop or wide blocks.

    Where `from_pretrained` loads it in bfloat16 or float16, weights of norms, router, gates, gains
    and the embedding stay float32, for the residual stream; the rest is computed as under autocast,
    which is how models are trained.
    """

    config_class = DualPathConfig
    base_model_prefix = "model"
    _no_split_modules = ["DualPathBlock"]
    _skip_keys_device_placement = ["cache"]
    _tied_weights_keys = {"model.head.weight": "model.embed.weight"}
    _supports_sdpa = True

    def __init__(self, config: DualPathConfig) -> None:
        super().__init__(config)
        device = nn.Linear(1, 1).weight.device  # meta wherever transformers loads weights
        with torch.device("meta"):
            self.model = DualPathLM(config.model)
        if device.type != "meta":
            self.model.to_empty(device=device)
        self.model.tie_weights()
        there = {part for name, _ in self.named_parameters() for part in name.split(".")}
        kept = [name for name in KEPT if name in there]
        if int(transformers.__version__.split(".")[0]) >= 5:
            # Version 4 wants the name of a module; this one would find `gate` in `gate_proj`, too.
            kept = [r"\.gate\." if name == "gate" else name for name in kept]
        self._keep_in_fp32_modules_strict = kept
        self.dtype_plan = dict.fromkeys(kept, torch.float32)  # what version 5.0 made of it above
        self.post_init()

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As transformers does; biases of experts have no gradient, as in training."""
        loaded = super().from_pretrained(*args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        for name, parameter in model.named_parameters():
            if name.endswith("balance_bias"):
                parameter.requires_grad_(False)
        return loaded

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.embed = value

    def get_output_embeddings(self) -> nn.Module:
        return self.model.head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.model.head = new_embeddings

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draws the weights of a module that come from no checkpoint, by torch's first seed."""
        (name,) = [name for name, other in self.named_modules() if other is module]
        prefix = name.removeprefix("model").removeprefix(".")
        seed = int(torch.initial_seed()) % 2**62
        for own, parameter in module.named_parameters(recurse=False):
            if not getattr(parameter, "_is_hf_initialized", False):
                value = initial_value(f"{prefix}.{own}", parameter.shape, self.config.model, seed)
                parameter.copy_(value)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: TransformersCache | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_routing: bool = False,
        intervention: Intervention | dict[str, Any] | None = None,
        token_mask: torch.Tensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        return_dict: bool | None = None,
        cache: TransformersCache | None = None,
        **kwargs: Any,
    ) -> DualPathOutput | tuple[Any, ...]:
        """Maps tokens (B, T) to logits (B, T, V) in float32, and to the mean loss of `labels`.

        `attention_mask` (B, S) is 0 at padding, on either side; positions follow from it.
        `intervention` holds the fields of Intervention, such as ``{"loops": 2}`` or
        ``{"gates": (1.0, 0.0)}``, `token_mask` (B, T) which tokens it is about where that is not
        all of them; `generate` takes an intervention as well. `cache` is `past_key_values` by its
        name since transformers 5.24. `output_routing` gives ``outputs.routing``, with the state
        after each loop; a forward hook on ``model.blocks[n].deep.sublayer`` sees each of them, too,
        as it is made. Raises ValueError for arguments that mean nothing here, such as
        `position_ids`, an intervention that makes no sense, a mask of other than 2 dimensions, or a
        cache of another model or of a fixed size.
        """
        given = [n for n, value in kwargs.items() if value is not None and value is not False]
        # transformers gives these to any model: of no use here, or for the loss.
        unknown = [name for name in given if name not in ("cache_position", "num_items_in_batch")]
        if unknown:
            raise ValueError(f"{unknown[0]} cannot be given; positions follow from attention_mask, "
                             "states from input_ids")  # fmt: skip
        if isinstance(intervention, dict):
            fields: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value  # as JSON has them
                for name, value in intervention.items()
            }
            intervention = Intervention(**fields)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        trace = RoutingTrace(keeps_states=True) if output_hidden_states or output_routing else None
        if use_cache is None:
            fits = intervention is None or not intervention.needs_whole_text
            use_cache = self.config.use_cache and not self.training and fits
        past = self._past(past_key_values if cache is None else cache, use_cache)
        if attention_mask is not None and attention_mask.dim() != 2:
            raise ValueError(f"attention_mask must be (B, S), not {tuple(attention_mask.shape)}")
        if attention_mask is not None:
            # With nothing padded, causal attention has a faster kernel.
            padded = not attention_mask.all()
            attention_mask = attention_mask[:, -input_ids.shape[1] :].bool() if padded else None
        with self._autocast(input_ids.device):
            logits = forward(
                self.model, input_ids, attention_mask=attention_mask, trace=trace,
                cache=None if past is None else _Past(past, self.config.model, input_ids),
                intervention=intervention, token_mask=token_mask,
                last_logits=logits_to_keep or None if isinstance(logits_to_keep, int) else None,
            )  # fmt: skip
        if isinstance(logits_to_keep, torch.Tensor):
            logits = logits[:, logits_to_keep]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        loss = None
        if labels is not None:
            items = kwargs.get("num_items_in_batch")
            loss = self.loss_function(
                logits, labels, vocab_size=self.config.vocab_size, num_items_in_batch=items
            )
        held: dict[str, Any] = {CACHE: past}
        output = DualPathOutput(loss=loss, logits=logits, **held)
        if trace is not None:
            output.routing = trace if output_routing else None
            if output_hidden_states:
                states = [layer.x for layer in trace.layers if layer.x is not None]
                output.hidden_states = (*states, self.model.norm(trace.output))
        whole = self.config.return_dict if return_dict is None else return_dict
        return output if whole else output.to_tuple()

    def lens(self, states: torch.Tensor) -> torch.Tensor:
        """The logits (B, T, V) that states (B, T, D) of the stream or of a loop would give."""
        with self._autocast(states.device):
            logits: torch.Tensor = self.model.head(self.model.norm(states))
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _autocast(self, device: torch.device) -> AbstractContextManager[None]:
        """That of a model in half precision; any other leaves the caller's alone."""
        block = self.model.blocks[0]
        kind = block.get_parameter(CASTED_WEIGHT[self.config.model.block_kinds[0]]).dtype
        return torch.autocast(device.type, dtype=kind) if kind.itemsize == 2 else nullcontext()

    def _past(self, given: TransformersCache | None, use_cache: bool) -> DualPathCache | None:
        """The cache to go on with. An empty one of transformers' has not enough slots."""
        if isinstance(given, DualPathCache):
            return given
        if given is not None and (given.is_compileable or given.get_seq_length()):
            kind = type(given).__name__
            raise ValueError(f"{CACHE} is a {kind} of another model, or of a fixed size")
        return DualPathCache() if use_cache or given is not None else None
