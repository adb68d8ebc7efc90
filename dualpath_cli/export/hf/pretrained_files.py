"""The files of a pretrained model, read before transformers reads them. Torch-free.

transformers passes over a tensor that its model lacks, and loads the code and the
weights that a file names. So each setting that names something is refused here, and
`Files` says which tensors there are: the model must have all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import open_regular, read_json, read_text
from dualpath_cli.base.output import joined_lines
from dualpath_cli.base.pointers import refuse_pointer
from dualpath_cli.run.exported_folder import CONFIG, WEIGHTS, part_of, shards_of

FAMILIES: dict[str, Literal["none", "before_rope"]]
FAMILIES = {"llama": "none", "mistral": "none", "qwen3": "before_rope"}
"""The model types of transformers whose layers fit, and where they norm queries and
keys."""
FITS = "no block supports that; plain Llama, Mistral and Qwen3 models work"
DTYPES = {"F64", "F32", "F16", "BF16"}
"""Types that hold weights themselves; those of others are the weights only beside their
scales."""
OF_ROPE = ".rotary_emb.inv_freq"
"""The ending of tensors that old checkpoints have and that `rope_theta` gives."""
SIZES_OF_GGUF = (
    "attention.key_length",
    "attention.value_length",
    "rope.dimension_count",
)
"""The keys of a GGUF file with a head's size, which must be width / heads."""
OF_GGUF = {
    "vocab_size",
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.layer_norm_rms_epsilon",
    "rope.freq_base",
    *SIZES_OF_GGUF,
}
"""The keys of a GGUF file that describe those families' layers."""
OFF = {
    "rope.scaling.type": "none",
    "attention.causal": True,
    "expert_count": 0,
    "expert_used_count": 0,
    "attention.sliding_window": 0,
}
"""Other keys of a GGUF file, and the values with which they change nothing."""


@dataclass(frozen=True)
class Stored:
    """A tensor in a file.

    `dtype` is safetensors' name of its type, None in a GGUF file.
    """

    dtype: str | None
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Chat:
    """What a model for chats has beside the end-of-text of its documents."""

    template: str | None
    """The chat template, in Jinja."""
    bos: str | int | None
    """The token before a text: its name, or its id in a GGUF file."""
    ends: list[int]
    """The ids that end a generated text."""


