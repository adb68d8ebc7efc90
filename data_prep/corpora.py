"""Corpora: a source's files on this disk, of Nemotron-CC, of the hub, or the
package's."""

import gzip
import hashlib
import json
import multiprocessing
import re
import zlib
from collections.abc import Iterable, Sequence
from glob import has_magic
from itertools import chain, islice
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fsspec.utils import glob_translate

from data_prep.input_files import Corpus, InputFile, RemoteFile, readable
from data_prep.packaged import PACKAGED
from data_prep.settings import NEMOTRON, SourceSettings
from dualpath_cli.base.errors import UserError, did_you_mean, listed
from dualpath_cli.base.pointers import refuse_pointer
from dualpath_cli.data.documents import Source, source_files
from dualpath_cli.data.hub import FIRST_ANSWER_SECONDS, explaining_errors, hub_client
from dualpath_cli.data.manifest import HUB, dataset_of
from dualpath_cli.data.rows import kind_of, suffixes

FILE_BYTES = 350_000_000  # size of an average file of Nemotron-CC

# An answer without end would fill the memory.
MOST_LIST_BYTES = 1 << 26  # of Nemotron-CC's list of files, as stored and decompressed
MOST_FILES = 10**6  # files and folders of a dataset on the hub
LIST_SECONDS = 300.0  # for all pages of their list


def find_corpus(
    settings: SourceSettings, downloads: Path, mirror: str, num_files: int | None
) -> Corpus:
    """Finds a source's files; lists of files elsewhere are fetched into `downloads`.

    `mirror` is the URL of Common Crawl's files; `num_files` bounds files to download.
    """
    if settings.is_packaged:
        return Corpus(settings, [PACKAGED[settings.path].file(downloads)])

    if not settings.is_remote:
        paths = source_files(Source(settings.name, Path(settings.path)))
        return Corpus(settings, [_local_file(path) for path in paths])

    if settings.is_nemotron:
        selection = settings.path.partition(":")[2] or "quality=high/kind=actual"
        remote = nemotron_files(selection, mirror, downloads)
    else:
        remote = hub_files(settings.path)
    files = [_file_elsewhere(file) for file in remote]
    return Corpus(settings, files[:num_files])


def _local_file(path: Path) -> InputFile:
    refuse_pointer(path)  # before any work
    stat = path.stat()
    # The identity of `make`: sizes and times, since reading terabytes twice costs
    # hours.
    identity = json.dumps([str(path.resolve()), stat.st_size, stat.st_mtime_ns])
    name = readable(str(path))
    return InputFile(name, stat.st_size, identity, path, stat.st_mtime_ns)


def _file_elsewhere(file: RemoteFile) -> InputFile:
    # Without the server: another mirror has the same files. Names of the hub hold the
    # blob, not the commit: a new commit may change other files only.
    identity = json.dumps([file.name, file.sha256])
    size = FILE_BYTES if file.size is None else file.size
    return InputFile(file.name, size, identity, file)


# Nemotron-CC: a list of paths at Common Crawl, or at a mirror

MIRROR = "https://data.commoncrawl.org/"

_DATA = "contrib/Nemotron/Nemotron-CC/data-jsonl/"
LISTING = f"{NEMOTRON}/data-jsonl.paths.gz"  # its name below the download folder


def nemotron_files(selection: str, mirror: str, folder: Path) -> list[RemoteFile]:
    """Returns the files in the folders that a selection names, all if it is empty.

    `selection` is one or more of a path's components: `quality=high/kind=actual`.
    `mirror` is the URL above `contrib/`; the list of files there is downloaded into
    `folder`, once. The order mixes qualities, kinds and snapshots, and does not depend
    on the selection.
    """
    if not mirror.startswith(("https://", "http://")):
        raise UserError(f"mirror '{mirror}' is not a URL; give one such as {MIRROR}")

    root = mirror.rstrip("/")
    listing = f"{root}/{_DATA.rstrip('/')}.paths.gz"
    paths = _select(_nemotron_paths(mirror, listing, folder), selection)
    paths.sort(key=_place_in_order)
    return [
        RemoteFile(f"{root}/{path}", f"{NEMOTRON}/{path.removeprefix(_DATA)}")
        for path in paths
    ]


def _place_in_order(path: str) -> bytes:
    return hashlib.blake2b(path.encode(), digest_size=16).digest()


