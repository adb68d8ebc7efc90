"""Nothing that is read runs code of its own: runs, files and folders of a stranger."""

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dualpath_cli.cli.main import main
from dualpath_cli.own_classes.classes import FOUND
from tests.conftest import Said
from tests.own_classes.test_own_classes import GATE
from tests.tiny_run import Fit

MARK = "ran.txt"  # what the stranger's code leaves in the current directory when it runs
HOSTILE = f"from pathlib import Path\nPath({MARK!r}).touch()\n"


@pytest.fixture(name="said")
def _said_before_anything_ran(said: Said) -> Said:
    """The one line with which a command refuses; nothing has run."""

    def run(*words: object) -> str:
        error = said(*words)
        assert not Path(MARK).exists()
        return error

    return run


def forget() -> None:
    """Makes of this process one that has imported nothing of a stranger's."""
    for module in [name for name in sys.modules if name.split(".")[0] in ("evil", "hostile")]:
        del sys.modules[module]
    FOUND.clear()
    importlib.invalidate_caches()
    Path(MARK).unlink(missing_ok=True)


@pytest.fixture
def stranger(
    trained: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Path]]:
    """`stranger(module)`: a run in `hostile` whose gate is in that module, which is not imported.

    Importing the module, or the package that it lies in, leaves MARK.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def make(module: str) -> Path:
        file = Path(*module.split(".")).with_suffix(".py")
        file.parent.mkdir(exist_ok=True)
        file.write_text(GATE + HOSTILE)
        run = trained(model={"gate": f"{module}.Gate"})
        shutil.copytree(run, "hostile", symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(run.parents[1])
        Path("hostile", "__init__.py").write_text(HOSTILE)
        forget()
        return Path("hostile")

    yield make
    forget()


def exported(run: Path, format_: str, out: str) -> Path:
    """The run in one file, or as a folder for transformers; nothing of it stays imported."""
    words = ["--ckpt_path", str(run), "--format", format_, "--out", out]
    assert main(["export", "--own_classes", *words]) == 0
    forget()
    return Path(out)


def test_a_class_that_a_run_names_is_imported_with_consent_alone(stranger, said):
    run = stranger("evil")
    file = exported(run, "consolidated", "one.safetensors")
    folder = exported(run, "hf", "hostile_folder")
    commands = [
        *(["validate", "--ckpt_path", path] for path in (run, run / "checkpoints/last", file)),
        ["ablate", "--ckpt_path", run, "--out", "out"],
        ["routing", "--ckpt_path", run, "--out", "out"],
        ["ablate", "--ckpt_path", run, file, "--out", "out"],
        ["generate", "--ckpt_path", run, "--prompt", "a"],
        ["evaluate", "--ckpt_path", run, "--sources", "hostile/recipe.yaml", "--out", "out"],
        ["export", "--ckpt_path", run, "--format", "hf"],
        ["import", "--hf", folder, "--out", "back.safetensors"],
        ["compare", run, "--out", "out"],
    ]
    for words in commands:
        line = said(*words)
        assert "model.gate 'evil.Gate'" in line, words
        assert "give --own-classes" in line, words
    assert main(["validate", "--ckpt_path", str(run), "--model.gate", "evil.Gate"]) == 0
    assert Path(MARK).exists()
    Path(MARK).unlink()
    assert "give --own-classes" in said("validate", "--ckpt_path", run)
    Path("mine.yaml").write_text("model:\n  gate: evil.Gate\n")
    assert main(["validate", "--ckpt_path", str(run), "--config", "mine.yaml"]) == 0
    # A project is not what is read where its runs are compared.
    shutil.copytree(run, "tiny/default", symlinks=True)
    Path("recipe.yaml").unlink()  # by which the folder would be a run itself
    assert main(["compare", ".", "--own_classes", "--out", "out"]) == 0


def test_nothing_is_imported_from_inside_of_what_is_read(stranger, said, monkeypatch):
    run = stranger("hostile.evil")
    for words in (
        ["validate", "--ckpt_path", run],
        ["validate", "--ckpt_path", run, "--model.gate", "hostile.evil.Gate"],
        ["generate", "--ckpt_path", run / "checkpoints" / "last", "--prompt", "a"],
        ["compare", run, "--out", "out"],
    ):
        line = said(*words, "--own_classes")
        assert "would be imported from" in line
        assert f"inside of '{run.resolve()}'" in line
    sweep = Path("hostile", "tiny")
    sweep.mkdir()
    shutil.copytree(run, sweep / "default", ignore=shutil.ignore_patterns("tiny"), symlinks=True)
    (run / "recipe.yaml").unlink()
    line = said("compare", run, "--out", "out", "--own_classes")
    assert f"inside of '{run.resolve()}'" in line


def test_an_exported_folder_does_not_bring_its_own_classes_to_import(stranger, said):
    exported(stranger("evil"), "hf", "brought")
    Path("evil.py").rename("brought/evil.py")
    for name in ("config.json", "recipe.yaml", "versions.json"):
        text = Path("brought", name).read_text()
        Path("brought", name).write_text(text.replace("evil.Gate", "brought.evil.Gate"))
    assert "give --own-classes" in said("import", "--hf", "brought")
    line = said("import", "--hf", "brought", "--own_classes")
    assert f"inside of '{Path('brought').resolve()}'" in line


def test_classes_of_a_run_s_trainer_are_left_out_with_a_word(
    trained, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    Path("evil_callback.py").write_text(HOSTILE)
    run = trained()
    profiler = {"class_path": "lightning.pytorch.profilers.SimpleProfiler",
                "init_args": {"dirpath": "profiled", "filename": "profile"}}  # fmt: skip
    text = (run / "recipe.yaml").read_text()
    for key, value in {
        "callbacks": {"class_path": "evil_callback.Callback"},
        "plugins": [{"class_path": "evil_callback.Plugin"}],
        "profiler": profiler,
        "strategy": {"class_path": "evil_callback.Strategy"},
    }.items():
        line = next(line for line in text.splitlines() if line.startswith(f"  {key}:"))
        text = text.replace(f"{line}\n", f"  {key}: {json.dumps(value)}\n")
    (run / "recipe.yaml").write_text(text)
    capsys.readouterr()
    assert main(["validate", "--ckpt_path", str(run)]) == 0
    assert capsys.readouterr().err.splitlines()[0] == (
        "left out, as the run names it: trainer.callbacks, trainer.plugins, trainer.profiler"
    )
    assert not Path(MARK).exists()
    assert not Path("profiled").exists()
    words = ["--trainer.profiler", json.dumps(profiler)]
    assert main(["validate", "--ckpt_path", str(run), *words]) == 0
    assert list(Path("profiled").iterdir())
