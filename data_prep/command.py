"""The command line of a preparation: checked before anything slow is imported."""

import argparse
import os
import sys
from dataclasses import fields, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NoReturn

from data_prep.settings import NEMOTRON, SAMPLE, Settings, check, read_recipe
from data_prep.sources.nemotron import MIRROR
from dualpath_cli.errors import UserError
from dualpath_cli.text.documents import Source, source_files

if TYPE_CHECKING:
    from data_prep.documents.contamination import Contamination
    from dualpath_cli.text.manifest import Manifest
    from dualpath_cli.text.tokenizer import Tokenizer


_DESCRIPTION = """\
Turns corpora into shards of tokens for `dualpath fit`: downloads, cleans, removes duplicates,
holds out validation documents, mixes, tokenises and writes a folder with chunks, tokenizer.json
and manifest.json. Each document is followed by an end-of-text token. Interrupted, the same command
continues. `python -m data_prep inspect DIR` verifies and describes a folder."""

_EPILOG = """\
examples:
  python -m data_prep --source sample --out data/sample
  python -m data_prep --source novels=texts/novels.jsonl.gz --tokenizer gpt2 --out data/novels
  python -m data_prep --source nemotron-cc --num-files 1 --tokenizer gpt2 --out data/nemotron-cc
  python -m data_prep --config recipes/data/paper.yaml --out data/nemotron-cc --yes"""


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are UserErrors: one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see --help")


def prepare_command(arguments: list[str]) -> int:
    """Prepares a data folder and returns the exit code.

    Raises UserError for a user's mistake, OSError for the disk's and the network's.
    """
    options = _parser().parse_args(arguments)
    recipe = read_recipe(options.config) if options.config else {}
    given = {
        field.name: getattr(options, field.name)
        for field in fields(Settings)
        if getattr(options, field.name) is not None
    }
    settings = Settings(
        **{
            "sources": (),
            **check(recipe, f"--config '{options.config}'"),
            **check(given, "command line"),
        }
    )
    unlimited = settings.tokens is None and settings.num_files is None
    if unlimited and any(s.path.partition(":")[0] == NEMOTRON for s in settings.sources):
        settings = replace(settings, num_files=1)  # terabytes otherwise
    return _prepare(settings, options)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="python -m data_prep",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_argument_group("what to prepare (also keys of a recipe, with _ for -)")
    what.add_argument(
        "--config",
        metavar="RECIPE",
        help="A YAML file of the settings below, which win over it, or the name of a packaged one: "
        "paper is the paper's mix. Only in a recipe can sources have weights.",
    )
    what.add_argument(
        "--source",
        dest="sources",
        nargs="+",
        action="extend",
        metavar="SOURCE",
        help="Where the documents come from: NAME=PATH or PATH of a .txt, .jsonl or .parquet file "
        "(.txt and .jsonl also as .gz or .zst) or of a folder of them; NAME gsm8k, arc or triviaqa "
        "chooses that format. nemotron-cc[:SELECTION] is Nemotron-CC from Common Crawl, by default "
        "quality=high/kind=actual. hf:DATASET[:CONFIG] is a dataset of the Hugging Face hub. "
        "`sample` is a small corpus written for trying things out; it also writes held-out texts.",
    )
    what.add_argument(
        "--tokenizer",
        metavar="gpt2|PATH",
        help="The byte-level BPE to use: gpt2 (downloaded once), a tokenizer.json, or a folder "
        "with it or with vocab.json and merges.txt. `sample` has its own, of 2,048 entries.",
    )
    what.add_argument(
        "--tokens",
        metavar="N",
        help="Tokens to write, e.g. 16M or 38.5B; all there are by default. The document that "
        "reaches the number is the last one.",
    )
    what.add_argument(
        "--num-files",
        metavar="N",
        help="Files to take of each source that is downloaded, in the order of a hash of their "
        "names. By default as many as --tokens needs; 1 of Nemotron-CC where neither is given.",
    )
    what.add_argument("--seed", metavar="N", help="Seed of the order of the documents (default 0).")
    what.add_argument(
        "--duplicates",
        metavar="keep|exact|near",
        help="Which documents to leave out: none, those with the text of an earlier one (exact, "
        "the default), or also those that resemble one (MinHash, 5-word shingles, 14 bands of 8).",
    )
    what.add_argument(
        "--decontaminate",
        nargs="+",
        action="extend",
        metavar="SOURCE",
        help="Evaluation texts: documents that share 13 words in a row with one are left out.",
    )
    what.add_argument(
        "--val-fraction",
        metavar="F",
        help="Share of the documents to hold out in OUT/val, by a hash of their ids (default 0).",
    )
    what.add_argument(
        "--min-chars", metavar="N", help="Shorter documents are left out (default 1)."
    )
    what.add_argument(
        "--chunk-tokens",
        metavar="N",
        help="Tokens in a chunk (default 33,554,432). Fewer than a sequence are lost at the end "
        "of each chunk, so chunks should be large.",
    )
    how = parser.add_argument_group("how")
    how.add_argument(
        "--out",
        required=True,
        metavar="DIR",
        help="The data folder to write, or s3://BUCKET/PREFIX to upload it to.",
    )
    how.add_argument(
        "--downloads",
        type=Path,
        metavar="DIR",
        help="Where downloaded files are kept (default: `downloads` beside OUT). They may be "
        "deleted when the data folder is complete.",
    )
    how.add_argument(
        "--workers",
        type=_workers,
        default=len(os.sched_getaffinity(0)),
        metavar="N",
        help="Processes that clean and tokenise (default: one a core). The result is the same.",
    )
    how.add_argument(
        "--mirror",
        default=MIRROR,
        metavar="URL",
        help=f"Where Common Crawl's files are (default {MIRROR}).",
    )
    how.add_argument(
        "--strict",
        action="store_true",
        help="Stop at the first row or file that cannot be read instead of noting it.",
    )
    how.add_argument(
        "--yes",
        action="store_true",
        help="Do not ask before downloading more than 20 GB.",
    )
    how.add_argument(
        "--overwrite",
        action="store_true",
        help="Replace OUT where it holds other data, and discard an unfinished preparation of "
        "something else; without this both are left alone.",
    )
    return parser


