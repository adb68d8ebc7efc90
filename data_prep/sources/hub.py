"""Datasets of the Hugging Face hub as files to download, pinned to one commit."""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from data_prep.download.remote_file import RemoteFile, first_contact
from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.text.deadline import within
from dualpath_cli.text.hub import connect, explained

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import DatasetInfo, RepoFile

SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".jsonl.zstd")
"""Files of a dataset that can be read."""

SPLIT = "train"

_LISTED = 12
# The hub itself goes by these words where a dataset's card names no splits.
_TRAIN = re.compile(r"(?<![a-z])(train|training)(?![a-z])", re.IGNORECASE)
_HELD_OUT = re.compile(
    r"(?<![a-z])(validation|valid|val|dev|test|testing|eval|evaluation)(?![a-z])", re.IGNORECASE
)


def hub_files(
    dataset: str, config: str | None = None, *, endpoint: str | None = None
) -> list[RemoteFile]:
    """Returns the training files of a dataset's config at its newest commit, in order of path.

    The card's `configs` say which files these are. Without them it is the files below a folder
    named like the config, or all, apart from those named for validation or tests. Sizes are known,
    sha256 for files in LFS. The token is the one of HF_TOKEN or `hf auth login`, the hub is
    `endpoint` or that of HF_ENDPOINT. Raises UserError, with the way out, where huggingface_hub is
    missing, the dataset is not found or its terms are not accepted, the hub does not answer, the
    config is unknown or one has to be chosen, and where it has no file that can be read.
    """
    what = f"dataset '{dataset}'"
    api = connect(what, endpoint)
    with explained(what, f"{api.endpoint}/datasets/{dataset}", api):
        # huggingface_hub itself waits without end for a server that accepts and never answers.
        info = within(
            first_contact.seconds,
            lambda: api.dataset_info(dataset, expand=["cardData", "gated", "sha"]),
        )
        first_contact.made = True
        assert info.sha is not None  # optional only because not every request asks for it
        if info.gated:  # anybody may list the files, so listing them proves nothing
            api.auth_check(info.id, repo_type="dataset")
        files = _files(api, info)
    token = api.token if isinstance(api.token, str) else None
    chosen = _readable(_of_config(list(files), info, config), info.id, config)
    root = f"{api.endpoint}/datasets/{info.id}/resolve/{info.sha}/"
    folder = f"huggingface/{info.id}/{info.sha[:12]}/"
    return [
        RemoteFile(root + quote(path), folder + path, files[path].size, _sha256(files[path]), token)
        for path in sorted(chosen)
    ]


def _files(api: "HfApi", info: "DatasetInfo") -> "dict[str, RepoFile]":
    from huggingface_hub.hf_api import RepoFile

    entries = api.list_repo_tree(info.id, recursive=True, revision=info.sha, repo_type="dataset")
    return {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}


def _sha256(file: "RepoFile") -> str | None:
    sha256 = file.lfs.sha256 if file.lfs else ""
    return sha256 if re.fullmatch(r"[0-9a-f]{64}", sha256) else None


def _of_config(paths: list[str], info: "DatasetInfo", config: str | None) -> list[str]:
    """Returns the paths of the training split of a config, readable or not."""
    configs = _configs(info)
    if not configs:
        return _of_folder(paths, info.id, config)
    if config is None and len(configs) > 1:
        raise UserError(
            f"dataset '{info.id}' has {len(configs)} configs, choose one of them: {_list(configs)}"
        )
    if config is not None and config not in configs:
        raise UserError(
            f"dataset '{info.id}' has no config '{config}'; it has {_list(configs)}"
            + did_you_mean(config, configs)
        )
    name = config or next(iter(configs))
    splits = configs[name]
    if SPLIT not in splits:
        raise UserError(
            f"dataset '{info.id}', config '{name}': no split '{SPLIT}' to train on, only "
            f"{_list(splits)}"
        )
    patterns = [_pattern(glob) for glob in splits[SPLIT]]
    return [path for path in paths if any(pattern.fullmatch(path) for pattern in patterns)]


def _configs(info: "DatasetInfo") -> dict[str, dict[str, list[str]]]:
    """Returns {config: {split: globs}} of a dataset's card; empty where it names no files."""
    card = info.card_data.to_dict() if info.card_data else {}
    configs = {}
    for entry in card.get("configs") or []:
        if isinstance(entry, dict) and entry.get("data_files"):
            base = str(entry.get("data_dir") or "")
            configs[str(entry.get("config_name", "default"))] = _splits(entry["data_files"], base)
        elif isinstance(entry, dict) and entry.get("data_dir"):
            name = str(entry.get("config_name", "default"))
            configs[name] = {SPLIT: [f"{str(entry['data_dir']).strip('/')}/**"]}
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


def _pattern(glob: str) -> re.Pattern[str]:
    """Compiles a glob in which `*` and `?` stay within a folder and `**` does not."""
    expressions = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    tokens = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]/]+\])", glob)
    return re.compile(
        "".join(
            token.replace("[!", "[^")
            if token.startswith("[")
            else expressions.get(token, re.escape(token))
            for token in tokens
        )
    )


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
    readable = [path for path in paths if path.endswith(SUFFIXES)]
    if not readable:
        others = Counter("".join(PurePosixPath(path).suffixes[-2:]) for path in paths)
        raise UserError(
            f"dataset '{dataset}'"
            + (f", config '{config}'" if config else "")
            + f": no {', '.join(SUFFIXES)} file to train on; it has "
            + _list([f"{suffix} ({count:,})" for suffix, count in others.most_common() if suffix])
        )
    return readable


def _list(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return (", ".join(names[:_LISTED]) or "none") + more
