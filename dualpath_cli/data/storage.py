"""Where files lie: on a disk, or as objects at s3://bucket/prefix, by fsspec's s3fs.

Objects that are read as files are copied into a cache first: the folder DUALPATH_CACHE,
else `dualpath` in XDG_CACHE_HOME or ~/.cache. The cache may be deleted whenever no run
is using it. Locations on S3 stay strings: a Path would collapse their slashes. s3fs is
imported where one is used.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import hash_file, replacing
from dualpath_cli.base.output import joined_lines

SCHEME = "s3://"

_OF_THIS_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)


def is_remote(location: str | Path) -> bool:
    """Whether a location is s3://bucket/prefix rather than on a disk."""
    return str(location).startswith(SCHEME)


def file_sizes(folder: str | Path) -> dict[str, int]:
    """The bytes of every file below a folder, by its path in the folder.

    Empty without a folder.
    """
    if not is_remote(folder):
        paths = [path for path in Path(folder).rglob("*") if path.is_file()]
        return {
            path.relative_to(folder).as_posix(): path.stat().st_size for path in paths
        }

    with _s3(str(folder)) as (files, root):
        entries = files.find(root, detail=True)
        if not entries:  # raises where there is no such bucket
            files.call_s3("list_objects_v2", Bucket=root.partition("/")[0], MaxKeys=1)

    sizes = {}
    for key, entry in entries.items():
        # A key that ends with a slash is a folder that some browser made, not a file.
        if not key.endswith("/"):
            sizes[key.removeprefix(f"{root}/")] = entry["size"]
    return sizes


def exists(location: str | Path) -> bool:
    """Whether there is a file, or an object, at a location."""
    if not is_remote(location):
        return Path(location).is_file()

    with _s3(str(location)) as (files, path):
        bucket, _, key = path.partition("/")
        try:
            files.call_s3("head_object", Bucket=bucket, Key=key)
        except FileNotFoundError:
            # the key or the bucket: a HEAD has no body to say which
            files.call_s3("list_objects_v2", Bucket=bucket, Prefix=key, MaxKeys=1)
            return False
    return True


def local_copy(location: str | Path) -> Path:
    """Returns a file on the disk with the content of a location.

    Of an object it is a copy in the cache, with the object's name.
    """
    if not is_remote(location):
        return Path(location)

    url = str(location)
    with _s3(url) as (files, key):
        content = files.open(key)  # all of it of one ETag
        etag = content.details["ETag"]

    # By the ETag, so that a replaced object is fetched again, and processes that fetch
    # it at the same time do not disturb each other.
    folder = hashlib.sha256(f"{url}\n{etag}".encode()).hexdigest()[:32]
    path = cache_folder() / "files" / folder / url.rsplit("/", 1)[-1]
    if path.exists():
        return path

    with (
        replacing(path, shared=True) as partial,
        _s3(url),
        content,
        partial.open("wb") as file,
    ):
        shutil.copyfileobj(content, file, 1 << 20)
    return path


def download(url: str, path: Path, sha256: str) -> None:
    """Copies an object to a path, complete or not at all.

    Waits for a store for a minute.
    """
    with replacing(path) as partial:
        with _s3(url, attempts=10) as (files, key):
            # One connection at a time, which goes on where it was cut; several do not.
            files.get_file(key, str(partial), max_concurrency=1)

        if hash_file(partial) != sha256:
            raise UserError(
                f"{url}: changed since it was prepared (its sha256 differs); upload "
                "the data folder again"
            )


def cache_folder() -> Path:
    """The folder for copies of objects, and for the memory of `verification`."""
    folder = os.environ.get("DUALPATH_CACHE")
    if folder:
        return Path(folder)

    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "dualpath"


@contextmanager
def _s3(url: str, attempts: int = 3) -> Iterator[tuple[Any, str]]:
    """Yields the store and the key of a location.

    A failure becomes a UserError that names the location.
    """
    key = "/".join(filter(None, url.removeprefix(SCHEME).split("/")))
    if not key:
        raise UserError(f"'{url}' names no bucket; give s3://BUCKET/PREFIX")

    try:
        from botocore.exceptions import BotoCoreError
        from s3fs import S3FileSystem

        # of a body that is cut short, and others
        from s3fs.core import S3_RETRYABLE_ERRORS
    except ImportError:
        raise UserError(
            "s3:// locations need the package s3fs: in the clone, pip install '.[s3]'"
        ) from None

    config = {
        "connect_timeout": 5,
        "read_timeout": 60,
        "retries": {"total_max_attempts": attempts, "mode": "standard"},
    }
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    try:
        # Equal settings share one in a process.
        files = S3FileSystem(
            endpoint_url=endpoint, use_listings_cache=False, config_kwargs=config
        )
        yield files, key
    except (BotoCoreError, OSError, ValueError, *S3_RETRYABLE_ERRORS) as error:
        # s3fs makes EIO of a store's unknown answer, which it notes as the cause.
        is_disk_error = isinstance(error, OSError) and error.errno in _OF_THIS_DISK
        names_file = bool(getattr(error, "filename", None))
        if names_file or (is_disk_error and error.__cause__ is None):
            raise

        reason = joined_lines(error) or type(error).__name__
        if reason == key:
            reason = "there is no such object"
        raise UserError(
            f"{url}: {reason}; check the name, the credentials (AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE) and AWS_ENDPOINT_URL"
        ) from error