def _workers(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above 0")
    return int(text)


def _prepare(settings: Settings, options: argparse.Namespace) -> int:
    from data_prep.prepare import Request, finished, prepare
    from data_prep.sources import sample
    from data_prep.sources.corpora import find
    from data_prep.sources.estimate import announce, estimate
    from data_prep.sources.fetching import Fetcher
    from data_prep.writing.mix import wanted_tokens

    # A folder for S3 is made here first, and stays: `fit` may read either.
    remote = options.out if options.out.startswith("s3://") else None
    out = Path("data", PurePosixPath(options.out).name) if remote else Path(options.out)
    downloads = options.downloads or out.parent / "downloads"
    _check_places(settings, out, downloads)
    corpora = [find(s, downloads, options.mirror, settings.num_files) for s in settings.sources]
    tokenizer = _tokenizer(settings)
    evaluations = _contamination(settings)
    request = Request(settings, corpora, tokenizer, out, evaluations, strict=options.strict)
    if manifest := finished(request, options.overwrite):
        print(f"{out} holds this already, nothing to do: {_summary(manifest)}")
    elif remote and _is_uploaded(remote, request.digest):
        print(f"{remote} holds this already, nothing to do")
        return 0
    else:
        plan = estimate(corpora, wanted_tokens(settings), downloads)
        announce(plan, out, downloads, yes=options.yes)
        with_val = any(source.path == SAMPLE for source in settings.sources)
        with Fetcher(plan.corpora, downloads, plan.files) as fetcher:
            manifest = prepare(
                replace(request, corpora=plan.corpora),
                options.workers,
                fetcher.get,
                overwrite=options.overwrite,
                extra=lambda folder: sample.write_val(folder / "val") if with_val else None,
            )
        print(f"{out}: {_summary(manifest)}")
        _warn(settings, manifest)
    if remote:
        _upload(out, remote, options.overwrite)
    return 0


def _check_places(settings: Settings, out: Path, downloads: Path) -> None:
    """Raises UserError where what is written would be read, or replaced with the data folder."""
    if downloads.resolve().is_relative_to(out.resolve()):
        raise UserError(f"--downloads '{downloads}' lies in --out '{out}', which is replaced")
    for source in settings.sources:
        if source.is_remote or source.path == SAMPLE:
            continue
        path = Path(source.path).resolve()
        if path.is_dir() and out.resolve().is_relative_to(path):
            raise UserError(f"--out '{out}' lies in the source '{source.path}'; write elsewhere")
        if path.is_dir() and downloads.resolve().is_relative_to(path):
            raise UserError(f"--downloads '{downloads}' lies in the source '{source.path}'")
        files = source_files(Source(source.name, Path(source.path)))
        if any(file.resolve().is_relative_to(out.resolve()) for file in files):
            raise UserError(f"source '{source.path}' lies in --out '{out}', which is replaced")
    with_sample = any(source.path == SAMPLE for source in settings.sources)
    kinds = {"arithmetic", "facts", "prose"}  # the sample's own held-out texts are called so
    taken = [source.name for source in settings.sources if source.name in kinds]
    if with_sample and taken:
        raise UserError(f"beside `sample` no source can be called '{taken[0]}'; name it apart")


def _tokenizer(settings: Settings) -> "Tokenizer":
    from data_prep.sources import sample
    from data_prep.sources.sample.bpe import train_tokenizer
    from dualpath_cli.text.tokenizer import Tokenizer

    if settings.tokenizer is None:
        return train_tokenizer(sample.documents("train"))
    return Tokenizer.load(settings.tokenizer)


def _contamination(settings: Settings) -> "Contamination | None":
    from data_prep.documents.contamination import Contamination
    from dualpath_cli.text.documents import parse_source, read_documents

    sources = [parse_source(spec) for spec in settings.decontaminate]
    texts = (text for source in sources for text in read_documents(source))
    return Contamination(texts) if sources else None


def _is_uploaded(url: str, digest: str) -> bool:
    from data_prep.writing.upload import finished_remote

    # Also finds, before hours of work, that the store cannot be reached.
    manifest = finished_remote(url)
    return manifest is not None and manifest.request == digest


def _upload(folder: Path, url: str, overwrite: bool) -> None:
    from data_prep.documents.progress import Stage
    from data_prep.writing.upload import upload

    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    with Stage(f"uploading to {url}", size) as stage:
        upload(folder, url, stage.advance, overwrite=overwrite)
    print(f"{url}: complete; {folder} may be deleted")


def _summary(manifest: "Manifest") -> str:
    left_out = {
        "rejected": sum(sum(source.rejected.values()) for source in manifest.sources),
        "exact duplicates": sum(source.exact_duplicates for source in manifest.sources),
        "near-duplicates": sum(source.near_duplicates for source in manifest.sources),
        "held out": sum(source.validation for source in manifest.sources),
    }
    return (
        f"{manifest.tokens:,} tokens ({manifest.dtype}) of {manifest.documents:,} documents, "
        f"{manifest.text_bytes / manifest.tokens:.2f} bytes a token, "
        + "".join(f"{count:,} {what}, " for what, count in left_out.items() if count)
        + f"fingerprint {manifest.fingerprint[:12]}"
    )


def _warn(settings: Settings, manifest: "Manifest") -> None:
    """Says what is other than was asked for."""
    for source in manifest.sources:
        for fault in source.faults:
            print(f"warning: {source.name}: {fault}", file=sys.stderr)
        for reason, count in source.rejected.items():
            print(
                f"warning: {source.name}: {count:,} of {source.read:,} documents {reason}; "
                "see rejected.jsonl.zst",
                file=sys.stderr,
            )
    # The one that was used up: all its documents, as often as it may be repeated.
    used_up = max(
        zip(settings.sources, manifest.sources, strict=True),
        key=lambda pair: pair[1].passes / pair[0].max_epochs,
    )[1]
    way_out = "lower its weight or raise its max_epochs in a recipe"
    if settings.tokens and manifest.tokens < settings.tokens:
        print(
            f"warning: {manifest.tokens:,} tokens instead of {settings.tokens:,}: source "
            f"'{used_up.name}' has no more; {way_out}",
            file=sys.stderr,
        )
    elif not settings.tokens and settings.shares() and len(settings.sources) > 1:
        print(f"the mix ends with source '{used_up.name}'; for more, {way_out}", file=sys.stderr)
