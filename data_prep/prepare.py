"""The pipeline: files -> pieces -> duplicates -> mix -> shards -> manifest -> OUT."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.filesize import decimal

from data_prep import records
from data_prep.encoding import Encoded, Encoder, Job
from data_prep.input_files import Corpus, InputFile
from data_prep.mix import (
    BYTES_A_DOCUMENT,
    Pool,
    Portion,
    Verdicts,
    interleave,
    portions,
    wanted_tokens,
)
from data_prep.out_folder import (
    discard,
    publish,
    remove_leftovers,
    say_removing,
    work_folder,
)
from data_prep.packaged import PACKAGED
from data_prep.pieces import PIECE_FORMAT, Piece, TokenArray, token_type
from data_prep.settings import Preparation
from data_prep.shards import write_shards
from data_prep.text import Contamination
from data_prep.workers import PieceSettings, workers
from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import read_json
from dualpath_cli.base.output import say
from dualpath_cli.data.manifest import INDEX, MANIFEST, Manifest
from dualpath_cli.data.rows import OnRead
from dualpath_cli.data.storage import file_sizes
from dualpath_cli.data.tokenizer import TOKENIZER, Tokenizer
from dualpath_cli.report.console import Progress, counted, plain_console

_PIPELINE = 1  # raised when the same request would give other bytes than before

SAY_ABOVE = 10**8  # bytes of memory for duplicates, which are announced


@dataclass(frozen=True)
class Request:
    """All that decides a data folder, and its place."""

    settings: Preparation
    corpora: Sequence[Corpus]
    tokenizer: Tokenizer
    out: Path
    contamination: Contamination | None = None
    strict: bool = False

    @property
    def content(self) -> dict[str, Any]:
        """All that decides the data folder's content."""
        files = {
            corpus.settings.name: _sha256([file.identity for file in corpus.files])
            for corpus in self.corpora
        }
        searched = self.contamination
        return {
            "pipeline": _PIPELINE,
            "settings": self.settings.as_recipe(),
            "files": files,
            "tokenizer": self.tokenizer.fingerprint,
            "contamination": searched.fingerprint if searched else None,
            "strict": self.strict,
        }

    @property
    def digest(self) -> str:
        return _sha256(self.content)


