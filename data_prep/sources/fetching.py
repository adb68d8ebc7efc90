"""Fetching: where the files of corpora lie on this disk, downloaded ahead of their reader."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from data_prep.download.ahead import CONNECTIONS, Downloads
from data_prep.download.remote_file import RemoteFile
from data_prep.sources.corpora import Corpus, InputFile
from dualpath_cli.text.rows import OnRead


class Fetcher:
    """Gives out files of corpora. A context manager: downloads run from entering to leaving."""

    def __init__(self, corpora: Sequence[Corpus], folder: Path, expected: Sequence[int]) -> None:
        """`expected` says how many files of each corpus will probably be asked for.

        Beyond those a file is fetched only once the one before it is asked for.
        """
        self._stack = ExitStack()
        self._listener: OnRead = lambda count: None
        self._downloads: dict[RemoteFile, Downloads] = {}
        for corpus, count in zip(corpora, expected, strict=True):
            remote = [file.origin for file in corpus.files if isinstance(file.origin, RemoteFile)]
            if remote:
                ahead = min(CONNECTIONS, count - 1)
                downloads = Downloads(remote, folder, self._received, ahead=ahead)
                self._downloads |= dict.fromkeys(remote, downloads)

    def __enter__(self) -> "Fetcher":
        for downloads in dict.fromkeys(self._downloads.values()):
            self._stack.enter_context(downloads)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def get(self, file: InputFile, on_received: OnRead) -> Path:
        """Returns a file's path, once it is there; `on_received` is called with bytes downloaded.

        Raises Unavailable if the file cannot be fetched, Unreachable if its server does not
        answer for long.
        """
        if isinstance(file.origin, Path):
            return file.origin
        self._listener = on_received
        return self._downloads[file.origin].get(file.origin)

    def _received(self, count: int) -> None:
        self._listener(count)


def on_this_disk(file: InputFile, on_received: OnRead) -> Path:
    """Returns where a local file lies: `Fetcher.get` where nothing is downloaded."""
    assert isinstance(file.origin, Path)
    return file.origin
