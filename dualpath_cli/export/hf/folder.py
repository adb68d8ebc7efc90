"""Writes the format `hf`: a folder that `AutoModelForCausalLM.from_pretrained` loads.

    config.json, generation_config.json             the model's settings
    configuration_dualpath.py, modeling_dualpath.py its code; own_*.py: the model's custom classes
    model.safetensors                               its weights
    tokenizer.json, tokenizer_config.json           its tokenizer
    README.md                                       the model card
    .eval_results/                                  scores as the hub reads them, where given
    recipe.yaml, versions.json                      of the run, for `dualpath import`
    SHA256SUMS                                      the hashes of all these (run/exported_folder.py)

Nothing here needs transformers.
"""

import dataclasses
import hashlib
import json
from functools import reduce
from pathlib import Path
from typing import Any

import torch

from dualpath_cli.config import RENAMED
from dualpath_cli.errors import RunFailed
from dualpath_cli.export.hf.card import Results, model_card
from dualpath_cli.export.hf.code import flatten, own_files, registration
from dualpath_cli.export.weights import Weights, entries, write_weights
from dualpath_cli.files import replacing_folder
from dualpath_cli.output.console import Progress
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.run import run_file
from dualpath_cli.run.exported_folder import (
    CARD,
    CONFIG,
    LISTING,
    PREFIX,
    SCORES,
    WEIGHTS,
    changed,
    check_ours,
    listing,
    read_folder,
)
from dualpath_cli.run.run_folder import RECIPE, TOKENIZER, VERSIONS, Run
from dualpath_cli.text.tokenizer import Tokenizer

CONFIGURATION = "dualpath_cli.export.hf.configuration"
MODELING = "dualpath_cli.export.hf.modeling"


def write(
    run: Run,
    settings: Settings,
    weights: Weights,
    out: Path,
    progress: Progress,
    results: Results | None = None,
    license: str | None = None,
) -> None:
    """Writes the folder, whole or not at all; its bytes follow from what is given alone.

    Raises RunFailed where the disk gives back something else than was written.
    """
    described = run_file.describe(run, settings)
    tokenizer = Tokenizer.load(run.folder / TOKENIZER)
    texts = own_files(settings.model) | {
        CONFIG: _as_json(config(settings, described, weights, tokenizer)),
        "generation_config.json": _as_json(generation(settings, tokenizer)),
        "tokenizer_config.json": _as_json(tokenizer_config(settings, tokenizer)),
        "configuration_dualpath.py": flatten(CONFIGURATION),
        "modeling_dualpath.py": flatten(MODELING, beside=[CONFIGURATION])
        + registration(settings.model),
        CARD: model_card(run, settings, described, weights.parameters, results, license),
        TOKENIZER: described["tokenizer"],
        RECIPE: described["recipe"],
        VERSIONS: described["versions"],
    }
    if results is not None:
        texts |= {f"{SCORES}/{name}": text for name, text in results.entries().items()}
    hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    header = run_file.header(entries(weights, PREFIX), {"format": "pt"})
    with replacing_folder(out, lambda before: check_ours(before, out)) as partial:
        with (partial / WEIGHTS).open("wb") as file:
            hashes[WEIGHTS] = write_weights(file, header, weights, progress)
        texts[LISTING] = listing(hashes)
        for name, text in texts.items():
            (partial / name).parent.mkdir(exist_ok=True)
            (partial / name).write_text(text, encoding="utf-8")
        read_folder(partial)
        if lost := changed(partial, lambda count: None):
            raise RunFailed(f"'{out / lost}' is not read back as it was written; check the disk")


def _as_json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def config(
    settings: Settings, described: dict[str, str], weights: Weights, tokenizer: Tokenizer
) -> dict[str, Any]:
    """config.json: the model's own fields, those of transformers, and where it came from."""
    dtype = reduce(torch.promote_types, weights.dtypes)
    facts: dict[str, Any] = {key: described[key] for key in ("run", "exported_with")}
    facts |= {key: int(described[key]) for key in ("step", "tokens")}
    if averaged := json.loads(described["versions"]).get("averaged_steps"):
        facts["averaged_steps"] = averaged
    return {
        "architectures": ["DualPathForCausalLM"],
        "model_type": "dualpath",
        "auto_map": {
            "AutoConfig": "configuration_dualpath.DualPathConfig",
            "AutoModelForCausalLM": "modeling_dualpath.DualPathForCausalLM",
        },
        "dtype": str(dtype).removeprefix("torch."),
        **{RENAMED.get(k, k): v for k, v in dataclasses.asdict(settings.model).items()},
        "tie_word_embeddings": settings.model.tie_embeddings,
        "use_cache": True,
        **_special_ids(tokenizer),
        "dualpath": facts | {"tokenizer_size": tokenizer.vocab_size},
    }


def generation(settings: Settings, tokenizer: Tokenizer) -> dict[str, Any]:
    """generation_config.json: rows of the vocabulary that stand for no token are never drawn."""
    unused = list(range(tokenizer.vocab_size, settings.model.vocab_size))
    return {**_special_ids(tokenizer), **({"suppress_tokens": unused} if unused else {})}


def tokenizer_config(settings: Settings, tokenizer: Tokenizer) -> dict[str, Any]:
    """tokenizer_config.json: texts come back as they were; batches are padded on the left."""
    end = tokenizer.token_values()[tokenizer.eot_id].decode()
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": end,
        "eos_token": end,
        "pad_token": end,
        "clean_up_tokenization_spaces": False,
        "model_max_length": settings.model.max_seq_len,
        "padding_side": "left",
        "model_input_names": ["input_ids", "attention_mask"],
    }


def _special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Documents begin after end-of-text, and end in it."""
    return dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), tokenizer.eot_id)
