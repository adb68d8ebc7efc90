"""Nothing that is read runs code of its own: runs, files and folders of a stranger."""

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import dualpath_cli as dualpath
from dualpath_cli.base.errors import UserError
from dualpath_cli.cli.main import main
from dualpath_cli.spec.own_classes import FOUND
from tests.conftest import Said
from tests.spec.test_own_classes import SOURCE
from tests.training.tiny_run import Fit

# what the stranger's code leaves in the current directory when it runs
MARK = "ran.txt"
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
    for module in [
        name for name in sys.modules if name.split(".")[0] in ("evil", "hostile")
    ]:
        del sys.modules[module]
    FOUND.clear()
    importlib.invalidate_caches()
    Path(MARK).unlink(missing_ok=True)


@pytest.fixture
def stranger(
    trained: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Path]]:
    """`stranger(module)`: a run in `hostile` whose gate is in that module, which is not
    imported.

    Importing the module, or the package that it lies in, leaves MARK.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def make(module: str) -> Path:
        file = Path(*module.split(".")).with_suffix(".py")
        file.parent.mkdir(exist_ok=True)
        file.write_text(SOURCE + HOSTILE)
        run = trained(model={"gate": f"{module}.TwoGates"})
        shutil.copytree(run, "hostile", symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(run.parents[1])
        Path("hostile", "__init__.py").write_text(HOSTILE)
        forget()
        return Path("hostile")

    yield make
    forget()


def exported(run: Path) -> Path:
    """The run as a folder for transformers; nothing of it stays imported."""
    words = ["--ckpt_path", str(run), "--out", "hostile_folder"]
    assert main(["export", "--own_classes", *words]) == 0
    forget()
    return Path("hostile_folder")


def test_a_class_that_a_run_names_is_imported_with_consent_alone(stranger, said):
    run = stranger("evil")
    folder = exported(run)
    with pytest.raises(UserError, match="in Python own_classes=True"):
        dualpath.load(folder)
    commands = [
        *(
            ["validate", "--ckpt_path", path]
            for path in (run, run / "checkpoints/last")
        ),
        ["ablate", "--ckpt_path", run, "--out", "out"],
        ["routing", "--ckpt_path", run],
        ["generate", "--ckpt_path", run, "--prompt", "a"],
        ["evaluate", "--ckpt_path", run, "--out", "out"],
        ["export", "--ckpt_path", run],
        ["compare", run, "--out", "out"],
    ]
    for words in commands:
        line = said(*words)
        assert "model.gate 'evil.TwoGates'" in line, words
        assert "give --own-classes" in line, words
    assert (
        main(["validate", "--ckpt_path", str(run), "--model.gate", "evil.TwoGates"])
        == 0
    )
    Path(MARK).unlink()
    assert "give --own-classes" in said("validate", "--ckpt_path", run), (
        "though it is imported"
    )
    Path("mine.yaml").write_text("model:\n  gate: evil.TwoGates\n")
    assert main(["validate", "--ckpt_path", str(run), "--config", "mine.yaml"]) == 0


LOADS = """
from concurrent.futures import ThreadPoolExecutor
import dualpath_cli

with ThreadPoolExecutor() as pool:
    REFUSED = pool.submit(dualpath_cli.load, "hostile").exception()
