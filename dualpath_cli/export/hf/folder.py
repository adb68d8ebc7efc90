"""Writes the folder that transformers loads, and that is a RUN.

    config.json, generation_config.json             the model's settings
    configuration_dualpath.py, modeling_dualpath.py its code; own_*.py: custom
                                                    classes of the model
    model.safetensors                               its weights, above 5 GB in several
                                                    files
    tokenizer.json, tokenizer_config.json           its tokenizer
    README.md                                       the model card
    recipe.yaml, versions.json, metrics.csv ...     of the run; tables up to this step
    SHA256SUMS                                      hashes of all these
                                                    (run/exported_folder.py)

Nothing here needs transformers.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from dualpath_cli.base.errors import RunFailed
from dualpath_cli.base.files import hash_file, read_text
from dualpath_cli.base.folders import replacing_folder
from dualpath_cli.base.version import package_versions
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.export.hf.card import model_card
from dualpath_cli.export.hf.code import flatten, own_files, registration
from dualpath_cli.model import DualPathLM
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.report.console import Progress
from dualpath_cli.report.table import format_csv
from dualpath_cli.run.exported_folder import (
    CARD,
    CONFIG,
    LISTING,
    PREFIX,
    SHARDS,
    check_ours,
    listing,
    read_folder,
)
from dualpath_cli.run.run_folder import PUT_BACK, RECIPE, TOKENIZER, VERSIONS, Run
from dualpath_cli.run.tables import read_tables
from dualpath_cli.run.weights import check_weights, read_weights, tensors_in
from dualpath_cli.spec.config import RENAMED, ModelConfig

CONFIGURATION = "dualpath_cli.export.hf.configuration"
MODELING = "dualpath_cli.export.hf.modeling"
MOST_BYTES = 5_000_000_000  # of a file of weights, as transformers long had it


class Weights:
    """A model's parameters, tied ones once, in the type in which they were trained."""

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], folder: Path | None = None
    ) -> None:
        """Takes tensors by name; from a `folder`, values are read while writing."""
        self._tensors = dict(tensors)
        self._folder = folder
        self.dtype = reduce(torch.promote_types, (t.dtype for t in tensors.values()))
        self.bytes = sum(tensor.nbytes for tensor in tensors.values())
        self.parameters = sum(tensor.numel() for tensor in tensors.values())

    @classmethod
    def of_model(cls, model: DualPathLM) -> "Weights":
        named = model.named_parameters()
        return cls({name: parameter.detach() for name, parameter in named})

    @classmethod
    def of_checkpoint(cls, checkpoint: Path, config: ModelConfig) -> "Weights":
        """The parameters in a verified checkpoint."""
        # Only names and shapes are needed.
        with torch.device("meta"):
            model = DualPathLM(config)
        found = tensors_in(checkpoint, PREFIX)
        check_weights(model, found, checkpoint)

        names = [name for name, _ in model.named_parameters()]
        return cls({name: found[name] for name in names}, checkpoint)

    def write_files(self, folder: Path, progress: Progress) -> dict[str, str]:
        """Writes files of at most MOST_BYTES; returns the sha256 of each by its name.

        The weights of one file at a time are in memory. Raises RunFailed if the disk
        gives other weights back.
        """
        tensors = {PREFIX + name: tensor for name, tensor in self._tensors.items()}
        split = split_torch_state_dict_into_shards(tensors, max_shard_size=MOST_BYTES)

        hashes = {}
        for file, names in split.filename_to_tensors.items():
            values = self._values({name: tensors[name] for name in names})
            save_file(values, folder / file, {"format": "pt"})
            # First, as the hash is of the bytes that the disk gives back.
            _check_written(folder / file, values)
            hashes[file] = hash_file(folder / file)
            progress.advance(sum(tensor.nbytes for tensor in values.values()))

        if split.is_sharded:
            index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
            hashes[SHARDS] = _write(folder / SHARDS, _as_json(index))
        return hashes

    def _values(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """These tensors in memory."""
        if self._folder is None:
            return tensors

        values = {}
        for name, tensor in tensors.items():
            values[name] = torch.empty_like(tensor, device="cpu")
        read_weights(values, self._folder)
        return values


def _check_written(path: Path, values: Mapping[str, torch.Tensor]) -> None:
    """Raises RunFailed unless a file holds these tensors, bit by bit."""
    # of a damaged header
    with suppress(SafetensorError), safe_open(path, "pt") as file:
        found = ((file.get_tensor(name), tensor) for name, tensor in values.items())
        if all(_same_bits(*pair) for pair in found):
            return

    raise RunFailed(
        f"{path.name} comes back from the disk with other weights than were written; "
        "give an --out on another disk"
    )


def _same_bits(found: torch.Tensor, tensor: torch.Tensor) -> bool:
    if (found.dtype, found.shape) != (tensor.dtype, tensor.shape):
        return False
    # As floats, 0 and -0 would be the same, and nan another one.
    return torch.equal(_bits(found), _bits(tensor))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _write(path: Path, text: str) -> str:
    """Writes a text; returns its sha256."""
    path.write_text(text, encoding="utf-8")
    return hashlib.sha256(text.encode()).hexdigest()


def write_folder(
    run: Run,
    settings: Settings,
    weights: Weights,
    out: Path,
    progress: Progress,
    license: str | None,
) -> None:
    """Writes the folder, whole or not at all.

    The same arguments give the same bytes. Raises RunFailed as `Weights.write_files`.
    """
    texts = _texts(run, settings, weights, license)
    with replacing_folder(out, lambda before: check_ours(before, out)) as partial:
        hashes = {name: _write(partial / name, text) for name, text in texts.items()}
        hashes |= weights.write_files(partial, progress)
        _write(partial / LISTING, listing(hashes))
        # Read back as a command will, before the folder gets its name.
        read_folder(partial)


def _texts(
    run: Run, settings: Settings, weights: Weights, license: str | None
) -> dict[str, str]:
    """The folder's files but for weights and hashes, by name."""
    tokenizer = Tokenizer.load(run.folder / TOKENIZER)

    texts = own_files(settings.model)
    for name, content in _settings(run, settings, weights, tokenizer).items():
        texts[name] = _as_json(content)
    texts["configuration_dualpath.py"] = flatten(CONFIGURATION)
    modeling = flatten(MODELING, beside=[CONFIGURATION])
    texts["modeling_dualpath.py"] = modeling + registration(settings.model)

    names, _ = _special_tokens(run, tokenizer)
    own_bos = names["bos_token"] != names["pad_token"]
    texts[CARD] = model_card(run, settings, weights.parameters, license, own_bos)
    texts[VERSIONS] = json.dumps(run.facts, indent=2) + "\n"
    texts[RECIPE] = read_text(run.folder / RECIPE, PUT_BACK)
    texts[TOKENIZER] = _tokenizer_text(run.folder / TOKENIZER)
    for name, rows in read_tables(run.folder, run.step).items():
        if rows:
            texts[name] = format_csv(rows)
    return texts


def _tokenizer_text(path: Path) -> str:
    """The tokenizer of a run, by which transformers adds no token to a text either."""
    text = read_text(path, PUT_BACK)
    definition = json.loads(text)
    processor = definition.get("post_processor")
    if processor is None or processor["type"] == "ByteLevel":
        return text
    # Others put tokens around a text, as that of Llama 3.
    return _as_json({**definition, "post_processor": None})


def _as_json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _settings(
    run: Run, settings: Settings, weights: Weights, tokenizer: Tokenizer
) -> dict[str, dict[str, Any]]:
    """config.json: the fields of ModelConfig and of transformers, and under `dualpath`
    the run. generation_config.json: rows of the vocabulary without a token are never
    drawn. tokenizer_config.json: decoding changes no space; batches are padded on the
    left; the chat template of a pretrained model.
    """
    model = settings.model
    origin = {
        "run": f"{settings.run.recipe}/{settings.run.name}",
        "exported_with": package_versions(["dualpath"])["dualpath"],
        "step": run.step,
        "tokens": run.step * settings.run.batch_tokens,
        "tokenizer_size": tokenizer.vocab_size,
    }
    fields = dataclasses.asdict(model)
    names, ids = _special_tokens(run, tokenizer)
    config = {
        "architectures": ["DualPathForCausalLM"],
        "model_type": "dualpath",
        "auto_map": {
            "AutoConfig": "configuration_dualpath.DualPathConfig",
            "AutoModelForCausalLM": "modeling_dualpath.DualPathForCausalLM",
        },
        "dtype": str(weights.dtype).removeprefix("torch."),
        **{RENAMED.get(name, name): value for name, value in fields.items()},
        "tie_word_embeddings": model.tie_embeddings,
        "use_cache": True,
        **ids,
        "dualpath": origin,
    }

    generation = dict(ids)
    unused = list(range(tokenizer.vocab_size, model.vocab_size))
    if unused:
        generation["suppress_tokens"] = unused

    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **names,
        "clean_up_tokenization_spaces": False,
        "model_max_length": model.max_seq_len,
        "padding_side": "left",
        "model_input_names": ["input_ids", "attention_mask"],
    }
    return {
        CONFIG: config,
        "generation_config.json": generation,
        "tokenizer_config.json": tokenizer_config,
    }


def _special_tokens(
    run: Run, tokenizer: Tokenizer
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Names and ids of the tokens around a text, and a pretrained chat template."""
    # End-of-text stands before and after each document, and is the padding.
    end = tokenizer.token_values()[tokenizer.eot_id].decode()
    special = ("bos_token", "eos_token", "pad_token")
    names: dict[str, Any] = dict.fromkeys(special, end)
    ids: dict[str, Any] = {f"{name}_id": tokenizer.eot_id for name in special}

    # A pretrained model had its own around a text.
    around = run.facts.get("retrofit", {}).get("around_texts", {})
    if around.get("bos"):
        names["bos_token"], ids["bos_token_id"] = around["bos"]
    if around.get("ends"):
        ids["eos_token_id"] = sorted({tokenizer.eot_id, *around["ends"].values()})
    if around.get("chat_template"):
        names["chat_template"] = around["chat_template"]
    return names, ids
