"""The weights of any checkpoint by the model's own names, read a part at a time on one process, and
written tensor by tensor: the format `consolidated`, a run in one file (run/run_file.py).
"""

import hashlib
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, BinaryIO

import torch

from dualpath_cli.config import ModelConfig
from dualpath_cli.errors import RunFailed, UserError, of_content
from dualpath_cli.files import read_json, replacing
from dualpath_cli.generation.loading import empty_model
from dualpath_cli.model import DualPathLM
from dualpath_cli.output.console import Progress
from dualpath_cli.ranges import check_name
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.run import run_file
from dualpath_cli.run.exported_folder import PREFIX, WEIGHTS
from dualpath_cli.run.run_folder import TOKENIZER, Run
from dualpath_cli.text.tokenizer import Tokenizer
from dualpath_cli.training.state.loading import (
    check_weights,
    describe_weights,
    load_average,
    map_weights,
    read_safetensors,
    read_weights,
)

AT_ONCE = 256 << 20
"""Bytes of weights that are read from shards before they are handed on, if no single tensor has
more: each read goes through the list of all shards."""
DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64"}
"""Types of weights as safetensors calls them; training makes the first two and the last."""


class Weights:
    """The parameters of a checkpoint's model, tied ones once, as they were trained.

    Nothing is read before `read`, and then only as much as is being handed on.
    """

    def __init__(
        self, checkpoint: Path, config: ModelConfig, mapped: dict[str, torch.Tensor] | None = None
    ) -> None:
        """`mapped` are the weights where they are no shards, by default those of a file."""
        with torch.device("meta"):
            model = DualPathLM(config)
        self.checkpoint = checkpoint
        if mapped is None and not checkpoint.is_dir():
            mapped = map_weights(checkpoint, config)
        self._mapped = mapped
        held = describe_weights(checkpoint) if self._mapped is None else self._mapped
        check_weights(model, held, checkpoint)
        # Shapes and dtypes by name, in the order of the model, without data.
        self.described = {
            name: torch.empty_like(held[name], device="meta")
            for name, _ in model.named_parameters()
        }

    @classmethod
    def of_average(cls, checkpoints: Sequence[Path], config: ModelConfig) -> "Weights":
        """The mean of several checkpoints, all in memory; of one its own weights.

        In float32, or in float64 where the run was trained in it.
        """
        newest = cls(checkpoints[-1], config)
        if len(checkpoints) == 1:
            return newest
        model = empty_model(config).to(reduce(torch.promote_types, newest.dtypes, torch.float32))
        load_average(model, checkpoints)
        return cls(checkpoints[-1], config, model.state_dict())

    @classmethod
    def of_folder(cls, folder: Path, config: ModelConfig) -> "Weights":
        """Those of a folder of transformers, in one file of safetensors or several."""
        files = [folder / name for name in _files(folder)]
        return cls(
            folder, config, read_safetensors(files, config, f"the weights in '{folder}'", PREFIX)
        )

    @property
    def dtypes(self) -> set[torch.dtype]:
        return {tensor.dtype for tensor in self.described.values()}

    @property
    def bytes(self) -> int:
        return sum(map(bytes_of, self.described.values()))

    @property
    def parameters(self) -> int:
        return sum(tensor.numel() for tensor in self.described.values())

    def read(self) -> Iterator[torch.Tensor]:
        """Yields each weight whole, on the CPU, in the order of `described`."""
        for names in self._portions():
            if self._mapped is not None:
                yield from (self._mapped[name] for name in names)
                continue
            wanted = {name: self.described[name] for name in names}
            yield from read_weights(wanted, self.checkpoint).values()

    def _portions(self) -> Iterator[list[str]]:
        names: list[str] = []
        size = 0
        for name, tensor in self.described.items():
            if names and size + bytes_of(tensor) > AT_ONCE:
                yield names
                names, size = [], 0
            names.append(name)
            size += bytes_of(tensor)
        yield names


def bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _files(folder: Path) -> list[str]:
    """Names of the files that hold the weights: transformers divides large models among several."""
    index = folder / f"{WEIGHTS}.index.json"
    if not index.exists():
        return [WEIGHTS]
    try:
        names = sorted(set(read_json(index)["weight_map"].values()))
        for name in names:
            check_name("a file of weights", name)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"'{index}' cannot be used: {of_content(error)}") from None
    return names


def write(run: Run, settings: Settings, weights: Weights, out: Path, progress: Progress) -> None:
    """Writes the file, whole or not at all; its bytes follow from the checkpoint alone.

    Raises RunFailed where the disk gives back something else than was written.
    """
    header = run_file.header(entries(weights), run_file.describe(run, settings))
    Tokenizer.load(run.folder / TOKENIZER)  # says what is wrong with it
    with replacing(out) as partial:
        with partial.open("wb") as file:
            sha256 = write_weights(file, header, weights, progress)
            file.seek(header.rindex(run_file.NO_HASH.encode()))
            file.write(sha256.encode())
        if run_file.was_changed(partial):
            raise RunFailed(f"'{out}' is not read back as it was written; check the disk")


def entries(weights: Weights, prefix: str = "") -> dict[str, dict[str, Any]]:
    """The entries for all weights in the header of a file of safetensors, one after the other."""
    tensors: dict[str, dict[str, Any]] = {}
    end = 0
    for name, tensor in weights.described.items():
        if tensor.dtype not in DTYPES:
            raise UserError(f"checkpoint '{weights.checkpoint}': {name} is of type {tensor.dtype}")
        start, end = end, end + bytes_of(tensor)
        tensors[prefix + name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    return tensors


def write_weights(file: BinaryIO, header: bytes, weights: Weights, progress: Progress) -> str:
    """Writes a header and each weight that it describes; returns the sha256 of what was written."""
    digest = hashlib.sha256(header)
    file.write(header)
    for tensor in weights.read():
        content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
        file.write(content)
        digest.update(content)
        progress.advance(len(content))
    return digest.hexdigest()
