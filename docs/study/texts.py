"""Prints what the study's runs read and were scored on: python docs/study/texts.py data/study

Run where base.yaml's paths lead to the texts. Of each validation set: how many documents, and how
many of those that are drawn, share 13 words in a row with the training text. Of each seed: its
chunks in their order, and how much of each a run of width 32 reads.
"""

import argparse
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from kept import print_row
from restore import restore, run_script

from data_prep.documents.clean import clean
from data_prep.documents.contamination import LONGEST
from data_prep.documents.words import Hashes, Words, runs
from dualpath_cli.recipe.settings import Settings, settings_from
from dualpath_cli.run.run_folder import read_recipe
from dualpath_cli.text.documents import Source, read_documents
from dualpath_cli.text.manifest import HEADER, Manifest
from dualpath_cli.text.tokenizer import Tokenizer
from dualpath_cli.training.data.order import SampleOrder
from dualpath_cli.training.data.windows import document_windows


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints what the study's runs read.")
    parser.add_argument("folder", type=Path, help="Of the prepared training text.")
    folder = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as temporary:
        restore("narrow", Path(temporary))
        settings = settings_from(read_recipe(Path(temporary) / "runs" / "wide" / "seed_0"))
    manifest, tokenizer = Manifest.read(folder), Tokenizer.load(folder / "tokenizer.json")
    print_validation(settings, tokenizer, training_runs(folder, manifest, tokenizer))
    print()
    print_chunks(settings, manifest)


def run_hashes(text: str) -> Hashes:
    """Of each 13 words in a row."""
    return runs(Words(clean(text)).hashes, LONGEST)


def training_runs(folder: Path, manifest: Manifest, tokenizer: Tokenizer) -> Hashes:
    """Of all training documents, sorted."""
    chunks = [np.fromfile(folder / chunk.name, dtype=manifest.dtype, offset=HEADER)
              for chunk in manifest.chunks]  # fmt: skip
    tokens = np.concatenate(chunks)
    documents = np.split(tokens, np.flatnonzero(tokens == tokenizer.eot_id) + 1)
    return np.unique(np.concatenate([run_hashes(tokenizer.decode(one)) for one in documents]))


def print_validation(settings: Settings, tokenizer: Tokenizer, training: Hashes) -> None:
    print_row("validation set", "share 13 words with training", "of those drawn")
    print_row("---", "---:", "---:")
    data, length = settings.data, settings.model.max_seq_len
    for name, path in data.val.items():
        texts = list(read_documents(Source(name, Path(path))))
        _, numbers = document_windows(texts, tokenizer, length, data.val_tokens, data.val_seed)
        shared = np.array([shares(run_hashes(text), training) for text in texts])
        drawn = shared[np.unique(numbers)]
        print_row(name, *(f"{part.sum()} of {len(part)}" for part in (shared, drawn)))


def shares(hashes: Hashes, known: Hashes) -> bool:
    """Whether one is among some known ones, which are sorted."""
    places = np.searchsorted(known, hashes).clip(max=len(known) - 1)
    return bool((known[places] == hashes).any())


def print_chunks(settings: Settings, manifest: Manifest) -> None:
    size = settings.model.max_seq_len + 1
    blocks = settings.run.max_tokens // settings.model.max_seq_len
    print_row("seed", "chunks, and the share of each that is read")
    print_row("---:", "---")
    for seed in range(3):
        counts = [tokens // size for tokens in manifest.chunk_tokens]
        order = SampleOrder(counts, seed)
        read = Counter(order.at(place)[0] for place in range(blocks))
        print_row(str(seed), ", ".join(f"{c}: {n / counts[c]:.0%}" for c, n in read.items()))


if __name__ == "__main__":
    run_script(main)
