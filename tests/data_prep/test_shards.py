"""Shards: litdata reads back exactly the tokens that were written."""

import json
from collections.abc import Iterator
from pathlib import Path

import litdata
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from litdata import TokensLoader
from litdata.streaming.writer import BinaryWriter

from data_prep.shards import write_shards
from tests.data_prep.preparing import contents


def write(folder: Path, stream: np.ndarray, chunk_tokens: int, pieces: int) -> tuple:
    journal = folder.with_name(f"{folder.name}.journal")
    arrays = np.array_split(stream, pieces)
    return write_shards(folder, journal, stream.dtype.type, chunk_tokens, arrays, len(stream))


def blocks(folder: Path, block_size: int) -> np.ndarray:
    dataset = litdata.StreamingDataset(
        str(folder), item_loader=litdata.TokensLoader(block_size=block_size), shuffle=False
    )
    read = [dataset[index] for index in range(len(dataset))]
    return np.stack(read) if read else np.empty((0, block_size))


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@settings(max_examples=25)
@given(
    length=st.integers(1, 400),
    chunk_tokens=st.integers(2, 150),
    block_size=st.integers(1, 40),
    pieces=st.integers(1, 9),
)
def test_blocks_of_any_length_are_those_of_the_stream(
    tmp_path_factory, dtype, length, chunk_tokens, block_size, pieces
):
    top = np.iinfo(dtype).max
    stream = np.random.default_rng(length).integers(0, top, length, dtype, endpoint=True)
    chunks = [stream[i : i + chunk_tokens] for i in range(0, length, chunk_tokens)]
    expected = [chunk[: len(chunk) // block_size * block_size] for chunk in chunks]
    if not sum(map(len, expected)):
        return
    folder = tmp_path_factory.mktemp("shards") / "data"
    written, _ = write(folder, stream, chunk_tokens, pieces)
    read = blocks(folder, block_size)
    assert len(written) == len(chunks)
    assert read.dtype == dtype
    np.testing.assert_array_equal(read.ravel(), np.concatenate(expected))


def test_the_index_changes_with_the_tokens(tmp_path):
    # litdata takes `updated_at` for the version of a remote dataset in its cache.
    versions = set()
    for start in (0, 1):
        folder = tmp_path / str(start)
        write(folder, np.arange(start, start + 100, dtype=np.uint16), 64, 1)
        versions.add(json.loads((folder / "index.json").read_text())["updated_at"])
    assert len(versions) == 2


@pytest.mark.parametrize("stopped_after", [0, 250, 256, 700, 999])
def test_a_writer_goes_on_where_another_one_stopped(tmp_path, stopped_after):
    stream = np.arange(1000, dtype=np.uint16)
    write(tmp_path / "whole", stream, chunk_tokens=256, pieces=1)

    def cut_off() -> Iterator[np.ndarray]:
        yield from np.array_split(stream[:stopped_after], 3)
        raise KeyboardInterrupt

    folder = tmp_path / "data"
    with pytest.raises(KeyboardInterrupt):
        write_shards(folder, tmp_path / "data.journal", np.uint16, 256, cut_off(), 1000)
    stamps = {path: path.stat().st_mtime_ns for path in folder.glob("chunk*")}
    assert len(stamps) == stopped_after // 256
    write(folder, stream, chunk_tokens=256, pieces=7)
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert contents(folder) == contents(tmp_path / "whole")
    assert len(list(folder.iterdir())) == 5


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_the_files_are_those_of_litdatas_writer(tmp_path, dtype):
    stream = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, 1000, dtype)
    write(tmp_path / "ours", stream, chunk_tokens=300, pieces=7)
    theirs = BinaryWriter(str(tmp_path / "theirs"), chunk_size=1, item_loader=TokensLoader())
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
