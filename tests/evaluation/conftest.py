"""A small model with a tokenizer smaller than its vocabulary, and benchmarks in a few
lines."""

import json
from pathlib import Path
from typing import Any

import pytest

from dualpath_cli.cli.main import main
from tests.conftest import Share
from tests.training.tiny_run import LONG, Fit

pytest.importorskip("lm_eval", reason="needs the extra `eval`")

QUESTIONS = (
    "which cell tells the tale",
    "who hit the shell",
    "what does hell sell",
    "is it well",
)
WORDS = ("the hell", "a shell", "hello", "all the cells", "tell", "well", "no", "yes")

NAME = "tiny-default-step-00000006"


def questions(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of multiple choice that are rendered already."""
    return [
        {
            "id": f"q{n}",
            "query": f"Question: {QUESTIONS[n % 4]} {n}?\nAnswer:",
            "choices": [WORDS[(n + seed + k * (n % 3 + 1)) % 8] for k in range(3)],
            "gold": (n + seed) % 3,
        }
        for n in range(count)
    ]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_tasks(folder: Path) -> Path:
    """Fills a folder with a benchmark of each kind."""
    folder.mkdir()
    pairs = [(q, w) for q in QUESTIONS for w in WORDS]
    subjects = ("Algebra", "Geometry", "Algebra")
    rows = {
        "arc_challenge": questions(12),
        "piqa": questions(11, seed=1),
        "lambada_test": [{"text": f"{q} {w}"} for q, w in pairs],
        "gsm8k": [
            {"question": f"{n} + 1?", "answer": f"Add.\n#### {n + 1}"} for n in range(4)
        ],
        "c4": [{"text": f"{q} or {w} " * 3} for q, w in pairs],
        "math500_test": [
            {"problem": q, "solution": w, "subject": s}
            for q, w, s in zip(QUESTIONS, WORDS, subjects, strict=False)
        ],
    }
    for name, content in rows.items():
        write_rows(folder / f"{name}.jsonl", content)
    for name in ("arc_challenge", "piqa", "gsm8k", "math"):
        (folder / f"{name}.fewshot.txt").write_text("Question: tell?\nAnswer: tell\n\n")
    return folder


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A folder with a benchmark of each kind."""
    return write_tasks(tmp_path / "tasks")


@pytest.fixture
def run(trained: Fit) -> Path:
    """A run of the tiny recipe whose model takes 64 tokens."""
    return trained(**LONG)


@pytest.fixture
def scored(share: Share, run: Path) -> Path:
    """What `evaluate` writes on the run and the folder of `tasks`, of one call for all
    tests."""

    def evaluate(folder: Path) -> None:
        words = [
            "--data",
            str(write_tasks(folder / "tasks")),
            "--out",
            str(folder / "scores"),
        ]
        assert main(["evaluate", "--ckpt_path", str(run), *words]) == 0

    return share("evaluated", evaluate) / "scores"
