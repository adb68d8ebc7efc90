"""The study's page says what its scripts print."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def write(*arguments: str, copy: Path | None = None) -> "subprocess.CompletedProcess[str]":
    script = (copy or ROOT / "docs") / "study" / "write.py"
    return subprocess.run(
        [sys.executable, str(script), *arguments], cwd=ROOT, capture_output=True, text=True
    )


def test_every_table_of_the_study_is_what_its_command_prints() -> None:
    checked = write("--check")
    assert checked.returncode == 0, checked.stderr
    page = (ROOT / "docs" / "study.md").read_text(encoding="utf-8")
    assert page.count("\n<!-- tables.py ") >= 2, "tables name their commands"


def test_a_table_that_says_something_else_is_found(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    for name in ("write.py", "rates.py", "kept.py"):
        source = ROOT / "docs" / "study" / name
        (tmp_path / "study" / name).write_text(source.read_text(encoding="utf-8"))
    (tmp_path / "study" / "tune").symlink_to(ROOT / "docs" / "study" / "tune")
    page = tmp_path / "study.md"
    page.write_text("<!-- rates.py loops -->\n\n| expected loops |\n\nwords\n")
    checked = write("--check", copy=tmp_path)
    assert checked.returncode == 1
    assert "| PureLoop, K = 4 | 1.95 |" in checked.stderr
    assert write(copy=tmp_path).returncode == 0
    assert page.read_text(encoding="utf-8").endswith(" |\n\nwords\n")
    assert write("--check", copy=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("tables.py narow --against wide", "narow'; did you mean 'narrow'?"),
        ("tables.py narrow --against wide --rows a50", "no configuration 'a50'; did you mean"),
        ("ablations.py x --classes", "no model 'x'; choose from narrow-a50_k4"),
        ("ablations.py narrow-a50_k4 --rows K=99", "no override 'K=99'; did you mean 'K=9'?"),
    ],
)
def test_a_wrong_word_is_one_line(command: str, hint: str) -> None:
    script, *words = command.split()
    ended = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "study" / script), *words],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert hint in ended.stderr
