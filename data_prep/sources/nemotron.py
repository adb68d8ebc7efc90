"""Nemotron-CC v1 as Common Crawl hosts it: 31,279 files of JSON lines, 10.4 TiB in all."""

import gzip
import hashlib
import zlib
from pathlib import Path

from data_prep.download.remote_file import RemoteFile, Unavailable
from dualpath_cli.errors import UserError, did_you_mean

MIRROR = "https://data.commoncrawl.org/"
FILE_BYTES = 350_000_000
"""Size of an average file."""
FILE_TOKENS = 200_000_000
"""Tokens in an average file."""

_ROOT = "contrib/Nemotron/Nemotron-CC"
_LIST = f"{_ROOT}/data-jsonl.paths.gz"
_DATA = f"{_ROOT}/data-jsonl/"
_NAME = "nemotron-cc"


def nemotron_files(selection: str, mirror: str, folder: Path) -> list[RemoteFile]:
    """Returns the files in the folders that a selection names, of all where it is empty.

    `selection` is one or more of a path's components: `quality=high/kind=actual`. `mirror` is the
    URL above `contrib/`; the list of files is downloaded from it into `folder`, once. The order
    mixes qualities, kinds and snapshots, and does not depend on the selection: the first n + 1
    files are the first n and one more. Raises UserError for a component that no file has and for a
    mirror without a readable list, Unreachable where the mirror does not answer.
    """
    if not mirror.startswith(("https://", "http://")):
        raise UserError(f"mirror '{mirror}' is not a URL; give one such as {MIRROR}")
    paths = _select(_paths(mirror, folder), selection)
    paths.sort(key=lambda path: hashlib.blake2b(path.encode(), digest_size=16).digest())
    return [RemoteFile(_url(mirror, path), f"{_NAME}/{path.removeprefix(_DATA)}") for path in paths]


def _url(mirror: str, path: str) -> str:
    return f"{mirror.rstrip('/')}/{path}"


def _paths(mirror: str, folder: Path) -> list[str]:
    from data_prep.download.ahead import Downloads  # imports requests

    url = _url(mirror, _LIST)
    try:
        listing = RemoteFile(url, f"{_NAME}/{Path(_LIST).name}")
        with Downloads([listing], folder) as downloads:
            file = downloads.get(listing)
    except Unavailable as reason:
        raise UserError(f"mirror '{mirror}': {url}: {reason}; {MIRROR} has it") from None
    try:
        paths = gzip.decompress(file.read_bytes()).decode().split()
    except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError):
        paths = []
    if not paths or not all(path.startswith(_DATA) for path in paths):
        file.unlink()  # a proxy's login page, say: fetch it again next time
        raise UserError(
            f"mirror '{mirror}': {url} is not a gzipped list of paths in {_DATA}; {MIRROR} has it"
        )
    return paths


def _select(paths: list[str], selection: str) -> list[str]:
    """Returns the paths that have every component; says what there is instead of the first gap."""
    taken: list[str] = []
    for component in filter(None, selection.split("/")):
        matching = [path for path in paths if component in _components(path)]
        if not matching:
            raise UserError(_nothing_has(component, selection, taken, paths))
        taken.append(component)
        paths = matching
    return list(paths)


def _components(path: str) -> list[str]:
    """Returns a path's folders: quality=..., kind=..., kind2=..."""
    return path.removeprefix(_DATA).split("/")[:-1]


def _nothing_has(component: str, selection: str, taken: list[str], paths: list[str]) -> str:
    folders = sorted({folder for path in paths for folder in _components(path)} - set(taken))
    key, equals, value = component.partition("=")
    same_key = [folder for folder in folders if folder.startswith(f"{key}=")]
    same_value = [folder for folder in folders if folder.endswith(f"={value if equals else key}")]
    # kind2=synthetic is meant for kind=synthetic: an equal value is nearer than similar letters.
    near = f"; did you mean '{same_value[0]}'?" if same_value else did_you_mean(component, folders)
    return (
        f"selection '{selection}': no file has '{component}'"
        + (f" with {'/'.join(taken)}" if taken else "")
        + f"; there are {', '.join(same_key or folders) or 'no further components'}{near}"
    )
