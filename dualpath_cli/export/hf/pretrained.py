"""A pretrained model of transformers as a dual-path model.

    wide    s_w = softplus(beta) = 1 makes Eq. 4 a layer of Llama, exactly
    loop    s_1 = 1, and s_2 ... s_K at their initial 0.0009: h_1 is that layer, and h_2 ... h_K
            hardly differ from h_1, whatever the router says
    dual    either of these with a gate of 0.993, beside a new path with a gate of 0.007

Everything is computed and written in float32.
"""

import json
import math
from contextlib import redirect_stderr
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import huggingface_hub
import torch
import transformers

from dualpath_cli.base.errors import UserError, of_content
from dualpath_cli.base.pointers import refuse_pointer
from dualpath_cli.data.tokenizer import Tokenizer, name_end_of_text
from dualpath_cli.model import DualPathLM
from dualpath_cli.run.checkpoint_files import hash_file
from dualpath_cli.spec.config import BlockKind, ModelConfig

PathKind = Literal["deep", "wide"]
FAMILIES: dict[str, Literal["none", "before_rope"]]
FAMILIES = {"llama": "none", "mistral": "none", "qwen3": "before_rope"}
"""The model types of transformers whose layers fit, and where they norm queries and keys."""
LAYER = {
    "attn.q_proj": "self_attn.q_proj", "attn.k_proj": "self_attn.k_proj",
    "attn.v_proj": "self_attn.v_proj", "attn.o_proj": "self_attn.o_proj",
    "attn.q_norm": "self_attn.q_norm", "attn.k_norm": "self_attn.k_norm",
    "ffn.gate_proj": "mlp.gate_proj", "ffn.up_proj": "mlp.up_proj",
    "ffn.down_proj": "mlp.down_proj", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
"""The weights of a sublayer, and of a layer of those families."""
FITS = "no block has that; Llama, Mistral and Qwen3 without it fit"
ONE = math.log(math.expm1(1))  # softplus(ONE) = 1
OPEN, SHUT = 5.0, -5.0  # logits of a gate: sigmoids of 0.993 and 0.007


class Pretrained:
    """A pretrained model in a folder; only `model` reads the weights."""

    def __init__(self, folder: Path, gguf: str | None, shown: str) -> None:
        """Raises UserError for an unreadable model, or one with a feature that no block has."""
        for file in folder.iterdir():
            refuse_pointer(file)
        transformers.utils.logging.set_verbosity_error()
        self.folder, self.shown = folder, shown
        self._gguf = {} if gguf is None else {"gguf_file": gguf}
        self._theirs = self._read(transformers.AutoConfig)
        if feature := self._feature():
            raise UserError(f"{shown} has {feature}; {FITS}")

    @cached_property
    def config(self) -> ModelConfig:
        """The model with wide blocks; both paths have the pretrained FFN width."""
        theirs, width = self._theirs, self._theirs.intermediate_size
        d_ffn = -(-3 * width // 2)  # effective: floor(2 d_ffn / 3), rounded up to a multiple
        return ModelConfig(
            theirs.vocab_size, theirs.num_hidden_layers, theirs.hidden_size,
            theirs.num_attention_heads, theirs.num_key_value_heads, theirs.max_position_embeddings,
            block="wide", d_ffn=d_ffn, d_ffn_wide=d_ffn, ffn_multiple_of=math.gcd(width, 64),
            rope_base=theirs.rope_parameters["rope_theta"], norm_eps=theirs.rms_norm_eps,
            qk_norm=FAMILIES[theirs.model_type], tie_embeddings=theirs.tie_word_embeddings,
        )  # fmt: skip

    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Raises UserError unless it is a byte-level BPE with at most `vocab_size` entries.
        """
        if self._gguf and not (self.folder / "tokenizer.json").exists():
            theirs = self._read(transformers.AutoTokenizer)
            definition = json.loads(theirs.backend_tokenizer.to_str())
            name_end_of_text(definition, theirs.eos_token)
            found = Tokenizer(definition, self.shown)
        else:
            found = Tokenizer.load(self.folder)
        if found.vocab_size > self.config.vocab_size:
            raise UserError(
                f"{self.shown}: its tokenizer has {found.vocab_size} entries, its embedding "
                f"{self.config.vocab_size} rows"
            )
        return found

    def license(self) -> str | None:
        path = self.folder / "README.md"
        card = self._called(huggingface_hub.ModelCard.load, path) if path.is_file() else None
        return None if card is None else card.data.license

    def sha256(self) -> dict[str, str]:
        one = [self.folder / name for name in self._gguf.values()]  # a GGUF file
        files = one or sorted(self.folder.glob("*.safetensors"))
        return {path.name: hash_file(path) for path in files}

    @torch.no_grad()
    def model(self, config: ModelConfig, path: PathKind) -> DualPathLM:
        """The dual-path model; new weights are drawn from seed 0."""
        safe = {} if self._gguf else {"use_safetensors": True}
        theirs, found = self._read(
            transformers.AutoModelForCausalLM, dtype=torch.float32, output_loading_info=True, **safe
        )
        if missing := sorted(found["missing_keys"]):
            raise UserError(f"{self.shown} is incomplete: it lacks {missing[0]}")
        names, given = _names(config, path), dict(theirs.named_parameters())
        if others := sorted(given.keys() - names.values()):
            raise UserError(f"{self.shown} has weights {others[0]}; {FITS}")
        model = DualPathLM(config, seed=0)
        for name, other in names.items():
            model.get_parameter(name).copy_(given[other])
        for n, kind in enumerate(config.block_kinds):
            gain = "wide.gain" if _place(kind, path) == "wide" else "deep.gains"
            model.get_parameter(f"blocks.{n}.{gain}")[0] = ONE
            if kind == "dual":
                logits = [OPEN, SHUT] if path == "deep" else [SHUT, OPEN]
                model.get_parameter(f"blocks.{n}.gate.proj.bias").copy_(torch.tensor(logits))
        return model

    def _feature(self) -> str | None:
        """A feature of the model that no block has, with its value."""
        theirs, window = self._theirs, None
        if theirs.model_type not in FAMILIES:
            return f"layers of model_type {theirs.model_type}"
        rope, width = theirs.rope_parameters["rope_type"], theirs.hidden_size
        if getattr(theirs, "use_sliding_window", True):
            window = getattr(theirs, "sliding_window", None)
        if rope != "default":
            return f"rotary scaling ({rope})"
        if window:
            return f"sliding windows ({window})"
        if theirs.head_dim not in (None, width / theirs.num_attention_heads):
            return f"another head size than width / heads ({theirs.head_dim})"
        if theirs.hidden_act not in ("silu", "swish"):
            return f"another activation than silu ({theirs.hidden_act})"
        return None

    def _read(self, auto: Any, **options: Any) -> Any:
        options |= {"trust_remote_code": False, **self._gguf}
        return self._called(auto.from_pretrained, self.folder, **options)

    def _called(self, function: Any, *arguments: Any, **options: Any) -> Any:
        try:
            with redirect_stderr(StringIO()):  # some progress bars have no switch
                return function(*arguments, **options)
        except Exception as error:  # damaged and foreign files raise nearly anything
            reason = " ".join(of_content(error).split())[:160]
            raise UserError(f"{self.shown} cannot be read: {reason}") from None


def _names(config: ModelConfig, path: PathKind) -> dict[str, str]:
    """The names of pretrained weights, by the names of our parameters."""
    found = {"embed.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
    if not config.tie_embeddings:
        found["head.weight"] = "lm_head.weight"
    for n, kind in enumerate(config.block_kinds):
        place = _place(kind, path)
        for ours, theirs in LAYER.items():
            if config.qk_norm != "none" or not ours.endswith(("q_norm", "k_norm")):
                found[f"blocks.{n}.{place}.sublayer.{ours}.weight"] = (
                    f"model.layers.{n}.{theirs}.weight"
                )
    return found


def _place(kind: BlockKind, path: PathKind) -> PathKind:
    """The pretrained path of a block; `path` is that of dual blocks."""
    return path if kind == "dual" else "wide" if kind == "wide" else "deep"