def _nemotron_paths(mirror: str, url: str, folder: Path) -> list[str]:
    """Fetches the list of paths, and checks that each is one of Nemotron-CC."""
    from data_prep.download import Downloads, Unavailable  # imports requests

    try:
        remote = RemoteFile(url, LISTING, most=MOST_LIST_BYTES)
        file = Downloads(folder).get(remote)
    except Unavailable as reason:
        raise UserError(
            f"mirror '{mirror}': {url}: {reason}; {MIRROR} has it"
        ) from None

    paths = _read_paths(file)
    if not paths or not all(path.startswith(_DATA) for path in paths):
        # perhaps the login page of a proxy: it is fetched again next time
        file.unlink()
        raise UserError(
            f"mirror '{mirror}': {url} is not a gzipped list of paths in {_DATA} of up "
            f"to {MOST_LIST_BYTES:,} bytes; {MIRROR} has it"
        )
    return paths


def _read_paths(file: Path) -> list[str]:
    """The paths in a gzipped list; none of a file that is not one, or is too long."""
    try:
        with gzip.open(file) as stream:
            content = stream.read(MOST_LIST_BYTES + 1)
        text = content.decode()
    except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError):
        return []

    is_too_long = len(content) > MOST_LIST_BYTES
    return [] if is_too_long else text.split()


def _select(paths: list[str], selection: str) -> list[str]:
    for component in filter(None, selection.split("/")):
        matching = [path for path in paths if component in _components(path)]
        if not matching:
            folders = sorted(set(chain.from_iterable(map(_components, paths))))
            raise UserError(
                f"selection '{selection}': no file has '{component}'; there are "
                f"{listed(folders)}{did_you_mean(component, folders)}"
            )
        paths = matching
    return paths


def _components(path: str) -> list[str]:
    """Returns a path's folders: quality=..., kind=..., kind2=..."""
    return path.removeprefix(_DATA).split("/")[:-1]


# The Hugging Face hub: files of a dataset at its newest commit


def hub_files(source: str) -> list[RemoteFile]:
    """Returns the files of rows that hf:OWNER/NAME/PATH names, by their path.

    They are those of the newest commit. PATH is a folder or a glob in the repository,
    whose `*` and `?` stay within a folder, while `**` does not: the hub itself reads
    globs by fsspec. Sizes are known, and the sha256 of files in LFS.
    """
    from huggingface_hub.hf_api import RepoFile  # which takes long to import

    dataset = dataset_of(source)
    api = hub_client()
    named = _pattern_of(source, dataset)

    page = f"{api.endpoint}/datasets/{dataset}"
    with explaining_errors(f"dataset '{dataset}'", page, api):
        asked: list[Any] = ["gated", "sha"]
        info = api.dataset_info(dataset, expand=asked, timeout=FIRST_ANSWER_SECONDS)
        # optional only because not every request asks for it
        assert info.sha is not None

        if info.gated:  # anybody may list the files of a gated dataset
            api.auth_check(info.id, repo_type="dataset")

        tree = api.list_repo_tree(
            info.id, recursive=True, revision=info.sha, repo_type="dataset"
        )
        listing = f"dataset '{dataset}': its list of files at {api.endpoint}"
        entries = _within_bounds(tree, listing)
        files = {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}

    with_rows = [path for path in map(Path, sorted(files)) if kind_of(path) != ".txt"]
    chosen = list(filter(named.match, map(str, with_rows)))
    if not chosen:
        raise UserError(
            f"source '{source}' names no .parquet, .jsonl or .ndjson file; give "
            f"hf:{info.id}/PATH, where PATH is a folder or a glob in the dataset; it "
            "has " + _describe_folders(with_rows)
        )

    root = f"{api.endpoint}/datasets/{info.id}/resolve/{info.sha}/"
    folder = f"huggingface/{info.id}/"
    token = api.token if isinstance(api.token, str) else None
    return [_hub_file(files[name], root, folder, token) for name in chosen]


def _hub_file(file: Any, root: str, folder: str, token: str | None) -> RemoteFile:
    """The file of an entry in the list of a dataset, at a URL below `root`."""
    return RemoteFile(
        url=root + quote(file.path),
        name=f"{folder}{file.blob_id[:12]}/{file.path}",
        size=file.size,
        sha256=file.lfs.sha256 if file.lfs else None,
        token=token,
    )


def _pattern_of(source: str, dataset: str) -> re.Pattern[str]:
    """The paths in a dataset that hf:OWNER/NAME/PATH names."""
    path = source.removeprefix(f"{HUB}{dataset}").strip("/")
    globs = [path]
    if not has_magic(path):
        globs.append(f"{path}/**")  # of a folder, the files below it

    try:
        patterns = map(glob_translate, globs)
        return re.compile("|".join(patterns))
    except ValueError as error:
        raise UserError(f"source '{source}': no glob of the hub: {error}") from None


def _describe_folders(paths: Sequence[Path]) -> str:
    """The folders of files, each with the endings there: `data/*.parquet`."""
    globs = {str(path.with_name("*" + "".join(suffixes(path)))) for path in paths}
    return listed(sorted(globs)) if globs else "no such file"


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
