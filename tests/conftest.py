"""Settings and paths that all tests share."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.s3 import s3_bucket, s3_server

# A job in the background is deaf to Ctrl-C, and so would be what its tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Tiny models gain nothing from threads and lose 40 times on a busy machine.
torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kills", type=int, default=3, help="How often test_kills.py kills a preparation."
    )


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real text beside the checkout; tests that need it skip where it is absent."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}")
    return folder


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The endpoint of an S3 of our own."""
    with s3_server() as url:
        yield url


@pytest.fixture
def bucket(endpoint: str, tmp_path: Path) -> Iterator[Any]:
    """A boto3 client of the empty s3://bucket."""
    with s3_bucket(endpoint, tmp_path / "cache") as client:
        yield client
