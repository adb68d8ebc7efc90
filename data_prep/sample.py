"""The sample: generated English texts of three kinds, packed in `sample_texts`.

Arithmetic with worked answers, questions about an invented world, and plain prose
differ in what they ask of a model, so that routing has something to separate.
"""

import json
from pathlib import Path

import pyarrow as pa

from dualpath_cli.base.files import write_text
from dualpath_cli.data.tokenizer import Tokenizer, train_bpe

TRAIN = Path(__file__).parent / "sample_texts" / "train.jsonl.zst"
KINDS = ("arithmetic", "facts", "prose")  # each has held-out texts beside `TRAIN`
VOCAB_SIZE = 2048


def lines(name: str) -> bytes:
    """Returns the JSON lines of the training texts ("train"), or a kind's held-out
    texts."""
    with pa.CompressedInputStream(
        str(TRAIN.with_name(f"{name}.jsonl.zst")), "zstd"
    ) as stream:
        content: bytes = stream.read()
    return content


def documents(name: str) -> list[str]:
    """Returns the texts of `lines`."""
    return [json.loads(line)["text"] for line in lines(name).splitlines()]


def write_val(folder: Path) -> None:
    """Writes the held-out texts as `arithmetic.jsonl`, `facts.jsonl` and
    `prose.jsonl`."""
    for kind in KINDS:
        write_text(folder / f"{kind}.jsonl", lines(kind).decode())


def tokenizer() -> Tokenizer:
    return Tokenizer(
        json.loads(train_bpe(documents("train"), VOCAB_SIZE)), "the sample's own"
    )
