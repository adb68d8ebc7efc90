"""The format `consolidated`: a run in one file (run/run_file.py), written tensor by tensor."""

import hashlib
from pathlib import Path
from typing import Any, BinaryIO

import torch

from dualpath_cli.errors import RunFailed, UserError
from dualpath_cli.export.weights import Weights, bytes_of
from dualpath_cli.files import replacing
from dualpath_cli.output.console import Progress
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.run import run_file
from dualpath_cli.run.run_folder import TOKENIZER, Run
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
        RunFailed: where the disk gives back something else than was written.
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
