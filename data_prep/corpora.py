"""Corpora: a source's files on this disk, of Nemotron-CC, of the hub, or of the sample."""

import gzip
import hashlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fsspec.utils import glob_translate

from data_prep import sample
from data_prep.settings import HUB, NEMOTRON, SAMPLE, SourceSettings
from dualpath_cli.base.errors import UserError, did_you_mean
from dualpath_cli.data.documents import Source, source_files
from dualpath_cli.data.hub import FIRST_ANSWER_SECONDS, connect, explained
from dualpath_cli.data.rows import is_known, kind_of

if TYPE_CHECKING:
    from huggingface_hub.hf_api import DatasetInfo


@dataclass(frozen=True)
class RemoteFile:
    """A file at a URL, which never changes, and its place below the download folder."""

    url: str
    name: str
    size: int | None = None  # bytes, where known beforehand
    sha256: str | None = None
    token: str | None = field(default=None, repr=False)
    """Bearer token for the URL's host; a host that the URL redirects to does not get it."""

    def __post_init__(self) -> None:
        path = PurePosixPath(self.name)
        if path.is_absolute() or ".." in path.parts or not path.name:
            raise UserError(
                f"'{self.url}' would be stored as '{self.name}', outside the download folder; "
                "check where the list of files comes from"
            )


@dataclass(frozen=True)
class InputFile:
    """A file of documents, here or elsewhere."""

    name: str  # the name in messages
    size: int  # in bytes; of a file with unknown size that of an average file
    identity: str  # changes when the content may have changed
    origin: Path | RemoteFile
    modified: int | None = None  # when a file on this disk was last changed, in nanoseconds

    def has_changed(self) -> bool:
        try:
            return isinstance(self.origin, Path) and self.origin.stat().st_mtime_ns != self.modified
        except FileNotFoundError:
            return True


@dataclass(frozen=True)
class Corpus:
    """A source and its files, in the order in which they are read."""

    settings: SourceSettings
    files: list[InputFile]


def find(settings: SourceSettings, downloads: Path, mirror: str, num_files: int | None) -> Corpus:
    """Finds a source's files; lists of files elsewhere are fetched into `downloads`."""
    kind, _, rest = settings.path.partition(":")
    if settings.path == SAMPLE:
        files = [_sample()]
    elif settings.path.startswith(HUB):
        dataset, _, config = rest.partition(":")
        files = [_remote(file) for file in hub_files(dataset, config or None)]
    elif kind == NEMOTRON:
        selected = nemotron_files(rest or "quality=high/kind=actual", mirror, downloads)
        files = [_remote(file) for file in selected]
    else:
        files = [_local(path) for path in source_files(Source(settings.name, Path(settings.path)))]
    return Corpus(settings, files[:num_files] if settings.is_remote else files)


