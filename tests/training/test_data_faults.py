"""Faults of the data before and while training: one line each that names the file and
the way out.

The rows of "Data" in docs/reliability.md: what was prepared is wrong, was damaged or
swapped, or is no text to validate on; what is lost, cut or changed, and loaders that
are killed.
"""

import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualpath_cli.data.manifest import MANIFEST
from dualpath_cli.data.tokenizer import TOKENIZER
from dualpath_cli.run.run_folder import newest_checkpoint, step_of
from dualpath_cli.training import checkpoints
from dualpath_cli.training.data_module import stack_blocks
from dualpath_cli.training.loading_faults import loading_fault
from tests.data.faulty_data import (
    CHANGED,
    Damage,
    cut,
    edited,
    flip,
    ids,
    index_edited,
    of_another_set,
    one_line,
    put,
    remove,
    swap,
    swap_ids,
    write,
)
from tests.training.tiny_run import SEQ_LEN, rows

UNREADABLE = r"manifest\.json: cannot be read "
MANIFEST_FAULTS = [
    # Path of keys and value; message.
    (("tokens", 0), r"it cannot hold 0 tokens"),
    (("tokens", 9), r"manifest\.json: 9 tokens, but 1,632 in the"),
    (("chunks", []), r"it lists no chunks"),
    (
        ("chunks", 0, "name", "../chunk-0-0.bin"),
        r"-0\.bin' is not the path of a file in the folder",
    ),
    (("chunks", 0, "name", "chunk-0-1.bin"), r"it lists a chunk twice"),
    (("chunks", 0, "sha256", "zz"), r"has no sha256 but 'zz'"),
    (("eot_id", 260), r"no eot_id 260 in a vocabulary"),
    (("fingerprint", "x"), r"does not fit its content"),
]
INDEX_FAULTS = [
    ("chunks", 0, "filename", "../chunk-0-0.bin"),
    ("config", "data_format", ["no_header_numpy:6"]),
]
FAULTS: dict[str, tuple[Damage, str]] = {
    # wrong data of the right size
    "a flipped bit": (
        lambda f: flip(f / "chunk-0-3.bin"),
        rf"chunk-0-3\.bin: {CHANGED}",
    ),
    "swapped chunks": (swap, rf"chunk-0-0\.bin: {CHANGED}"),
    "chunks of another set": (of_another_set, rf"chunk-0-0\.bin: {CHANGED}"),
    "swapped ids": (
        swap_ids,
        r"tokenizer\.json: not the tokenizer of these tokens; copy",
    ),
    # chunks
    "a cut chunk": (
        cut("chunk-0-1.bin"),
        r"chunk-0-1\.bin: 210 bytes instead of 420; copy",
    ),
    "a missing chunk": (
        remove("chunk-0-1.bin"),
        r"chunk-0-1\.bin: chunk is missing; copy",
    ),
    # manifest.json
    "no manifest": (
        remove(MANIFEST),
        r"data' has no manifest\.json; copy the folder here again",
    ),
    "a cut manifest": (cut(MANIFEST), UNREADABLE + r"\(JSONDecodeError"),
    "a deep manifest": (put(MANIFEST, b"[" * 99999), UNREADABLE + r"\(RecursionError"),
    **{
        f"{path}"[:40]: (edited(MANIFEST, *path), message)
        for path, message in MANIFEST_FAULTS
    },
    # index.json
    "no index": (remove("index.json"), r"index\.json: missing; copy"),
    "a cut index": (
        cut("index.json"),
        r"index\.json: changed since it was prepared; copy",
    ),
    **{
        f"index {path[0]}": (
            index_edited(*path),
            r"index\.json: does not list the chunks of the m",
        )
        for path in INDEX_FAULTS
    },
    # tokenizer.json
    "no tokenizer": (remove(TOKENIZER), r"tokenizer\.json is missing"),
    "a cut tokenizer": (
        cut(TOKENIZER),
        r"tokenizer\.json cannot be read \(not JSON: .*; copy th",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_folder_is_refused(fault, data, refused, tmp_path):
    damage, message = FAULTS[fault]
    damage(data)
    one_line(refused(data={"path": str(data)}), message)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: flip(f / "chunk-0-3.bin"), rf"chunk-0-3\.bin: {CHANGED}"),
        # else its held-out, rejected and doubled documents would be taken for texts
        (remove(MANIFEST), r"data' has no manifest\.json"),
        (index_edited("chunks", 0, "filename", "/x"), r"does not list the chunks"),
    ],
    ids=["flipped", "no manifest", "index"],
)
@pytest.mark.parametrize(
    "command", ["fit", "validate", "ablate", "routing --tagger none"]
)
def test_a_damaged_validation_folder_is_refused(
    command, damage, message, data, trained, said, tmp_path
):
    run = trained()
    damage(data)
    given = ["--ckpt_path", run]
    if command == "fit":
        given = ["--config", tmp_path / "recipe.yaml"]
    one_line(said(*command.split(), *given, "--data.val.packed", data), message)


# Ids


BEYOND = r"'.*': holds the token id 29\d, beyond the vocabulary of 260"


@pytest.mark.parametrize(
    ("verify", "place", "workers", "message"),
    [
        (
            "first",
            "path",
            0,
            r"chunk-0-0\.bin: holds the token id 299, beyond the vocabulary of",
        ),
        ("never", "path", 0, rf"data\.path {BEYOND}"),
        ("never", "path", 1, rf"data\.path {BEYOND}"),
        ("never", "val", 0, rf"data\.val\.packed {BEYOND}"),
    ],
)
def test_ids_beyond_the_vocabulary_are_refused(
    verify, place, workers, message, refused, whole, tmp_path
):
    strange = str(write(tmp_path / "strange", ids(0, highest=299)))
    data = (
        {"path": strange}
        if place == "path"
        else {"path": str(whole), "val": {"packed": strange}}
    )
    said = refused(
        data={"verify": verify, "workers": workers, **data},
        run={"validate_every": 0 if place == "path" else 3},
    )
    one_line(said, message)


