"""Manifests of data folders, which are right unless a test says otherwise."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from data_prep.shards import write_shards
from dualpath_cli.data.manifest import Manifest, SourceCount, StoredFile
from dualpath_cli.data.storage import sha256_of
from dualpath_cli.data.tokenizer import Tokenizer


def source_count(name: str, **counts: Any) -> SourceCount:
    """Returns counts of a source `name`; those that are not given are zero."""
    unset: dict[str, Any] = {
        "path": f"{name}.txt",
        "read": counts.get("documents", 0),
        "documents": 0,
        "validation": 0,
        "rejected": {},
        "exact_duplicates": 0,
        "near_duplicates": 0,
        "unused": 0,
        "passes": 1.0,
        "tokens": 0,
        "text_bytes": 0,
        "normalised": 0,
        "faults": [],
    }
    return SourceCount(name, **(unset | counts))


def manifest_of(folder: Path, tokenizer: Tokenizer, **stated: Any) -> Manifest:
    """Returns the manifest of the files in a folder; `stated` are further fields, true or not."""
    files = [
        StoredFile(path.relative_to(folder).as_posix(), path.stat().st_size, sha256_of(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("index.json", "tokenizer.json")
    ]
    content: dict[str, Any] = {
        "dtype": "uint16",
        "vocab_size": tokenizer.vocab_size,
        "eot_id": tokenizer.eot_id,
        "tokenizer": tokenizer.fingerprint,
        "chunks": [file for file in files if file.name.startswith("chunk-")],
        "beside": [file for file in files if not file.name.startswith("chunk-")],
        "index_sha256": sha256_of(folder / "index.json"),
        "request": "request",
        "settings": {"seed": 0},
    }
    return Manifest(**content | stated)


def intact(manifest: Manifest, location: str | Path) -> bool:
    """Whether every byte of a data folder is as its manifest says; reads all of them."""
    manifest.check_sizes(location)
    manifest.check_tokenizer(location)
    files = (*manifest.chunks, *manifest.beside)
    return all(sha256_of(f"{location}/{file.name}") == file.sha256 for file in files)


def write_data_folder(
    folder: Path,
    ids: npt.ArrayLike,
    tokenizer: Tokenizer,
    chunk_tokens: int,
    **stated: Any,
) -> Manifest:
    """Writes a data folder of these tokens, in chunks, as a preparation would."""
    tokens = np.asarray(ids, np.uint16)
    journal = folder.with_name(f"{folder.name}-journal")
    journal.mkdir(parents=True)
    chunks, _ = write_shards(folder, journal, np.uint16, chunk_tokens, [tokens], len(tokens))
    tokenizer.save(folder)
    counts = {"documents": 1, "tokens": len(tokens), "text_bytes": len(tokens)}
    manifest = manifest_of(
        folder,
        tokenizer,
        **{**counts, "sources": [source_count("a", **counts)], "chunks": chunks, **stated},
    )
    manifest.write(folder)
    return manifest
