"""Corpora: a source's files on this disk, of Nemotron-CC, of the hub, or of the
sample."""

import gzip
import hashlib
import json
import multiprocessing
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from glob import has_magic
from itertools import islice
from multiprocessing.pool import ThreadPool
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from fsspec.utils import glob_translate

from data_prep import sample
from data_prep.settings import NEMOTRON, SAMPLE, SourceSettings
from dualpath_cli.base.errors import UserError, did_you_mean, listed
from dualpath_cli.base.pointers import refuse_pointer
from dualpath_cli.data.documents import Source, source_files
from dualpath_cli.data.hub import FIRST_ANSWER_SECONDS, explaining_errors, hub_client
from dualpath_cli.data.manifest import HUB, dataset_of
from dualpath_cli.data.rows import kind_of, suffixes

FILE_BYTES = 350_000_000  # size of an average file of Nemotron-CC
FILE_TOKENS = 200_000_000  # tokens in an average file

# An answer without end would fill the disk or the memory.
MOST_FILE_BYTES = 10 * FILE_BYTES  # of a file whose size is not known beforehand
MOST_LIST_BYTES = 1 << 26  # of Nemotron-CC's list of files, as stored and decompressed
MOST_FILES = 10**6  # files and folders of a dataset on the hub
LIST_SECONDS = 300.0  # for all pages of their list


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
    # when a file on this disk was last changed, in nanoseconds
    modified: int | None = None

    def has_changed(self) -> bool:
        try:
            return (
                isinstance(self.origin, Path)
                and self.origin.stat().st_mtime_ns != self.modified
            )
        except FileNotFoundError:
            return True


@dataclass(frozen=True)
class Corpus:
    """A source and its files, in the order in which they are read."""

    settings: SourceSettings
    files: list[InputFile]


def find(
    settings: SourceSettings, downloads: Path, mirror: str, num_files: int | None
) -> Corpus:
    """Finds a source's files; lists of files elsewhere are fetched into `downloads`."""
    kind, _, rest = settings.path.partition(":")
    if settings.path == SAMPLE:
        files = [_sample()]
    elif settings.path.startswith(HUB):
        files = [_remote(file) for file in hub_files(settings.path)]
    elif kind == NEMOTRON:
        selected = nemotron_files(rest or "quality=high/kind=actual", mirror, downloads)
        files = [_remote(file) for file in selected]
    else:
        files = [
            _local(path)
            for path in source_files(Source(settings.name, Path(settings.path)))
        ]
    return Corpus(settings, files[:num_files] if settings.is_remote else files)


def _local(path: Path) -> InputFile:
    refuse_pointer(path)  # before any work
    # The identity of `make`: sizes and times, since reading terabytes twice costs
    # hours.
    stat = path.stat()
    identity = json.dumps([str(path.resolve()), stat.st_size, stat.st_mtime_ns])
    # In valid UTF-8, for records.
    name = (
        str(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    )
    return InputFile(name, stat.st_size, identity, path, stat.st_mtime_ns)


def _remote(file: RemoteFile) -> InputFile:
    # Without the server: another mirror has the same files. Names of the hub hold the
    # commit.
    identity = json.dumps([file.name, file.sha256])
    return InputFile(
        file.name, FILE_BYTES if file.size is None else file.size, identity, file
    )


def _sample() -> InputFile:
    digest, stat = (
        hashlib.sha256(sample.lines("train")).hexdigest(),
        sample.TRAIN.stat(),
    )
    return InputFile(
        sample.TRAIN.name, stat.st_size, digest, sample.TRAIN, stat.st_mtime_ns
    )


MIRROR = "https://data.commoncrawl.org/"

_DATA = "contrib/Nemotron/Nemotron-CC/data-jsonl/"


def nemotron_files(selection: str, mirror: str, folder: Path) -> list[RemoteFile]:
    """Returns the files in the folders that a selection names; an empty selection names
    all.

    `selection` is one or more of a path's components: `quality=high/kind=actual`.
    `mirror` is the URL above `contrib/`; the list of files there is downloaded into
    `folder`, once. The order mixes qualities, kinds and snapshots, and does not depend
    on the selection.
    """
    if not mirror.startswith(("https://", "http://")):
        raise UserError(f"mirror '{mirror}' is not a URL; give one such as {MIRROR}")
    root = mirror.rstrip("/")
    paths = _select(
        _paths(mirror, f"{root}/{_DATA.rstrip('/')}.paths.gz", folder), selection
    )
    paths.sort(key=lambda path: hashlib.blake2b(path.encode(), digest_size=16).digest())
    names = (f"{NEMOTRON}/{path.removeprefix(_DATA)}" for path in paths)
    return [
        RemoteFile(f"{root}/{path}", name)
        for path, name in zip(paths, names, strict=True)
    ]


def _paths(mirror: str, url: str, folder: Path) -> list[str]:
    from data_prep.download import Downloads, Unavailable  # imports requests

    try:
        remote = RemoteFile(url, f"{NEMOTRON}/{Path(url).name}", most=MOST_LIST_BYTES)
        file = Downloads(folder).get(remote)
    except Unavailable as reason:
        raise UserError(
            f"mirror '{mirror}': {url}: {reason}; {MIRROR} has it"
        ) from None
    try:
        with gzip.open(file) as stream:
            content = stream.read(MOST_LIST_BYTES + 1)
        paths = content.decode().split() if len(content) <= MOST_LIST_BYTES else []
    except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError):
        paths = []
    if not paths or not all(path.startswith(_DATA) for path in paths):
        # perhaps the login page of a proxy: it is fetched again next time
        file.unlink()
        raise UserError(
            f"mirror '{mirror}': {url} is not a gzipped list of paths in {_DATA} of up "
            f"to {MOST_LIST_BYTES:,} bytes; {MIRROR} has it"
        )
    return paths


