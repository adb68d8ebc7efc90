"""Storage: objects read as files, and every trouble with a store as one line with a way
out."""

import errno
import hashlib
import os
import re
import subprocess
import sys
import threading
from typing import Any

import pytest

from dualpath_cli.base.errors import UserError
from dualpath_cli.data import storage
from dualpath_cli.data.manifest import Manifest


def put(bucket: Any, key: str, content: bytes) -> None:
    bucket.put_object(Bucket="bucket", Key=key, Body=content)


def test_no_library_of_s3_is_imported_for_local_files(tmp_path):
    program = (
        "import sys; from dualpath_cli.data import manifest, storage; "
        f"storage.file_sizes({str(tmp_path)!r}); storage.local_copy('x'); "
        "assert not {'s3fs', 'botocore', 'torch', 'litdata'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_folder_on_s3_has_the_sizes_of_the_same_folder_on_a_disk(bucket, tmp_path):
    folder = tmp_path / "folder"
    (folder / "val").mkdir(parents=True)
    for name, content in {"a.bin": b"12", "val/b.jsonl": b"", "c": b"123"}.items():
        (folder / name).write_bytes(content)
        put(bucket, f"some/folder/{name}", content)
    put(bucket, "some/folder-of-others/d", b"1")
    put(bucket, "some/folder/val/", b"")  # what browsers make of an empty folder
    expected = {"a.bin": 2, "val/b.jsonl": 0, "c": 3}
    for same in (folder, "s3://bucket/some/folder", "s3://bucket/some//folder/"):
        assert storage.file_sizes(same) == expected
    assert storage.file_sizes("s3://bucket/some/fold") == {}
    assert storage.file_sizes(tmp_path / "none") == {}


def test_more_objects_are_listed_than_one_answer_holds(bucket, monkeypatch):
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "3")
    for number in range(8):
        put(bucket, f"many/{number}", b"")
    assert len(bucket.list_objects_v2(Bucket="bucket")["Contents"]) == 3
    assert len(storage.file_sizes("s3://bucket/many")) == 8


def test_a_copy_is_kept_until_the_object_changes(bucket, monkeypatch):
    put(bucket, "a/index.json", b"one")
    first = storage.local_copy("s3://bucket/a/index.json")
    assert (first.name, first.read_bytes()) == ("index.json", b"one")
    with monkeypatch.context() as patch:
        patch.setattr(storage.shutil, "copyfileobj", None)  # would raise
        assert storage.local_copy("s3://bucket/a/index.json") == first
    put(bucket, "a/index.json", b"two")
    assert storage.local_copy("s3://bucket/a/index.json").read_bytes() == b"two"
    assert first.read_bytes() == b"one", "another process may be reading it"
    assert not list(storage.cache_folder().rglob("*.partial"))


