"""Faults of the data: each ends in one line that names the file and the way out, and loses nothing.

The rows of "Data" in docs/reliability.md. What was prepared is wrong, was damaged or swapped before
the start, is lost while training, or is no text to validate on.
"""

import hashlib
import json
import multiprocessing
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualpath_cli.cli import main
from dualpath_cli.run_folder import newest_checkpoint, step_of
from dualpath_cli.text import verification
from dualpath_cli.text.manifest import MANIFEST, Manifest
from dualpath_cli.text.tokenizer import TOKENIZER
from dualpath_cli.training import checkpoint
from tests.manifests import write_data_folder
from tests.small_tokenizer import tokenizer_with
from tests.tiny_run import SEQ_LEN, Fit, Refused, rows

Damage = Callable[[Path], object]

CHUNKS, BLOCKS = 8, 12  # of a data folder: chunks, and blocks in each
MERGES = ["h e", "l l", "he ll"]


def ids(seed: int, highest: int = 255) -> np.ndarray:
    count = CHUNKS * BLOCKS * (SEQ_LEN + 1)
    return np.random.default_rng(seed).integers(0, highest, count, endpoint=True)


def write(folder: Path, tokens: Any, **stated: Any) -> Path:
    chunk_tokens = BLOCKS * (SEQ_LEN + 1)
    write_data_folder(folder, tokens, tokenizer_with(MERGES), chunk_tokens, **stated)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder without fault."""
    return write(tmp_path_factory.mktemp("whole") / "data", ids(0))


@pytest.fixture
def data(whole: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return shutil.copytree(whole, tmp_path / "data")


# Damages


def flip(path: Path) -> None:
    """Changes one bit in place."""
    with path.open("r+b") as file:
        file.seek(50)
        byte = file.read(1)[0]
        file.seek(50)
        file.write(bytes([byte ^ 1]))


def swap(folder: Path) -> None:
    first, second = folder / "chunk-0-0.bin", folder / "chunk-0-1.bin"
    contents = first.read_bytes(), second.read_bytes()
    second.write_bytes(contents[0])
    first.write_bytes(contents[1])


def of_another_set(folder: Path) -> None:
    other = write(folder.with_name("other"), ids(1))
    for chunk in other.glob("chunk-*"):
        shutil.copy(chunk, folder)


def swap_ids(folder: Path) -> None:
    content = json.loads((folder / TOKENIZER).read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (folder / TOKENIZER).write_text(json.dumps(content))


def remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def put(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


def cut(name: str) -> Damage:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size // 2)


def folder_at(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return damage


def loop_at(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(name)

    return damage


def edited(name: str, *path: Any) -> Damage:
    """Sets the value at a path of keys in a JSON file: `edited(name, key, ..., value)`."""
    *keys, last, value = path

    def damage(folder: Path) -> None:
        content = part = json.loads((folder / name).read_text())
        for key in keys:
            part = part[key]
        part[last] = value
        (folder / name).write_text(json.dumps(content))

    return damage


def index_edited(*path: Any) -> Damage:
    """The same in the index, with the manifest's hash of it made to fit."""

    def damage(folder: Path) -> None:
        edited("index.json", *path)(folder)
        sha256 = hashlib.sha256((folder / "index.json").read_bytes()).hexdigest()
        edited(MANIFEST, "index_sha256", sha256)(folder)

    return damage


def lies_behind_an_error(folder: Path) -> None:
    """A folder that lists itself, where reading a file is an error of the disk."""
    (folder / MANIFEST).unlink()
    (folder / MANIFEST).symlink_to("/proc/self/mem")


