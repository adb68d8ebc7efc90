"""Estimate: what a preparation will download and use of the disk, before it begins."""

import math
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.filesize import decimal

from data_prep.download.remote_file import RemoteFile
from data_prep.download.transfer import with_sizes
from data_prep.sources.corpora import Corpus, InputFile
from data_prep.sources.nemotron import FILE_BYTES, FILE_TOKENS
from dualpath_cli.errors import UserError

ASK_ABOVE = 20 * 10**9
"""Bytes to download that are asked about first."""

TOKENS_PER_BYTE = FILE_TOKENS / FILE_BYTES
"""Tokens in a compressed byte; other corpora are taken to be like Nemotron-CC."""

DISK_BYTES_PER_TOKEN = 5.0
"""Twice two bytes, in pieces and in shards, and the records of each document."""

_SIZES_ASKED = 400


@dataclass(frozen=True)
class Estimate:
    """The needs of one preparation."""

    corpora: list[Corpus]
    """With the sizes of the files that will probably be read."""
    files: list[int]
    """The number of these files of each corpus."""
    download: int
    """Bytes that are not here yet."""
    disk: int
    """Bytes that will be written, downloads included."""


def estimate(corpora: Sequence[Corpus], wanted: Sequence[int | None], downloads: Path) -> Estimate:
    """Estimates from sizes, asking servers for those that are not known.

    `wanted` are the tokens asked for of each corpus, None for all. Raises Unreachable where no
    server answers.
    """
    sized, files, download, tokens = [], [], 0, 0.0
    for corpus, target in zip(corpora, wanted, strict=True):
        expected = _expected(corpus, target, downloads)
        size = sum(_size(file) for file in expected)
        sized.append(replace(corpus, files=[*expected, *corpus.files[len(expected) :]]))
        files.append(len(expected))
        download += sum(_size(file) for file in expected if not _is_here(file, downloads))
        held = size * TOKENS_PER_BYTE
        tokens += held if target is None else min(held, target)
    return Estimate(sized, files, download, round(download + tokens * DISK_BYTES_PER_TOKEN))


def _expected(corpus: Corpus, wanted: int | None, downloads: Path) -> list[InputFile]:
    """Returns the files that will probably be read, with their sizes where these are known."""
    files = corpus.files
    if wanted is not None:
        files = files[: max(1, math.ceil(wanted / (_size(files[0]) * TOKENS_PER_BYTE)))]
    missing = [
        file.origin
        for file in files
        if isinstance(file.origin, RemoteFile) and not _is_here(file, downloads)
    ][:_SIZES_ASKED]
    sized = dict(zip(missing, with_sizes(missing), strict=True)) if missing else {}
    return [_with_size(file, sized, downloads) for file in files]


def _with_size(file: InputFile, sized: dict[RemoteFile, RemoteFile], downloads: Path) -> InputFile:
    if isinstance(file.origin, Path):
        return file
    if _is_here(file, downloads):
        return replace(file, size=(downloads / file.origin.name).stat().st_size)
    origin = sized.get(file.origin, file.origin)
    return replace(file, size=origin.size, origin=origin)


def _size(file: InputFile) -> int:
    return max(FILE_BYTES if file.size is None else file.size, 1)


def _is_here(file: InputFile, downloads: Path) -> bool:
    return isinstance(file.origin, Path) or (downloads / file.origin.name).exists()


def announce(plan: Estimate, out: Path, downloads: Path, *, yes: bool) -> None:
    """Prints the size of the download and asks before a large one.

    Raises UserError if the answer is no, stdin is no terminal, or the disk is too small.
    """
    existing = next(path for path in (out.resolve(), *out.resolve().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if plan.download:
        print(
            f"downloads about {decimal(plan.download)} into {downloads} and uses about "
            f"{decimal(plan.disk)} of the disk in all; {decimal(free)} are free",
            file=sys.stderr,
        )
    if plan.disk > free:
        raise UserError(
            f"--out '{out}': about {decimal(plan.disk)} are needed and {decimal(free)} are free; "
            "name a larger disk, fewer --num-files or fewer --tokens"
        )
    if plan.download <= ASK_ABOVE or yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise UserError(
            f"about {decimal(plan.download)} would be downloaded; add --yes (make: YES=1), or "
            "name fewer --num-files or fewer --tokens"
        )
    print("go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UserError("nothing was downloaded; name fewer --num-files or fewer --tokens")
