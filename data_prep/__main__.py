"""`python -m data_prep`: checks the command line before anything slow is imported."""

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from dualpath_cli.errors import UserError

if TYPE_CHECKING:
    from dualpath_cli.text.manifest import Manifest

SAMPLE = "sample"
DEFAULT_CHUNK_TOKENS = 1 << 25
CHUNK_TOKENS = (1 << 10, 1 << 29)
"""Smallest and largest chunk: litdata's offsets within a chunk are 32-bit numbers of bytes."""
_MULTIPLES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}

_DESCRIPTION = """\
Turns text, JSONL and Parquet files into shards of tokens for `dualpath fit`: a folder with the
chunks, tokenizer.json and manifest.json. Each document is followed by an end-of-text token."""

_EPILOG = """\
examples:
  python -m data_prep --source sample --out data/sample
  python -m data_prep --source novels=texts/novels.jsonl.gz --tokenizer gpt2 --out data/novels"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see --help")


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit code.

    0 done, 2 a user's mistake, 1 the disk's (full, not writable), 130 interrupted; one line each.
    """
    try:
        return _run(_parser().parse_args(arguments))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing was written under the final name", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m data_prep",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--source",
        nargs="+",
        action="extend",
        required=True,
        metavar="SOURCE",
        help="Where the documents come from: NAME=PATH or PATH of a .txt, .jsonl or .parquet file "
        "(.txt and .jsonl also as .gz or .zst) or of a folder of them; NAME gsm8k, arc or triviaqa "
        "chooses that format. `sample` is a small corpus written for trying things out; it also "
        "writes held-out texts to OUT/val.",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="gpt2|PATH",
        help="The byte-level BPE to use: gpt2 (downloaded once), a tokenizer.json, or a folder "
        "with it or with vocab.json and merges.txt. `sample` has its own, of 2,048 entries.",
    )
    parser.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="The data folder to write."
    )
    parser.add_argument(
        "--max-tokens",
        type=parse_count,
        metavar="N",
        help="Stop after the document that reaches N tokens, e.g. 16M (K, M, B: 10^3, 10^6, 10^9).",
    )
    parser.add_argument(
        "--chunk-tokens",
        type=parse_count,
        default=DEFAULT_CHUNK_TOKENS,
        metavar="N",
        help="Tokens in a chunk (default 33,554,432). Fewer than a sequence are lost at the end "
        "of each chunk, so chunks should be large.",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="Replace OUT where it holds other data; without this it is left alone.",
    )
    return parser


def parse_count(text: str) -> int:
    """Reads a count such as 4096, 16M or 38.5B; argparse turns the error into a message."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMB]?)", text.replace("_", "").replace(",", ""))
    value = round(float(match[1]) * _MULTIPLES[match[2]]) if match else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a count such as 4096, 16M or 38.5B")
    return value


def _run(options: argparse.Namespace) -> int:
    if options.tokenizer is None and set(options.source) != {SAMPLE}:
        raise UserError("--tokenizer is missing: give gpt2 or a path; only `sample` has its own")
    if not CHUNK_TOKENS[0] <= options.chunk_tokens <= CHUNK_TOKENS[1]:
        raise UserError(
            f"--chunk-tokens {options.chunk_tokens:,} is not between {CHUNK_TOKENS[0]:,} and "
            f"{CHUNK_TOKENS[1]:,}"
        )

    from data_prep import sample
    from data_prep.corpora import corpus_of_sample, corpus_of_source
    from data_prep.prepare import Request, finished, prepare
    from data_prep.sample.bpe import train_tokenizer
    from dualpath_cli.text.documents import parse_source
    from dualpath_cli.text.tokenizer import Tokenizer

    corpora = [
        corpus_of_sample(SAMPLE) if spec == SAMPLE else corpus_of_source(parse_source(spec))
        for spec in options.source
    ]
    if options.tokenizer is None:
        tokenizer = train_tokenizer(sample.documents("train"))
    else:
        tokenizer = Tokenizer.load(options.tokenizer)
    request = Request(corpora, tokenizer, options.out, options.chunk_tokens, options.max_tokens)
    if manifest := finished(request, options.overwrite):
        print(f"{options.out} holds this already, nothing to do: {_summary(manifest)}")
        return 0
    with_val = SAMPLE in options.source
    manifest = prepare(
        request, lambda folder: sample.write_val(folder / "val") if with_val else None
    )
    print(f"{options.out}: {_summary(manifest)}")
    return 0


def _summary(manifest: "Manifest") -> str:
    empty = sum(source.empty for source in manifest.sources)
    return (
        f"{manifest.tokens:,} tokens ({manifest.dtype}) of {manifest.documents:,} documents, "
        f"{manifest.text_bytes / manifest.tokens:.2f} bytes a token, "
        + (f"{empty:,} empty documents left out, " if empty else "")
        + f"fingerprint {manifest.fingerprint[:12]}"
    )


if __name__ == "__main__":
    sys.exit(main())