def _local(path: Path) -> InputFile:
    # The identity of `make`: sizes and times, since reading terabytes twice costs hours.
    stat = path.stat()
    identity = json.dumps([str(path.resolve()), stat.st_size, stat.st_mtime_ns])
    # In valid UTF-8, for records.
    name = str(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return InputFile(name, stat.st_size, identity, path, stat.st_mtime_ns)


def _remote(file: RemoteFile) -> InputFile:
    # Without the server: another mirror has the same files. Names of the hub hold the commit.
    identity = json.dumps([file.name, file.sha256])
    return InputFile(file.name, FILE_BYTES if file.size is None else file.size, identity, file)


def _sample() -> InputFile:
    digest, stat = hashlib.sha256(sample.lines("train")).hexdigest(), sample.TRAIN.stat()
    return InputFile(sample.TRAIN.name, stat.st_size, digest, sample.TRAIN, stat.st_mtime_ns)


MIRROR = "https://data.commoncrawl.org/"
FILE_BYTES = 350_000_000  # size of an average file
FILE_TOKENS = 200_000_000  # tokens in an average file

_DATA = "contrib/Nemotron/Nemotron-CC/data-jsonl/"


def nemotron_files(selection: str, mirror: str, folder: Path) -> list[RemoteFile]:
    """Returns the files in the folders that a selection names; an empty selection names all.

    `selection` is one or more of a path's components: `quality=high/kind=actual`. `mirror` is the
    URL above `contrib/`; the list of files there is downloaded into `folder`, once. The order mixes
    qualities, kinds and snapshots, and does not depend on the selection.
    """
    if not mirror.startswith(("https://", "http://")):
        raise UserError(f"mirror '{mirror}' is not a URL; give one such as {MIRROR}")
    root = mirror.rstrip("/")
    paths = _select(_paths(mirror, f"{root}/{_DATA.rstrip('/')}.paths.gz", folder), selection)
    paths.sort(key=lambda path: hashlib.blake2b(path.encode(), digest_size=16).digest())
    names = (f"{NEMOTRON}/{path.removeprefix(_DATA)}" for path in paths)
    return [RemoteFile(f"{root}/{path}", name) for path, name in zip(paths, names, strict=True)]


def _paths(mirror: str, url: str, folder: Path) -> list[str]:
    from data_prep.download import Downloads, Unavailable  # imports requests

    try:
        file = Downloads(folder).get(RemoteFile(url, f"{NEMOTRON}/{Path(url).name}"))
    except Unavailable as reason:
        raise UserError(f"mirror '{mirror}': {url}: {reason}; {MIRROR} has it") from None
    try:
        paths = gzip.decompress(file.read_bytes()).decode().split()
    except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError):
        paths = []
    if not paths or not all(path.startswith(_DATA) for path in paths):
        file.unlink()  # perhaps the login page of a proxy: it is fetched again next time
        raise UserError(
            f"mirror '{mirror}': {url} is not a gzipped list of paths in {_DATA}; {MIRROR} has it"
        )
    return paths


def _select(paths: list[str], selection: str) -> list[str]:
    for component in filter(None, selection.split("/")):
        matching = [path for path in paths if component in _components(path)]
        if not matching:
            folders = sorted({folder for path in paths for folder in _components(path)})
            raise UserError(
                f"selection '{selection}': no file has '{component}'; there are "
                f"{', '.join(folders)}{did_you_mean(component, folders)}"
            )
        paths = matching
    return paths


def _components(path: str) -> list[str]:
    """Returns a path's folders: quality=..., kind=..., kind2=..."""
    return path.removeprefix(_DATA).split("/")[:-1]


SPLIT = "train"

# By these words the hub itself finds the splits where a dataset's card names none.
_TRAIN = re.compile(r"(?<![a-z])(train|training)(?![a-z])", re.IGNORECASE)
_HELD_OUT = re.compile(
    r"(?<![a-z])(validation|valid|val|dev|test|testing|eval|evaluation)(?![a-z])", re.IGNORECASE
)


def hub_files(
    dataset: str, config: str | None = None, *, endpoint: str | None = None
) -> list[RemoteFile]:
    """Returns the training files of a dataset's config at its newest commit, in order of path.

    The card's `configs` name these files. Without `configs` they are the files below a folder named
    like the config, or all files, except those named for validation or tests. Sizes are known, and
    the sha256 of files in LFS.
    """
    from huggingface_hub.hf_api import RepoFile  # which takes long to import

    what, api = f"dataset '{dataset}'", connect(endpoint)
    with explained(what, f"{api.endpoint}/datasets/{dataset}", api):
        asked: list[Any] = ["cardData", "gated", "sha"]
        info = api.dataset_info(dataset, expand=asked, timeout=FIRST_ANSWER_SECONDS)
        assert info.sha is not None  # optional only because not every request asks for it
        if info.gated:  # anybody may list the files of a gated dataset
            api.auth_check(info.id, repo_type="dataset")
        tree = api.list_repo_tree(info.id, recursive=True, revision=info.sha, repo_type="dataset")
        files = {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}
    token = api.token if isinstance(api.token, str) else None
    chosen = _readable(_of_config(list(files), info, config), info.id, config)
    root = f"{api.endpoint}/datasets/{info.id}/resolve/{info.sha}/"
    folder = f"huggingface/{info.id}/{info.sha[:12]}/"
    hashes = {path: entry.lfs.sha256 for path, entry in files.items() if entry.lfs}
    return [
        RemoteFile(root + quote(path), folder + path, files[path].size, hashes.get(path), token)
        for path in sorted(chosen)
    ]


