"""The sample: generated English texts of three kinds, packed in `sample_texts`.

Arithmetic with worked answers, questions about an invented world, and plain prose
differ in what they ask of a model, so that routing has something to separate.
"""

import json
from pathlib import Path

import pyarrow as pa

from dualpath_cli.data.tokenizer import Tokenizer, train_bpe

TRAIN = Path(__file__).parent / "sample_texts" / "train.jsonl.zst"
KINDS = ("arithmetic", "facts", "prose")  # each has held-out texts beside `TRAIN`
VOCAB_SIZE = 2048


def json_lines(name: str) -> bytes:
    """Returns JSON lines: of the training texts ("train"), or of a kind's held-out."""
    path = TRAIN.with_name(f"{name}.jsonl.zst")
    with pa.CompressedInputStream(str(path), "zstd") as stream:
        content: bytes = stream.read()
    return content


def documents(name: str) -> list[str]:
    """Returns the texts of `json_lines`."""
    return [json.loads(line)["text"] for line in json_lines(name).splitlines()]


def tokenizer() -> Tokenizer:
    """Trains the sample's own tokenizer on its texts: a second or two."""
    trained = train_bpe(documents("train"), VOCAB_SIZE)
    return Tokenizer(json.loads(trained), "the sample's own")
