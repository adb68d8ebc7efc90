"""A pretrained model of transformers as a dual-path model.

    wide    s_w = softplus(beta) = 1 makes Eq. 4 a layer of Llama, exactly
    loop    s_1 = 1, and s_2 ... s_K at their initial 0.0009: h_1 is that layer, and h_2 ... h_K
            hardly differ from h_1, whatever the router says
    dual    either of these with a gate of 0.993, beside a new path with a gate of 0.007

All is computed and written in float32.
"""

import json
import math
from collections.abc import Iterator
from contextlib import redirect_stderr
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import torch
import transformers

from dualpath_cli.base.errors import UserError, of_content
from dualpath_cli.data.tokenizer import Tokenizer, name_end_of_text
from dualpath_cli.model import DualPathLM
from dualpath_cli.run.checkpoint_files import hash_file
from dualpath_cli.spec.config import BlockKind, ModelConfig

PathKind = Literal["deep", "wide"]
FAMILIES: dict[str, Literal["none", "before_rope"]] = {
    "llama": "none",
    "mistral": "none",
    "qwen3": "before_rope",
}
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
ONE = math.log(math.expm1(1))  # softplus(ONE) = 1
OPEN, SHUT = 5.0, -5.0  # logits of a gate: sigmoids of 0.993 and 0.007


class Pretrained:
    """A pretrained model in a folder; its weights are read by `model` alone."""

    def __init__(self, folder: Path, gguf: str | None, shown: str) -> None:
        """Raises UserError for a model that transformers cannot read, or no block can be."""
        transformers.utils.logging.set_verbosity_error()
        self.folder, self.shown = folder, shown
        self._options = {} if gguf is None else {"gguf_file": gguf}
        self._theirs = self._read(transformers.AutoConfig)
        with torch.device("meta"):
            model = self._called(transformers.AutoModelForCausalLM.from_config, self._theirs)
        self._shapes = {name: p.shape for name, p in model.named_parameters()}
        if feature := next(self._features(), None):
            raise UserError(
                f"{shown} has {feature}, which the blocks here have not; what fits is Llama, "
                "Mistral or Qwen3 without"
            )

    @cached_property
    def config(self) -> ModelConfig:
        """The model with wide blocks; `d_ffn` is the width of `d_ffn_wide`."""
        theirs, rope = self._theirs, self._rope()
        width = theirs.intermediate_size  # effective: floor(2 d_ffn / 3), rounded up to a multiple
        return ModelConfig(
            vocab_size=theirs.vocab_size,
            n_layers=theirs.num_hidden_layers,
            d_model=theirs.hidden_size,
            n_heads=theirs.num_attention_heads,
            n_kv_heads=theirs.num_key_value_heads,
            max_seq_len=theirs.max_position_embeddings,
            block="wide",
            loops=1,
            d_ffn=-(-3 * width // 2),
            d_ffn_wide=-(-3 * width // 2),
            ffn_multiple_of=math.gcd(width, 64),
            rope_base=rope["rope_theta"],
            norm_eps=theirs.rms_norm_eps,
            qk_norm=FAMILIES[theirs.model_type],
            tie_embeddings=theirs.tie_word_embeddings,
        )

    def tokenizer(self) -> Tokenizer:
        """Raises UserError for a tokenizer that is no byte-level BPE of at most `vocab_size`."""
        if "gguf_file" in self._options and not (self.folder / "tokenizer.json").exists():
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

    def sha256(self) -> dict[str, str]:
        """The hashes of the files of weights, by name."""
        own = self._options.get("gguf_file", "*.safetensors")
        return {path.name: hash_file(path) for path in sorted(self.folder.glob(own))}

    @torch.no_grad()
    def model(self, config: ModelConfig, path: PathKind) -> DualPathLM:
        """The dual-path model; weights that no pretrained one gives are drawn from seed 0."""
        safe = {} if self._options else {"use_safetensors": True}
        theirs, found = self._read(
            transformers.AutoModelForCausalLM, dtype=torch.float32, output_loading_info=True, **safe
        )
        if missing := sorted(found["missing_keys"]):
            raise UserError(f"{self.shown} is incomplete: it lacks {missing[0]}")
        given, model = dict(theirs.named_parameters()), DualPathLM(config, seed=0)
        for name, other in _names(config, path).items():
            model.get_parameter(name).copy_(given[other])
        for n, kind in enumerate(config.block_kinds):
            gain = "wide.gain" if _place(kind, path) == "wide" else "deep.gains"
            model.get_parameter(f"blocks.{n}.{gain}")[0] = ONE
            if kind == "dual":
                logits = [OPEN, SHUT] if path == "deep" else [SHUT, OPEN]
                model.get_parameter(f"blocks.{n}.gate.proj.bias").copy_(torch.tensor(logits))
        return model

    def _features(self) -> Iterator[str]:
        """What the model has that no block has, the plainest name of it first."""
        theirs, rope, names = self._theirs, self._rope(), sorted(self._shapes)
        kinds = set(getattr(theirs, "layer_types", None) or ())
        if (kind := rope.get("rope_type", "default")) != "default":
            yield f"rotary scaling (rope_type {kind})"
        if biases := [name for name in names if name.endswith(".bias")]:
            yield f"biases ({biases[0]})"
        window = getattr(theirs, "sliding_window", None)
        window = window if getattr(theirs, "use_sliding_window", True) else None
        if window or kinds - {"full_attention"}:
            yield f"sliding windows ({window or ', '.join(sorted(kinds))})"
        if norms := [name for name in names if "post_feedforward_layernorm" in name]:
            yield f"post-norms ({norms[0]})"
        if experts := [name for name in names if ".experts." in name]:
            yield f"experts ({experts[0]})"
        if theirs.model_type not in FAMILIES:
            yield f"layers of model_type {theirs.model_type}"
        head, heads = getattr(theirs, "head_dim", None), theirs.num_attention_heads
        if head is not None and head * heads != theirs.hidden_size:
            yield f"a head size of {head}, not width / heads = {theirs.hidden_size / heads:g}"
        if theirs.hidden_act not in ("silu", "swish"):
            yield f"another activation than silu ({theirs.hidden_act})"

    def _rope(self) -> dict[str, Any]:
        """Rotary parameters, which transformers before version 5 kept apart."""
        theirs = self._theirs
        before = {"rope_theta": getattr(theirs, "rope_theta", 10000.0)}
        return getattr(theirs, "rope_parameters", None) or before | (
            getattr(theirs, "rope_scaling", None) or {}
        )

    def _read(self, auto: Any, **options: Any) -> Any:
        return self._called(auto.from_pretrained, self.folder, **self._options, **options)

    def _called(self, function: Any, *arguments: Any, **options: Any) -> Any:
        """Calls transformers, which raises nearly anything for a damaged or foreign file."""
        try:
            with redirect_stderr(StringIO()):  # bars, of which some heed no switch
                return function(*arguments, trust_remote_code=False, **options)
        except ImportError as error:
            raise UserError(f"{self.shown}: {_first_line(error)}") from None
        except Exception as error:
            raise UserError(f"{self.shown} cannot be read: {_first_line(error)}") from None


def _names(config: ModelConfig, path: PathKind) -> dict[str, str]:
    """The names of pretrained weights by those of the parameters that they become."""
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
    """The path of a block that is pretrained; `path` is that of dual blocks."""
    return path if kind == "dual" else "wide" if kind == "wide" else "deep"


def _first_line(error: Exception) -> str:
    return " ".join(of_content(error).split())[:160]
