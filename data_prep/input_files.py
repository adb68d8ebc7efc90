"""Input files: what a corpus is made of, on this disk or at a URL."""

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from data_prep.settings import SourceSettings
from dualpath_cli.base.errors import UserError
from dualpath_cli.data.rows import suffixes

MOST_FILE_BYTES = 3_500_000_000
"""Bytes to accept where a size is not known: ten average files of Nemotron-CC. An
answer without end would fill the disk."""

TOKENS_PER_BYTE = 0.3
"""Tokens in a byte of plain text: GPT-2's are 0.25 to 0.29 of novels, PEPs and RFCs."""
TOKENS_PER_STORED_BYTE = 200 / 350
"""Tokens in a compressed byte of Nemotron-CC; assumed for other corpora, too."""


def readable(text: str) -> str:
    """Returns a text for records: a path's bytes that are not UTF-8 become escapes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


@dataclass(frozen=True)
class RemoteFile:
    """A file at a URL, which never changes, and its place below the download folder."""

    url: str
    name: str
    size: int | None = None  # bytes, where known beforehand
    sha256: str | None = None
    token: str | None = field(default=None, repr=False)
    """Bearer token for the URL's host; a host that the URL redirects to does not get
    it."""
    most: int = MOST_FILE_BYTES  # bytes to accept where the size is not known

    def __post_init__(self) -> None:
        path = PurePosixPath(self.name)
        if path.is_absolute() or ".." in path.parts or not path.name:
            raise UserError(
                f"'{self.url}' would be stored as '{self.name}', outside the download "
                "folder; check where the list of files comes from"
            )


@dataclass(frozen=True)
class InputFile:
    """A file of documents, here or elsewhere."""

    name: str  # the name in messages
    size: int  # in bytes; of a file with unknown size that of an average file
    identity: str  # changes when the content may have changed
    origin: Path | RemoteFile
    modified: int | None = None
    """Time of the last change of a file on this disk, in nanoseconds."""

    @property
    def remote(self) -> RemoteFile | None:
        """The file to download; None of a file on this disk."""
        return None if isinstance(self.origin, Path) else self.origin

    @property
    def likely_tokens(self) -> float:
        """Tokens of the file, estimated by its size and the ending of its name."""
        ending, codec = suffixes(Path(self.name))
        is_compressed = codec or ending == ".parquet"
        density = TOKENS_PER_STORED_BYTE if is_compressed else TOKENS_PER_BYTE
        return density * max(self.size, 1)

    def has_changed(self) -> bool:
        """Whether a file on this disk was changed, or removed, since it was found."""
        if not isinstance(self.origin, Path):
            return False

        try:
            return self.origin.stat().st_mtime_ns != self.modified
        except FileNotFoundError:
            return True


@dataclass(frozen=True)
class Corpus:
    """A source and its files, in the order in which they are read."""

    settings: SourceSettings
    files: list[InputFile]

    def remote_files(self) -> list[RemoteFile]:
        """The files to download, in the order in which they are read."""
        remote = (file.remote for file in self.files)
        return [file for file in remote if file is not None]
