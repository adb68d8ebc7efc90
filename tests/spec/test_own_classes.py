"""Custom classes in every command: copies give what the built-in ones give, bit by bit."""

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dualpath_cli.base.errors import UserError
from dualpath_cli.cli.main import main
from dualpath_cli.export.hf.code import own_files
from dualpath_cli.recipe.recipes import merge
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.own_checks import import_classes
from dualpath_cli.spec.own_classes import FOUND
from tests.spec import custom_classes
from tests.study.conftest import OPEN
from tests.training.tiny_run import Fit, back_to_step, tables, weights

OWN = {
    "gate": "tests.spec.custom_classes.TwoGates",
    "combination": "tests.spec.custom_classes.Router",
}
LONG: dict[str, Any] = {
    "model": {"max_seq_len": 64}, "run": {"batch_tokens": 256, "max_tokens": 6 * 256}
}  # fmt: skip

Pair = tuple[Path, Path]


@pytest.fixture
def pair(trained: Fit) -> Pair:
    """The same run with the built-in gate and router, and with copies of them."""
    changes = merge(OPEN, LONG)
    return trained(**changes), trained(**merge(changes, {"model": OWN, "run": {"name": "own"}}))


def test_training_is_the_same(pair):
    assert tables(pair[0]) == tables(pair[1])
    one, other = map(weights, pair)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("line", ["validate", "generate --seed 1 --intervention halting=0.3"])
def test_commands_answer_the_same(line, pair, output_of):
    command, *words = line.split()
    one, other = (output_of(command, "--own_classes", "--ckpt_path", r, *words) for r in pair)
    assert one
    assert one == other.replace("own", "default")


@pytest.mark.usefixtures("remote_code")
def test_a_folder_for_transformers_brings_the_classes_along(pair, tmp_path, output_of):
    transformers = pytest.importorskip("transformers")

    def export(run: Path, name: str) -> Path:
        words = ("--ckpt_path", run, "--out", tmp_path / name)
        output_of("export", "--own_classes", *words)
        return tmp_path / name

    def load(folder: Path, **options: Any) -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, trust_remote_code=True, **options
        ).eval()

    # Names that no other test has: transformers keeps one copy of the code of all folders of one.
    built_in = export(pair[0], "with_built_in_ones")
    folder = export(pair[1], "with_own_classes")
    assert "dualpath_cli" not in (folder / "own_tests_spec_custom_classes.py").read_text()
    tokens = torch.arange(12)[None]
    for options in ({}, {"dtype": torch.bfloat16}):
        theirs, wanted = load(folder, **options), load(built_in, **options)
        block = theirs.model.blocks[0]
        assert type(block.gate).__module__.startswith("transformers_modules.")
        assert block.gate.proj.weight.dtype == block.deep.router.weight.dtype == torch.float32
        with torch.no_grad():
            assert torch.equal(theirs(tokens).logits, wanted(tokens).logits)


# A class in a file of the user's own