def _select(paths: list[str], selection: str) -> list[str]:
    for component in filter(None, selection.split("/")):
        matching = [path for path in paths if component in _components(path)]
        if not matching:
            folders = sorted({folder for path in paths for folder in _components(path)})
            raise UserError(
                f"selection '{selection}': no file has '{component}'; there are "
                f"{listed(folders)}{did_you_mean(component, folders)}"
            )
        paths = matching
    return paths


def _components(path: str) -> list[str]:
    """Returns a path's folders: quality=..., kind=..., kind2=..."""
    return path.removeprefix(_DATA).split("/")[:-1]


def hub_files(source: str) -> list[RemoteFile]:
    """Returns the files of rows that hf:OWNER/NAME/PATH names, at the newest commit, by
    their path.

    PATH is a folder or a glob in the repository, whose `*` and `?` stay within a
    folder, while `**` does not: the hub itself reads globs by fsspec. Sizes are known,
    and the sha256 of files in LFS.
    """
    from huggingface_hub.hf_api import RepoFile  # which takes long to import

    dataset, api = dataset_of(source), hub_client()
    path = source.removeprefix(f"{HUB}{dataset}").strip("/")
    try:
        globs = map(glob_translate, [path] if has_magic(path) else [path, f"{path}/**"])
        named = re.compile("|".join(globs))
    except ValueError as error:
        raise UserError(f"source '{source}': no glob of the hub: {error}") from None
    with explaining_errors(
        f"dataset '{dataset}'", f"{api.endpoint}/datasets/{dataset}", api
    ):
        asked: list[Any] = ["gated", "sha"]
        info = api.dataset_info(dataset, expand=asked, timeout=FIRST_ANSWER_SECONDS)
        # optional only because not every request asks for it
        assert info.sha is not None
        if info.gated:  # anybody may list the files of a gated dataset
            api.auth_check(info.id, repo_type="dataset")
        entries = _within_bounds(
            api.list_repo_tree(
                info.id, recursive=True, revision=info.sha, repo_type="dataset"
            ),
            f"dataset '{dataset}': its list of files at {api.endpoint}",
        )
        files = {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}
    token = api.token if isinstance(api.token, str) else None
    readable = [path for path in map(Path, sorted(files)) if kind_of(path) != ".txt"]
    chosen = list(filter(named.match, map(str, readable)))
    if not chosen:
        there = sorted(
            {str(path.with_name("*" + "".join(suffixes(path)))) for path in readable}
        )
        raise UserError(
            f"source '{source}' names no .parquet, .jsonl or .ndjson file; give "
            f"hf:{info.id}/PATH, where PATH is a folder or a glob in the dataset; it "
            "has " + (listed(there) if there else "no such file")
        )
    root = f"{api.endpoint}/datasets/{info.id}/resolve/{info.sha}/"
    folder = f"huggingface/{info.id}/{info.sha[:12]}/"
    hashes = {name: entry.lfs.sha256 for name, entry in files.items() if entry.lfs}
    return [
        RemoteFile(
            root + quote(name), folder + name, files[name].size, hashes.get(name), token
        )
        for name in chosen
    ]


def _within_bounds(tree: Iterable[Any], name: str) -> list[Any]:
    """Returns the entries of a list on the hub, which comes in any number of pages."""
    way_out = "check HF_ENDPOINT where it is set"
    with ThreadPool(1) as pool:  # the hub's client itself waits without end for a page
        asked = pool.apply_async(lambda: list(islice(tree, MOST_FILES + 1)))
        try:
            entries = asked.get(LIST_SECONDS)
        except multiprocessing.TimeoutError:
            raise UserError(
                f"{name} takes more than {LIST_SECONDS:.0f} s; {way_out}"
            ) from None
    if len(entries) > MOST_FILES:
        raise UserError(f"{name} has more than {MOST_FILES:,} entries; {way_out}")
    return entries
