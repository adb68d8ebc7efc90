"""Where files lie: on a disk, or as objects at s3://bucket/prefix.

Objects that are read as files are copied into a cache first: the folder DUALPATH_CACHE, else
`dualpath` in XDG_CACHE_HOME or ~/.cache. It may be deleted whenever no run is using it. Locations
on S3 stay strings: a Path would collapse their slashes. boto3 is imported where one is used.
"""

import functools
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.system import open_regular, replacing

SCHEME = "s3://"
_SHA256 = "sha256"
_DELETE_AT_ONCE = 1000
_CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
_STALE_CREDENTIALS = {
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken",
    "TokenRefreshRequired", "RequestTimeTooSkewed",
}  # fmt: skip


def is_remote(location: str | Path) -> bool:
    """Whether a location is s3://bucket/prefix rather than on a disk."""
    return str(location).startswith(SCHEME)


def sizes(folder: str | Path) -> dict[str, int] | None:
    """The bytes of every file below a folder by its path in there; None without a folder."""
    if not is_remote(folder):
        local = Path(folder)
        if not local.is_dir():
            return None
        paths = [path for path in local.rglob("*") if path.is_file()]
        return {path.relative_to(local).as_posix(): path.stat().st_size for path in paths}
    bucket, prefix = _split(str(folder))
    prefix = f"{prefix}/" if prefix else ""
    with _one_line(str(folder)):
        pages = _client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        entries = [entry for page in pages for entry in page.get("Contents", [])]
    # A key that ends with a slash is a folder that some browser made, not a file.
    named = {entry["Key"].removeprefix(prefix): entry["Size"] for entry in entries}
    return {name: size for name, size in named.items() if not name.endswith("/")} or None


def exists(location: str | Path) -> bool:
    return _head(str(location)) is not None if is_remote(location) else Path(location).is_file()


def local_copy(location: str | Path) -> Path:
    """Returns a file on the disk with the content of a location: itself, or a copy of the object.

    The copy has the object's name and is kept by its ETag, so a replaced object is fetched again,
    and processes that fetch it at the same time do not disturb each other.
    """
    if not is_remote(location):
        return Path(location)
    url = str(location)
    with _object(url) as response:
        key = hashlib.sha256(f"{url}\n{response['ETag']}".encode()).hexdigest()[:32]
        path = cache() / "files" / key / url.rsplit("/", 1)[-1]
        if not path.exists():
            with replacing(path, shared=True) as partial, partial.open("wb") as file:
                shutil.copyfileobj(response["Body"], file, 1 << 20)
    return path


def sha256_of(location: str | Path) -> str:
    """Returns the sha256 of a file or an object as hexadecimal digits."""
    if not is_remote(location):
        with open_regular(Path(location)) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    with _object(str(location)) as response:
        return hashlib.file_digest(response["Body"], "sha256").hexdigest()


def download(url: str, path: Path, sha256: str) -> None:
    """Copies an object to a path, complete or not at all; waits for a store for a minute."""
    bucket, key = _split(url)
    with replacing(path) as partial:
        with _one_line(url), partial.open("wb") as file:
            _client(attempts=10).download_fileobj(bucket, key, file)
        if sha256_of(partial) != sha256:
            raise UserError(f"{url}: changed since it was prepared (its sha256 differs)")


def upload(path: Path, url: str, sha256: str, on_bytes: Callable[[int], None]) -> None:
    """Copies a file and its sha256 to an object; `on_bytes` of any thread may be negative."""
    bucket, key = _split(url)
    with _one_line(url):
        _client(attempts=10).upload_file(
            str(path), bucket, key, ExtraArgs={"Metadata": {_SHA256: sha256}}, Callback=on_bytes
        )


def uploaded_sha256(url: str) -> str | None:
    """Returns the sha256 that `upload` noted at an object; None without the note or the object."""
    head = _head(url)
    return None if head is None else head["Metadata"].get(_SHA256)


def delete(urls: Iterable[str]) -> None:
    """Deletes objects of one bucket; those that are missing are no mistake."""
    places = [(url, *_split(url)) for url in urls]
    for start in range(0, len(places), _DELETE_AT_ONCE):
        batch = places[start : start + _DELETE_AT_ONCE]
        keys = [{"Key": key} for _, _, key in batch]
        with _one_line(batch[0][0]):
            done = _client().delete_objects(
                Bucket=batch[0][1], Delete={"Objects": keys, "Quiet": True}
            )
        for error in done.get("Errors", []):  # a 200 reply, all the same
            raise _refusal(f"s3://{batch[0][1]}/{error['Key']}", error)


