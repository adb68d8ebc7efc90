"""A data folder at s3://: the numbers of the local folder, or one line; its chunks come
ahead."""

import re
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualpath_cli.data import blocks, storage
from dualpath_cli.data.blocks import Blocks, OrderedBlocks
from dualpath_cli.data.manifest import Manifest
from tests.data.faulty_data import write_data_folder
from tests.data.s3 import put_folder
from tests.data.small_tokenizer import tokenizer_with
from tests.data_prep.web import wait_for
from tests.training.tiny_run import (
    SEQ_LEN,
    losses_in,
    prepare,
    rows,
    tables,
    write_text,
)

URL = "s3://bucket/train"
workers = pytest.mark.parametrize(
    "workers", [0, pytest.param(1, marks=pytest.mark.slow)]
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of several chunks."""
    folder = tmp_path_factory.mktemp("data")
    text = write_text(folder / "text.jsonl", 4, documents=30, words=20)
    data = prepare(folder / "data", text, "--chunk-tokens", "512")
    assert len(Manifest.read(data).chunks) > 2
    return data


@pytest.fixture
def remote(bucket: Any, data: Path) -> str:
    put_folder(bucket, data, "train")
    return URL


@workers
def test_a_run_from_s3_is_the_run_from_the_local_folder(fit, data, remote, workers):
    # More than an epoch, so that every chunk is read.
    run = {"max_tokens": 36 * 4 * SEQ_LEN, "validate_every": 18, "gates_every": 18}
    local, distant = (
        fit(
            run={**run, "name": name},
            data={"path": path, "workers": workers, "max_epochs": 9},
        )
        for name, path in (("local", str(data)), ("s3", remote))
    )
    assert tables(distant) == tables(local)
    assert (distant / "tokenizer.json").read_bytes() == (
        local / "tokenizer.json"
    ).read_bytes()
    chunks = {chunk.name for chunk in Manifest.read(data).chunks}
    cached = {
        path.name for path in storage.cache_folder().glob("chunks/*/*/chunk-*.bin")
    }
    assert cached == chunks, "nothing went past the cache"


def test_data_replaced_under_the_same_prefix_are_not_served_from_the_cache(
    fit, refused, bucket, data, remote, tmp_path
):
    fit(data={"path": remote}, run={"name": "before"})
    text = (data.parent / "text.jsonl").read_text().replace("cell", "fell")
    (tmp_path / "other.jsonl").write_text(text)
    other = prepare(
        tmp_path / "other", tmp_path / "other.jsonl", "--chunk-tokens", "512"
    )
    names_and_sizes = [
        [(c.name, c.bytes) for c in Manifest.read(f).chunks] for f in (data, other)
    ]
    assert names_and_sizes[0] == names_and_sizes[1]
    put_folder(bucket, other, "train")
    error = refused(data={"path": remote, "max_epochs": 9}, run={"name": "before"})
    assert "was trained on data with the fingerprint" in error
    local = fit(data={"path": str(other)}, run={"name": "local"})
    distant = fit(data={"path": remote}, run={"name": "after"})
    assert tables(distant) == tables(local)
    assert tables(distant) != tables(distant.with_name("before"))


def test_replaced_data_stay_in_the_cache_while_a_process_reads_them(bucket, tmp_path):
    def opened(seed: int) -> Blocks:
        tokens = np.random.default_rng(seed).integers(0, 255, 4 * SIZE)
        write_data_folder(
            tmp_path / f"{seed}", tokens, tokenizer_with(["h e"]), 4 * SIZE
        )
        put_folder(bucket, tmp_path / f"{seed}", "replaced")
        return Blocks("s3://bucket/replaced", SIZE)

    before = opened(0)
    first = before[0].copy()
    of_ended_run = before.cache.folder.with_name("0123456789abcdef")
    shutil.copytree(before.cache.folder, of_ended_run)

    after = opened(1)
    assert (before[0] == first).all()
    assert (after[0] != first).any()
    assert not of_ended_run.exists()


@workers
def test_a_chunk_changed_behind_the_manifest_is_not_trained_on(
    refused, bucket, data, remote, workers
):
    for chunk in Manifest.read(data).chunks:
        bucket.put_object(
            Bucket="bucket", Key=f"train/{chunk.name}", Body=bytes(chunk.bytes)
        )
    error = refused(data={"path": remote, "workers": workers})
    assert re.match(
        r"dualpath fit: error: s3:.*chunk-0-\d\.bin: changed since it was", error
    )


@workers
def test_a_chunk_damaged_in_the_cache_is_not_trained_on(fit, refused, remote, workers):
    whole = {
        "run": {"max_tokens": 36 * 4 * SEQ_LEN},
        "data": {"path": remote, "max_epochs": 9},
    }
    fit(**whole)
    chunks = list(storage.cache_folder().glob("chunks/*/*/chunk-*.bin"))
    for chunk in chunks:
        chunk.write_bytes(bytes(chunk.stat().st_size))
    again = {"run": {"name": "again"}, "data": {"path": remote, "workers": workers}}
    error = refused(**again)
    assert re.search(
        r"its sha256 differs\); delete '.*', and it is fetched again", error
    )
    shutil.rmtree(chunks[0].parent)
    fit(**again)


def test_validation_sets_may_lie_on_s3(
    fit, bucket, data, remote, texts, output_of, said
):
    bucket.upload_file(str(texts / "val.jsonl"), "bucket", "texts/val.jsonl")
    distant = {"held_out": "s3://bucket/texts/val.jsonl", "packed": remote}
    local = {"held_out": str(texts / "val.jsonl"), "packed": str(data)}
    val = {
        name: {"path": str(data), "val": paths, "val_tokens": 2000}
        for name, paths in (("s3", distant), ("local", local))
    }
    runs = [fit(run={"name": name}, data=changes) for name, changes in val.items()]
    assert len(rows(runs[0] / "validation.csv")) == 6
    assert tables(runs[0]) == tables(runs[1])
    shutil.rmtree(storage.cache_folder())  # scored on another machine
    words = ("validate", "--ckpt_path", runs[0])
    assert "is read only if you give it" in said(*words)
    given = [
        word for name, path in distant.items() for word in (f"--data.val.{name}", path)
    ]
    losses = losses_in(output_of(*words, *given))
    for row in rows(runs[0] / "validation.csv")[-2:]:
        # rounded twice
        assert losses[row["set"]] == pytest.approx(float(row["loss"]), abs=6e-5)


# Chunks from S3: the next one comes ahead, and those that were read go where the disk
# is full


CHUNKED = "s3://bucket/chunked"
CHUNKS, BLOCKS, SIZE = 5, 4, 9


@pytest.fixture
def ordered(bucket: Any, tmp_path: Path) -> OrderedBlocks:
    """Five chunks of four blocks, on S3 alone."""
    tokens = np.random.default_rng(0).integers(0, 255, CHUNKS * BLOCKS * SIZE)
    write_data_folder(tmp_path / "data", tokens, tokenizer_with(["h e"]), BLOCKS * SIZE)
    put_folder(bucket, tmp_path / "data", "chunked")
    return OrderedBlocks(Blocks(CHUNKED, SIZE), seed=1)


def chunk_at(ordered: OrderedBlocks, position: int) -> Path:
    assert ordered.blocks.cache is not None
    return (
        ordered.blocks.cache.folder
        / ordered.blocks.names[ordered.order.at(position)[0]]
    )


def test_the_chunk_after_the_one_that_is_read_comes_ahead(ordered):
    ordered[0]
    wait_for(chunk_at(ordered, BLOCKS).exists)
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
        wait_for(chunk_at(ordered, position + BLOCKS).exists)
    full = free < blocks.LEAST_FREE
    assert chunk_at(ordered, 0).exists() != full
    assert chunk_at(ordered, BLOCKS).exists(), "other ranks may still be there"
    assert (ordered[0] == first).all()
    assert chunk_at(ordered, 0).exists()