def test_one_file_is_copied_by_many_at_once(bucket):
    content = bytes(range(256)) * 20_000
    put(bucket, "large.jsonl", content)
    found = []

    def copy() -> None:
        found.append(
            storage.local_copy("s3://bucket/large.jsonl").read_bytes() == content
        )

    threads = [threading.Thread(target=copy) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 6
    copies = [path for path in storage.cache_folder().rglob("*") if path.is_file()]
    assert len(copies) == 1


def test_downloads_are_checked(bucket, tmp_path):
    content, url = bytes(range(256)) * 1000, "s3://bucket/some/file"
    sha256 = hashlib.sha256(content).hexdigest()
    put(bucket, "some/file", content)
    storage.download(url, tmp_path / "new" / "copy", sha256)
    assert (tmp_path / "new" / "copy").read_bytes() == content
    put(bucket, "some/file", b"abd")
    with pytest.raises(UserError, match=r"some/file: changed since .*; upload"):
        storage.download(url, tmp_path / "other", sha256)
    assert not (tmp_path / "other").exists()
    assert not list(tmp_path.glob("*.partial"))


def test_a_connection_lost_in_the_middle_of_a_large_object_is_made_again(
    bucket, tmp_path, monkeypatch
):
    s3fs = pytest.importorskip("s3fs")
    from aiobotocore.response import StreamingBody
    from aiohttp import ClientPayloadError

    content, reads, read = bytes(range(256)) * 4000, [], StreamingBody.read

    async def cut_once(self: Any, amt: int | None = None) -> Any:
        reads.append(amt)
        if len(reads) == 3:
            raise ClientPayloadError
        return await read(self, amt)

    put(bucket, "large", content)
    sha256 = hashlib.sha256(content).hexdigest()
    monkeypatch.setattr(StreamingBody, "read", cut_once)
    # less than the object
    monkeypatch.setattr(s3fs.S3FileSystem, "default_block_size", 1 << 18)
    s3fs.S3FileSystem.clear_instance_cache()
    storage.download("s3://bucket/large", tmp_path / "copy", sha256)
    s3fs.S3FileSystem.clear_instance_cache()
    assert (tmp_path / "copy").read_bytes() == content
    assert len(reads) > 3


def test_errors_that_are_no_subclass_of_botocores_are_one_line(bucket, monkeypatch):
    s3fs = pytest.importorskip("s3fs")
    from aiohttp import ClientPayloadError
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import IncompleteRead

    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    for error in (
        ClientPayloadError("cut"),
        IncompleteRead(1, 2),
        ResponseParserError("cut"),
    ):

        async def fail(*_: Any, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr("aiobotocore.client.AioBaseClient._make_api_call", fail)
        with pytest.raises(
            UserError, match=f"^s3://bucket/a: {re.escape(str(error))}; check"
        ):
            storage.exists("s3://bucket/a")


def test_a_failing_disk_is_not_taken_for_a_failing_store(bucket, monkeypatch):
    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    put(bucket, "a", b"a")
    with monkeypatch.context() as patch:
        patch.setattr(storage.shutil, "copyfileobj", fail)
        with pytest.raises(
            OSError, match=rf"{os.strerror(errno.EIO)}: '{storage.cache_folder()}"
        ):
            storage.local_copy("s3://bucket/a")
    monkeypatch.setattr("aiobotocore.client.AioBaseClient._make_api_call", unknown)
    with pytest.raises(UserError, match=r"s3://bucket/a: .*NewCode.*; check the name"):
        storage.local_copy("s3://bucket/a")


def test_what_is_missing_is_not_there_and_a_bucket_or_store_that_is_not_is_one_line(
    bucket, monkeypatch
):
    assert not storage.exists("s3://bucket/none")
    with pytest.raises(
        UserError, match=r"'s3://bucket/none' has no manifest\.json; copy"
    ):
        Manifest.read("s3://bucket/none")
    ways = (storage.file_sizes, storage.exists, storage.local_copy)

    def refused(url: str, reason: str) -> None:
        for way in ways:
            with pytest.raises(UserError) as caught:
                way(url)
            assert re.match(rf"{url}: .*{reason}.*; check the name", str(caught.value))
            assert "\n" not in str(caught.value)

    refused("s3://another/a", "bucket does not exist")
    with monkeypatch.context() as patch:
        patch.setattr("aiobotocore.client.AioBaseClient._make_api_call", denied)
        refused("s3://bucket/a", "Why. not")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    refused("s3://bucket/a", "http://127.0.0.1:9")


async def denied(self: Any, operation: str, *_: Any) -> None:
    from botocore.exceptions import ClientError

    raise ClientError(
        {"Error": {"Code": "AccessDenied", "Message": "Why.\nnot"}}, operation
    )


async def unknown(self: Any, operation: str, *_: Any) -> None:
    from botocore.exceptions import ClientError

    raise ClientError({"Error": {"Code": "NewCode"}}, operation)  # s3fs makes EIO of it