SOURCE = Path(custom_classes.__file__).read_text()
Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """`write(source)` puts a module into the current directory; returns the module's name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    written: list[str] = []

    def module(source: str) -> str:
        written.append(f"own_{tmp_path.name}_{len(written)}".replace("-", "_"))
        (tmp_path / f"{written[-1]}.py").write_text(source)
        importlib.invalidate_caches()
        return written[-1]

    yield module
    for name in written:
        sys.modules.pop(name, None)
        for path in [path for path in FOUND if path.startswith(f"{name}.")]:
            del FOUND[path]


def change(module: str, source: str) -> None:
    """Another source of a module, as a command that is started anew would read it."""
    Path(f"{module}.py").write_text(source)
    del sys.modules[module]
    FOUND.clear()
    importlib.invalidate_caches()


def test_a_run_keeps_the_source_and_is_continued_with_the_same_alone(write, fit, refused, capsys):
    module = write(SOURCE)
    model = {"gate": f"{module}.TwoGates"}
    capsys.readouterr()
    run = fit(model=model)
    assert capsys.readouterr().out.endswith(f"--ckpt-path {run} --own-classes\n")
    assert (run / "classes" / f"{module}.py").read_text() == SOURCE
    before = tables(run)
    back_to_step(run, 4)
    fit(model=model)
    assert tables(run) == before
    back_to_step(run, 4)
    change(module, SOURCE + "# another")
    error = refused(model=model)
    assert re.fullmatch(
        rf"dualpath fit: error: \S+ was begun with another source of {module}.TwoGates, kept in "
        rf"\S+/classes/{module}.py; restore this source or .*--run.name NAME\)\n", error
    )  # fmt: skip
    assert main(["validate", "--own_classes", "--ckpt_path", str(run)]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if module in line]
    assert line.startswith(f"{module}.TwoGates has changed since ")
    change(module, SOURCE)
    assert main(["validate", "--own_classes", "--ckpt_path", str(run)]) == 0
    assert module not in capsys.readouterr().err
    Path(f"{module}.py").unlink()
    sys.modules.pop(module)
    FOUND.clear()
    assert main(["validate", "--own_classes", "--ckpt_path", str(run)]) == 2
    assert f"No module named '{module}'; Python looks in" in capsys.readouterr().err


PROJ = "self.proj = nn"
KIND = '("matrices", "zero")}'
MISTAKES = {
    # A text in the source of the classes, which is replaced by another, and what is said.
    "no forward": ("def forward", "def backward", "forward on a few tokens fails: NotImpl"),
    "a buffer": (PROJ, f"self.register_buffer('b', torch.ones(2)); {PROJ}", "compute a buffer"),
    "a scalar": (PROJ, f"self.t = nn.Parameter(torch.ones(())); {PROJ}", "t must be a parameter"),
    "an unused weight": (PROJ, f"self.t = nn.Parameter(torch.ones(1)); {PROJ}", "t gets no grad"),
    "a look at other tokens": ("j(x_BTD)", "j(x_BTD + x_BTD.mean(1, True))", "on its own"),
    "no number": ("self.proj(x_BTD)", "self.proj(x_BTD / 0)", "no finite"),
    "a kind of nothing": ('"proj.weight":', '"w":', "has 'w', which matches no parameter"),
    "no kind": (KIND, '"zero"}', "parameter_kinds['proj.weight'] must be one of"),
    "a sum of 2": ("weights, left_BT1]", "weights, left_BT1 + 1]", "must sum to 1"),
    "one weight": ("[*weights, left_BT1]", "weights", "must give 2 tensors"),
    "another probability": ("1 = self.step", "1 = 0.5 * self.step", "weigh steps by step_prob"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_class_with_a_mistake_is_one_line(mistake, write, refused):
    old, new, said = MISTAKES[mistake]
    assert old in SOURCE
    module = write(SOURCE.replace(old, new))
    error = refused(model={"gate": f"{module}.TwoGates", "combination": f"{module}.Router"})
    assert said in error
    assert f"model.{'combination' if 'Router' in error else 'gate'} '{module}." in error


def test_what_a_folder_for_transformers_cannot_hold_is_refused(write):
    for line, named in (
        ("import numpy", "numpy"),
        ("from . import other", "."),
        ("import dualpath_cli.spec.config", "dualpath_cli.spec.config"),
        ("from dualpath_cli.report.seeds import seed_from", "dualpath_cli.report.seeds"),
    ):
        module = write(SOURCE)
        path = f"{module}.TwoGates"
        config = ModelConfig(d_ffn=8, d_ffn_wide=8, gate=path)
        import_classes(config, allowed=True)
        own_files(config)
        Path(f"{module}.py").write_text(f"{SOURCE}\ndef late():\n    {line}\n")
        with pytest.raises(UserError, match=rf"{path} cannot go .* imports {named};"):
            own_files(config)
