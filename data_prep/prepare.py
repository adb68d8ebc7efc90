"""The pipeline: encode, judge, write, by tasks; then the manifest, and the name OUT."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.filesize import decimal

from data_prep import records
from data_prep.catalogue import Catalogue
from data_prep.duplicates import Judgement, count_tasks, judge, ranges_for
from data_prep.encoding import Encoded, Encoder, Fetch, Job
from data_prep.engine import Engine, write_shared
from data_prep.input_files import Corpus
from data_prep.inspection import check_bytes
from data_prep.mix import Pool, Portion, portions, wanted_tokens
from data_prep.out_folder import (
    discard,
    publish,
    remove_leftovers,
    say_removing,
    work_folder,
)
from data_prep.packaged import PACKAGED
from data_prep.piece_maker import PieceSettings
from data_prep.pieces import PIECE_FORMAT, piece_path, token_type
from data_prep.settings import PreparationSettings
from data_prep.shards import Plan, WriteChunk, write_index
from data_prep.text import Contamination
from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import read_json, remove
from dualpath_cli.base.output import amount, say
from dualpath_cli.data.manifest import INDEX, MANIFEST, Manifest, StoredFile
from dualpath_cli.data.storage import file_sizes
from dualpath_cli.data.tokenizer import TOKENIZER, Tokenizer
from dualpath_cli.report.console import Progress, counted, plain_console

SAY_ABOVE = 10**6  # documents

_PIPELINE = 1  # raised when the same request would give other bytes than before


@dataclass(frozen=True)
class Request:
    """All that decides a data folder, and its place."""

    settings: PreparationSettings
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

    None where OUT is to be made: with `overwrite` also where a byte of it is damaged.
    Raises UserError where OUT holds something else.
    """
    out = request.out
    # The place of a link is replaced, and `ismount` is false for all links.
    if os.path.ismount(out.resolve()):
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

    is_requested = manifest.request == request.digest
    if is_requested and not (overwrite and _is_damaged(manifest, out)):
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


def _is_damaged(manifest: Manifest, out: Path) -> bool:
    try:
        check_bytes(manifest, out, "first")
    except UserError:
        return True
    return False


def _check_is_data(out: Path) -> None:
    """Checks that a folder has no files but those of data: all may be deleted later."""
    try:
        content = read_json(out / MANIFEST)
        known = {file["name"] for key in ("chunks", "beside") for file in content[key]}
        content["fingerprint"], content["request"]
    except (UserError, KeyError, TypeError):
        raise UserError(
            f"--out '{out}' exists and is not a data folder, or its {MANIFEST} is "
            "damaged; move it away, or choose another one"
        ) from None

    known |= {MANIFEST, INDEX, TOKENIZER}
    strangers = sorted(file_sizes(out).keys() - known)
    if strangers:
        raise UserError(
            f"--out '{out}' holds '{strangers[0]}', which is not data; move it "
            "elsewhere"
        )


def make_data_folder(
    request: Request,
    engine: Engine,
    fetch: Fetch,
    memory: int,
    *,
    overwrite: bool = False,
) -> Manifest:
    """Writes the data folder and returns its manifest.

    Everything is made in `OUT.partial`, where an interrupted preparation is continued.
    The complete folder takes the name OUT, and only then replaces a previous folder.
    Any engine, and any bytes of `memory` for a task, give the same bytes. `fetch` gets
    files that are not on this disk.
    """
    out = request.out.resolve()
    with work_folder(out, request.content, overwrite) as work:
        manifest = finished(request, overwrite)
        if manifest:  # by another process, just before
            discard(work)
            return manifest

        folder = work / "finished"
        folder.mkdir(exist_ok=True)
        request.tokenizer.save(folder)

        stages = _Stages(request, engine, fetch, memory, work, folder)
        mixed = stages.encode_enough()
        if not mixed.tokens:
            reason = _why_nothing(request.settings, stages.pieces, mixed)
            say_removing(work)
            discard(work)  # there is nothing to continue
            raise UserError(reason)

        manifest = stages.write(mixed)

        # Raises where OUT holds something else by now: hours have passed.
        finished(request, overwrite)
        publish(folder, work, out)
        with _progress("tidying up", 1, "folders"):
            discard(work)
        return manifest


@dataclass(frozen=True)
class _Mixed:
    """The pieces of all corpora, the verdicts on them, and what is written."""

    encoded: list[Encoded]
    judgement: Judgement
    numbers: npt.NDArray[np.void]  # `NUMBERS` of all pieces
    portions: list[Portion]

    @property
    def tokens(self) -> int:
        return sum(portion.tokens for portion in self.portions)


