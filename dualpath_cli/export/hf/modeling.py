"""DualPathForCausalLM: the model behind the interface of transformers.

In an exported folder this file and its imports from this project are one file,
`modeling_dualpath.py`; the project need not be installed.

Shapes: B batch, T positions, S positions with those cached before, V vocabulary, H
heads, N head size.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
import transformers
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache as TransformersCache
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.modeling_outputs import CausalLMOutputWithPast

from dualpath_cli.decoding.cache import Cache, KeysAndValues, LayerCache
from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.export.hf.configuration import DualPathConfig
from dualpath_cli.model.attention import Attention
from dualpath_cli.model.block import DualPathBlock
from dualpath_cli.model.language_model import DualPathLM
from dualpath_cli.model.layer_pass import KeyValuePair, LayerPass
from dualpath_cli.model.parameters import initial_value
from dualpath_cli.model.routing import RoutingTrace
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention

KEPT = (
    "embed",
    "norm",
    "attn_norm",
    "ffn_norm",
    "q_norm",
    "k_norm",
    "router",
    "gate",
    "gains",
    "gain",
    "film",
    "balance_bias",
)
"""Modules and parameters that stay float32 in a model loaded in half precision."""
CACHE = next(
    n for n in ("cache", "past_key_values") if hasattr(CausalLMOutputWithPast, n)
)
"""transformers' name for a cache: `past_key_values` before 5.24."""
UNUSED = ("cache_position", "tokenizer")  # `generate` passes them to any model
REFUSED = {
    "position_ids": "positions follow from attention_mask",
    "output_attentions": "attention weights are never whole in memory",
}
"""Arguments of transformers' models that have no meaning here, and the reasons."""


@dataclass
class _Slot:
    """A layer of transformers' cache, with the interface of `KeysAndValues`."""

    past: DynamicCache
    number: int

    def append(self, k_BTHN: torch.Tensor, v_BTHN: torch.Tensor) -> KeyValuePair:
        k_BHTN = k_BTHN.transpose(1, 2)
        v_BHTN = v_BTHN.transpose(1, 2)
        k_BHSN, v_BHSN = self.past.update(k_BHTN, v_BHTN, self.number)
        return k_BHSN.transpose(1, 2), v_BHSN.transpose(1, 2)


