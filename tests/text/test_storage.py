"""Storage: objects read as files, and every trouble with a store as one line with a way out."""

import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from dualpath_cli.errors import UserError
from dualpath_cli.text import storage

SHA256_OF_ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def put(bucket: Any, key: str, content: bytes) -> None:
    bucket.put_object(Bucket="bucket", Key=key, Body=content)


def test_a_location_is_remote_by_its_scheme():
    assert storage.is_remote("s3://bucket/prefix")
    assert not any(map(storage.is_remote, ("data/sample", Path("data"), "s3", "/s3://x")))


def test_nothing_of_boto3_is_imported_for_local_files(tmp_path):
    program = (
        "import sys; from dualpath_cli.text import manifest, storage; "
        f"storage.sizes({str(tmp_path)!r}); storage.local_copy('x'); "
        "assert not {'boto3', 'botocore', 'torch', 'litdata'} & set(sys.modules)"
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
    assert storage.sizes(folder) == expected
    assert storage.sizes("s3://bucket/some/folder") == expected
    assert storage.sizes("s3://bucket/some//folder/") == expected
    assert storage.sizes("s3://bucket/some/fold") is None
    assert storage.sizes(tmp_path / "none") is None


def test_more_objects_are_listed_and_deleted_than_one_answer_holds(bucket, monkeypatch):
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "3")
    monkeypatch.setattr(storage, "_DELETE_AT_ONCE", 2)
    for number in range(8):
        put(bucket, f"many/{number}", b"")
    assert len(bucket.list_objects_v2(Bucket="bucket")["Contents"]) == 3
    assert len(storage.sizes("s3://bucket/many") or {}) == 8
    storage.delete(f"s3://bucket/many/{number}" for number in range(9))
    assert storage.sizes("s3://bucket/many") is None


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
    assert not list(storage.cache().rglob("*.partial"))


