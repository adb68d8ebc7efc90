"""Corpora: named streams of documents, from files or from the sample."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from data_prep import sample
from dualpath_cli.text.documents import Source, read_documents, source_files
from dualpath_cli.text.rows import OnRead


@dataclass(frozen=True)
class Corpus:
    """A named stream of documents."""

    name: str
    path: str
    """Where it comes from, for the manifest."""
    bytes: int
    """What `documents` reports as read, in all."""
    identity: str
    """Changes when the content may have changed."""
    documents: Callable[[OnRead], Iterator[str]]
    """Starts the stream; takes the listener of bytes read."""


def corpus_of_source(source: Source) -> Corpus:
    """Describes the documents of files, whose identity is that of `make`: their sizes and times."""
    stats = [(path, path.stat()) for path in source_files(source)]
    identity = [[str(path.resolve()), stat.st_size, stat.st_mtime_ns] for path, stat in stats]
    return Corpus(
        name=source.name,
        path=str(source.path),
        bytes=sum(stat.st_size for _, stat in stats),
        identity=json.dumps(identity),
        documents=lambda on_read: read_documents(source, on_read),
    )


def corpus_of_sample(name: str) -> Corpus:
    """Describes the sample's training texts, whose identity is a digest of the texts themselves."""
    texts = list(sample.documents("train"))

    def documents(on_read: OnRead) -> Iterator[str]:
        for text in texts:
            on_read(len(text.encode()))
            yield text

    return Corpus(
        name=name,
        path=name,
        bytes=sum(len(text.encode()) for text in texts),
        identity=hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
        documents=documents,
    )