class _Past(Cache):
    """Our cache for one pass; its contents lie in a cache of transformers.

    Layer 0 of that cache holds the number of each token's document, -1 for padding:
    beams, cropping and repeating then apply to the numbers, too. A layer for each step
    of a deep path and for each wide path follows, in the core once for each repetition.
    """

    def __init__(self, past: Any, config: ModelConfig, tokens: torch.Tensor) -> None:
        """Raises ValueError for a cache of a fixed size, or of another model."""
        super().__init__(config)
        self.past = past
        self.tokens = tokens
        self.length = past.get_seq_length()

        grows = isinstance(past, DynamicCache)
        ours = not self.length or hasattr(past, "intervention")
        if not (grows and ours):
            kind = type(past).__name__
            raise ValueError(
                f"{CACHE} is a {kind} of another model, or not one that grows"
            )

        # one made for a configuration has too few
        past.layer_class_to_replicate = DynamicLayer
        if self.length:
            self.intervention = past.intervention
            numbers_BS = past.layers[0].keys[:, 0, :, 0]
            self.documents_BS = numbers_BS if numbers_BS.any() else None

    def begin(self, intervention: Intervention | None) -> None:
        """Begins a pass, as the model's own cache does.

        Raises ValueError for fewer slots.
        """
        if intervention is not None and intervention.kv_slots is not None:
            raise ValueError(
                "kv_slots: transformers' cache keeps the keys and values of all steps"
            )

        super().begin(intervention)
        self.past.intervention = intervention
        self.open()

        slots = (_Slot(self.past, number) for number in count(1))
        for layer, caches in zip(self.config.layers, self.layers, strict=True):
            for repetition, cache in enumerate(caches):
                deep: list[KeysAndValues] = [next(slots) for _ in cache.deep]
                # A loop block reads no wide slot, and no number may stay unused: an
                # offloaded slot is fetched when the one before it is updated.
                wide: KeysAndValues = deep[0] if layer.block == "loop" else next(slots)
                caches[repetition] = LayerCache(wide, deep)

    def extend(
        self, count: int, documents_BT: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Enters T positions; returns the numbers of all S.

        None if nothing is padding.
        """
        own_BT = documents_BT
        if own_BT is None:
            own_BT = torch.zeros_like(self.tokens)

        own_B1T1 = own_BT[:, None, :, None]
        numbers_B1S1: torch.Tensor
        numbers_B1S1, _ = self.past.update(own_B1T1, own_B1T1, 0)
        return None if documents_BT is None else numbers_B1S1[:, 0, :, 0]


@dataclass
class DualPathOutput(CausalLMOutputWithPast):
    """Logits or last states, and the requested further outputs."""

    last_hidden_state: torch.Tensor | None = None
    """The head's input, (B, T, D), if the model is called without its head."""
    routing: RoutingTrace | None = None
    """With `output_routing`: gates, step weights, updates and states of every layer."""


class RecomputedBlock(DualPathBlock):
    """A block that recomputes activations if transformers' switch is on."""

    gradient_checkpointing = False
    _gradient_checkpointing_func: Any

    def forward(self, x_BTD: torch.Tensor, layer: LayerPass) -> torch.Tensor:
        recomputes = self.gradient_checkpointing and torch.is_grad_enabled()
        if layer.writes or not recomputes:
            return super().forward(x_BTD, layer)

        y_BTD: torch.Tensor = self._gradient_checkpointing_func(
            super().forward, x_BTD, layer
        )
        return y_BTD


class DualPathModel(DualPathLM):
    """The model without its head."""

    def __init__(self, config: DualPathConfig) -> None:
        super().__init__(config.model)
        self.defaults = config
        for block in self.blocks:
            block.__class__ = RecomputedBlock

    def forward(  # type: ignore[override]
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        past_key_values: TransformersCache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_routing: bool = False,
        intervention: Intervention | dict[str, Any] | None = None,
        token_mask: torch.Tensor | None = None,
        cache: TransformersCache | None = None,
        **kwargs: Any,
    ) -> DualPathOutput:
        """Maps tokens (B, T), or embeddings (B, T, D), to states (B, T, D).

        See `DualPathForCausalLM.forward` for the arguments.
        """
        _check_unknown(kwargs)
        if isinstance(intervention, dict):
            intervention = _intervention_of(intervention)
        if token_mask is not None and intervention is not None:
            _check_masked(intervention)
        if input_ids is None:
            input_ids = self._ids_beside(inputs_embeds)

        if output_hidden_states is None:
            output_hidden_states = self.defaults.output_hidden_states
        trace = None
        if output_hidden_states or output_routing:
            trace = RoutingTrace(keeps_states=True)

        past = past_key_values if cache is None else cache
        # Draws over a whole text cannot go on from a cache.
        if use_cache is None:
            fits = intervention is None or not intervention.needs_whole_text
            use_cache = self.defaults.use_cache and not self.training and fits
        if past is None and use_cache:
            past = DynamicCache()
        layers = None if past is None else _Past(past, self.config, input_ids)

        length = input_ids.shape[1]
        if token_mask is not None:
            token_mask = token_mask[:, -length:]
        with self.autocast(input_ids.device):
            states = forward(
                self,
                input_ids,
                attention_mask=_own_mask(attention_mask, length),
                trace=trace,
                cache=layers,
                intervention=intervention,
                token_mask=token_mask,
                embeds=inputs_embeds,
                head=False,
            )

        # The type is that of the head, for callers with a head of their own.
        last = states.to(self.head.weight.dtype)
        found: dict[str, Any] = {CACHE: past, "last_hidden_state": last}
        if trace is not None and output_routing:
            found["routing"] = trace
        if trace is not None and output_hidden_states:
            before = [layer.x for layer in trace.layers if layer.x is not None]
            found["hidden_states"] = (*before, states)
        return DualPathOutput(**found)

    def _ids_beside(self, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        """Ids without a meaning, (B, T), for a call with embeddings only."""
        if inputs_embeds is None:
            raise ValueError("give input_ids or inputs_embeds")
        if self.config.document_start is not None:
            raise ValueError(
                "inputs_embeds need input_ids beside them: documents begin by those"
            )

        return torch.zeros_like(inputs_embeds[..., 0], dtype=torch.long)

    def autocast(self, device: torch.device) -> AbstractContextManager[None]:
        """Autocast for a model in half precision; else the caller's stays."""
        # A copy by nn.DataParallel lists no parameters, but has its modules.
        attention = next(m for m in self.modules() if isinstance(m, Attention))
        dtype = attention.q_proj.weight.dtype
        if dtype.itemsize != 2:
            return nullcontext()
        return torch.autocast(device.type, dtype=dtype)


def _check_unknown(arguments: dict[str, Any]) -> None:
    """Raises ValueError for an argument that would change something."""
    for name, value in arguments.items():
        if value is not None and value is not False and name not in UNUSED:
            reason = REFUSED.get(name, "no such argument")
            raise ValueError(f"{name} cannot be given: {reason}")


def _intervention_of(fields: dict[str, Any]) -> Intervention:
    """The intervention with these fields, whose tuples may be lists of JSON."""
    lists = {
        name: tuple(value) for name, value in fields.items() if isinstance(value, list)
    }
    return Intervention(**(fields | lists))


def _check_masked(intervention: Intervention) -> None:
    """Raises ValueError for an intervention that no mask restricts to some tokens."""
    if not intervention.only_gates:
        raise ValueError(
            f"{intervention.name}: changes all tokens; token_mask goes with gates only"
        )


def _own_mask(attention_mask: torch.Tensor | None, length: int) -> torch.Tensor | None:
    """The mask of the last `length` positions, (B, T), None if nothing is padding."""
    if attention_mask is None:
        return None
    if attention_mask.dim() != 2:
        raise ValueError(
            f"attention_mask must be (B, S), not {tuple(attention_mask.shape)}"
        )

    # With nothing padded, causal attention has a faster kernel.
    if attention_mask.all():
        return None
    return attention_mask[:, -length:].bool()


class DualPathForCausalLM(PreTrainedModel, GenerationMixin):
    """A decoder-only language model whose layers are dual-path, loop or wide blocks.

    Loaded in bfloat16 or float16, the weights of norms, router, gates, gains and the
    embedding stay float32, as does the residual stream; the rest is computed as under
    autocast, as in training.
    """

    config_class = DualPathConfig
    base_model_prefix = "model"
    _input_embed_layer = "embed"
    _no_split_modules = ["RecomputedBlock"]
    _skip_keys_device_placement = ["cache"]
    _tied_weights_keys = {"model.head.weight": "model.embed.weight"}
    _supports_sdpa = True
    supports_gradient_checkpointing = True

    def __init__(self, config: DualPathConfig) -> None:
        super().__init__(config)
        # meta wherever transformers loads weights
        device = nn.Linear(1, 1).weight.device
        with torch.device("meta"):
            self.model = DualPathModel(config)
        if device.type != "meta":
            self.model.to_empty(device=device)
        self.model.tie_weights()

        parts = set()
        for name, _ in self.named_parameters():
            parts.update(name.split("."))
        kept = [name for name in KEPT if name in parts]

        # Version 4 wants the name of a module; this one would find `gate` in
        # `gate_proj`, too.
        if int(transformers.__version__.split(".")[0]) >= 5:
            kept = [r"\.gate\." if name == "gate" else name for name in kept]
        self._keep_in_fp32_modules_strict = kept
        # what version 5.0 made of it above
        self.dtype_plan = dict.fromkeys(kept, torch.float32)
        self.post_init()

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """`from_pretrained` of transformers; experts' biases get no gradient."""
        loaded = super().from_pretrained(*args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded

        for name, parameter in model.named_parameters():
            if name.endswith("balance_bias"):
                parameter.requires_grad_(False)
        return loaded

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed

    def get_output_embeddings(self) -> nn.Module:
        return self.model.head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.model.head = new_embeddings

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any
    ) -> nn.Embedding:
        """`resize_token_embeddings` of transformers.

        `generate` then draws all `new_num_tokens`, and no row that pads them.
        """
        embedding: nn.Embedding
        embedding = super().resize_token_embeddings(new_num_tokens, *args, **kwargs)
        if new_num_tokens is not None:
            unused = range(new_num_tokens, self.config.vocab_size)
            self.generation_config.suppress_tokens = list(unused) or None
        return embedding

    def prepare_inputs_for_generation(
        self,
        input_ids: torch.Tensor,
        inputs_embeds: torch.Tensor | None = None,  # `generate` looks for this name
        token_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The arguments of a pass; a `token_mask` has no new token."""
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(
            input_ids, inputs_embeds=inputs_embeds, **kwargs
        )
        if token_mask is None:
            return inputs

        tokens = inputs.get("input_ids")
        if tokens is None:
            tokens = inputs["inputs_embeds"]
        past = inputs.get(CACHE)
        before = 0 if past is None else past.get_seq_length()
        new = before + tokens.shape[1] - token_mask.shape[1]
        inputs["token_mask"] = nn.functional.pad(token_mask, (0, new))
        return inputs

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draws weights that no checkpoint gave, seeded by `torch.initial_seed`."""
        # A resized embedding or head is not in its place yet.
        place = "embed" if isinstance(module, nn.Embedding) else "head"
        for name, other in self.named_modules():
            if other is module:
                place = name
                break
        place = place.removeprefix("model").removeprefix(".")

        seed = int(torch.initial_seed()) % 2**62
        config = self.config.model
        for own, parameter in module.named_parameters(recurse=False):
            if not getattr(parameter, "_is_hf_initialized", False):
                name = f"{place}.{own}"
                parameter.copy_(initial_value(name, parameter.shape, config, seed))

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        past_key_values: TransformersCache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_routing: bool = False,
        intervention: Intervention | dict[str, Any] | None = None,
        token_mask: torch.Tensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        return_dict: bool | None = None,
        cache: TransformersCache | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> DualPathOutput | tuple[Any, ...]:
        """Maps tokens (B, T) to logits (B, T, V) in float32, and to a mean loss.

        `attention_mask` (B, S) is 0 at padding, on either side; positions follow from
        it. `inputs_embeds` (B, T, D) replace the tokens' embeddings. `intervention` has
        fields of Intervention, such as ``{"loops": 2}`` or ``{"gates": (1.0, 0.0)}``;
        `token_mask` (B, T) or (B, S) is True at the tokens whose gates it changes, by
        default all. `generate` takes both, with the mask of the prompt: new tokens then
        stay as they are. `cache` is the name of `past_key_values` since transformers
        5.24.
        `output_hidden_states` gives the stream before each application of a layer, and
        last after the final norm. `output_routing` gives ``outputs.routing`` with the
        state after each loop; a forward hook on
        ``model.blocks[n].deep.sublayer`` sees these states, too.

        Raises ValueError for arguments without a meaning here, such as `position_ids`,
        an impossible intervention, a `token_mask` beside one that changes more than
        gates, an `attention_mask` of other than 2 dimensions, and a cache of another
        model or of a fixed size.
        """
        output = self.model(
            input_ids,
            attention_mask,
            past_key_values,
            inputs_embeds,
            use_cache,
            output_hidden_states,
            output_routing,
            intervention,
            token_mask,
            cache,
            **kwargs,
        )
        found = dict(output)
        states = found.pop("last_hidden_state")

        # Positions, or the number of the last ones; 0: all.
        kept: Any = logits_to_keep
        if isinstance(logits_to_keep, int):
            kept = slice(-logits_to_keep, None)
        logits = self._logits(states[:, kept])

        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits,
                labels,
                vocab_size=self.config.vocab_size,
                num_items_in_batch=num_items_in_batch,
            )

        outputs = DualPathOutput(loss=loss, logits=logits, **found)
        whole = self.config.return_dict if return_dict is None else return_dict
        return outputs if whole else outputs.to_tuple()

    def lens(self, states: torch.Tensor) -> torch.Tensor:
        """The logits (B, T, V) of states (B, T, D) of the stream or of a loop."""
        with self.model.autocast(states.device):
            return self._logits(self.model.norm(states))

    def _logits(self, states: torch.Tensor) -> torch.Tensor:
        with self.model.autocast(states.device):
            logits: torch.Tensor = self.model.head(states)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))
