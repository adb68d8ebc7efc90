"""The weights of any checkpoint by the model's own names, read a part at a time on one process."""

from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path

import torch

from dualpath_cli.config import ModelConfig
from dualpath_cli.errors import UserError, of_content
from dualpath_cli.files import read_json
from dualpath_cli.generation.loading import empty_model
from dualpath_cli.model import DualPathLM
from dualpath_cli.ranges import check_name
from dualpath_cli.run.exported_folder import PREFIX, WEIGHTS
from dualpath_cli.training.state import shards
from dualpath_cli.training.state.weights import (
    check_weights,
    load_average,
    map_weights,
    read_safetensors,
)

AT_ONCE = 256 << 20
"""Bytes of weights that are read from shards before they are handed on, if no single tensor has
more: each read goes through the list of all shards."""


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
        held = shards.describe_weights(checkpoint) if self._mapped is None else self._mapped
        check_weights(model, held, checkpoint)
        self.described = {
            name: torch.empty_like(held[name], device="meta")
            for name, _ in model.named_parameters()
        }
        """Shapes and dtypes by name, in the order of the model, without data."""

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
        """The types of the weights."""
        return {tensor.dtype for tensor in self.described.values()}

    @property
    def bytes(self) -> int:
        """Bytes of all weights."""
        return sum(map(bytes_of, self.described.values()))

    @property
    def parameters(self) -> int:
        """How many numbers there are."""
        return sum(tensor.numel() for tensor in self.described.values())

    def read(self) -> Iterator[torch.Tensor]:
        """Yields each weight whole, on the CPU, in the order of `described`."""
        for names in self._portions():
            if self._mapped is not None:
                yield from (self._mapped[name] for name in names)
                continue
            wanted = {name: self.described[name] for name in names}
            yield from shards.read_weights(wanted, self.checkpoint).values()

    def _portions(self) -> Iterator[list[str]]:
        """Names of the weights that are read together."""
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
    """Bytes of a tensor's numbers."""
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
