"""Trains a byte-level BPE of 4,096 tokens on the study's texts, and those held out of it.

python docs/study/tokenizer.py data/texts data/bpe4096
"""

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


def documents(texts: Path) -> Iterator[str]:
    for name in ("novels_train", "peps", "rust_rfcs"):
        with gzip.open(texts / "text" / f"{name}.jsonl.gz", "rt") as lines:
            yield from (json.loads(line)["text"] for line in lines)
    with open(texts / "gsm8k" / "train.jsonl") as lines:
        rows = [json.loads(line) for line in lines]
    yield from (f"Question: {row['question']}\nAnswer: {row['answer']}" for row in rows * 3)


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains the study's tokenizer.")
    parser.add_argument("texts", type=Path, help="Folder of the texts.")
    parser.add_argument("folder", type=Path, help="Folder to write tokenizer.json to.")
    given = parser.parse_args()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(documents(given.texts), trainer)
    given.folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(given.folder / "tokenizer.json"))


if __name__ == "__main__":
    main()
