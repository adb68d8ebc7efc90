"""Corpora: the files that a source consists of, wherever they are."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from data_prep.download.remote_file import RemoteFile
from data_prep.settings import HUB, NEMOTRON, SAMPLE, SourceSettings
from dualpath_cli.files import write_text
from dualpath_cli.text.documents import Source, source_files


@dataclass(frozen=True)
class InputFile:
    """A file of documents, here or elsewhere."""

    name: str
    """The name in messages."""
    size: int | None
    """In bytes; None where it is not known before it is fetched."""
    identity: str
    """Changes when the content may have changed."""
    origin: Path | RemoteFile
    modified: int | None = None
    """When a file on this disk was last changed, in nanoseconds."""

    def has_changed(self) -> bool:
        """Returns whether a file on this disk is another one than when it was found."""
        return isinstance(self.origin, Path) and _modified(self.origin) != self.modified


@dataclass(frozen=True)
class Corpus:
    """A source and its files, in the order in which they are read."""

    settings: SourceSettings
    files: list[InputFile]


def find(settings: SourceSettings, downloads: Path, mirror: str, num_files: int | None) -> Corpus:
    """Finds a source's files; lists of files elsewhere are fetched into `downloads`.

    Raises UserError where there are none, OSError where a list cannot be fetched.
    """
    kind, _, rest = settings.path.partition(":")
    if settings.path == SAMPLE:
        files = [_sample(downloads)]
    elif settings.path.startswith(HUB):
        from data_prep.sources.hub import hub_files

        dataset, _, config = rest.partition(":")
        files = [_remote(file) for file in hub_files(dataset, config or None)]
    elif kind == NEMOTRON:
        from data_prep.sources.nemotron import nemotron_files

        selected = nemotron_files(rest or "quality=high/kind=actual", mirror, downloads)
        files = [_remote(file) for file in selected]
    else:
        files = [_local(path) for path in source_files(Source(settings.name, Path(settings.path)))]
    return Corpus(settings, files[:num_files] if settings.is_remote else files)


def _local(path: Path) -> InputFile:
    # The identity of `make`: sizes and times, since reading terabytes twice costs hours.
    stat = path.stat()
    identity = json.dumps([str(path.resolve()), stat.st_size, stat.st_mtime_ns])
    # In valid UTF-8, so that it can be written down.
    name = str(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return InputFile(name, stat.st_size, identity, path, stat.st_mtime_ns)


def _modified(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _remote(file: RemoteFile) -> InputFile:
    # Not the server: another mirror has the same files. The hub's names hold the commit.
    return InputFile(file.name, file.size, json.dumps([file.name, file.sha256]), file)


def _sample(folder: Path) -> InputFile:
    """Writes the sample's training texts, once for each content."""
    from data_prep.sources import sample

    lines = [json.dumps({"text": text}) + "\n" for text in sample.documents("train")]
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    path = folder / "sample" / f"train-{digest[:12]}.jsonl"
    if not path.exists():
        write_text(path, "".join(lines))
    return InputFile(path.name, path.stat().st_size, digest, path, path.stat().st_mtime_ns)
