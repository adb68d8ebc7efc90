"""Shards: litdata reads back exactly the tokens that were written."""

import json
from pathlib import Path

import litdata
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from litdata import TokensLoader
from litdata.streaming.writer import BinaryWriter

from tests.conftest import contents
from tests.data.faulty_data import write_shards


def blocks(folder: Path, block_size: int) -> np.ndarray:
    dataset = litdata.StreamingDataset(
        str(folder),
        item_loader=litdata.TokensLoader(block_size=block_size),
        shuffle=False,
    )
    read = [dataset[index] for index in range(len(dataset))]
    return np.stack(read) if read else np.empty((0, block_size))


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@settings(max_examples=25)
@given(
    length=st.integers(1, 400),
    chunk_tokens=st.integers(2, 150),
    block_size=st.integers(1, 40),
)
def test_blocks_of_any_length_are_those_of_the_stream(
    tmp_path_factory, dtype, length, chunk_tokens, block_size
):
    top = np.iinfo(dtype).max
    stream = np.random.default_rng(length).integers(
        0, top, length, dtype, endpoint=True
    )
    chunks = [stream[i : i + chunk_tokens] for i in range(0, length, chunk_tokens)]
    expected = [chunk[: len(chunk) // block_size * block_size] for chunk in chunks]
    if not sum(map(len, expected)):
        return
    folder = tmp_path_factory.mktemp("shards") / "data"
    written, _ = write_shards(folder, stream, chunk_tokens)
    read = blocks(folder, block_size)
    assert len(written) == len(chunks)
    assert read.dtype == dtype
    np.testing.assert_array_equal(read.ravel(), np.concatenate(expected))


def test_the_index_changes_with_the_tokens(tmp_path):
    # litdata takes `updated_at` for the version of a remote dataset in its cache.
    versions = set()
    for start in (0, 1):
        folder = tmp_path / str(start)
        write_shards(folder, np.arange(start, start + 100, dtype=np.uint16), 64)
        versions.add(json.loads((folder / "index.json").read_text())["updated_at"])
    assert len(versions) == 2


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_the_files_are_those_of_litdatas_writer(tmp_path, dtype):
    stream = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, 1000, dtype)
    write_shards(tmp_path / "ours", stream, chunk_tokens=300)
    theirs = BinaryWriter(
        str(tmp_path / "theirs"), chunk_size=1, item_loader=TokensLoader()
    )
    for number, start in enumerate(range(0, 1000, 300)):
        theirs.add_item(number, stream[start : start + 300])
    theirs.done()
    theirs.merge()
    files = [contents(tmp_path / name) for name in ("ours", "theirs")]
    ours, index = (json.loads(folder.pop("index.json")) for folder in files)
    del ours["updated_at"], index["updated_at"]
    assert ours == index
    assert files[0] == files[1]
    assert len(files[0]) == 4