def test_one_file_is_copied_by_many_at_once(bucket):
    content = bytes(range(256)) * 20_000
    put(bucket, "large.jsonl", content)
    found = []

    def copy() -> None:
        found.append(storage.local_copy("s3://bucket/large.jsonl").read_bytes() == content)

    threads = [threading.Thread(target=copy) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 6
    assert len([path for path in storage.cache().rglob("*") if path.is_file()]) == 1


def test_a_local_file_is_its_own_copy():
    assert storage.local_copy("a/b.jsonl") == Path("a/b.jsonl")


def test_the_cache_is_where_the_environment_says(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.delenv("DUALPATH_CACHE", raising=False)
    assert storage.cache() == Path("/x/dualpath")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert storage.cache() == Path.home() / ".cache" / "dualpath"
    monkeypatch.setenv("DUALPATH_CACHE", "/fast")
    assert storage.cache() == Path("/fast")


def test_uploads_carry_their_hash_and_downloads_are_checked(bucket, tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    counts: list[int] = []
    url = "s3://bucket/some/file"
    storage.upload(tmp_path / "file", url, SHA256_OF_ABC, counts.append)
    assert sum(counts) == 3
    assert storage.uploaded_sha256(url) == storage.sha256_of(url) == SHA256_OF_ABC
    assert storage.sha256_of(tmp_path / "file") == SHA256_OF_ABC
    storage.download(url, tmp_path / "new" / "copy", SHA256_OF_ABC)
    assert (tmp_path / "new" / "copy").read_bytes() == b"abc"
    put(bucket, "some/file", b"abd")
    assert storage.uploaded_sha256(url) is None
    with pytest.raises(UserError, match="some/file: changed since it was prepared"):
        storage.download(url, tmp_path / "other", SHA256_OF_ABC)
    assert not (tmp_path / "other").exists()
    assert not list(tmp_path.glob("*.partial"))


def test_a_download_of_many_parts_is_the_object(bucket, tmp_path):
    (tmp_path / "file").write_bytes(bytes(range(256)) * 80_000)  # 20 MB
    sha256 = storage.sha256_of(tmp_path / "file")
    storage.upload(tmp_path / "file", "s3://bucket/file", sha256, lambda count: None)
    storage.download("s3://bucket/file", tmp_path / "copy", sha256)
    assert storage.sha256_of(tmp_path / "copy") == sha256


def each_way(url: str, tmp_path: Path) -> list[Any]:
    """Everything that asks the store about an object or its folder."""
    (tmp_path / "file").write_bytes(b"abc")
    return [
        lambda: storage.sizes(url),
        lambda: storage.exists(url),
        lambda: storage.local_copy(url),
        lambda: storage.sha256_of(url),
        lambda: storage.download(url, tmp_path / "copy", SHA256_OF_ABC),
        lambda: storage.upload(tmp_path / "file", url, SHA256_OF_ABC, lambda count: None),
        lambda: storage.delete([url]),
    ]


def assert_one_line(ways: list[Any], *parts: str) -> None:
    for way in ways:
        with pytest.raises(UserError) as caught:
            way()
        message = str(caught.value)
        assert all(part in message for part in parts), message
        assert "\n" not in message


def test_a_missing_object_is_named(bucket, tmp_path):
    url = "s3://bucket/none.jsonl"
    assert not storage.exists(url)
    assert storage.uploaded_sha256(url) is None
    assert_one_line(each_way(url, tmp_path)[2:5], "s3://bucket/none.jsonl: there is no such object")


def test_a_missing_bucket_is_named(bucket, tmp_path):
    ways = each_way("s3://nowhere/a", tmp_path)
    del ways[4]  # asks by HEAD, whose answer cannot tell: it comes after others
    assert_one_line(ways, "s3://nowhere/a: there is no bucket 'nowhere' at http://127", "ENDPOINT")


def test_a_url_without_a_bucket_is_refused(tmp_path):
    assert_one_line(each_way("s3:///a", tmp_path), "'s3:///a' names no bucket; give s3://BUCKET")


def test_missing_credentials_are_named_with_the_way_out(bucket, tmp_path, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert_one_line(each_way("s3://bucket/a", tmp_path), "no complete AWS credentials; set AWS_ACC")


def test_an_unknown_profile_is_named(monkeypatch, bucket):
    monkeypatch.setenv("AWS_PROFILE", "none")
    assert_one_line([lambda: storage.sizes("s3://bucket/a")], "the AWS settings", "(none)")


@pytest.mark.parametrize("wrong", ["nonsense", "http://"])
def test_an_endpoint_that_is_no_url_is_named(wrong, bucket, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", wrong)
    assert_one_line([lambda: storage.sizes("s3://bucket/a")], "AWS", wrong)


def test_an_endpoint_out_of_reach_is_named(bucket, tmp_path, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # nobody listens
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        ways = each_way("s3://bucket/a", tmp_path)
        del ways[4:6]  # patient: minutes
        assert_one_line(ways, f"{endpoint} cannot be reached", "AWS_ENDPOINT_URL")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("AccessDenied", "access denied; the credentials need s3:ListBucket and s3:GetObject"),
        ("403", "access denied"),
        ("InvalidAccessKeyId", "the AWS credentials are refused (InvalidAccessKeyId); set AWS_ACC"),
        ("ExpiredToken", "the AWS credentials are refused (ExpiredToken)"),
        ("SlowDown", "SlowDown: Why. not; check the AWS settings"),
    ],
)
def test_what_the_store_refuses_is_one_line(code, text, bucket, tmp_path, monkeypatch):
    from botocore.client import BaseClient
    from botocore.exceptions import ClientError

    def refuse(self: Any, operation: str, *_: Any) -> None:
        raise ClientError({"Error": {"Code": code, "Message": "Why.\nnot"}}, operation)

    monkeypatch.setattr(BaseClient, "_make_api_call", refuse)
    assert_one_line(each_way("s3://bucket/a", tmp_path), f"s3://bucket/a: {text}")


def test_without_boto3_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    storage._make_client.cache_clear()
    assert_one_line([lambda: storage.sizes("s3://bucket/a")], "pip install 'dualpath[s3]'")
