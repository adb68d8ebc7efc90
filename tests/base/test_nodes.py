"""A pipe, a socket or a device under the name of a file or a folder stays there."""

import os
import socket
import stat
from pathlib import Path

import pytest

from data_prep import out_folder
from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import write_text
from dualpath_cli.base.folders import replacing_folder
from dualpath_cli.run import checkpoint_folder
from tests.conftest import Said
from tests.data_prep.conftest import write_jsonl
from tests.training.tiny_run import Fit


@pytest.fixture(params=["pipe", "socket", "device", "link to a pipe"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A node in a folder of its own, which nothing may replace."""
    path = tmp_path / "nodes" / "x"
    path.parent.mkdir()
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "link to a pipe":
        os.mkfifo(path.with_name("pipe"))
        path.symlink_to("pipe")
    elif request.param == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(os.path.relpath(path))  # an address has at most 107 bytes
    else:
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))  # a null device
        except PermissionError:
            pytest.skip("only root makes devices")
    return path


def state_of(node: Path) -> tuple[int, ...]:
    found = node.lstat()
    return found.st_mode, found.st_rdev, found.st_ino, found.st_mtime_ns


def test_no_node_is_replaced_by_a_file_or_a_folder(node, tmp_path):
    before = state_of(node)
    with pytest.raises(
        UserError, match="is a pipe, a socket or a device; give another name"
    ):
        write_text(node, "new")
    with (
        pytest.raises(NotADirectoryError),
        replacing_folder(node, lambda before: None) as new,
    ):
        (new / "text").write_text("new")
    (tmp_path / "finished").mkdir()
    with pytest.raises(NotADirectoryError):
        out_folder.publish(tmp_path / "finished", tmp_path, node)
    assert state_of(node) == before
    assert not [*node.parent.glob("*.partial")], "nor is anything left beside it"


def test_no_node_is_replaced_by_a_checkpoint(node, tmp_path):
    before, folder = state_of(node), tmp_path / "checkpoints"
    partial = folder / "step-00000001.partial"
    partial.mkdir(parents=True)
    for name in ("step-00000001", "last"):
        (folder / name).symlink_to(node)
        with pytest.raises((UserError, NotADirectoryError)):
            checkpoint_folder.publish(partial, partial.with_suffix(""), {})
        assert (folder / name).resolve() == node.resolve()
        (folder / name).unlink()
    assert state_of(node) == before


def test_no_command_replaces_a_node_at_out(
    node: Path, tmp_path: Path, said: Said, trained: Fit
) -> None:
    before, run = state_of(node), trained()
    text = write_jsonl(tmp_path / "text.jsonl", ["some text " * 20])
    (tmp_path / "bpe").mkdir()
    (tmp_path / "bpe" / "tokenizer.json").symlink_to(node)
    texts = node.with_suffix(".jsonl")
    texts.symlink_to(node)
    prepare = ("prepare", "--source", f"a={text}", "--overwrite")
    tokenizer = ("--tokenizer", run / "tokenizer.json")
    for words, reason in (
        (
            ("export", "--ckpt_path", run, "--out", node, "--overwrite"),
            "is a pipe, a socket or a device; give a folder",
        ),
        ((*prepare, *tokenizer, "--out", node), "is a file; give a folder"),
        (("compare", run, "--out", node), "is a file; give a folder"),
        (("ablate", "--ckpt_path", run, "--out", node), "is a file; give a folder"),
        (("generate", "--ckpt_path", run, "--out", texts), "exists already"),
    ):
        assert reason in said(*words), words
        assert state_of(node) == before, words
    words = ("tokenizer", "--source", f"a={text}", "--vocab_size", 300, "--overwrite")
    assert "is a pipe, a socket or a device" in said(*words, "--out", tmp_path / "bpe")