# Lengths and texts


def test_nuls_and_a_long_line_are_text_like_any_other(fit, whole, tmp_path):
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": "a\0b " * 100_000}) + "\n")
    val = {"x": str(tmp_path / "x.jsonl")}
    run = fit(data={"path": str(whole), "val": val, "val_tokens": 100})
    assert "x" in {row["set"] for row in rows(run / "validation.csv")}


# While training: lost, cut or changed data, and loaders that are killed; nothing hangs


def at_checkpoints(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[], object]
) -> None:
    publish = checkpoints.publish

    def publish_then(*what: Any) -> None:
        publish(*what)
        fault()

    monkeypatch.setattr(checkpoints, "publish", publish_then)


def replace_flipped(path: Path) -> None:
    shutil.copy(path, path.with_suffix(".new"))
    flip(path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


LONG = {"max_tokens": 40 * 4 * SEQ_LEN, "save_every": 2, "keep": 1, "validate_every": 0}
CHUNK = r"chunk-0-\d\.bin: "
LATER = {
    "lost": (
        Path.unlink,
        "first",
        CHUNK + r"cannot be read \(No such file or directory\)",
    ),
    "cut": (lambda path: os.truncate(path, 100), "first", CHUNK + CHANGED),
    "cut, unverified": (
        lambda path: os.truncate(path, 100),
        "never",
        CHUNK + "was cut while it",
    ),
    "changed in place": (flip, "first", CHUNK + CHANGED),
    "replaced": (replace_flipped, "first", CHUNK + CHANGED),
}


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("fault", LATER)
def test_a_chunk_that_is_lost_cut_or_changed_while_training_ends_the_run(
    fault, workers, refused, data, tmp_path, monkeypatch
):
    damage, verify, message = LATER[fault]
    chunks = iter(sorted(data.glob("chunk-*")))  # damaged once, at the first checkpoint
    at_checkpoints(monkeypatch, lambda: [damage(path) for path in chunks])
    settings = {
        "path": str(data),
        "workers": workers,
        "verify": verify,
        "max_epochs": None,
    }
    one_line(refused(run=LONG, data=settings), message)

    kept = newest_checkpoint(tmp_path / "runs" / "tiny" / "default")
    assert kept is not None
    # A loader process has read up to two steps ahead.
    assert 2 <= step_of(kept) <= 2 + 2 * workers


def test_a_touched_chunk_is_read_again_and_trained_on(fit, data, monkeypatch):
    chunks = sorted(data.glob("chunk-*"))
    at_checkpoints(monkeypatch, lambda: [os.utime(path) for path in chunks])
    run = fit(run=LONG, data={"path": str(data), "max_epochs": None})
    assert len(rows(run / "metrics.csv")) == 40


def test_a_killed_loader_ends_the_run(refused, data, tmp_path, monkeypatch):
    def kill() -> None:
        (loader,) = multiprocessing.active_children()
        loader.kill()

    at_checkpoints(monkeypatch, kill)
    settings = {"path": str(data), "workers": 1, "max_epochs": None}
    message = (
        r"failed: .*DataLoader worker .*; if memory ran out, lower data\.workers or run"
    )
    one_line(refused(code=1, run=LONG, data=settings), message)
    kept = newest_checkpoint(tmp_path / "runs" / "tiny" / "default")
    assert kept is not None
    assert step_of(kept) == 2


@pytest.mark.parametrize(
    "said",
    [
        "unable to allocate shared memory(shm) for file </torch_1>: No space left on "
        "device (28)",
        "Caught RuntimeError in DataLoader worker process 0.\n"
        "RuntimeError: unable to write to file </torch_1>: No space left on device "
        "(28)",
        "DataLoader worker (pid 1) is killed by signal: Bus error. It is possible that "
        "dataloader's workers are out of shared memory. Please try to raise your "
        "limit.",
    ],
)
def test_a_full_shared_memory_names_the_setting_that_needs_none(said):
    assert "(/dev/shm); load in this process by --data.workers 0" in str(
        loading_fault(RuntimeError(said))
    )


@pytest.fixture
def _loaders_signal():
    """The handler that PyTorch installs with a loader's processes: it raises wherever
    it is run."""

    def raised(*_: object) -> None:
        raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed. ")

    before = signal.signal(signal.SIGCHLD, raised)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("_loaders_signal")
def test_a_loader_whose_signal_comes_late_is_named_all_the_same(monkeypatch):
    """As the first error is looked at, and after that."""
    reset = ConnectionResetError("Connection reset by peer")
    restore = signal.signal
    monkeypatch.setattr(
        signal,
        "signal",
        lambda *_: (monkeypatch.undo(), os.kill(os.getpid(), signal.SIGCHLD)),
    )
    fault = loading_fault(reset)
    assert str(fault).startswith(
        "DataLoader worker (pid 1) is killed by signal: Killed; if memory"
    )
    assert signal.signal is restore

    assert loading_fault(reset) is None  # not from a loader
    os.kill(os.getpid(), signal.SIGCHLD)  # raises nothing any more


def test_targets_are_the_tokens_one_place_on():
    tokens, targets = stack_blocks(
        [np.arange(5), np.arange(5, 10)], vocab_size=10, place=""
    )
    assert tokens.tolist() == [[0, 1, 2, 3], [5, 6, 7, 8]]
    assert targets.tolist() == [[1, 2, 3, 4], [6, 7, 8, 9]]