"""


def test_consent_of_a_thread_is_none_of_another_s(stranger, trained):
    stranger("evil")
    Path("meek.py").write_text(SOURCE)
    run = trained(model={"gate": "meek.TwoGates"})
    sys.modules.pop("meek", None)
    forget()
    Path("meek.py").write_text(SOURCE + LOADS)
    dualpath.load(run, own_classes=True)
    assert not Path(MARK).exists()
    refused = sys.modules.pop("meek").REFUSED
    assert isinstance(refused, UserError)
    assert "model.gate 'evil.TwoGates'" in str(refused)


def test_nothing_is_imported_from_inside_of_what_is_read(stranger, said):
    run = stranger("hostile.evil").resolve()
    for words in (
        ["validate", "--ckpt_path", run],
        ["validate", "--ckpt_path", run, "--model.gate", "hostile.evil.TwoGates"],
        ["generate", "--ckpt_path", run / "checkpoints" / "last", "--prompt", "a"],
        ["compare", run, "--out", "out"],
    ):
        line = said(*words, "--own_classes")
        assert "would be imported from" in line
        assert f"inside of '{run}'" in line


def test_neither_is_a_class_beside_runs_where_the_folder_of_both_is_read(
    stranger, said
):
    run = stranger("evil")
    Path("tiny").mkdir()
    Path("recipe.yaml").unlink()  # by which the folder would be a run itself
    run.rename("tiny/default")
    line = said("compare", ".", "--own_classes", "--out", "out")
    assert (
        f"'{Path('evil.py').resolve()}', inside of '{Path.cwd()}', which is read"
        in line
    )
    assert main(["compare", "tiny/default", "--own_classes", "--out", "out"]) == 0


def test_what_a_trusted_class_imports_is_not_looked_for_in_the_run_stood_in(
    stranger, said, monkeypatch
):
    run, trusted = stranger("evil"), Path("trusted").resolve()
    trusted.mkdir()
    optional = "try:\n    import hostile_option\nexcept ImportError:\n    pass\n"
    (trusted / "evil.py").write_text(SOURCE + optional)
    Path("evil.py").unlink()
    (run / "hostile_option.py").write_text(HOSTILE)
    monkeypatch.chdir(run)
    line = said("validate", "--ckpt_path", ".", "--own_classes")
    assert "No module named 'evil'; Python looks on PYTHONPATH\n" in line
    monkeypatch.syspath_prepend(trusted)
    assert main(["validate", "--ckpt_path", ".", "--own_classes"]) == 0
    assert not Path(MARK).exists()


def test_an_exported_folder_does_not_bring_its_own_classes(stranger):
    folder = exported(stranger("evil"))
    Path("evil.py").rename(folder / "evil.py")
    for name in ("config.json", "recipe.yaml", "versions.json"):
        text = (folder / name).read_text().replace("evil.", f"{folder}.evil.")
        (folder / name).write_text(text)
    (folder / "SHA256SUMS").unlink()
    with pytest.raises(UserError, match=r"inside of '.*/hostile_folder'"):
        dualpath.load(folder, own_classes=True)
    assert not Path(MARK).exists()


def test_a_class_in_a_nested_namespace_package_is_read_as_it_is_trained(
    fit, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("own_gates/sub").mkdir(parents=True)
    Path("own_gates/sub/mod.py").write_text(SOURCE)
    run = fit(model={"gate": "own_gates.sub.mod.TwoGates"})
    # as a new command finds it
    for name in ("own_gates", "own_gates.sub", "own_gates.sub.mod"):
        del sys.modules[name]
    FOUND.clear()
    assert main(["validate", "--ckpt_path", str(run), "--own_classes"]) == 0


def test_classes_of_a_run_s_trainer_are_left_out(trained, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    Path("evil_callback.py").write_text(HOSTILE)
    run = trained()
    profiler = {
        "class_path": "lightning.pytorch.profilers.SimpleProfiler",
        "init_args": {"dirpath": "profiled", "filename": "profile"},
    }
    text = (run / "recipe.yaml").read_text()
    for key, value in {
        "callbacks": {"class_path": "evil_callback.Callback"},
        "plugins": [{"class_path": "evil_callback.Plugin"}],
        "logger": {"class_path": "evil_callback.Logger"},
        "profiler": profiler,
        "strategy": {"class_path": "evil_callback.Strategy"},
    }.items():
        line = next(line for line in text.splitlines() if line.startswith(f"  {key}:"))
        text = text.replace(f"{line}\n", f"  {key}: {json.dumps(value)}\n")
    (run / "recipe.yaml").write_text(text)
    assert main(["validate", "--ckpt_path", str(run)]) == 0
    assert main(["compare", str(run), "--out", "compared"]) == 0
    assert not Path(MARK).exists()
    assert not Path("profiled").exists()
    words = ["--trainer.profiler", json.dumps(profiler)]
    assert main(["validate", "--ckpt_path", str(run), *words]) == 0
    assert list(Path("profiled").iterdir())
    words = ["--trainer.logger", "{class_path: evil_callback.Logger}"]
    assert "only fit gives rows to loggers" in said(
        "validate", "--ckpt-path", run, *words
    )
    words += ["--trainer.logger", "null"]
    assert main(["validate", "--ckpt-path", str(run), *words]) == 0
