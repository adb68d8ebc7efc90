"""A pretrained model of transformers as a dual-path model.

    wide    s_w = softplus(beta) = 1 makes Eq. 4 a layer of Llama, exactly
    loop    s_1 = 1, and s_2 ... s_K at their initial 0.0009: h_1 is that layer, and h_2
            ... h_K hardly differ from h_1, whatever the router says
    core    wide layers with s_1 = 1, and s_2 ... s_R at 0.0009: x_1 is the layers once,
            and x_2 ... x_R hardly differ from x_1; or damped, at another s
    dual    wide or loop beside a new path, both gates 0.5, as every gate begins

A layer of Llama is x + A + F, with attention A and feed-forward F. The new path has a
copy of the attention and a new FFN that adds 0; the pretrained FFN adds twice its
output:

    y = 0.5 (x + A + 2 F) + 0.5 (x + A + 0) = x + A + F

So only a zero matrix keeps the new path silent: its gradients are as large as the
pretrained path's. A gate or a gain near 0 would divide them by a hundred or a thousand,
and Adam's epsilon then stops them. Twice a weight is exact in binary.

Everything is computed and written in float32.
"""

import json
import math
from collections.abc import Mapping
from contextlib import redirect_stderr
from functools import cached_property
from io import StringIO
from typing import Any, Literal

import huggingface_hub
import torch
import transformers
import yaml
from safetensors import safe_open

from dualpath_cli.base.errors import UserError, content_fault
from dualpath_cli.base.files import hash_file
from dualpath_cli.base.output import joined_lines
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.data.tokenizer_json import name_end_of_text
from dualpath_cli.decoding.cache import Cache
from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.export.hf.pretrained_files import FAMILIES, FITS, Files
from dualpath_cli.model import DualPathLM
from dualpath_cli.run.exported_folder import CARD
from dualpath_cli.spec.config import BlockKind, ModelConfig
from dualpath_cli.spec.intervention import Intervention

