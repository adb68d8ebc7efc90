"""The format `consolidated`: a run in one file (run_file.py), written tensor by tensor."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from dualpath_cli import run_file
from dualpath_cli.errors import RunFailed, UserError
from dualpath_cli.export.weights import Weights, bytes_of
from dualpath_cli.output.atomic import replacing
from dualpath_cli.output.progress import Progress
from dualpath_cli.run_folder import TOKENIZER, Run
from dualpath_cli.settings import Settings
from dualpath_cli.text.tokenizer import Tokenizer

DTYPES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float64: "F64",
}
"""Types of weights as safetensors calls them; training makes the first two and the last."""


def write(run: Run, settings: Settings, weights: Weights, out: Path, progress: Progress) -> None:
    """Writes the file, whole or not at all; its bytes follow from the checkpoint alone.

    Raises:
        UserError: where a weight is of a kind that training does not make, or a small file of the
            run cannot be read, as the file could not be either.
        RunFailed: where the disk gives back something else than was written.
    """
    header = run_file.header(entries(weights), run_file.describe(run, settings))
    Tokenizer.load(run.folder / TOKENIZER)  # says what is wrong with it
    digest = hashlib.sha256(header)
    with replacing(out) as partial:
        with partial.open("wb") as file:
            file.write(header)
            for content in contents(weights):
                file.write(content)
                digest.update(content)
                progress.advance(len(content))
            file.seek(header.rindex(run_file.NO_HASH.encode()))
            file.write(digest.hexdigest().encode())
        if run_file.was_changed(partial):
            raise RunFailed(f"'{out}' is not read back as it was written; check the disk")


def entries(weights: Weights, prefix: str = "") -> dict[str, dict[str, Any]]:
    """What the header of a file of safetensors says of each weight, one after the other.

    Raises:
        UserError: where a weight is of a kind that training does not make.
    """
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


def contents(weights: Weights) -> Iterator[memoryview]:
    """The bytes of each weight, in the same order."""
    for tensor in weights.read():
        yield tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
