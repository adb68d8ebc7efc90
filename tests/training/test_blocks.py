"""Chunks from S3: the next one comes ahead, and those that were read go where the disk is full."""

import time
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep.writing.out_folder import upload
from dualpath_cli.training.data import blocks
from dualpath_cli.training.data.blocks import Blocks, OrderedBlocks
from tests.manifests import write_data_folder
from tests.small_tokenizer import tokenizer_with

URL = "s3://bucket/chunked"
CHUNKS, BLOCKS, SIZE = 5, 4, 9


@pytest.fixture
def ordered(bucket: Any, tmp_path: Path) -> OrderedBlocks:
    """Five chunks of four blocks, on S3 alone."""
    tokens = np.random.default_rng(0).integers(0, 255, CHUNKS * BLOCKS * SIZE)
    write_data_folder(tmp_path / "data", tokens, tokenizer_with(["h e"]), BLOCKS * SIZE)
    upload(tmp_path / "data", URL, lambda count: None)
    return OrderedBlocks(Blocks(URL, SIZE), seed=1)


def chunk_at(ordered: OrderedBlocks, position: int) -> Path:
    assert ordered.blocks.cache is not None
    return ordered.blocks.cache.folder / ordered.blocks.names[ordered.order.at(position)[0]]


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not come"
        time.sleep(0.01)


def test_the_chunk_after_the_one_that_is_read_comes_ahead(ordered):
    ordered[0]
    wait_for(chunk_at(ordered, BLOCKS))
    assert not chunk_at(ordered, 2 * BLOCKS).exists()


@pytest.mark.parametrize("free", [0.05, 0.5])
def test_what_was_read_is_deleted_where_the_disk_is_full_and_comes_again(
    free, ordered, monkeypatch
):
    usage = namedtuple("usage", "total used free")(100, 100 * (1 - free), 100 * free)
    monkeypatch.setattr(blocks.shutil, "disk_usage", lambda path: usage)
    first = ordered[0].copy()
    for position in range(0, 3 * BLOCKS, BLOCKS):
        ordered[position]
        wait_for(chunk_at(ordered, position + BLOCKS))
    full = free < blocks.FREE
    assert chunk_at(ordered, 0).exists() != full
    assert chunk_at(ordered, BLOCKS).exists(), "other ranks may still be there"
    assert (ordered[0] == first).all()
    assert chunk_at(ordered, 0).exists()


def test_a_chunk_that_does_not_come_ahead_is_told_when_it_is_read(ordered, bucket):
    name = chunk_at(ordered, BLOCKS).name
    bucket.delete_object(Bucket="bucket", Key=f"chunked/{name}")
    for position in range(BLOCKS):
        ordered[position]
    with pytest.raises(Exception, match=name):
        ordered[BLOCKS]