PathKind = Literal["deep", "wide"]
LAYER = {
    "attn.q_proj": "self_attn.q_proj",
    "attn.k_proj": "self_attn.k_proj",
    "attn.v_proj": "self_attn.v_proj",
    "attn.o_proj": "self_attn.o_proj",
    "attn.q_norm": "self_attn.q_norm",
    "attn.k_norm": "self_attn.k_norm",
    "ffn.gate_proj": "mlp.gate_proj",
    "ffn.up_proj": "mlp.up_proj",
    "ffn.down_proj": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
"""The weights of a sublayer, and of a layer of those families."""
COMPARED = 512
"""The most tokens of the pass that compares both models."""
DRAWN = 64
"""The most tokens of a text that the pretrained model draws."""
PATHS: dict[BlockKind, tuple[PathKind, ...]]
PATHS = {"loop": ("deep",), "wide": ("wide",), "dual": ("deep", "wide")}
ONE = math.log(math.expm1(1))  # softplus(ONE) = 1


class Pretrained:
    """A pretrained model in files that were checked; only `model` reads the weights."""

    def __init__(self, files: Files) -> None:
        """Raises UserError for an unreadable model, or one that no block computes."""
        transformers.utils.logging.set_verbosity_error()
        self.files = files
        self.folder = files.folder
        self.shown = files.shown
        self._gguf = {} if files.gguf is None else {"gguf_file": files.gguf}
        self._theirs = self._config()

        feature = self._unknown_feature()
        if feature:
            raise UserError(f"{self.shown} has {feature}; {FITS}")

    @cached_property
    def config(self) -> ModelConfig:
        """The model with wide blocks; both paths have the pretrained FFN width."""
        theirs = self._theirs
        width = theirs.intermediate_size
        # The effective width is floor(2 d_ffn / 3), rounded up to a multiple.
        d_ffn = -(-3 * width // 2)
        return ModelConfig(
            theirs.vocab_size,
            theirs.num_hidden_layers,
            theirs.hidden_size,
            theirs.num_attention_heads,
            theirs.num_key_value_heads,
            theirs.max_position_embeddings,
            block="wide",
            d_ffn=d_ffn,
            d_ffn_wide=d_ffn,
            ffn_multiple_of=math.gcd(width, 64),
            rope_base=theirs.rope_parameters["rope_theta"],
            norm_eps=theirs.rms_norm_eps,
            qk_norm=FAMILIES[theirs.model_type],
            tie_embeddings=theirs.tie_word_embeddings,
        )

    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Raises UserError unless it is a byte-level BPE with at most `vocab_size`
        entries.
        """
        # A GGUF file contains a tokenizer, which transformers converts.
        if self._gguf and not (self.folder / "tokenizer.json").exists():
            theirs = self._load(transformers.AutoTokenizer)
            definition = json.loads(theirs.backend_tokenizer.to_str())
            name_end_of_text(definition, theirs.eos_token)
            found = Tokenizer(definition, self.shown)
        else:
            found = Tokenizer.load(self.folder)

        if found.vocab_size > self.config.vocab_size:
            raise UserError(
                f"{self.shown}: its tokenizer has {found.vocab_size} entries, its "
                f"embedding {self.config.vocab_size} rows"
            )
        return found

    def license(self) -> str | None:
        """The licence that the model card names, if there is one.

        Raises UserError for a card that cannot be read.
        """
        path = self.folder / CARD
        if not path.is_file():
            return None

        try:
            metadata = huggingface_hub.metadata_load(path) or {}
        except (ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
            reason = joined_lines(content_fault(error), 160)
            raise UserError(
                f"{self.shown}: {CARD} cannot be read ({reason}); mend it, or give "
                "--license"
            ) from None
        return metadata.get("license")

    def sha256(self) -> dict[str, str]:
        return {path.name: hash_file(path) for path in self.files.paths}

    def around_texts(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """The chat template and the tokens around a text, for an exported folder."""
        chat = self.files.chat()
        values = tokenizer.token_values()
        names = [value.decode(errors="replace") for value in values]
        ids = {name: id for id, name in enumerate(names)}

        bos = chat.bos
        if isinstance(bos, int):
            bos = values[bos].decode() if bos < len(values) else None
        begin = None
        if bos is not None and bos in ids:
            begin = [bos, ids[bos]]

        ends = {names[id]: id for id in chat.ends if id < len(names)}
        return {"chat_template": chat.template, "bos": begin, "ends": ends}

    @torch.no_grad()
    def model(
        self, config: ModelConfig, path: PathKind, damping: float | None = None
    ) -> DualPathLM:
        """The dual-path model; `path` is the pretrained path of dual blocks.

        `damping` is s_2 ... s_R of a core, None: nearly silent. New weights are drawn
        from seed 0, but for new output matrices, which are zero.
        Raises UserError unless the files hold its pretrained weights, all finite, and
        nothing else.
        """
        model = DualPathLM(config, seed=0)
        names = _pretrained_names(config, path)
        shapes = {}
        for name, other in names.items():
            shapes[other] = tuple(model.get_parameter(name).shape)
        self.files.check_tensors(shapes, config.n_layers)

        theirs = dict(self._model.named_parameters())
        if config.tie_embeddings and not self._has_tied_head(theirs):
            raise UserError(
                f"{self.shown} has a head that is not its embedding (lm_head.weight), "
                "and tie_word_embeddings true; set that to false in config.json to "
                "keep the head"
            )

        for name, other in names.items():
            if not theirs[other].isfinite().all():
                raise UserError(
                    f"{self.shown}: {other} is not finite; the files are damaged"
                )
            model.get_parameter(name).copy_(theirs[other])

        for name, parameter in model.named_parameters():
            if name.endswith((".deep.gains", ".wide.gain")):
                parameter[0] = ONE
                if damping is not None:
                    parameter[1:] = math.log(math.expm1(damping))

        # A new path adds 0, and the pretrained FFN twice its output: see above.
        new_path = "wide" if path == "deep" else "deep"
        output = "sublayer.ffn.down_proj.weight"
        for n, kind in enumerate(config.block_kinds):
            if kind == "dual":
                model.get_parameter(f"blocks.{n}.{new_path}.{output}").zero_()
                model.get_parameter(f"blocks.{n}.{path}.{output}").mul_(2)
        return model

    @torch.no_grad()
    def difference(self, model: DualPathLM, core_loops: int | None = None) -> float:
        """The relative distance of the model's logits from those of transformers.

        On one sequence of random tokens, with positions up to COMPARED; in float32.
        `core_loops` forces a number of repetitions of the core.
        """
        length = min(self.config.max_seq_len, COMPARED)
        chance = torch.Generator().manual_seed(0)
        tokens = torch.randint(self.config.vocab_size, (1, length), generator=chance)
        forced = None if core_loops is None else Intervention(core_loops=core_loops)

        wanted = self._model(tokens, use_cache=False).logits
        logits = model.eval()(tokens, intervention=forced)
        return float((logits - wanted).norm() / wanted.norm())

    @cached_property
    def _model(self) -> Any:
        """The model of transformers, with its plainest attention."""
        options = {} if self._gguf else {"use_safetensors": True}
        theirs = self._load(
            transformers.AutoModelForCausalLM,
            config=self._theirs,
            attn_implementation="eager",
            dtype=torch.float32,
            **options,
        )
        return theirs.eval()

    def _config(self) -> Any:
        """The settings as transformers has them.

        Private ones are left out: transformers sets them itself, and
        `_attn_implementation` may name code to fetch.
        """
        if self._gguf:
            return self._load(transformers.AutoConfig)

        settings = self.files.settings
        public = {key: settings[key] for key in settings if not key.startswith("_")}
        kind = transformers.CONFIG_MAPPING[settings["model_type"]]
        return self._call(kind.from_dict, public, attn_implementation="eager")

    def _has_tied_head(self, theirs: Mapping[str, torch.Tensor]) -> bool:
        """Whether a head beside a tied embedding has the same values."""
        if self._gguf:
            return True

        embedding = theirs["model.embed_tokens.weight"]
        for path in self.files.paths:
            with safe_open(path, "pt") as file:
                if "lm_head.weight" in file.keys():  # noqa: SIM118 - not a mapping
                    head = file.get_tensor("lm_head.weight").float()
                    return torch.equal(head, embedding)
        return True

    def _unknown_feature(self) -> str | None:
        """A feature of the model that no block has, with its value."""
        theirs = self._theirs
        rope = theirs.rope_parameters["rope_type"]
        if rope != "default":
            return f"rotary scaling ({rope})"

        window = None
        if getattr(theirs, "use_sliding_window", True):
            window = getattr(theirs, "sliding_window", None)
        if window and window < theirs.max_position_embeddings:  # else it never acts
            return f"sliding windows ({window})"

        head_size = theirs.hidden_size / theirs.num_attention_heads
        if theirs.head_dim not in (None, head_size):
            return f"another head size than width / heads ({theirs.head_dim})"

        if theirs.hidden_act not in ("silu", "swish"):
            return f"another activation than silu ({theirs.hidden_act})"

        return None

    def _load(self, auto: Any, **options: Any) -> Any:
        options |= {"trust_remote_code": False, "local_files_only": True, **self._gguf}
        return self._call(auto.from_pretrained, self.folder, **options)

    def _call(self, function: Any, *arguments: Any, **options: Any) -> Any:
        """Calls a function of a library, quietly; raises UserError if it fails."""
        try:
            with redirect_stderr(StringIO()):  # some progress bars have no switch
                return function(*arguments, **options)
        except Exception as error:  # damaged and foreign files raise nearly anything
            reason = joined_lines(content_fault(error), 160)
            raise UserError(f"{self.shown} cannot be read: {reason}") from None


@torch.no_grad()
def losses_of_core(model: DualPathLM, first: int) -> tuple[float, float]:
    """The losses with one repetition, as pretrained, and with all, in nats a token.

    On texts that the pretrained model draws after the token `first`: COMPARED tokens in
    texts of DRAWN, or shorter ones where positions end before.
    """
    once = Intervention(core_loops=1)
    length = min(model.config.max_seq_len, DRAWN)
    cache = Cache(model.config, capacity=length)
    chance = torch.Generator().manual_seed(0)
    tokens_BT = torch.full((COMPARED // DRAWN, 1), first)

    model.eval()
    for _ in range(length):
        logits_B1V = forward(model, tokens_BT[:, -1:], cache=cache, intervention=once)
        shares_BV = logits_B1V[:, 0].softmax(-1)
        drawn_B1 = shares_BV.multinomial(1, generator=chance)
        tokens_BT = torch.cat((tokens_BT, drawn_B1), dim=1)

    inputs_BT, targets_BT = tokens_BT[:, :-1], tokens_BT[:, 1:]
    before_BT = model(inputs_BT, targets_BT, intervention=once)
    after_BT = model(inputs_BT, targets_BT)
    return float(before_BT.mean()), float(after_BT.mean())


def _pretrained_names(config: ModelConfig, path: PathKind) -> dict[str, str]:
    """The names of pretrained weights, by the names of our parameters.

    `path` is the pretrained path of dual blocks; the attention of the other path is a
    copy.
    """
    found = {
        "embed.weight": "model.embed_tokens.weight",
        "norm.weight": "model.norm.weight",
    }
    if not config.tie_embeddings:
        found["head.weight"] = "lm_head.weight"

    layer = dict(LAYER)
    if config.qk_norm == "none":
        del layer["attn.q_norm"], layer["attn.k_norm"]

    for n, kind in enumerate(config.block_kinds):
        for ours, theirs in layer.items():
            for place in PATHS[kind]:
                # The FFN of a new path is new.
                new_path = kind == "dual" and place != path
                if new_path and ours.startswith("ffn"):
                    continue
                name = f"blocks.{n}.{place}.sublayer.{ours}.weight"
                found[name] = f"model.layers.{n}.{theirs}.weight"
    return found