class Files:
    """A folder of transformers with safetensors, or a GGUF file in a folder."""

    def __init__(self, folder: Path, gguf: str | None, shown: str) -> None:
        """Raises UserError for files that cannot be read, and for what no block has."""
        self.folder = folder
        self.gguf = gguf
        self.shown = shown
        weights = WEIGHTS if gguf is None else gguf
        for file in folder.iterdir():
            # Other weights are not read: of other formats, of other quantisations.
            if file.name == weights or file.suffix in (".json", ".jinja", ".md"):
                refuse_pointer(file)

        adapter = folder / "adapter_config.json"
        if adapter.exists():
            base = read_json(adapter).get("base_model_name_or_path")
            raise UserError(
                f"{shown} holds an adapter of '{base}' (adapter_config.json); merge it "
                "into that model by peft's merge_and_unload, and give the folder that "
                "this saves"
            )

        if gguf is None:
            self.settings = read_json(folder / CONFIG)
            self._check_settings()
            self.paths = self._weights()
        else:
            self.paths = [folder / gguf]
            self._reader = _read_gguf(self.paths[0], shown)
            # Tokens, scores and merges are long, and read by transformers.
            self.settings = {}
            for name, field in self._reader.fields.items():
                if not _is_list(field):
                    self.settings[name] = field.contents()
            self._check_gguf()

    def check_tensors(self, wanted: Mapping[str, tuple[int, ...]], layers: int) -> None:
        """Compares the files with the tensors of the model, by transformers' names.

        Raises UserError for the first that is missing, too much, of another shape, or
        of a type that is not a weight by itself.
        """
        stored = self._stored()
        names = {name: name for name in wanted}
        if self.gguf is not None:
            names = self._of_gguf(wanted)

        for name, shape in wanted.items():
            own_name = names[name]
            found = stored.pop(own_name, None)
            if found is None:
                raise UserError(f"{self.shown} is incomplete: it lacks {own_name}")
            if found.shape != shape:
                raise UserError(
                    f"{self.shown}: {own_name} is {found.shape}, and {CONFIG} asks "
                    f"for {shape}; put the {CONFIG} of these weights back"
                )
            if found.dtype is not None and found.dtype not in DTYPES:
                raise UserError(
                    f"{self.shown}: {own_name} is of {found.dtype}, a quantised "
                    "weight; give the model before its quantisation, or its GGUF file"
                )

        left = [name for name in sorted(stored) if not name.endswith(OF_ROPE)]
        # a tied head: the same values, or `Pretrained` says so
        if "lm_head.weight" in left and "lm_head.weight" not in wanted:
            left.remove("lm_head.weight")
        if left:
            raise self._too_much(left[0], layers)

    def chat(self) -> Chat:
        """The chat template and the tokens around a text, where files name them."""
        if self.gguf is not None:
            return self._chat_of_gguf()

        tokenizer = self._optional("tokenizer_config.json")
        template = tokenizer.get("chat_template")
        if isinstance(template, list):
            template = _default_template(template)
        # A file of its own comes first, as in transformers.
        if (self.folder / "chat_template.jinja").exists():
            template = read_text(self.folder / "chat_template.jinja")

        bos = tokenizer.get("bos_token")
        if isinstance(bos, dict):
            bos = bos.get("content")

        generation = self._optional("generation_config.json")
        end = generation.get("eos_token_id", self.settings.get("eos_token_id"))
        ends = end if isinstance(end, list) else [end]
        return Chat(template, bos, _ids(ends))

    def _chat_of_gguf(self) -> Chat:
        start = "tokenizer.ggml"
        bos = self.settings.get(f"{start}.bos_token_id")
        ends = [
            self.settings.get(f"{start}.{end}_token_id")
            for end in ("eos", "eot", "eom")
        ]
        return Chat(self.settings.get("tokenizer.chat_template"), bos, _ids(ends))

    def _check_settings(self) -> None:
        """Refuses settings that name code, files or another format of weights."""
        settings = self.settings
        kind = settings.get("model_type")
        if kind == "dualpath":
            raise UserError(
                f"{self.shown} is a dual-path model already, written by export or "
                "retrofit: give it as a RUN, or to fit as --run.init_from"
            )
        if kind not in list(FAMILIES):  # also where it is a list itself
            raise UserError(f"{self.shown} has layers of model_type {kind}; {FITS}")

        method = settings.get("quantization_config")
        if method:
            if isinstance(method, dict):
                method = method.get("quant_method")
            raise UserError(
                f"{self.shown} is quantised (quantization_config: {method}); give the "
                "model before its quantisation, or its GGUF file"
            )

        file = settings.get("transformers_weights")
        if file:
            raise UserError(
                f"{self.shown}: {CONFIG} names the file of its weights "
                f"(transformers_weights: {file}); name the file {WEIGHTS}, and remove "
                "the key"
            )

        rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
        for place in (settings, rope):
            theta = place.get("rope_theta", 1.0) if isinstance(place, dict) else place
            if isinstance(theta, bool) or not isinstance(theta, int | float):
                raise UserError(
                    f"{self.shown}: rope_theta in {CONFIG} is {theta!r}; give a "
                    "number, without quotes"
                )

    def _weights(self) -> list[Path]:
        """The files that transformers reads: one, or else those of the index."""
        if (self.folder / WEIGHTS).exists():
            return [part_of(self.folder, WEIGHTS)]

        paths = shards_of(self.folder)
        if not paths:
            raise UserError(
                f"{self.shown} holds no {WEIGHTS}; give a folder with safetensors"
            )
        for path in paths:
            refuse_pointer(path)
        return paths

    def _stored(self) -> dict[str, Stored]:
        """The tensors in the files, by name; a bare model's get their prefix."""
        stored: dict[str, Stored] = {}
        if self.gguf is not None:
            for tensor in self._reader.tensors:
                shape = tuple(int(size) for size in reversed(tensor.shape))
                stored[tensor.name] = Stored(None, shape)
            return stored

        for path in self.paths:
            try:
                stored |= _tensors_of(path)
            except Exception as error:  # a damaged file raises nearly anything
                reason = joined_lines(error, 120)
                raise UserError(
                    f"{self.shown}: {path.name} cannot be read ({reason})"
                ) from None

        # Saved without its head, as transformers' LlamaModel: it has one that is tied.
        if "embed_tokens.weight" in stored:
            return {f"model.{name}": tensor for name, tensor in stored.items()}
        return stored

    def _too_much(self, name: str, layers: int) -> UserError:
        numbers = [int(word) for word in name.split(".") if word.isdecimal()]
        layer = numbers[0] if numbers else 0
        if layer >= layers:
            return UserError(
                f"{self.shown} holds weights of a layer {layer + 1} ({name}), and its "
                f"settings ask for {layers} layers; put the number of these weights "
                "back"
            )
        return UserError(f"{self.shown} has weights {name}; {FITS}")

    def _optional(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        return read_json(path) if path.exists() else {}

    def _check_gguf(self) -> None:
        """Refuses keys that a GGUF file's layers heed and transformers ignores."""
        kind = self.settings.get("general.architecture")
        if kind not in ("llama", "qwen3"):  # Mistral's is llama
            raise UserError(f"{self.shown} has layers of architecture {kind}; {FITS}")

        start = f"{kind}."
        of_layers = {
            name.removeprefix(start): value
            for name, value in self.settings.items()
            if name.startswith(start)
        }
        window = of_layers.get("attention.sliding_window")
        length = of_layers.get("context_length")
        if window and length and window >= length:
            del of_layers["attention.sliding_window"]  # it never acts

        for name, value in of_layers.items():
            changes_nothing = name in OFF and OFF[name] == value
            if name not in OF_GGUF and not changes_nothing:
                raise UserError(f"{self.shown} has {kind}.{name} {value}; {FITS}")

        heads = of_layers.get("attention.head_count")
        width = of_layers.get("embedding_length")
        for name in SIZES_OF_GGUF:
            size = of_layers.get(name)
            if size is not None and heads and size * heads != width:
                raise UserError(
                    f"{self.shown} has another {kind}.{name} than width / heads "
                    f"({size}); {FITS}"
                )

    def _of_gguf(self, names: Mapping[str, Any]) -> dict[str, str]:
        """The names of tensors in a GGUF file, by those of transformers."""
        import gguf

        architecture = self.settings["general.architecture"]
        kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
        layers = self.settings[f"{architecture}.block_count"]
        known = gguf.get_tensor_name_map(kinds[architecture], layers)
        return {name: str(known.get_name(name, (".weight",))) for name in names}


def _default_template(templates: list[Any]) -> Any:
    """The template named `default`, of several."""
    for template in templates:
        if isinstance(template, dict) and template.get("name") == "default":
            return template.get("template")
    return None


def _tensors_of(path: Path) -> dict[str, Stored]:
    """The tensors in a file of safetensors."""
    from safetensors import safe_open

    with open_regular(path):  # a pipe would be waited for
        pass

    stored = {}
    with safe_open(path, "numpy") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            part = file.get_slice(name)
            stored[name] = Stored(part.get_dtype(), tuple(part.get_shape()))
    return stored


def _read_gguf(path: Path, shown: str) -> Any:
    import gguf

    try:
        return gguf.GGUFReader(path)
    except Exception as error:  # a damaged file raises nearly anything
        reason = joined_lines(error, 120)
        raise UserError(f"{shown} cannot be read ({reason})") from None


def _is_list(field: Any) -> bool:
    return bool(field.types[0].name == "ARRAY")


def _ids(values: list[Any]) -> list[int]:
    """The ids in a list that may have holes, each once."""
    return list(dict.fromkeys(value for value in values if type(value) is int))