def cache() -> Path:
    """The folder for copies of objects, and for what `verification` remembers."""
    if folder := os.environ.get("DUALPATH_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dualpath"


@contextmanager
def _object(url: str) -> Iterator[dict[str, Any]]:
    bucket, key = _split(url)
    with _one_line(url):
        response: dict[str, Any] = _client().get_object(Bucket=bucket, Key=key)
        with closing(response["Body"]):
            yield response


def _head(url: str) -> dict[str, Any] | None:
    bucket, key = _split(url)
    with _one_line(url):
        client = _client()
        try:
            head: dict[str, Any] = client.head_object(Bucket=bucket, Key=key)
            return head
        except client.exceptions.ClientError as error:
            if error.response["Error"]["Code"] != "404":
                raise
        # A HEAD has no body to say whether it is the bucket that is missing.
        client.list_objects_v2(Bucket=bucket, Prefix=key, MaxKeys=1)
    return None


def _split(url: str) -> tuple[str, str]:
    bucket, *keys = url.removeprefix(SCHEME).split("/")
    if not bucket:
        raise UserError(f"'{url}' names no bucket; give s3://BUCKET/PREFIX")
    return bucket, "/".join(filter(None, keys))


def _client(attempts: int = 3) -> Any:
    # One a process, for a client does not survive a fork, and one for each way to the store.
    settings = tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_")))
    return _make_client(os.getpid(), settings, attempts)


@functools.lru_cache(maxsize=4)
def _make_client(process: int, settings: tuple[tuple[str, str], ...], attempts: int) -> Any:
    del process, settings  # the key of the cache; boto3 reads them itself
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError:
        raise UserError(
            "s3:// locations need the package boto3: pip install 'dualpath[s3]'"
        ) from None
    config = Config(
        connect_timeout=5,
        read_timeout=60,
        retries={"total_max_attempts": attempts, "mode": "standard"},
    )
    try:
        return boto3.session.Session().client("s3", config=config)
    except (BotoCoreError, ValueError) as error:  # an unknown profile, a URL that is none
        raise UserError(f"the AWS settings cannot be used: {error}") from error


@contextmanager
def _one_line(url: str) -> Iterator[None]:
    """Turns what boto3 raises into a UserError about a location."""
    _client()  # raises where boto3 is missing or cannot be set up
    from boto3.exceptions import Boto3Error
    from botocore import exceptions

    try:
        yield
    except exceptions.ClientError as error:
        raise _refusal(url, error.response.get("Error", {})) from error
    except (Boto3Error, exceptions.BotoCoreError) as error:
        cause = error.__context__  # an upload's error holds the store's answer as text alone
        if isinstance(cause, exceptions.ClientError):
            raise _refusal(url, cause.response.get("Error", {})) from error
        name, text = type(error).__name__, " ".join(str(error).split())
        if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
            raise UserError(f"{url}: no complete AWS credentials; {_CREDENTIALS}") from error
        if isinstance(error, exceptions.ConnectionError | exceptions.HTTPClientError):
            endpoint = _client().meta.endpoint_url
            raise UserError(
                f"{url}: {endpoint} cannot be reached ({name}); check the network and "
                "AWS_ENDPOINT_URL"
            ) from error
        raise UserError(f"{url}: {name}: {text}; check the AWS settings") from error


def _refusal(url: str, answer: Mapping[str, str]) -> UserError:
    """Returns what the error in a store's answer means, with the way out."""
    code, text, bucket = answer.get("Code", ""), answer.get("Message", ""), _split(url)[0]
    if code == "NoSuchBucket":
        endpoint = _client().meta.endpoint_url
        return UserError(
            f"{url}: there is no bucket '{bucket}' at {endpoint}; check the name and "
            "AWS_ENDPOINT_URL"
        )
    if code in ("NoSuchKey", "404"):
        return UserError(f"{url}: there is no such object; check the name")
    if code in ("AccessDenied", "403", "AllAccessDisabled"):
        return UserError(
            f"{url}: access denied; the credentials need s3:ListBucket and s3:GetObject on "
            f"'{bucket}', and s3:PutObject and s3:DeleteObject to write there"
        )
    if code in _STALE_CREDENTIALS:
        return UserError(f"{url}: the AWS credentials are refused ({code}); {_CREDENTIALS}")
    return UserError(f"{url}: {code}: {' '.join(text.split())}; check the AWS settings")
