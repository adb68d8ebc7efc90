"""A local S3: moto's server on the loopback device."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""Without the last, missing credentials are looked for in the network."""


@contextmanager
def s3_server() -> Iterator[str]:
    """Runs an empty S3 and yields its endpoint; skips the test where moto is not
    installed."""
    server_module = pytest.importorskip(
        "moto.server", reason="moto[server] is not installed"
    )
    server = server_module.ThreadedMotoServer(
        ip_address="127.0.0.1", port=0, verbose=False
    )
    # or every request is a line on stderr
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@cache
def _client(endpoint: str) -> Any:
    # Reads a service's description: a quarter of a second.
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed")
    return boto3.session.Session().client("s3", endpoint_url=endpoint)


@contextmanager
def s3_bucket(endpoint: str, cache: Path) -> Iterator[Any]:
    """Points boto3 and our cache there, makes s3://bucket anew and yields a boto3
    client."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        patch.delenv("AWS_PROFILE", raising=False)
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        patch.setenv("DUALPATH_CACHE", str(cache))
        client = _client(endpoint)
        client.create_bucket(Bucket="bucket")
        yield client
        for entry in client.list_objects_v2(Bucket="bucket").get("Contents", []):
            client.delete_object(Bucket="bucket", Key=entry["Key"])
        client.delete_bucket(Bucket="bucket")


def put_folder(bucket: Any, folder: Path, prefix: str) -> None:
    """Uploads every file of a folder to s3://bucket/PREFIX, as `aws s3 sync` does."""
    for path in folder.rglob("*"):
        if path.is_file():
            key = f"{prefix}/{path.relative_to(folder).as_posix()}"
            bucket.upload_file(str(path), "bucket", key)