def _sha256(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def finished(request: Request, overwrite: bool) -> Manifest | None:
    """Returns the manifest of OUT where it already holds the requested data.

    None where OUT is to be made. Raises UserError where OUT holds something else.
    """
    out = request.out
    if os.path.ismount(out):
        raise UserError(
            f"--out '{out}' is a mount point, not to be replaced; name a folder in it"
        )
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None

    _check_is_data(out)
    try:
        manifest = Manifest.read(out)
        manifest.check_files(out)
    except UserError:
        if overwrite:
            return None
        raise

    if manifest.request == request.digest:
        remove_leftovers(out.resolve(), request.content)
        return manifest
    if overwrite:
        return None

    faults = [fault for source in manifest.sources for fault in source.faults]
    if faults and not manifest.request:
        raise UserError(
            f"--out '{out}' lacks what could not be downloaded ({faults[0]}); use it "
            "as it is, or add --overwrite to try again"
        )
    raise UserError(
        f"--out '{out}' holds other data ({manifest.summary}); choose another folder "
        "or add --overwrite"
    )


def _check_is_data(out: Path) -> None:
    """Checks that a folder has no files but those of data: all may be deleted later."""
    try:
        content = read_json(out / MANIFEST)
        listed = [file["name"] for key in ("chunks", "beside") for file in content[key]]
        content["fingerprint"], content["request"]
    except (UserError, KeyError, TypeError):
        raise UserError(
            f"--out '{out}' exists and is not a data folder; choose another one"
        ) from None

    known = {MANIFEST, INDEX, TOKENIZER, *listed}
    strangers = sorted(file_sizes(out).keys() - known)
    if strangers:
        raise UserError(
            f"--out '{out}' holds '{strangers[0]}', which is not data; move it "
            "elsewhere"
        )


def make_data_folder(
    request: Request,
    processes: int,
    fetch: Callable[[InputFile, OnRead], Path],
    *,
    overwrite: bool = False,
) -> Manifest:
    """Writes the data folder and returns its manifest.

    Everything is made in `OUT.partial`, where an interrupted preparation is continued.
    The complete folder takes the name OUT, and only then replaces a previous folder.
    `processes` make the pieces; any number gives the same bytes. `fetch` gets files
    that are not on this disk.
    """
    out = request.out.resolve()
    with work_folder(out, request.content, overwrite) as work:
        manifest = finished(request, overwrite)
        if manifest:  # by another process, just before
            discard(work)
            return manifest

        folder = work / "finished"
        folder.mkdir(exist_ok=True)
        for unfinished in folder.rglob("*.partial"):  # else the manifest would list it
            unfinished.unlink()
        request.tokenizer.save(folder)

        mixed = _make_pieces(request, work, folder, processes, fetch)
        try:
            manifest = _write_data(request, mixed, work, folder)
        except UserError:
            say_removing(work)
            discard(work)  # there is nothing to continue
            raise

        finished(request, overwrite)  # hours have passed: no other folder is replaced
        publish(folder, work, out)
        with _progress("tidying up", 1, "folders"):
            discard(work)
        return manifest


@dataclass(frozen=True)
class _Mixed:
    """The pieces of all corpora, and what is written of them."""

    encoded: list[Encoded]
    verdicts: Verdicts
    portions: list[Portion]

    @property
    def tokens(self) -> int:
        return sum(portion.tokens for portion in self.portions)


def _make_pieces(
    request: Request,
    work: Path,
    tokenizer: Path,
    processes: int,
    fetch: Callable[[InputFile, OnRead], Path],
) -> _Mixed:
    """Encodes the corpora by workers, which load the tokenizer of a folder."""
    settings = PieceSettings(
        tokenizer=tokenizer,
        min_chars=request.settings.min_chars,
        near=request.settings.duplicates == "near",
        contamination=request.contamination,
        strict=request.strict,
    )
    folder = work / "pieces" / f"{request.digest[:16]}-{PIECE_FORMAT}"
    folder.mkdir(parents=True, exist_ok=True)
    with workers(processes, settings, folder) as begin:
        encoder = Encoder(begin, processes + 2, fetch, request.strict)
        return _encode_enough(request, encoder, folder)


def _encode_enough(request: Request, encoder: Encoder, folder: Path) -> _Mixed:
    """Encodes as much of each corpus as the tokens asked for take."""
    # Duplicates do not count, so only a comparison shows whether there is enough.
    settings = request.settings
    wanted = wanted_tokens(settings)
    until = wanted
    while True:
        jobs = [
            Job(corpus, folder / str(number), until[number])
            for number, corpus in enumerate(request.corpora)
        ]
        encoded = encoder.encode(jobs)
        pieces = []
        for corpus in encoded:
            pieces += corpus.pieces

        _announce_comparison(settings, pieces)
        verdicts = Verdicts(pieces, settings.duplicates)
        pools = _pools(settings, encoded, verdicts)

        more = list(map(_tokens_to_encode, wanted, pools, encoded))
        if not any(more):
            return _Mixed(encoded, verdicts, portions(settings, pools))
        until = [new or old for new, old in zip(more, until, strict=True)]


def _announce_comparison(settings: Preparation, pieces: Sequence[Piece]) -> None:
    if settings.duplicates == "keep":
        return

    documents = sum(piece.documents for piece in pieces)
    memory = documents * BYTES_A_DOCUMENT
    if memory > SAY_ABOVE:
        say(
            f"--duplicates {settings.duplicates}: {documents:,} documents are "
            f"compared in about {decimal(memory)} of memory"
        )


def _pools(
    settings: Preparation, encoded: Sequence[Encoded], verdicts: Verdicts
) -> list[Pool]:
    pools = []
    kinds = iter(verdicts.kinds)
    for source, corpus in zip(settings.sources, encoded, strict=True):
        own = list(islice(kinds, len(corpus.pieces)))
        pools.append(Pool(source.name, corpus.pieces, own, settings.val_fraction))
    return pools


def _tokens_to_encode(wanted: int | None, pool: Pool, encoded: Encoded) -> int | None:
    """Returns up to how many tokens to encode where too few could be used, or None."""
    if wanted is None or encoded.complete or pool.tokens >= wanted:
        return None

    # Later documents may differ: neither everything at once, nor a little many times.
    factor = wanted / max(pool.tokens, 1) * 1.02
    return round(encoded.tokens * min(max(factor, 1.25), 2.0)) + 1


def _write_data(request: Request, mixed: _Mixed, work: Path, folder: Path) -> Manifest:
    """Writes shards, records and manifest into `folder`."""
    tokenizer = request.tokenizer
    settings = request.settings
    if not mixed.tokens:
        raise UserError(_why_nothing(settings, mixed))

    dtype = token_type(tokenizer)

    def stream() -> Iterator[TokenArray]:
        for tokens in interleave(mixed.portions, settings.seed):
            yield tokens
            progress.advance(len(tokens))

    with _progress("writing shards", mixed.tokens, "tokens") as progress:
        chunks, index_sha256 = write_shards(
            folder,
            work / "shards",
            dtype,
            settings.chunk_tokens,
            stream(),
            mixed.tokens,
        )

    _write_records(request, mixed, folder)
    for source in settings.sources:
        if source.is_packaged:
            PACKAGED[source.path].write_val(folder / "val")

    sources = list(
        map(records.count_documents, settings.sources, mixed.encoded, mixed.portions)
    )
    has_all_files = all(corpus.fetched for corpus in mixed.encoded)
    manifest = Manifest(
        documents=sum(portion.documents for portion in mixed.portions),
        tokens=mixed.tokens,
        text_bytes=sum(source.text_bytes for source in sources),
        dtype="uint16" if dtype is np.uint16 else "uint32",
        vocab_size=tokenizer.vocab_size,
        eot_id=tokenizer.eot_id,
        tokenizer=tokenizer.fingerprint,
        sources=sources,
        chunks=chunks,
        index_sha256=index_sha256,
        beside=records.files_beside(folder, chunks),
        # No finished request where a file is lacking that may come another time.
        request=request.digest if has_all_files else "",
        settings=settings.as_recipe(),
    )
    manifest.write(folder)
    return manifest


def _write_records(request: Request, mixed: _Mixed, folder: Path) -> None:
    """Writes rejected and held-out documents, and duplicates."""
    pools = [portion.pool for portion in mixed.portions]
    passes_over_pieces = 2
    total = passes_over_pieces * len(mixed.verdicts.pieces)
    with _progress("writing what was left out", total, "pieces") as progress:
        records.write_rejected(folder, mixed.encoded)
        records.write_held_out(folder, pools, request.tokenizer, progress.advance)
        records.write_duplicates(
            folder, request.corpora, mixed.encoded, mixed.verdicts, progress.advance
        )


def _progress(title: str, total: int, unit: str) -> Progress:
    console = plain_console(stderr=True)
    return Progress(console, title, counted(unit), total, transient=True)


def _why_nothing(settings: Preparation, mixed: _Mixed) -> str:
    """Returns why there is nothing to write.

    It is the first source without text, with its first fault.
    """
    for source, corpus, portion in zip(
        settings.sources, mixed.encoded, mixed.portions, strict=True
    ):
        if portion.pool.tokens:
            continue

        rejected = filter(None, map(records.first_reason, corpus.pieces))
        reason = next(chain(corpus.faults, rejected), None)
        return f"no text in {source.path}" + (f": {reason}" if reason else "")

    return "no text is left: all is held out or a duplicate; lower --val-fraction"
