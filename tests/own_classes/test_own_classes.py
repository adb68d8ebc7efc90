"""Custom classes in every command: copies give what the built-in ones give, bit by bit."""

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dualpath_cli.cli.main import main
from dualpath_cli.config import ModelConfig
from dualpath_cli.errors import UserError
from dualpath_cli.export.hf.code import own_files
from dualpath_cli.own_classes.classes import FOUND
from dualpath_cli.recipe.recipes import merge
from tests.study.conftest import OPEN, USERS_OF_FIGURES
from tests.tiny_run import Fit, back_to_step, tables, weights

OWN = {"gate": "tests.custom_classes.TwoGates", "combination": "tests.custom_classes.Router"}
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


WRITING = {"ablate": ".csv", "routing": ".csv", "evaluate": ".jsonl", "export": ".safetensors"}
"""Commands whose answer is in files, and the ending of their names."""


@pytest.mark.parametrize(
    "line",
    [
        "validate",
        *(f"ablate --suite {suite}" for suite in ("paper", "halting")),
        "routing --tagger none",
        *(f"generate --prompt shell --seed 1 {more}" for more in ("", "--exit-below 0.3")),
        "evaluate --tasks lambada --data data",
        "export --format consolidated",
    ],
)  # fmt: skip
def test_every_command_answers_the_same(line, pair, tmp_path, output_of, monkeypatch):
    command, *words = line.split()
    monkeypatch.chdir(tmp_path)
    for user in USERS_OF_FIGURES[:2]:
        monkeypatch.setattr(user, lambda folder, figures: [])
    if command == "evaluate":
        pytest.importorskip("lm_eval", reason="needs the extra `eval`")
        Path("data").mkdir()
        Path("data", "lambada_test.jsonl").write_text('{"text": "the shell hello tell"}\n' * 3)
    answers = []
    for run in pair:
        out = Path(run.name, f"written{WRITING[command]}") if command in WRITING else None
        more = [] if out is None else ["--out", out]
        said = output_of(command, "--own_classes", "--ckpt_path", run, *words, *more)
        answers.append(said.replace("own", "default") if out is None else contents(out))
    assert answers[0]
    assert answers[0] == answers[1]


def contents(path: Path) -> dict[str, Any]:
    """Texts of the files that a command wrote, or the weights in the only one."""
    if path.is_file():
        return {name: weight.tolist() for name, weight in load_file(path).items()}
    found = sorted(path.rglob(f"*{path.suffix}"))
    return {file.name: file.read_text() for file in found if file.is_file()}


@pytest.mark.usefixtures("remote_code")
def test_a_folder_for_transformers_brings_the_classes_along(pair, tmp_path, output_of):
    transformers = pytest.importorskip("transformers")

    def export(run: Path, format_: str, name: str) -> Path:
        words = ("--ckpt_path", run, "--format", format_, "--out", tmp_path / name)
        output_of("export", "--own_classes", *words)
        return tmp_path / name

    def load(folder: Path, **options: Any) -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, trust_remote_code=True, **options
        ).eval()

    # Names that no other test has: transformers keeps one copy of the code of all folders of one.
    built_in = export(pair[0], "hf", "with_built_in_ones")
    folder = export(pair[1], "hf", "with_own_classes")
    assert "dualpath_cli" not in (folder / "own_tests_custom_classes.py").read_text()
    tokens = torch.arange(12)[None]
    for options in ({}, {"dtype": torch.bfloat16}):
        theirs, wanted = load(folder, **options), load(built_in, **options)
        block = theirs.model.blocks[0]
        assert type(block.gate).__module__.startswith("transformers_modules.")
        assert block.gate.proj.weight.dtype == block.deep.router.weight.dtype == torch.float32
        with torch.no_grad():
            assert torch.equal(theirs(tokens).logits, wanted(tokens).logits)
    direct = export(pair[1], "consolidated", "direct.safetensors")
    back = tmp_path / "back.safetensors"
    output_of("import", "--own_classes", "--hf", folder, "--out", back)
    assert back.read_bytes() == direct.read_bytes()


# A class in a file of the user's own

GATE = """
import torch
from torch import nn

class Gate(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.proj = nn.Linear(config.d_model, 2)

    def forward(self, x_BTD):
        return self.proj(x_BTD).sigmoid().split(1, dim=-1)

    @staticmethod
    def flops(config):
        return 4 * config.d_model
"""
COMBINATION = """
import torch
from torch import nn

class Combination(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.score = nn.Linear(config.d_model, 1, bias=False)

    def forward(self, states, step_indices):
        return torch.cat([self.score(h) for h in states], dim=-1).softmax(-1).split(1, dim=-1)

    @staticmethod
    def flops(config):
        return 2 * config.d_model * config.loops
"""
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


