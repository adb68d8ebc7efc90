"""The facts that decide a study's numbers: checkpoint, texts, ways of computing."""

import dataclasses
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch import Trainer

from dualpath_cli.cli.launch import Launch
from dualpath_cli.kernels.device import device_name
from dualpath_cli.statistics.bootstrap import clusters_of
from dualpath_cli.text.documents import Source, source_files
from dualpath_cli.text.manifest import MANIFEST, Manifest
from dualpath_cli.text.storage import exists, local_copy
from dualpath_cli.training.data.windows import Windows

LAST_LAYER = (
    "The final RMSNorm takes the scale out of the last layer's output: only g_d : g_w counts "
    "there, so that what depends on the size of its gates cannot be set beside other layers."
)
"""The caption of tables with the gates of the last layer."""


def study_facts(launch: Launch, trainer: Trainer) -> dict[str, Any]:
    device = trainer.strategy.root_device
    return {
        "checkpoint": checkpoint_facts(launch),
        "model": dataclasses.asdict(launch.settings.model),
        "seed": launch.settings.seed_everything,
        "precision": str(trainer.precision),
        "device": device_name(device),
        "torch": torch.__version__,
        "devices": trainer.world_size,
        "micro_batch": launch.settings.run.micro_batch,
        "max_tokens": launch.settings.data.val_tokens,
        "val_seed": launch.settings.data.val_seed,
    }


def checkpoint_facts(launch: Launch) -> dict[str, Any]:
    assert launch.checkpoint is not None
    return {
        "path": str(launch.checkpoint),
        "step": launch.step,
        "sha256": checkpoint_digest(launch.checkpoint),
    }


def decisive_facts(facts: dict[str, Any], trainer: Trainer) -> dict[str, Any]:
    """Returns what of the facts decides numbers to the last bit; not where files are."""
    names = ("model", "seed", "precision", "device", "torch", "devices", "micro_batch")
    return {name: facts[name] for name in names} | {
        "checkpoint": facts["checkpoint"]["sha256"],
        "strategy": type(trainer.strategy).__name__,
        "matmul": torch.get_float32_matmul_precision(),
    }


def source_facts(name: str, location: str, windows: Windows, tokenizer: str) -> dict[str, Any]:
    """Returns what a source is; `tokenizer` is the fingerprint of the one that cut it."""
    return {
        "name": name,
        "path": location,
        "sha256": source_digest(name, location),
        "tokenizer": tokenizer,
        "sequences": windows.n_filled,
        "tokens": windows.n_tokens,
        "clusters": clusters_of(windows).facts,
    }


def array_digest(arrays: Iterable[npt.NDArray[Any]]) -> str:
    """Hash of arrays of whole numbers, and of where one ends."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{len(array)}/".encode())
        digest.update(np.ascontiguousarray(array, np.int64).tobytes())
    return digest.hexdigest()


def checkpoint_digest(checkpoint: Path) -> str:
    """Hash of a checkpoint's file, or of all files of a folder of shards."""
    paths = sorted(checkpoint.rglob("*")) if checkpoint.is_dir() else [checkpoint]
    return _file_digest(path for path in paths if path.is_file())


def source_digest(name: str, location: str) -> str:
    """Hash of a source's file, of its files one after the other; or a data folder's fingerprint."""
    if exists(f"{location}/{MANIFEST}"):
        return Manifest.read(location).fingerprint
    return _file_digest(source_files(Source(name, local_copy(location))))


def _file_digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            hashlib.file_digest(content, lambda: digest)
    return digest.hexdigest()