@dataclass(frozen=True)
class _Stages:
    """The three stages: encode, judge, write."""

    request: Request
    engine: Engine
    fetch: Fetch
    memory: int  # bytes, for a task
    work: Path
    folder: Path  # that becomes OUT; its tokenizer is there

    @property
    def pieces(self) -> Path:
        return self.work / "pieces" / f"{self.request.digest[:16]}-{PIECE_FORMAT}"

    def encode_enough(self) -> _Mixed:
        """Encodes and judges as much of each corpus as the tokens asked for take."""
        # Duplicates do not count, so only their comparison shows whether there is
        # enough.
        settings = self.request.settings
        encoder = self._encoder()
        wanted = wanted_tokens(settings)
        until = wanted
        while True:
            jobs = [
                Job(corpus, self.pieces / str(number), until[number])
                for number, corpus in enumerate(self.request.corpora)
            ]
            encoded = encoder.encode(jobs)
            judgement, numbers = self._judge(encoded)
            pools = _pools(settings, judgement, numbers)

            more = list(map(_tokens_to_encode, wanted, pools, encoded))
            # A source without text leaves nothing to write, and has ended the reading.
            has_empty = any(each.complete and not each.tokens for each in encoded)
            if has_empty or not any(more):
                mix = portions(settings, pools)
                return _Mixed(encoded, judgement, numbers, mix)
            until = [new or old for new, old in zip(more, until, strict=True)]

    def _encoder(self) -> Encoder:
        settings = PieceSettings(
            tokenizer=self.folder,
            min_chars=self.request.settings.min_chars,
            near=self.request.settings.duplicates == "near",
            contamination=self.request.contamination,
            strict=self.request.strict,
        )
        common = write_shared(self.pieces, "settings", settings)
        is_mix = self.request.settings.shares() is not None
        return Encoder(self.engine, common, self.fetch, self.request.strict, is_mix)

    def _judge(
        self, encoded: Sequence[Encoded]
    ) -> tuple[Judgement, npt.NDArray[np.void]]:
        settings = self.request.settings
        documents = [[count.documents for count in each.counts] for each in encoded]
        pieces = [each.pieces for each in encoded]
        catalogue = Catalogue.of(self.pieces, pieces, documents)
        total = int(catalogue.documents.sum())
        ranges = ranges_for(total, self.memory)
        is_large = ranges > 1 or total > SAY_ABOVE
        if is_large and settings.duplicates != "keep":
            say(
                f"--duplicates {settings.duplicates}: {total:,} documents are judged "
                f"in {amount('ranges', ranges)} of keys, each in up to "
                f"{decimal(self.memory)} of memory"
            )

        judgement = Judgement(
            catalogue=catalogue,
            folder=self.work / "judged" / f"{self.pieces.name}-{catalogue.digest[:16]}",
            duplicates=settings.duplicates,
            min_jaccard=settings.min_jaccard,
            val_fraction=settings.val_fraction,
            tokenizer=self.folder,
            ranges=ranges,
        )
        with _progress("comparing", count_tasks(judgement), "tasks") as progress:
            return judgement, judge(self.engine, judgement, progress.advance)

    def write(self, mixed: _Mixed) -> Manifest:
        """Writes shards, records and manifest."""
        request = self.request
        settings = request.settings
        tokenizer = request.tokenizer
        dtype = token_type(tokenizer)
        plan = Plan(
            self.folder,
            # Its chunks are of these pieces: a file that was missing may have come.
            self.work / "shards" / mixed.judgement.folder.name,
            dtype,
            settings.chunk_tokens,
            mixed.portions,
            settings.seed,
        )
        self._remove_others(plan)
        chunks = self._write_chunks(plan)
        index_sha256 = write_index(self.folder, chunks, plan.lengths, dtype)
        self._write_records(mixed)

        sources = list(
            map(
                records.count_documents,
                settings.sources,
                mixed.encoded,
                mixed.portions,
            )
        )
        has_all_files = all(corpus.fetched for corpus in mixed.encoded)
        manifest = Manifest(
            documents=sum(portion.total("documents") for portion in mixed.portions),
            tokens=mixed.tokens,
            text_bytes=sum(source.text_bytes for source in sources),
            dtype="uint16" if dtype is np.uint16 else "uint32",
            vocab_size=tokenizer.vocab_size,
            eot_id=tokenizer.eot_id,
            tokenizer=tokenizer.fingerprint,
            sources=sources,
            chunks=chunks,
            index_sha256=index_sha256,
            beside=records.files_beside(self.folder, chunks),
            # Empty if a file could not be downloaded: OUT is then not a finished one.
            request=request.digest if has_all_files else "",
            settings=settings.as_recipe(),
        )
        manifest.write(self.folder)
        return manifest

    def _remove_others(self, plan: Plan) -> None:
        """Removes what an interrupted preparation left, but for the plan's chunks.

        The manifest lists all files, also unfinished ones and those of a plan that has
        changed.
        """
        chunks = {plan.chunk_path(number) for number in range(len(plan.lengths))}
        for path in self.folder.iterdir():
            if path not in chunks and path.name != TOKENIZER:
                remove(path)

    def _write_chunks(self, plan: Plan) -> list[StoredFile]:
        plan.journal.mkdir(parents=True, exist_ok=True)
        common = write_shared(plan.journal, "plan", plan)
        tasks = [WriteChunk(common, number) for number in range(len(plan.lengths))]

        chunks = {}
        with _progress("writing shards", plan.tokens, "tokens") as progress:
            for task, chunk in self.engine.run(tasks):
                chunks[task.number] = chunk
                progress.advance(plan.lengths[task.number])
        return [chunks[task.number] for task in tasks]

    def _write_records(self, mixed: _Mixed) -> None:
        """Writes rejected and held-out documents, and duplicates."""
        with_rejected = []
        for number, corpus in enumerate(mixed.encoded):
            with_rejected += _with_rejected(self.pieces / str(number), corpus)

        groups = len(mixed.judgement.catalogue.groups)
        with _progress("writing what was left out", groups, "tasks") as progress:
            records.write_rejected(self.folder, with_rejected)
            records.write_records(
                self.folder,
                self.engine,
                mixed.judgement,
                self.request.corpora,
                mixed.numbers,
                progress.advance,
            )

        for source in self.request.settings.sources:
            if source.is_packaged:
                PACKAGED[source.path].write_val(self.folder / "val")


