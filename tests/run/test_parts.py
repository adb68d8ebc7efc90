"""The files that each part of a run writes: its recipe and its versions, and whose these are."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path

import pytest

import dualpath_cli
from dualpath_cli.cli.main import main
from dualpath_cli.run import run_folder


def test_other_files_of_a_like_name_are_no_parts_of_a_run(tmp_path):
    others = [
        tmp_path / name for name in ("recipe-20260101.yaml.old", "versions-mine20260101.json")
    ]
    for path in others:
        path.write_text("{}")
    run_folder.start(tmp_path, {}, {"part": 1})
    run_folder.start(tmp_path, {}, {"part": 2}, step=20)
    os.utime(tmp_path / "versions.json", (2e9, 2e9))  # in a copy, or by a clock that went back
    assert run_folder.facts_now(tmp_path)["part"] == 2
    assert (tmp_path / "recipe-00000020.yaml").exists()
    run_folder.start(tmp_path, {}, {"part": 3}, step=10)
    assert run_folder.facts_now(tmp_path)["part"] == 3
    assert not (tmp_path / "recipe-00000020.yaml").exists(), "a run that is taken back"
    assert all(path.exists() for path in others)


@pytest.mark.parametrize("ignored", [True, False])
def test_the_commit_is_that_of_this_code_not_of_a_repository_around_it(ignored, tmp_path):
    """An environment lies in somebody's project; a checkout tracks the file that asks."""

    def git(*words: str) -> str:
        who = ("-c", "user.name=x", "-c", "user.email=x@y")
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit() -> object:
        code = "import json, dualpath_cli.run.run_folder as r; print(json.dumps(r._git_commit()))"
        environment = os.environ | {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
        words = [sys.executable, "-c", code]
        return json.loads(subprocess.check_output(words, env=environment, cwd=tmp_path))

    site = tmp_path / ".venv" / "site-packages"
    here = Path(run_folder.__file__).parents[1]
    shutil.copytree(here, site / here.name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / ".gitignore").write_text(".venv\n" if ignored else "")
    git("init", "-q")
    git("add", ".gitignore")
    git("commit", "-q", "-m", "their own")
    assert commit() is None
    git("add", "-f", ".venv")
    git("commit", "-q", "-m", "a checkout of ours")
    assert commit() == git("rev-parse", "HEAD")
    (site / here.name / "new.py").write_text("")
    assert str(commit()).removesuffix("+changes") == git("rev-parse", "HEAD")


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves `dualpath` without metadata, and all other packages as they are."""
    found = Distribution.from_name.__func__  # type: ignore[attr-defined]

    def from_name(cls: type[Distribution], name: str) -> Distribution:
        if name == "dualpath":
            raise PackageNotFoundError(name)
        return found(cls, name)

    monkeypatch.setattr(Distribution, "from_name", classmethod(from_name))


@pytest.mark.usefixtures("not_installed")
def test_a_checkout_that_is_not_installed_trains_and_exports(fit, tmp_path):
    with pytest.raises(PackageNotFoundError):
        importlib.metadata.version("dualpath")
    run = fit()
    packages = json.loads((run / "versions.json").read_text())["packages"]
    assert packages["dualpath"] == dualpath_cli.__version__
    assert packages["lightning"] == importlib.metadata.version("lightning")
    out = tmp_path / "exported"
    assert main(["export", "--format", "hf", "--ckpt_path", str(run), "--out", str(out)]) == 0
    assert f"dualpath {dualpath_cli.__version__}." in (out / "README.md").read_text()
