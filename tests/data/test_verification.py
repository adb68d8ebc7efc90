"""A data folder: what was prepared is found again; a chunk is read once, and after a
change."""

import os
from pathlib import Path
from typing import Any

import pytest

from dualpath_cli.base.errors import UserError
from dualpath_cli.data import verification
from dualpath_cli.data.manifest import Manifest
from tests.data.faulty_data import CHANGED, CHUNKS, flip


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


def test_a_file_of_texts_in_place_of_a_folder_is_told_how_to_become_one(tmp_path):
    path = tmp_path / "a.jsonl"
    path.touch()
    said = f"'{path}' has no manifest.json, .* --source NAME={path} .* ANOTHER_FOLDER`"
    with pytest.raises(UserError, match=said):
        Manifest.read(path)


def test_a_chunk_is_read_once_and_after_a_change(data, read):
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


def test_a_change_that_keeps_size_and_time_is_found(data, read):
    verify(data)
    times = (data / "chunk-0-3.bin").stat()
    flip(data / "chunk-0-3.bin")
    os.utime(data / "chunk-0-3.bin", ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(UserError, match=CHANGED):
        verify(data)


def test_training_reads_no_chunk_whole_that_is_remembered(fit, data, read):
    verify(data)
    fit(data={"path": str(data)})
    assert len(read) == CHUNKS


def test_what_was_verified_before_ctrl_c_is_remembered(data, read, monkeypatch):
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


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"chunks": {"chunk-0-0.bin": [1]}}', b"\xff"]
)
def test_a_damaged_memory_is_not_trusted(data, read, content):
    verify(data)
    (memory,) = verification.cache_folder().glob("verified/*.json")
    memory.write_bytes(content)
    verify(data)
    assert len(read) == 2 * CHUNKS


def test_where_nothing_can_be_remembered_it_is_said(
    data, read, monkeypatch, tmp_path, capsys
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DUALPATH_CACHE", str(tmp_path / "file" / "cache"))
    for _ in range(2):
        verify(data)
        assert "set DUALPATH_CACHE to a folder that can be" in capsys.readouterr().err
    assert len(read) == 2 * CHUNKS


@pytest.mark.parametrize("name", ["LOCAL_RANK", "SLURM_LOCALID"])
def test_of_the_ranks_of_a_node_the_first_one_reads(data, read, monkeypatch, name):
    verify(data, "always")
    monkeypatch.setenv(name, "1")
    verify(data, "always")
    assert len(read) == CHUNKS
    monkeypatch.setenv(name, "0")
    verify(data, "always")
    assert len(read) == 2 * CHUNKS


def test_a_chunk_that_is_written_to_while_it_is_read_is_named(data, read, monkeypatch):
    digest = verification._digest_and_highest_id

    def written_to(file: Any, dtype: str) -> tuple[str, int]:
        found = digest(file, dtype)
        with open(file.name, "ab") as other:
            other.write(b"x")
        return found

    monkeypatch.setattr(verification, "_digest_and_highest_id", written_to)
    with pytest.raises(UserError, match="is written to while it is read; wait"):
        verify(data)
