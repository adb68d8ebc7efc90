"""The options of a preparation: checked before anything slow is imported."""

import argparse
from pathlib import Path

from data_prep.sources.nemotron import MIRROR


def add_arguments(options: argparse.ArgumentParser) -> None:
    """Adds the options to a parser; those of `Settings` are left as text."""
    what = options.add_argument_group("what to prepare (also keys of a recipe, with _ for -)")
    what.add_argument(
        "--config", metavar="RECIPE",
        help="A YAML file of the settings below, which win over it, or the name of a packaged one: "
        "paper is the paper's mix. Only in a recipe can sources have weights.",
    )  # fmt: skip
    what.add_argument(
        "--source", dest="sources", nargs="+", action="extend", metavar="SOURCE",
        help="Where the documents come from: NAME=PATH or PATH of a .txt, .md, .jsonl or .parquet "
        "file (all but .parquet also as .gz or .zst), of a folder of them, or a quoted glob of any "
        "UTF-8 texts; NAME gsm8k, arc or triviaqa chooses that format. nemotron-cc[:SELECTION] is "
        "Nemotron-CC from Common Crawl, by default quality=high/kind=actual. hf:DATASET[:CONFIG] "
        "is a dataset of the Hugging Face hub. "
        "`sample` is a small corpus written for trying things out; it also writes held-out texts.",
    )  # fmt: skip
    what.add_argument(
        "--tokenizer", metavar="gpt2|PATH",
        help="The byte-level BPE to use: gpt2 (downloaded once), a tokenizer.json, or a folder "
        "with it or with vocab.json and merges.txt. `sample` has its own, of 2,048 entries.",
    )  # fmt: skip
    what.add_argument(
        "--tokens", metavar="N",
        help="Tokens to write, e.g. 16M or 38.5B; all there are by default. The document that "
        "reaches the number is the last one.",
    )  # fmt: skip
    what.add_argument(
        "--num-files", metavar="N",
        help="Files to take of each source that is downloaded, in the order of a hash of their "
        "names. By default as many as --tokens needs; 1 of Nemotron-CC where neither is given.",
    )  # fmt: skip
    what.add_argument("--seed", metavar="N", help="Seed of the order of the documents (default 0).")
    what.add_argument(
        "--duplicates", metavar="keep|exact|near",
        help="Which documents to leave out: none, those with the text of an earlier one (exact, "
        "the default), or also those that resemble one (MinHash, 5-word shingles, 14 bands of 8).",
    )  # fmt: skip
    what.add_argument(
        "--decontaminate", nargs="+", action="extend", metavar="SOURCE",
        help="Evaluation texts: documents that share 13 words in a row with one are left out.",
    )  # fmt: skip
    what.add_argument(
        "--val-fraction", metavar="F",
        help="Share of the documents to hold out in OUT/val, by a hash of their ids (default 0).",
    )  # fmt: skip
    what.add_argument(
        "--min-chars", metavar="N", help="Shorter documents are left out (default 1)."
    )
    what.add_argument(
        "--chunk-tokens", metavar="N",
        help="Tokens in a chunk (default 33,554,432). Fewer than a sequence are lost at the end "
        "of each chunk, so chunks should be large.",
    )  # fmt: skip
    how = options.add_argument_group("how")
    how.add_argument(
        "--out", metavar="DIR",
        help="The data folder to write, or s3://BUCKET/PREFIX to upload it to.",
    )  # fmt: skip
    how.add_argument(
        "--downloads", type=Path, metavar="DIR",
        help="Where downloaded files are kept (default: `downloads` beside OUT). They may be "
        "deleted when the data folder is complete.",
    )  # fmt: skip
    how.add_argument(
        "--workers", type=_workers, metavar="N",
        help="Processes that clean and tokenise (default: one a core). The result is the same.",
    )  # fmt: skip
    how.add_argument(
        "--executor", choices=["local", "dask"], default="local",
        help="This machine, or the workers of a Dask cluster, which need OUT, the sources and the "
        "downloads on a file system that they share with this machine. The result is the same.",
    )  # fmt: skip
    how.add_argument(
        "--scheduler", metavar="ADDRESS", help="The cluster's, e.g. tcp://10.0.0.1:8786."
    )
    how.add_argument(
        "--mirror", default=MIRROR, metavar="URL",
        help=f"Where Common Crawl's files are (default {MIRROR}).",
    )  # fmt: skip
    how.add_argument(
        "--strict", action="store_true",
        help="Stop at the first row or file that cannot be read instead of noting it.",
    )  # fmt: skip
    how.add_argument(
        "--yes", action="store_true", help="Do not ask before downloading more than 20 GB."
    )
    how.add_argument(
        "--overwrite", action="store_true",
        help="Replace OUT where it holds other data, and discard an unfinished preparation of "
        "something else; without this both are left alone.",
    )  # fmt: skip


def _workers(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above 0")
    return int(text)