def _pools(
    settings: PreparationSettings, judgement: Judgement, numbers: npt.NDArray[np.void]
) -> list[Pool]:
    pools = []
    for number, source in enumerate(settings.sources):
        first, stop = judgement.catalogue.of_source(number)
        pools.append(Pool(source.name, judgement, first, numbers[first:stop]))
    return pools


def _with_rejected(folder: Path, corpus: Encoded) -> list[Path]:
    """The pieces of a corpus, in its folder, that have rejected documents."""
    pieces = zip(corpus.pieces, corpus.counts, strict=True)
    return [piece_path(folder, *piece) for piece, counts in pieces if counts.rejected]


def _tokens_to_encode(wanted: int | None, pool: Pool, encoded: Encoded) -> int | None:
    """Returns up to how many tokens to encode where too few could be used, or None."""
    if wanted is None or encoded.complete or pool.tokens >= wanted:
        return None

    # Later documents may differ: neither everything at once, nor a little many times.
    factor = wanted / max(pool.tokens, 1) * 1.02
    return round(encoded.tokens * min(max(factor, 1.25), 2.0)) + 1


def _progress(title: str, total: int, unit: str) -> Progress:
    console = plain_console(goes_on=True, stderr=True)
    return Progress(console, title, counted(unit), total, transient=True)


def _why_nothing(settings: PreparationSettings, pieces: Path, mixed: _Mixed) -> str:
    """Returns why there is nothing to write, by the first source without text.

    The reason is what became of its documents, or its first fault if none was read.
    """
    number = next(
        number
        for number, portion in enumerate(mixed.portions)
        if mixed.encoded[number].complete and not portion.pool.tokens
    )
    path = settings.sources[number].path
    corpus = mixed.encoded[number]

    if any(counts.documents for counts in corpus.counts):
        numbers = mixed.portions[number].pool.numbers
        held_out = int(numbers["held_out"].sum())
        duplicates = int(numbers["exact"].sum() + numbers["near"].sum())
        way_out = "lower --val-fraction" if held_out else "leave the source out"
        return (
            f"no document of {path} is left to write: {held_out:,} held out, "
            f"{amount('duplicates', duplicates)}; {way_out}"
        )

    with_rejected = _with_rejected(pieces / str(number), corpus)
    reasons = chain(corpus.faults, map(records.first_reason, with_rejected))
    reason = next(reasons, None)
    return f"no text in {path}" + (f": {reason}" if reason else "")