CHANGED = r"changed since it was prepared \(its sha256 differs\); copy the folder here again"
UNREADABLE = r"manifest\.json: cannot be read "
FAULTS: dict[str, tuple[Damage, str]] = {
    # wrong data of the right size
    "a flipped bit": (lambda f: flip(f / "chunk-0-3.bin"), rf"chunk-0-3\.bin: {CHANGED}"),
    "swapped chunks": (swap, rf"chunk-0-0\.bin: {CHANGED}"),
    "chunks of another set": (of_another_set, rf"chunk-0-0\.bin: {CHANGED}"),
    "swapped ids": (swap_ids, r"tokenizer\.json: not the tokenizer of these tokens; copy"),
    # chunks
    "a cut chunk": (cut("chunk-0-1.bin"), r"chunk-0-1\.bin: 210 bytes instead of 420; copy"),
    "a missing chunk": (remove("chunk-0-1.bin"), r"chunk-0-1\.bin: chunk is missing; copy"),
    "a folder for a chunk": (folder_at("chunk-0-1.bin"), r"chunk-0-1\.bin: chunk is missing"),
    # manifest.json
    "no manifest": (remove(MANIFEST), r"data' has no manifest\.json; copy the folder here again"),
    "a folder for a manifest": (folder_at(MANIFEST), r"data' has no manifest\.json"),
    "a manifest that links to itself": (loop_at(MANIFEST), r"data' has no manifest\.json"),
    "a manifest on a bad disk": (lies_behind_an_error, r"manifest\.json: cannot be read \(Input/o"),
    "a cut manifest": (cut(MANIFEST), UNREADABLE + r"\(JSONDecodeError"),
    "an empty manifest": (put(MANIFEST, b""), UNREADABLE + r"\(JSONDecodeError"),
    "a binary manifest": (put(MANIFEST, bytes(range(256))), UNREADABLE),
    "a list for a manifest": (put(MANIFEST, b"[]"), UNREADABLE + r"\(not a JSON object\)"),
    "a deep manifest": (put(MANIFEST, b"[" * 99999), UNREADABLE + r"\(RecursionError"),
    "endless digits": (put(MANIFEST, b'{"a": ' + b"9" * 5000 + b"}"), UNREADABLE),
    "half a surrogate": (put(MANIFEST, rb'{"a": "\ud800"}'), UNREADABLE + r"\(UnicodeEncodeError"),
    "no keys": (put(MANIFEST, b"{}"), UNREADABLE + r"\(documents is missing\)"),
    "an unknown key": (edited(MANIFEST, "zzz", 1), UNREADABLE + r"\(unknown key 'zzz'"),
    "text for a number": (edited(MANIFEST, "tokens", "x"), r"tokens must be a whole number"),
    "a negative number": (edited(MANIFEST, "tokens", -5), r"it cannot hold -5 tokens"),
    "no tokens": (edited(MANIFEST, "tokens", 0), r"it cannot hold 0 tokens"),
    "2^70 tokens": (edited(MANIFEST, "tokens", 2**70), r"it cannot hold 1\.18059e\+21 tokens"),
    "NaN": (edited(MANIFEST, "tokens", float("nan")), r"tokens must be a whole number, not 'nan'"),
    "another count": (edited(MANIFEST, "tokens", 9), r"manifest\.json: 9 tokens, but 1,632 in the"),
    "null for a list": (edited(MANIFEST, "chunks", None), r"chunks must be a list"),
    "an empty list": (edited(MANIFEST, "chunks", []), r"it lists no chunks"),
    "a chunk in another folder": (
        edited(MANIFEST, "chunks", 0, "name", "../chunk-0-0.bin"),
        r"chunks\.0: '\.\./chunk-0-0\.bin' is not the path of a file in the folder",
    ),
    "a chunk at an absolute path": (
        edited(MANIFEST, "chunks", 0, "name", "/etc/passwd"),
        r"chunks\.0: '/etc/passwd' is not the path of a file in the folder",
    ),
    "a chunk in a folder below": (
        edited(MANIFEST, "chunks", 0, "name", "a/b.bin"),
        r"chunk 'a/b\.bin' is not in the folder itself",
    ),
    "a name of two lines": (
        edited(MANIFEST, "chunks", 0, "name", "a\nb"),
        r"chunks\.0: 'a\\nb' is no name of a file",
    ),
    "a name without end": (edited(MANIFEST, "chunks", 0, "name", "a" * 300), r"is no name of a f"),
    "a chunk listed twice": (
        edited(MANIFEST, "chunks", 0, "name", "chunk-0-1.bin"),
        r"it lists a chunk twice",
    ),
    "a negative size": (edited(MANIFEST, "chunks", 0, "bytes", -1), r"cannot have -1 bytes"),
    "no hash": (edited(MANIFEST, "chunks", 0, "sha256", "zz"), r"has no sha256 but 'zz'"),
    "end-of-text beyond": (
        edited(MANIFEST, "eot_id", 260),
        r"no eot_id 260 in a vocabulary",
    ),
    "another fingerprint": (edited(MANIFEST, "fingerprint", "x"), r"does not fit its content"),
    # index.json
    "no index": (remove("index.json"), r"index\.json: missing; copy"),
    "a folder for an index": (folder_at("index.json"), r"index\.json: missing; copy"),
    "a cut index": (cut("index.json"), r"index\.json: changed since it was prepared; copy"),
    "an empty index": (put("index.json", b""), r"index\.json: changed since it was prepared"),
    "an index of another folder's chunks": (
        index_edited("chunks", 0, "filename", "../chunk-0-0.bin"),
        r"index\.json: does not list the chunks of the manifest; copy",
    ),
    "an index with another length": (index_edited("chunks", 0, "dim", 10**12), "does not list the"),
    "an index without chunks": (index_edited("chunks", None), "does not list the chunks"),
    "an index of another type": (
        index_edited("config", "data_format", ["no_header_numpy:6"]),
        "does not list the chunks of the manifest",
    ),
    # tokenizer.json
    "no tokenizer": (remove(TOKENIZER), r"tokenizer\.json is missing"),
    "a cut tokenizer": (cut(TOKENIZER), r"tokenizer\.json': cannot be read as JSON.*; copy the f"),
    "a deep tokenizer": (put(TOKENIZER, b"[" * 99999), r"cannot be read as JSON: maximum recur"),
}


