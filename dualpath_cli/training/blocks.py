"""Blocks of tokens of a data folder, as litdata streams them from a disk or from S3.

Chunks from S3 are kept in the cache (`storage.cache`) by their folder's location and its content,
and each is checked against the manifest's sha256 as it arrives and, by `TokensLoader`, as it is
opened: data that was replaced is never mixed with what was there before. litdata deletes chunks
that it is done with where they do not all fit on the disk.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from filelock import FileLock
from litdata import StreamingDataset
from litdata.streaming.downloader import Downloader, register_downloader
from litdata.streaming.resolver import Dir

from dualpath_cli.output.atomic import replacing
from dualpath_cli.text import storage
from dualpath_cli.text.manifest import INDEX, MANIFEST, Manifest
from dualpath_cli.training.tokens_loader import TokensLoader


def open_blocks(
    folder: str, block_size: int, *, verify: bool = True, **settings: Any
) -> StreamingDataset:
    """Returns a data folder's blocks of `block_size` tokens; `settings` are StreamingDataset's.

    With `verify`, a chunk that was not verified before, or has changed since, is when it is opened.

    Raises UserError where a folder on S3 cannot be read. So does a later read of a chunk that is
    missing or was changed, but inside an error of litdata's (`loading_faults`).
    """
    manifest = Manifest.read(folder)
    if not storage.is_remote(folder):
        loader = TokensLoader(block_size, Path(folder), manifest, verify)
        return StreamingDataset(folder, item_loader=loader, **settings)
    url = folder.rstrip("/")
    cached = _chunk_cache(url, manifest)
    way_out = f"delete '{cached}', and it is fetched again"
    loader = TokensLoader(block_size, cached, manifest, verify, way_out)
    return StreamingDataset(Dir(str(cached), url), item_loader=loader, **settings)


class ChunkDownloader(Downloader):
    """Fetches chunks with boto3 and checks them.

    litdata's own way goes through obstore, which refuses endpoints of plain http as MinIO has them,
    retries a thousand times with boto3, and takes whatever bytes are there.
    """

    def download_file(self, remote_chunkpath: str, local_chunkpath: str) -> None:
        """Fetches a chunk unless it is there; processes that want the same one wait for it."""
        path = Path(local_chunkpath)
        with FileLock(f"{path}.lock"):
            if not path.exists():
                # Not by Manifest.read, which lists the folder: files come and go there.
                manifest = json.loads((path.parent / MANIFEST).read_text(encoding="utf-8"))
                sha256 = {chunk["name"]: chunk["sha256"] for chunk in manifest["chunks"]}
                storage.download(remote_chunkpath, path, sha256[path.name])


register_downloader(storage.SCHEME, ChunkDownloader, overwrite=True)


def _chunk_cache(url: str, manifest: Manifest) -> Path:
    """Makes the folder for a remote data folder's chunks, and deletes those of replaced data."""
    place = storage.cache() / "chunks" / hashlib.sha256(url.encode()).hexdigest()[:16]
    # The index as well, for equal tokens may lie in files of other names.
    content = f"{manifest.fingerprint}\n{manifest.index_sha256}"
    folder = place / hashlib.sha256(content.encode()).hexdigest()[:16]
    # litdata finds the index there: where ranks start together, its own download gives up early.
    for name in (MANIFEST, INDEX):
        if not (folder / name).exists():
            with replacing(folder / name, shared=True) as partial:
                shutil.copyfile(storage.local_copy(f"{url}/{name}"), partial)
    for other in place.iterdir():
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    return folder