def test_a_run_keeps_the_source_and_is_continued_with_the_same_alone(
    write, fit, refused, output_of, capsys
):
    module = write(GATE)
    model = {"gate": f"{module}.Gate"}
    capsys.readouterr()
    run = fit(model=model)
    assert capsys.readouterr().out.endswith(f"--ckpt-path {run} --own-classes\n")
    assert (run / "classes" / f"{module}.py").read_text() == GATE
    before = tables(run)
    back_to_step(run, 4)
    fit(model=model)
    assert tables(run) == before
    back_to_step(run, 4)
    change(module, GATE + "# another")
    error = refused(model=model)
    assert re.fullmatch(
        rf"dualpath fit: error: \S+ was begun with another source of {module}.Gate, kept in "
        rf"\S+/classes/{module}.py; go back to that or .*--run.name NAME\)\n", error
    )  # fmt: skip
    words = ("--ckpt_path", run, "--format", "consolidated", "--out", "run.safetensors")
    output_of("export", "--own_classes", *words)
    for ckpt in (run, "run.safetensors"):
        assert main(["validate", "--own_classes", "--ckpt_path", str(ckpt)]) == 0
        (line,) = [line for line in capsys.readouterr().err.splitlines() if module in line]
        assert line.startswith(f"{module}.Gate has changed since ")
    change(module, GATE)
    assert main(["validate", "--own_classes", "--ckpt_path", str(run)]) == 0
    assert module not in capsys.readouterr().err
    Path(f"{module}.py").unlink()
    sys.modules.pop(module)
    FOUND.clear()
    assert main(["validate", "--own_classes", "--ckpt_path", str(run)]) == 2
    assert f"No module named '{module}'; Python looks in" in capsys.readouterr().err


KINDS = "(nn.Module):\n    parameter_kinds = "
MISTAKES = {
    # The source of a class, a text in it, which is replaced by another, and what is said.
    "no forward": (GATE, "def forward", "def backward", "has no forward"),
    "no FLOPs": (GATE, "def flops", "def cost", "declares no FLOPs"),
    "half a FLOP": (GATE, "4 * c", "0.5 * c", "a whole number from 0 on"),
    "a broken __init__": (GATE, ".d_model, 2", ".d, 2", "__init__(config) fail"),
    "a buffer": (GATE, "self.proj =", "self.register_buffer('b', torch.ones(2)); self.proj =",
                 "has a buffer, b, which nothing fills"),
    "a scalar": (GATE, "self.proj =", "self.t = nn.Parameter(torch.ones(())); self.proj =",
                 "parameter t has no dimension"),
    "an unused weight": (GATE, "self.proj =", "self.t = nn.Parameter(torch.ones(1)); self.proj =",
                         "parameter t gets no gradient"),
    "one gate": (GATE, ".split(1, dim=-1)", "", "must give 2 tensors of (B, T"),
    "a look at other tokens": (GATE, "proj(x_BTD)", "proj(x_BTD + x_BTD.mean(1, keepdim=True))",
                               "must follow from its own states alone"),
    "a failing forward": (GATE, "x_BTD).s", "x_BTD[0, 0, 0, 0]).s", "forward fails"),
    "no number": (GATE, "self.proj(x_BTD)", "self.proj(x_BTD / 0)", "no finite"),
    "a kind of nothing": (GATE, "(nn.Module):", KINDS + "{'w': ('norms', 'one')}",
                          "has 'w', which none of its parameters is: proj.weight, proj.bias"),
    "no kind": (GATE, "(nn.Module):", KINDS + "{'proj.*': 'zero'}",
                "parameter_kinds['proj.*'] must be (group, start)"),
    "no kinds": (GATE, "(nn.Module):", KINDS + "3", "must be a dict of patterns of names"),
    "a sum of 2": (COMBINATION, ".softmax(-1)", ".sigmoid()", "must sum to 1"),
    "one weight": (COMBINATION, ".split(1", "[..., :1].split(1", "must give 2 tensors"),
    "another step_probability": (
        COMBINATION, "    @static",
        "    def step_probability(self, h, i): return self.score(h)\n    @static",
        "forward must weigh steps by step_probability",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_class_with_a_mistake_is_one_line(mistake, write, refused):
    source, old, new, said = MISTAKES[mistake]
    assert old in source
    role = "gate" if source == GATE else "combination"
    path = f"{write(source.replace(old, new))}.{role.capitalize()}"
    error = refused(model={role: path})
    assert said in error
    assert role in error
    assert error.count("\n") == 1


def test_what_a_folder_for_transformers_cannot_hold_is_refused(write):
    for line, named in (
        ("import numpy", "numpy"),
        ("from . import other", "."),
        ("import dualpath_cli.config", "dualpath_cli.config"),
        ("from dualpath_cli.seeds import seed_from", "dualpath_cli.seeds"),
    ):
        module = write(GATE)
        path = f"{module}.Gate"
        config = ModelConfig(d_ffn=8, d_ffn_wide=8, gate=path)
        own_files(config)
        Path(f"{module}.py").write_text(f"{GATE}\ndef late():\n    {line}\n")
        with pytest.raises(UserError, match=rf"{path} cannot go .* imports {named};"):
            own_files(config)
