"""Writes copies of documents, exact and edited, to see which of them a preparation finds.

python docs/runs/data-mix/inject.py novels_train.jsonl.gz injected.jsonl
python docs/runs/data-mix/inject.py --found data/mix/duplicates.jsonl.zst injected.jsonl
"""

import json
import random
import re
import sys
from collections import Counter
from pathlib import Path

from data_prep.documents.minhash import probability, shingles
from dualpath_cli.text.documents import Source, read_documents
from dualpath_cli.text.rows import read_rows

RATES = [0.0, 0.005, 0.01, 0.02, 0.05, 0.1]
"""Shares of the words that are replaced."""
COPIES = 100
"""Documents copied at each rate."""


def inject(novels: Path, out: Path) -> None:
    texts = list(read_documents(Source("novels", novels)))
    draw = random.Random(0)
    with open(out, "w", encoding="utf-8") as file:
        for rate in RATES:
            for number in draw.sample(range(len(texts)), COPIES):
                words = re.split(r"(\W+)", texts[number])
                for place in range(0, len(words), 2):
                    if draw.random() < rate:
                        words[place] = f"word{draw.randrange(10**6)}"
                text = "".join(words)
                both = set(shingles(texts[number]).tolist()), set(shingles(text).tolist())
                jaccard = len(both[0] & both[1]) / len(both[0] | both[1])
                row = {"id": f"{rate}/{number}", "jaccard": jaccard, "text": text}
                file.write(json.dumps(row) + "\n")


def report(duplicates: Path, injected: Path) -> None:
    rows = [json.loads(line) for line in injected.read_text().splitlines()]
    found = Counter()
    for batch in read_rows(duplicates, (), (), lambda count: None, 1 << 20):
        for _, row in batch.parsed():
            if row["source"] == "injected":
                found[row["id"].partition("/")[0], row["kind"]] += 1
    print("| words replaced | mean Jaccard | found, exact | found, near | expected near |")
    print("| --- | --- | --- | --- | --- |")
    for rate in RATES:
        these = [row["jaccard"] for row in rows if row["id"].startswith(f"{rate}/")]
        exact, near = found[str(rate), "exact"], found[str(rate), "near"]
        expected = sum(map(probability, these)) - exact
        mean = sum(these) / len(these)
        print(f"| {rate:.1%} | {mean:.3f} | {exact} | {near} | {expected:.1f} |")


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[0] == "--found":
        report(Path(words[1]), Path(words[2]))
    else:
        inject(Path(words[0]), Path(words[1]))