def one_line(said: str, message: str) -> None:
    assert re.search(message, said), said
    assert said.startswith("dualpath ")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_folder_is_refused(
    fault: str, data: Path, refused: Refused, tmp_path: Path
) -> None:
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
@pytest.mark.parametrize("command", ["fit", "validate", "ablate"])
def test_a_damaged_validation_folder_is_refused(
    command: str, damage: Damage, message: str, data: Path, trained: Fit,
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:  # fmt: skip
    run = trained()
    damage(data)
    words = {
        "fit": ["--config", str(tmp_path / "recipe.yaml"), "--data.val.packed", str(data)],
        "validate": ["--ckpt_path", str(run), "--data.val.packed", str(data)],
        "ablate": ["--ckpt_path", str(run), "--sources", f"packed={data}"],
    }[command]
    capsys.readouterr()
    assert main([command, *words]) == 2
    one_line(capsys.readouterr().err, message)


# Ids


@pytest.mark.parametrize(
    ("verify", "workers", "message"),
    [
        ("first", 0, r"chunk-0-0\.bin: holds the token id 299, beyond the vocabulary of 260"),
        ("never", 0, r"data\.path '.*': holds the token id 29\d, beyond the vocabulary of 260"),
        ("never", 1, r"data\.path '.*': holds the token id 29\d, beyond the vocabulary of 260"),
    ],
)
def test_ids_beyond_the_vocabulary_are_refused(
    verify: str, workers: int, message: str, refused: Refused, tmp_path: Path
) -> None:
    strange = write(tmp_path / "strange", ids(0, highest=299))
    data = {"path": str(strange), "verify": verify, "workers": workers}
    one_line(refused(data=data, run={"validate_every": 0}), message)


def test_ids_beyond_the_vocabulary_are_refused_in_validation_sets_too(
    refused: Refused, whole: Path, tmp_path: Path
) -> None:
    strange = write(tmp_path / "strange", ids(0, highest=299))
    data = {"path": str(whole), "verify": "never", "val": {"packed": str(strange)}}
    one_line(refused(data=data), r"data\.val\.packed '.*': holds the token id 29\d, beyond")


def test_a_tokenizer_that_is_not_the_runs_is_refused(
    trained: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained()
    tokenizer_with([f"{a} {b}" for a in "abcd" for b in "abcd"]).save(run)
    capsys.readouterr()
    assert main(["validate", "--ckpt_path", str(run)]) == 2
    one_line(capsys.readouterr().err, r"tokenizer\.json has 273 entries, more than the model's")


# Lengths and texts


def test_data_shorter_than_a_block_are_refused(
    refused: Refused, whole: Path, tmp_path: Path
) -> None:
    short = write(tmp_path / "short", [5] * SEQ_LEN)
    needs = (
        rf"has no 17 tokens in a chunk \(the longest has 16\), which model\.max_seq_len={SEQ_LEN}"
    )
    one_line(refused(data={"path": str(short)}), rf"data\.path '.*short' {needs}")
    one_line(refused(data={"val": {"x": str(short)}}), rf"data\.val\.x: '.*short' {needs}")
    error = refused(data={"path": str(whole)}, model={"max_seq_len": 4096})
    one_line(error, r"has no 4097 tokens in a chunk \(the longest has 204\)")


TEXTS: dict[str, tuple[str, bytes, str]] = {
    "an empty file": ("x.jsonl", b"", "holds no text to validate on"),
    "blank lines": ("x.jsonl", b"\n \n", "holds no text to validate on"),
    "empty documents": ("x.jsonl", b'{"text": ""}\n' * 3, "holds no text to validate on"),
    "an empty text": ("x.txt", b"", "holds no text to validate on"),
    "half a surrogate": ("x.jsonl", rb'{"text": "\ud800"}', r"x\.jsonl line 1: half of a surrog"),
    "no UTF-8": ("x.txt", b"\xe9", r"x\.txt: not UTF-8 at byte 0; convert it first"),
    "a line of NULs": ("x.jsonl", b'{"text": "a"}\n\0\0', r"x\.jsonl line 2: not JSON"),
    "null for a text": ("x.jsonl", b'{"text": null}', r"x\.jsonl line 1: no text in the values"),
    "a cut archive": ("x.jsonl.gz", b"no gzip", r"x\.jsonl\.gz: cannot be read"),
    "a cut table": ("x.parquet", b"PAR1", r"x\.parquet: cannot be read as Parquet"),
    "a name without end": ("a" * 300, b"", r"data\.val\.x: '.*': cannot be read \(File name too"),
}


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_no_text_to_validate_on_is_refused(
    text: str, refused: Refused, whole: Path, tmp_path: Path
) -> None:
    name, content, message = TEXTS[text]
    if len(name) < 256:
        (tmp_path / name).write_bytes(content)
    error = refused(data={"path": str(whole), "val": {"x": str(tmp_path / name)}})
    one_line(error, message)


def test_nuls_and_a_long_line_are_text_like_any_other(
    fit: Fit, whole: Path, tmp_path: Path
) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": "a\0b " * 100_000}) + "\n")
    val = {"x": str(tmp_path / "x.jsonl")}
    run = fit(data={"path": str(whole), "val": val, "val_tokens": 100})
    assert "x" in {row["set"] for row in rows(run / "validation.csv")}


# While training


def at_checkpoints(monkeypatch: pytest.MonkeyPatch, fault: Callable[[], object]) -> None:
    publish = checkpoint.publish

    def publish_then(partial: Path, final: Path) -> None:
        publish(partial, final)
        fault()

    monkeypatch.setattr(checkpoint, "publish", publish_then)


def replace_flipped(path: Path) -> None:
    shutil.copy(path, path.with_suffix(".new"))
    flip(path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


LONG = {"max_tokens": 40 * 4 * SEQ_LEN, "save_every": 2, "keep": 1, "validate_every": 0}
CHUNK = r"chunk-0-\d\.bin: "
LATER = {
    "lost": (Path.unlink, "first", CHUNK + r"cannot be read \(No such file or directory\)"),
    "cut": (lambda path: os.truncate(path, 100), "first", CHUNK + CHANGED),
    "cut, unverified": (lambda path: os.truncate(path, 100), "never", CHUNK + "was cut while it"),
    "changed in place": (flip, "first", CHUNK + CHANGED),
    "replaced": (replace_flipped, "first", CHUNK + CHANGED),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("fault", LATER)
def test_a_chunk_that_is_lost_cut_or_changed_while_training_ends_the_run(
    fault: str, workers: int, refused: Refused, data: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    damage, verify, message = LATER[fault]
    chunks = sorted(data.glob("chunk-*"))
    at_checkpoints(monkeypatch, lambda: [damage(path) for path in chunks])
    settings = {"path": str(data), "workers": workers, "verify": verify, "max_epochs": None}
    one_line(refused(run=LONG, data=settings), message)
    kept = newest_checkpoint(tmp_path / "runs" / "tiny" / "default")
    assert kept is not None
    assert step_of(kept) == 2, "the fault was found at once, and the checkpoint is whole"


def test_a_touched_chunk_is_read_again_and_trained_on(
    fit: Fit, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = sorted(data.glob("chunk-*"))
    at_checkpoints(monkeypatch, lambda: [os.utime(path) for path in chunks])
    run = fit(run=LONG, data={"path": str(data), "max_epochs": None})
    assert len(rows(run / "metrics.csv")) == 40


def test_a_killed_loader_ends_the_run(
    refused: Refused, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill() -> None:
        (loader,) = multiprocessing.active_children()
        loader.kill()

    at_checkpoints(monkeypatch, kill)
    error = refused(run=LONG, data={"path": str(data), "workers": 1, "max_epochs": None})
    one_line(error, r"DataLoader worker .*; if memory ran out, lower data\.workers or run\.micro_b")
    kept = newest_checkpoint(tmp_path / "runs" / "tiny" / "default")
    assert kept is not None
    assert step_of(kept) == 2


# What is remembered


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Names of the chunks that are read whole, beginning with an empty memory."""
    names: list[str] = []
    digest = verification._digest_and_highest_id

    def noted(file: Any, dtype: str) -> tuple[str, int]:
        names.append(Path(file.name).name)
        return digest(file, dtype)

    monkeypatch.setattr(verification, "_digest_and_highest_id", noted)
    monkeypatch.setenv("DUALPATH_CACHE", str(tmp_path / "cache"))
    return names


def verify(data: Path, how: verification.Verify = "first") -> None:
    verification.verify_chunks(data, Manifest.read(data), how)


def test_a_chunk_is_read_once_and_after_a_change(data: Path, read: list[str]) -> None:
    verify(data, "never")
    assert read == []
    verify(data)
    assert sorted(read) == [f"chunk-0-{n}.bin" for n in range(CHUNKS)]
    verify(data)
    assert len(read) == CHUNKS, "remembered"
    verify(data, "always")
    assert len(read) == 2 * CHUNKS
    os.utime(data / "chunk-0-3.bin", (1, 1))
    verify(data)
    assert read[2 * CHUNKS :] == ["chunk-0-3.bin"]


def test_a_change_that_keeps_size_and_time_is_found(data: Path, read: list[str]) -> None:
    verify(data)
    times = (data / "chunk-0-3.bin").stat()
    flip(data / "chunk-0-3.bin")
    os.utime(data / "chunk-0-3.bin", ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(verification.UserError, match=CHANGED):
        verify(data)


def test_training_reads_no_chunk_whole_that_is_remembered(
    fit: Fit, data: Path, read: list[str]
) -> None:
    fit(data={"path": str(data)})
    assert len(read) == CHUNKS
    fit(data={"path": str(data)}, run={"name": "again"})
    assert len(read) == CHUNKS


def test_what_was_verified_before_ctrl_c_is_remembered(
    data: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks_read = verification.Chunks._read

    def interrupted(self: Any, chunk: Any, file: Any) -> Any:
        if chunk.name == "chunk-0-5.bin":
            raise KeyboardInterrupt
        return chunks_read(self, chunk, file)

    with monkeypatch.context() as patch:
        patch.setattr(verification.Chunks, "_read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            verify(data)
    read.clear()
    verify(data)
    assert set(read) == {"chunk-0-5.bin", "chunk-0-6.bin", "chunk-0-7.bin"}


@pytest.mark.parametrize("content", [b"", b"[]", b'{"chunks": {"chunk-0-0.bin": [1]}}', b"\xff"])
def test_a_damaged_memory_is_not_trusted(data: Path, read: list[str], content: bytes) -> None:
    verify(data)
    (memory,) = verification.cache().glob("verified/*.json")
    memory.write_bytes(content)
    verify(data)
    assert len(read) == 2 * CHUNKS


def test_where_nothing_can_be_remembered_it_is_said(
    data: Path, read: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "file").touch()
    monkeypatch.setenv("DUALPATH_CACHE", str(tmp_path / "file" / "cache"))
    for _ in range(2):
        verify(data)
        assert "set DUALPATH_CACHE to a folder that can be" in capsys.readouterr().err
    assert len(read) == 2 * CHUNKS


@pytest.mark.parametrize("name", ["LOCAL_RANK", "SLURM_LOCALID"])
def test_of_the_ranks_of_a_node_the_first_one_reads(
    data: Path, read: list[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    verify(data, "always")
    monkeypatch.setenv(name, "1")
    verify(data, "always")
    assert len(read) == CHUNKS
    monkeypatch.setenv(name, "0")
    verify(data, "always")
    assert len(read) == 2 * CHUNKS
