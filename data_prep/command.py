"""A preparation from its words to its last line; slow packages are imported after the checks."""

import argparse
import sys
from dataclasses import fields, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from data_prep.settings import NEMOTRON, SAMPLE, Settings, settings_from, value_of
from dualpath_cli.errors import RunFailed, UserError, of_system
from dualpath_cli.machine import cores
from dualpath_cli.recipe import recipes
from dualpath_cli.sizes import Size
from dualpath_cli.text.documents import Source, source_files

if TYPE_CHECKING:
    from data_prep.documents.contamination import Contamination
    from data_prep.executors import PieceExecutor
    from dualpath_cli.text.manifest import Manifest


def run(options: argparse.Namespace) -> None:
    """Prepares a data folder.

    Raises UserError for a user's mistake, RunFailed where the network, a worker or the disk fails.
    """
    again = "the same command continues"
    try:
        _prepare(_settings(options), options)
    except KeyboardInterrupt as interrupt:
        interrupt.args = (again,)
        raise
    except OSError as error:
        code, reason = of_system(error)
        if code == 2 or isinstance(error, BrokenPipeError):
            raise
        raise RunFailed(f"{reason}; {again}") from error


def _settings(options: argparse.Namespace) -> Settings:
    if options.out is None:
        raise UserError("prepare needs --out DIR: the data folder to write")
    _check_executor(options)
    values = recipes.read(recipes.find(options.config, kind="data")) if options.config else {}
    for key in (field.name for field in fields(Settings)):
        if (given := getattr(options, key)) is not None:
            values[key] = value_of(key, given) if isinstance(given, str) else given
    settings = settings_from(values)
    unlimited = settings.tokens is None and settings.num_files is None
    if unlimited and any(s.path.partition(":")[0] == NEMOTRON for s in settings.sources):
        settings = replace(settings, num_files=Size(1))  # terabytes otherwise
    return settings


def _prepare(settings: Settings, options: argparse.Namespace) -> None:
    from data_prep.sources.corpora import find

    # A folder for S3 is made here first, and stays: `fit` may read either.
    remote = options.out if options.out.startswith("s3://") else None
    out = Path("data", PurePosixPath(options.out).name) if remote else Path(options.out)
    downloads = options.downloads or out.parent / "downloads"
    _check_places(settings, out, downloads)
    corpora = [find(s, downloads, options.mirror, settings.num_files) for s in settings.sources]
    from data_prep.sources import sample
    from dualpath_cli.text.tokenizer import Tokenizer

    spec = settings.tokenizer
    tokenizer = sample.tokenizer() if spec is None else Tokenizer.load(spec)
    from data_prep.prepare import Request, finished, prepare  # imports requests
    from data_prep.sources.estimate import announce, estimate
    from data_prep.sources.fetching import Fetcher
    from data_prep.writing.mix import wanted_tokens

    evaluations = _contamination(settings)
    request = Request(settings, corpora, tokenizer, out, evaluations, strict=options.strict)
    if manifest := finished(request, options.overwrite):
        print(f"{out} holds this already, nothing to do: {_summary(manifest)}")
    elif remote and _is_uploaded(remote, request.digest):
        print(f"{remote} holds this already, nothing to do")
        return
    else:
        with_val = any(source.path == SAMPLE for source in settings.sources)
        with _executor(options, out.resolve().parent) as executor:
            plan = estimate(corpora, wanted_tokens(settings), downloads)
            announce(plan, out, downloads, yes=options.yes)
            with Fetcher(plan.corpora, downloads, plan.files) as fetcher:
                manifest = prepare(
                    replace(request, corpora=plan.corpora),
                    executor,
                    fetcher.get,
                    overwrite=options.overwrite,
                    extra=lambda folder: sample.write_val(folder / "val") if with_val else None,
                )
        print(f"{out}: {_summary(manifest)}")
        _warn(settings, manifest)
    if remote:
        _upload(out, remote, options.overwrite)


def _check_executor(options: argparse.Namespace) -> None:
    """Raises UserError for options that do not go together."""
    if options.executor == "dask" and not options.scheduler:
        raise UserError("--executor dask needs --scheduler ADDRESS, as `dask scheduler` prints it")
    if options.scheduler and options.executor != "dask":
        raise UserError(f"--scheduler '{options.scheduler}' needs --executor dask")
    if options.workers and options.executor == "dask":
        raise UserError(
            f"--workers {options.workers} are processes of this machine, which --executor dask "
            "does not start; leave it out: the cluster has workers"
        )


def _executor(options: argparse.Namespace, folder: Path) -> "PieceExecutor":
    """Returns the executor of pieces; a cluster's workers must see `folder`."""
    if options.executor == "dask":
        from data_prep.executors.cluster import Cluster

        return Cluster(options.scheduler, folder)
    from data_prep.executors.local import on_this_machine

    return on_this_machine(options.workers or cores())


def _check_places(settings: Settings, out: Path, downloads: Path) -> None:
    """Raises UserError where an output would be read, or replaced with the data folder."""
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
    from rich.console import Console

    from data_prep.writing.upload import upload
    from dualpath_cli.output.progress import Progress, bytes_of_bytes

    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    console = Console(stderr=True)
    title = f"uploading to {url}"
    with Progress(console, title, bytes_of_bytes, size, transient=True) as progress:
        upload(folder, url, progress.advance, overwrite=overwrite)
    print(f"{url}: complete; {folder} may be deleted")


def _summary(manifest: "Manifest") -> str:
    left_out = {
        "rejected": sum(source.total_rejected for source in manifest.sources),
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
    """Reports differences from the request."""
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
