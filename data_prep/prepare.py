"""The pipeline: files -> pieces -> duplicates -> mix -> shards -> manifest -> final
name."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.filesize import decimal

from data_prep import records, sample
from data_prep.corpora import Corpus, InputFile
from data_prep.encoding import Encoded, Encoder, Job
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
from data_prep.pieces import FORMAT, Tokens, token_type
from data_prep.settings import SAMPLE, Preparation
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
            c.settings.name: _sha256([f.identity for f in c.files])
            for c in self.corpora
        }
        return {
            "pipeline": _PIPELINE,
            "settings": self.settings.as_recipe(),
            "files": files,
            "tokenizer": self.tokenizer.fingerprint,
            "contamination": self.contamination.fingerprint
            if self.contamination
            else None,
            "strict": self.strict,
        }

    @property
    def digest(self) -> str:
        return _sha256(self.content)


def _sha256(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def finished(request: Request, overwrite: bool) -> Manifest | None:
    """Returns the manifest of `request.out` where it already holds the requested
    data."""
    out = request.out
    if os.path.ismount(out):
        raise UserError(
            f"--out '{out}' is a mount point, not to be replaced; name a folder in it"
        )
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    _check_is_ours(out)
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


def _check_is_ours(out: Path) -> None:
    """Checks that every file in a folder is part of a data folder: all may be deleted
    later."""
    try:
        content = read_json(out / MANIFEST)
        listed = [file["name"] for key in ("chunks", "beside") for file in content[key]]
        content["fingerprint"], content["request"]
    except (UserError, KeyError, TypeError):
        raise UserError(
            f"--out '{out}' exists and is not a data folder; choose another one"
        ) from None
    known = {MANIFEST, INDEX, TOKENIZER, *listed}
    if strangers := sorted(file_sizes(out).keys() - known):
        named = f"--out '{out}' holds '{strangers[0]}'"
        raise UserError(f"{named}, which is no data; move it elsewhere")


def prepare(
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
        if manifest := finished(request, overwrite):  # by another process, just before
            discard(work)
            return manifest
        folder = work / "finished"
        folder.mkdir(exist_ok=True)
        for unfinished in folder.rglob("*.partial"):  # else the manifest would list it
            unfinished.unlink()
        request.tokenizer.save(folder)
        settings = PieceSettings(
            tokenizer=folder,
            min_chars=request.settings.min_chars,
            near=request.settings.duplicates == "near",
            contamination=request.contamination,
            strict=request.strict,
        )
        pieces = work / "pieces" / f"{request.digest[:16]}-{FORMAT}"
        pieces.mkdir(parents=True, exist_ok=True)
        with workers(processes, settings, pieces) as begin:
            encoder = Encoder(begin, processes + 2, fetch, request.strict)
            encoded, verdicts, chosen = _encode(request, encoder, pieces)
        try:
            manifest = _write(request, encoded, verdicts, chosen, work, folder)
        except UserError:
            say_removing(work)
            discard(work)  # there is nothing to continue
            raise
        finished(request, overwrite)  # hours have passed: no other folder is replaced
        publish(folder, work, out)
        with _progress("tidying up", 1, "folders"):
            discard(work)
        return manifest


def _encode(
    request: Request, encoder: Encoder, folder: Path
) -> tuple[list[Encoded], Verdicts, list[Portion]]:
    """Encodes as much of each corpus as the tokens asked for take, duplicates not
    counted."""
    settings = request.settings
    wanted = wanted_tokens(settings)
    until = wanted
    while True:
        jobs = [
            Job(corpus, folder / str(number), until[number])
            for number, corpus in enumerate(request.corpora)
        ]
        encoded = encoder.encode(jobs)
        pieces = [piece for corpus in encoded for piece in corpus.pieces]
        documents = sum(piece.documents for piece in pieces)
        memory = documents * BYTES_A_DOCUMENT
        if settings.duplicates != "keep" and memory > SAY_ABOVE:
            say(
                f"--duplicates {settings.duplicates}: {documents:,} documents are "
                f"compared in about {decimal(memory)} of memory"
            )
        verdicts = Verdicts(pieces, settings.duplicates)
        pools, kinds = [], iter(verdicts.kinds)
        for source, corpus in zip(settings.sources, encoded, strict=True):
            own = list(islice(kinds, len(corpus.pieces)))
            pools.append(Pool(source.name, corpus.pieces, own, settings.val_fraction))
        more = list(map(_more, wanted, pools, encoded))
        if not any(more):
            return encoded, verdicts, portions(settings, pools)
        until = [new or old for new, old in zip(more, until, strict=True)]


def _more(wanted: int | None, pool: Pool, encoded: Encoded) -> int | None:
    """Returns up to how many tokens to encode where too few could be used, or None."""
    if wanted is None or encoded.complete or pool.tokens >= wanted:
        return None
    # Later documents may differ: neither everything at once, nor a little many times.
    factor = wanted / max(pool.tokens, 1) * 1.02
    return round(encoded.tokens * min(max(factor, 1.25), 2.0)) + 1


def _write(
    request: Request,
    encoded: list[Encoded],
    verdicts: Verdicts,
    chosen: list[Portion],
    work: Path,
    folder: Path,
) -> Manifest:
    tokenizer, settings = request.tokenizer, request.settings
    total = sum(portion.tokens for portion in chosen)
    if not total:
        raise UserError(_nothing(settings, encoded, chosen))
    dtype = token_type(tokenizer)

    def stream() -> Iterator[Tokens]:
        for tokens in interleave(chosen, settings.seed):
            yield tokens
            progress.advance(len(tokens))

    with _progress("writing shards", total, "tokens") as progress:
        chunks, index_sha256 = write_shards(
            folder, work / "shards", dtype, settings.chunk_tokens, stream(), total
        )
    with _progress(
        "writing what was left out", 2 * len(verdicts.pieces), "pieces"
    ) as progress:
        records.write_rejected(folder, encoded)
        pools = [portion.pool for portion in chosen]
        records.write_held_out(folder, pools, tokenizer, progress.advance)
        records.write_duplicates(
            folder, request.corpora, encoded, verdicts, progress.advance
        )
    if any(source.path == SAMPLE for source in settings.sources):
        sample.write_val(folder / "val")
    sources = list(map(records.account, settings.sources, encoded, chosen))
    manifest = Manifest(
        documents=sum(portion.documents for portion in chosen),
        tokens=total,
        text_bytes=sum(source.text_bytes for source in sources),
        dtype="uint16" if dtype is np.uint16 else "uint32",
        vocab_size=tokenizer.vocab_size,
        eot_id=tokenizer.eot_id,
        tokenizer=tokenizer.fingerprint,
        sources=sources,
        chunks=chunks,
        index_sha256=index_sha256,
        beside=records.stored(folder, chunks),
        # No finished request where a file is lacking that may come another time.
        request=request.digest if all(corpus.fetched for corpus in encoded) else "",
        settings=settings.as_recipe(),
    )
    manifest.write(folder)
    return manifest


def _progress(title: str, total: int, unit: str) -> Progress:
    return Progress(
        plain_console(stderr=True), title, counted(unit), total, transient=True
    )


def _nothing(
    settings: Preparation, encoded: list[Encoded], chosen: list[Portion]
) -> str:
    """Returns why there is nothing to write: the source without text, and its first
    fault."""
    for source, corpus, portion in zip(settings.sources, encoded, chosen, strict=True):
        if not portion.pool.tokens:
            reasons = [
                *corpus.faults,
                *filter(None, map(records.first_reason, corpus.pieces)),
            ]
            return f"no text in {source.path}" + "".join(
                f": {reason}" for reason in reasons[:1]
            )
    return "no text is left: all is held out or a duplicate; lower --val-fraction"
