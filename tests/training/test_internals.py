"""Lightning's own affairs are touched by one file alone; tests of what that gains see them move."""

import ast
import os
from pathlib import Path

import torch

import dualpath_cli
from dualpath_cli.training import internals


def test_processes_share_the_cores(monkeypatch):
    threads: list[int] = []
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    internals.share_cores(10**6)
    assert (threads, os.environ["OMP_NUM_THREADS"]) == ([1], "1")


PUBLIC_DESPITE_THEIR_NAMES = {
    "_exit",  # of `os`
    "_record_memory_history", "_dump_snapshot", "_get_layout",  # of torch, which documents them
}  # fmt: skip


def test_no_other_file_of_training_touches_what_is_not_its_own():
    package = Path(dualpath_cli.__file__).parent
    files = [path for room in ("training", "session") for path in (package / room).rglob("*.py")]
    for path in files:
        if path.name == "internals.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("li"):
                names = [alias.name for alias in node.names]  # of lightning or litdata
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) != "self":
                names = [node.attr]
            private = {name for name in names if name.startswith("_") and name[1] != "_"}
            assert private <= PUBLIC_DESPITE_THEIR_NAMES, (path, private)
