"""The pipeline: corpora -> documents -> batches of ids -> shards -> manifest -> final name."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from data_prep.corpora import Corpus
from data_prep.progress import PreparationProgress
from dualpath_cli.errors import UserError
from dualpath_cli.text.manifest import MANIFEST, Manifest, SourceCount
from dualpath_cli.text.tokenizer import TOKENIZER, Tokenizer

if TYPE_CHECKING:
    from data_prep.shards import ShardWriter

BATCH_CHARACTERS = 1 << 20
"""About this much text is tokenised at a time; a longer document goes alone."""


@dataclass(frozen=True)
class Request:
    """What is to be prepared."""

    corpora: Sequence[Corpus]
    tokenizer: Tokenizer
    out: Path
    chunk_tokens: int
    """Tokens in a chunk; the last one may hold fewer."""
    max_tokens: int | None = None
    """Where set, the document that reaches this count is the last one."""

    @property
    def digest(self) -> str:
        """sha256 of all that decides the data folder's content."""
        content = [
            [[c.name, c.identity] for c in self.corpora],
            self.tokenizer.fingerprint,
            self.chunk_tokens,
            self.max_tokens,
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def finished(request: Request, overwrite: bool) -> Manifest | None:
    """Returns the manifest of `request.out` where it already holds what is requested.

    Raises UserError where the folder holds something else and may not be replaced.
    """
    out = request.out
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    # --overwrite must not delete a folder of another purpose that has a manifest.json.
    if not ((out / MANIFEST).is_file() and (out / TOKENIZER).is_file()):
        raise UserError(f"--out '{out}' exists and is not a data folder; choose another one")
    try:
        manifest = Manifest.read(out)
        manifest.check_sizes(out)
    except UserError:
        if overwrite:
            return None
        raise
    if manifest.request == request.digest:
        return manifest
    if overwrite:
        return None
    raise UserError(
        f"--out '{out}' holds other data ({manifest.tokens:,} tokens of "
        f"{', '.join(source.name for source in manifest.sources)}, fingerprint "
        f"{manifest.fingerprint[:12]}); choose another folder or add --overwrite"
    )


def prepare(request: Request, extra: Callable[[Path], None] | None = None) -> Manifest:
    """Writes the data folder and returns its manifest.

    Everything is written into `OUT.partial`, which takes the final name when it is complete; what
    was there before is replaced then. `extra` may write further files into that folder. Raises
    UserError where a source cannot be read or holds no text.
    """
    out = request.out.resolve()
    partial = out.with_name(out.name + ".partial")
    with _only_writer(partial):
        manifest = _write_shards(request, partial)
        request.tokenizer.save(partial)
        if extra:
            extra(partial)
        manifest.write(partial)
        _replace(partial, out)
    return manifest


def _write_shards(request: Request, folder: Path) -> Manifest:
    from data_prep.shards import ShardWriter  # imports litdata, hence torch: seconds

    tokenizer = request.tokenizer
    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
    writer = ShardWriter(folder, dtype, request.chunk_tokens)
    counts: list[SourceCount] = []
    limit = request.max_tokens
    with PreparationProgress(sum(corpus.bytes for corpus in request.corpora)) as progress:
        for corpus in request.corpora:
            left = None if limit is None else limit - sum(count.tokens for count in counts)
            counts.append(_write_corpus(corpus, tokenizer, writer, left, progress))
    if not any(count.documents for count in counts):
        raise UserError(f"no text in {', '.join(corpus.path for corpus in request.corpora)}")
    chunks, index_sha256 = writer.close()
    return Manifest(
        documents=sum(count.documents for count in counts),
        tokens=sum(count.tokens for count in counts),
        text_bytes=sum(count.text_bytes for count in counts),
        dtype="uint16" if dtype is np.uint16 else "uint32",
        vocab_size=tokenizer.vocab_size,
        eot_id=tokenizer.eot_id,
        tokenizer=tokenizer.fingerprint,
        sources=counts,
        chunks=chunks,
        index_sha256=index_sha256,
        request=request.digest,
    )


def _write_corpus(
    corpus: Corpus,
    tokenizer: Tokenizer,
    writer: "ShardWriter",
    limit: int | None,
    progress: PreparationProgress,
) -> SourceCount:
    """Writes documents, each with its end-of-text, until `limit` tokens are reached."""
    end = np.array([tokenizer.eot_id], dtype=np.uint32)
    documents = tokens = text_bytes = empty = 0
    progress.source(corpus.name)
    if limit is None or limit > 0:
        for text, ids in encoded(corpus.documents(progress.read), tokenizer):
            if not text:
                empty += 1
                continue
            writer.add(ids)
            writer.add(end)
            documents += 1
            tokens += len(ids) + 1
            text_bytes += len(text.encode())
            progress.written(len(ids) + 1)
            if limit is not None and tokens >= limit:
                break
    return SourceCount(corpus.name, corpus.path, documents, empty, tokens, text_bytes)


def encoded(
    documents: Iterable[str], tokenizer: Tokenizer
) -> Iterator[tuple[str, npt.NDArray[np.uint32]]]:
    """Yields (text, ids) for each document, tokenising about a megabyte at a time."""
    batch: list[str] = []
    characters = 0
    for text in documents:
        batch.append(text)
        characters += len(text)
        if characters >= BATCH_CHARACTERS:
            yield from zip(batch, tokenizer.encode_batch(batch), strict=True)
            batch, characters = [], 0
    yield from zip(batch, tokenizer.encode_batch(batch), strict=True)


@contextmanager
def _only_writer(folder: Path) -> Iterator[None]:
    """Empties and locks a working folder; the lock goes with the process, however that ends."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another preparation is writing '{folder}'; wait for it to end"
            ) from None
        for left_over in folder.iterdir():
            shutil.rmtree(left_over) if left_over.is_dir() else left_over.unlink()
        yield
    finally:
        os.close(descriptor)


def _replace(partial: Path, out: Path) -> None:
    """Gives the finished folder its name; a folder cannot be replaced in one step as a file can."""
    if not out.exists():
        partial.rename(out)
        return
    old = out.with_name(out.name + ".old")
    if old.exists():
        shutil.rmtree(old)
    out.rename(old)
    partial.rename(out)
    shutil.rmtree(old)