def _of_config(paths: list[str], info: "DatasetInfo", config: str | None) -> list[str]:
    """Returns the paths of the training split of a config, readable or not."""
    configs = _configs(info)
    if not configs:
        return _of_folder(paths, info.id, config)
    name = config or next(iter(configs))
    if name not in configs or (config is None and len(configs) > 1):
        raise UserError(
            f"dataset '{info.id}': choose one of its configs, hf:{info.id}:CONFIG: {_list(configs)}"
            + did_you_mean(config or "", configs)
        )
    splits = configs[name]
    if SPLIT not in splits:
        raise UserError(
            f"dataset '{info.id}', config '{name}': no split '{SPLIT}' to train on, only "
            f"{_list(splits)}"
        )
    try:  # `*` and `?` stay within a folder, `**` does not: the hub itself reads globs by fsspec
        pattern = re.compile("|".join(map(glob_translate, splits[SPLIT])))
    except ValueError as error:
        raise UserError(
            f"dataset '{info.id}': its card has a glob of another form: {error}"
        ) from None
    return [path for path in paths if pattern.match(path)]


def _configs(info: "DatasetInfo") -> dict[str, dict[str, list[str]]]:
    """Returns {config: {split: globs}} of a dataset's card; empty where it names no files."""
    card = info.card_data.to_dict() if info.card_data else {}
    configs = {}
    for entry in filter(lambda entry: isinstance(entry, dict), card.get("configs") or []):
        name, base = str(entry.get("config_name", "default")), str(entry.get("data_dir") or "")
        if entry.get("data_files"):
            configs[name] = _splits(entry["data_files"], base)
        elif base:
            configs[name] = {SPLIT: [f"{base.strip('/')}/**"]}
    return configs


def _splits(data_files: Any, base: str) -> dict[str, list[str]]:
    """Reads `data_files`: a glob, a list of them, a list of {split, path}, or {split: globs}."""
    if isinstance(data_files, dict):
        data_files = [{"split": split, "path": path} for split, path in data_files.items()]
    splits: dict[str, list[str]] = {}
    for entry in data_files if isinstance(data_files, list) else [data_files]:
        split, globs = SPLIT, entry
        if isinstance(entry, dict):
            split, globs = str(entry.get("split", SPLIT)), entry.get("path", [])
        for glob in globs if isinstance(globs, list) else [globs]:
            splits.setdefault(split, []).append(str(PurePosixPath(base, str(glob))))
    return splits


def _of_folder(paths: list[str], dataset: str, config: str | None) -> list[str]:
    """Returns the paths in folders named like the config, or all, apart from held-out ones."""
    if config is not None:
        inside = [path for path in paths if config in PurePosixPath(path).parent.parts]
        if not inside:
            folders = sorted({name for p in paths for name in PurePosixPath(p).parent.parts})
            raise UserError(
                f"dataset '{dataset}' has no config and no folder '{config}'; its folders: "
                f"{_list(folders)}{did_you_mean(config, folders)}"
            )
        paths = inside
    return [path for path in paths if _TRAIN.search(path) or not _HELD_OUT.search(path)]


def _readable(paths: list[str], dataset: str, config: str | None) -> list[str]:
    files = [path for path in map(Path, paths) if is_known(path)]
    readable = [str(path) for path in files if kind_of(path) != ".txt"]
    if not readable:
        others = Counter("".join(PurePosixPath(path).suffixes[-2:]) for path in paths)
        raise UserError(
            f"dataset '{dataset}'"
            + (f", config '{config}'" if config else "")
            + ": no .parquet, .jsonl or .ndjson file to train on; it has "
            + _list([f"{suffix} ({count:,})" for suffix, count in others.most_common() if suffix])
        )
    return readable


def _list(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return (", ".join(names[:12]) or "none") + more
