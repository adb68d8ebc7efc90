"""A finished data folder to s3://bucket/prefix, where a manifest means that all of it is there.

1. the manifest of other data is deleted, then the files that go with it;
2. chunks are uploaded, then all other files, but those that are there already;
3. index, tokenizer and, last, the manifest.

A killed upload continues, for a finished object carries its file's sha256.
"""

from collections.abc import Callable
from pathlib import Path

from dualpath_cli.errors import UserError
from dualpath_cli.text import storage
from dualpath_cli.text.manifest import INDEX, MANIFEST, Manifest
from dualpath_cli.text.tokenizer import TOKENIZER

LAST = (INDEX, TOKENIZER, MANIFEST)
"""Files that are uploaded last, in this order."""


def finished_remote(url: str) -> Manifest | None:
    """Returns the manifest of a complete data folder at s3://bucket/prefix; None without one.

    Raises UserError where the store cannot be asked, or a file of the folder is missing or changed.
    """
    if not storage.exists(f"{url}/{MANIFEST}"):
        return None
    manifest = Manifest.read(url)
    manifest.check_sizes(url)
    return manifest


def upload(
    folder: Path, url: str, on_bytes: Callable[[int], None], *, overwrite: bool = False
) -> None:
    """Uploads every file of a finished data folder, except those that are there already.

    `on_bytes` gets bytes done, sent or passed over, from several threads; negative ones take
    back those of what is sent again. They add up to the sizes of all files. Raises UserError
    where the folder is not whole, the store cannot be written, or, unless `overwrite`, the prefix
    holds anything else. Files that no manifest there ever named are left alone.
    """
    manifest = Manifest.read(folder)
    manifest.check_sizes(folder)
    local = storage.sizes(folder) or {}
    remote = _make_room(manifest, url, local, storage.sizes(url) or {}, overwrite)
    known = {chunk.name: chunk.sha256 for chunk in manifest.chunks}
    others = sorted(local.keys() - known.keys() - set(LAST))
    for name in (*known, *others, *LAST):
        path, target = folder / name, f"{url}/{name}"
        sha256 = known.get(name) or storage.sha256_of(path)
        same_size = remote.get(name) == local[name]
        if same_size and storage.uploaded_sha256(target) == sha256:
            on_bytes(local[name])
            continue
        if name in known and storage.sha256_of(path) != sha256:
            raise UserError(
                f"{path}: changed since it was prepared (its sha256 differs); prepare it again "
                "with `dualpath prepare ... --overwrite`"
            )
        storage.upload(path, target, sha256, on_bytes)


def _make_room(
    manifest: Manifest, url: str, local: dict[str, int], remote: dict[str, int], overwrite: bool
) -> dict[str, int]:
    """Deletes objects of other data, if that is allowed, and returns the remaining ones."""
    before = _manifest_of(url, overwrite) if MANIFEST in remote else None
    if before == manifest:
        return remote
    if before is not None and before.fingerprint != manifest.fingerprint and not overwrite:
        raise UserError(
            f"'{url}' holds other data ({before.summary}); choose another prefix or add --overwrite"
        )
    # The objects of a killed upload of these data are all equal to files here.
    strangers = sorted(name for name, _ in remote.items() - local.items())
    if MANIFEST not in remote and strangers and not overwrite:
        raise UserError(
            f"'{url}' holds '{strangers[0]}', which does not belong to these data, and no "
            f"{MANIFEST}; choose another prefix or add --overwrite"
        )
    stale = {name for name in remote if name.startswith("chunk-") and name.endswith(".bin")}
    stale |= {file.name for file in before.beside} if before else set()
    stale &= remote.keys() - local.keys()
    # The manifest goes first, alone: without it the rest is not taken for data.
    if MANIFEST in remote:
        storage.delete([f"{url}/{MANIFEST}"])
    storage.delete(f"{url}/{name}" for name in sorted(stale))
    return {name: size for name, size in remote.items() if name not in stale | {MANIFEST}}


def _manifest_of(url: str, overwrite: bool) -> Manifest | None:
    """Reads the manifest there; None for one that cannot be read and may be replaced."""
    try:
        return Manifest.read(url)
    except UserError:
        if overwrite:
            return None
        raise
