"""Divides the texts of docs/study/declared.md: to train on, to choose rates by, for the tables.

python docs/study/hold_out.py data/texts data/declared

Documents of the PEPs and the RFCs are dealt out by a hash of their ids; of the novels that nobody
trains on, two are for rates and three for tables; of GSM8K, the test questions. Of each held-out
document an excerpt is kept, whole paragraphs from a random one on, so that many documents count.
Paragraphs that share 13 words in a row with any training text are left out, questions as well.
Writes OUT/train/NAME.jsonl and OUT/{rates,table}/NAME.jsonl, and prints what is in them.
"""

import argparse
import gzip
import hashlib
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from kept import print_row
from restore import run_script
from texts import run_hashes, shares

from data_prep.documents.words import Hashes
from dualpath_cli.text.documents import Source, read_documents

EXCERPT = 3000
"""Characters after which an excerpt ends, at the end of a paragraph."""
HELD_OUT = {"peps": (80, 160), "rust_rfcs": (80, 160), "gsm8k": (400, 900)}
"""Documents for rates and for tables; the others of PEPs and RFCs are trained on."""
NOVELS_FOR_RATES = ("Bennet_Helen_1910", "Galsworthy_Saints_1919")

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description="Divides the texts of a declared study.")
    parser.add_argument("texts", type=Path, help="Folder of the texts.")
    parser.add_argument("out", type=Path, help="Folder to write.")
    given = parser.parse_args()
    parts = divide(given.texts)
    for name in ("peps", "rust_rfcs"):
        write(given.out / "train" / f"{name}.jsonl", parts.pop(f"train {name}"))
    trained = {
        "novels": given.texts / "text" / "novels_train.jsonl.gz",
        "gsm8k": given.texts / "gsm8k" / "train.jsonl",
        **{name: given.out / "train" / f"{name}.jsonl" for name in ("peps", "rust_rfcs")},
    }
    known = training_runs(trained)
    print_row("set", "documents", "of them left", "characters", "left out of those read")
    print_row("---", *["---:"] * 4)
    for part, rows in parts.items():
        kept = [left for row in rows if (left := without(row, known))]
        path = given.out.joinpath(*part.split()).with_suffix(".jsonl")
        write(path, [row for row, _ in kept])
        used, dropped = sum(size(row) for row, _ in kept), sum(lost for _, lost in kept)
        share = f"{dropped / max(1, used + dropped):.1%}"
        print_row(part, str(len(rows)), str(len(kept)), f"{used:,}", share)


def divide(texts: Path) -> dict[str, list[Row]]:
    """The rows of each part, as `train peps` or `table novels`."""
    parts: dict[str, list[Row]] = {}
    novels = list(read(texts / "text" / "novels_val.jsonl.gz"))
    for part, wanted in (("rates", True), ("table", False)):
        parts[f"{part} novels"] = [row for row in novels
                                   if row["id"].startswith(NOVELS_FOR_RATES) == wanted]  # fmt: skip
    files = {name: texts / "text" / f"{name}.jsonl.gz" for name in ("peps", "rust_rfcs")}
    for name, path in {**files, "gsm8k": texts / "gsm8k" / "test.jsonl"}.items():
        rows = sorted(read(path), key=lambda row: hashlib.sha256(key_of(row).encode()).digest())
        rates, table = HELD_OUT[name]
        parts[f"rates {name}"], parts[f"table {name}"] = rows[:rates], rows[rates : rates + table]
        if name in files:
            parts[f"train {name}"] = rows[rates + table :]
    return parts


def read(path: Path) -> Iterator[Row]:
    """The rows of a file of JSON lines."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def key_of(row: Row) -> str:
    """What a row is dealt out by."""
    return str(row.get("id") or row["question"])


def size(row: Row) -> int:
    """Characters of a row's text."""
    return len(row["text"]) if "text" in row else len(row["question"]) + len(row["answer"])


def training_runs(files: dict[str, Path]) -> Hashes:
    """Hashes of each 13 words in a row of the training texts, sorted."""
    sources = [Source(name, path) for name, path in files.items()]
    found = [run_hashes(text) for source in sources for text in read_documents(source)]
    return np.unique(np.concatenate(found))


def without(row: Row, known: Hashes) -> tuple[Row, int] | None:
    """A row less what shares a run of words with known ones, and the characters left out."""
    if "question" in row:
        text = f"{row['question']} {row['answer']}"
        return None if shares(run_hashes(text), known) else (row, 0)
    blocks = re.split(r"\n\s*\n", row["text"])
    # One of the novels has a paragraph a line.
    paragraphs = [part for block in blocks
                  for part in (block.split("\n") if len(block) > EXCERPT else [block])]  # fmt: skip
    first = random.Random(key_of(row)).randrange(len(paragraphs))
    kept, dropped = [], 0
    for paragraph in paragraphs[first:]:
        # Runs may go over from one paragraph that is kept to the next.
        if shares(run_hashes("\n\n".join([*kept, paragraph])), known):
            dropped += len(paragraph)
            continue
        kept.append(paragraph)
        if sum(map(len, kept)) >= EXCERPT:
            break
    text = "\n\n".join(kept)
    return ({**row, "text": text}, dropped) if text.strip() else None


def write(path: Path, rows: list[Row]) -> None:
    """Writes rows as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


if __name__ == "__main__":
    run_script(main)
