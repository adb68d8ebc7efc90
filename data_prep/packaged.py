"""Corpora that come with the package: the sample, and reasoning primitives.

Each has its own tokenizer, and texts of several kinds that are held out.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from data_prep.input_files import InputFile
from data_prep.settings import PRIMITIVES, SAMPLE
from dualpath_cli.base.files import hash_file, write_text
from dualpath_cli.base.locks import exclusive
from dualpath_cli.data import primitives
from dualpath_cli.data.tokenizer import Tokenizer, train_bpe


@dataclass(frozen=True)
class Packaged:
    """A corpus of the package."""

    kinds: tuple[str, ...]
    """Kinds of held-out texts."""
    held_out: Callable[[str], bytes]
    """The held-out texts of a kind, as JSON lines."""
    tokenizer: Callable[[], Tokenizer]
    file: Callable[[Path], InputFile]
    """The file of its training texts; texts that are drawn are written into the given
    folder of downloads."""

    def write_val(self, folder: Path) -> None:
        """Writes the held-out texts of each kind as KIND.jsonl."""
        for kind in self.kinds:
            write_text(folder / f"{kind}.jsonl", self.held_out(kind).decode())


# The sample: generated English texts of three kinds. Arithmetic with worked answers,
# questions about an invented world, and plain prose differ in what they ask of a model,
# so that routing has something to separate.

SAMPLE_TRAIN = Path(__file__).parent / "sample_texts" / "train.jsonl.zst"
SAMPLE_KINDS = ("arithmetic", "facts", "prose")
"""Each has held-out texts beside `SAMPLE_TRAIN`."""
SAMPLE_VOCAB_SIZE = 2048


def _sample_lines(name: str) -> bytes:
    """JSON lines: of the training texts ("train"), or of a kind's held-out ones."""
    path = SAMPLE_TRAIN.with_name(f"{name}.jsonl.zst")
    with pa.CompressedInputStream(str(path), "zstd") as stream:
        content: bytes = stream.read()
    return content


def sample_documents(name: str) -> list[str]:
    """Returns the training texts of the sample ("train"), or a kind's held-out ones."""
    return [json.loads(line)["text"] for line in _sample_lines(name).splitlines()]


def sample_tokenizer() -> Tokenizer:
    """Trains the sample's own tokenizer on its texts: a second or two."""
    trained = train_bpe(sample_documents("train"), SAMPLE_VOCAB_SIZE)
    return Tokenizer(json.loads(trained), "the sample's own")


def _sample_file(downloads: Path) -> InputFile:
    """The texts of the sample, which lie in the package."""
    digest = hashlib.sha256(_sample_lines("train")).hexdigest()
    path = SAMPLE_TRAIN
    stat = path.stat()
    return InputFile(path.name, stat.st_size, digest, path, stat.st_mtime_ns)


def _json_lines(texts: Iterable[str]) -> bytes:
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    return "".join(lines).encode()


PRIMITIVES_FILE = f"{PRIMITIVES}/train.jsonl"  # its name below the download folder
PRIMITIVES_SHA256 = "ee95c322a51bb990f49ce3865593a3a4f1fe85d9b91a4b3e47c0d49530f64018"
"""Of `primitives_texts`, which draws them for seconds."""


def primitives_texts() -> bytes:
    """The texts of reasoning primitives for training, as JSON lines."""
    return _json_lines(primitives.training_texts())


def _primitives_file(downloads: Path) -> InputFile:
    """The texts of primitives, written where files that are fetched would be."""
    path = downloads / PRIMITIVES_FILE
    if not _holds_primitives(path):
        lock = path.with_name(f"{path.name}.lock")
        with exclusive(lock, path, wait=True):
            # Another process may have written them while this one waited.
            if not _holds_primitives(path):
                write_text(path, primitives_texts().decode())

    stat = path.stat()
    return InputFile(path.name, stat.st_size, PRIMITIVES_SHA256, path, stat.st_mtime_ns)


def _holds_primitives(path: Path) -> bool:
    return path.is_file() and hash_file(path) == PRIMITIVES_SHA256


def _held_out_primitives(family: str) -> bytes:
    return _json_lines(primitives.held_out_texts(family))


def _bytes_tokenizer() -> Tokenizer:
    """A token for each byte, so that digits and names of variables have their own."""
    return Tokenizer(json.loads(train_bpe([], 257)), "the bytes of primitives")


PACKAGED = {
    SAMPLE: Packaged(SAMPLE_KINDS, _sample_lines, sample_tokenizer, _sample_file),
    PRIMITIVES: Packaged(
        tuple(primitives.FAMILIES),
        _held_out_primitives,
        _bytes_tokenizer,
        _primitives_file,
    ),
}
"""The corpora by their path in `--source`."""
