"""Custom classes in every command: copies give what the built-in ones give, bit by bit."""

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from dualpath_cli.cli import main
from dualpath_cli.config import ModelConfig
from dualpath_cli.errors import UserError
from dualpath_cli.export.hf.own_classes import own_files
from dualpath_cli.own_classes.classes import FOUND
from dualpath_cli.recipe.recipes import merge
from tests.conftest import OutputOf
from tests.study.conftest import OPEN
from tests.tiny_run import Fit, Refused, back_to_step, tables, tiny_recipe, weights

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


def files(folder: Path, suffix: str) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.rglob(f"*{suffix}"))}


def test_training_and_validation_are_the_same(pair: Pair, output_of: OutputOf) -> None:
    assert tables(pair[0]) == tables(pair[1])
    one, other = map(weights, pair)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    said = [output_of("validate", "--own_classes", "--ckpt_path", run) for run in pair]
    assert said[0].replace("default", "own") == said[1]


def test_counts_are_the_same(pair: Pair, output_of: OutputOf) -> None:
    said = [
        json.loads(output_of("flops", "--config", run / "recipe.yaml", "--format", "json"))
        for run in pair
    ]
    assert said[0] == said[1]


def test_ablations_are_the_same(pair: Pair, tmp_path: Path, output_of: OutputOf) -> None:
    for suite in ("paper", "halting", "skip"):
        tables = []
        for number, run in enumerate(pair):
            out = tmp_path / f"{suite}-{number}"
            output_of("ablate", "--own_classes", "--ckpt_path", run, "--suite", suite, "--out", out)
            tables.append(files(out, ".csv"))
        assert tables[0], suite
        assert tables[0] == tables[1], suite


def test_routing_is_the_same(pair: Pair, tmp_path: Path, output_of: OutputOf) -> None:
    tables = []
    for number, run in enumerate(pair):
        out = tmp_path / str(number)
        output_of("routing", "--own_classes", "--ckpt_path", run, "--tagger", "none", "--out", out)
        tables.append(files(out, ".csv"))
    assert tables[0]
    assert tables[0] == tables[1]


def test_texts_are_the_same(pair: Pair, output_of: OutputOf) -> None:
    for words in ([], ["--loops", 2], ["--exit-below", 0.3], ["--skip-below", 0.4]):
        said = [
            output_of(
                "generate",
                "--own_classes",
                "--ckpt_path",
                run,
                "--prompt",
                "the shell",
                "--seed",
                1,
                *words,
            )
            for run in pair
        ]
        assert len(said[0]) > len("the shell\n")
        assert said[0] == said[1]


def test_scores_are_the_same(pair: Pair, tmp_path: Path, output_of: OutputOf) -> None:
    pytest.importorskip("lm_eval", reason="needs the extra `eval`")
    data = tmp_path / "data"
    data.mkdir()
    row = {"text": "the shell hello tell"}
    (data / "lambada_test.jsonl").write_text(f"{json.dumps(row)}\n" * 3)
    samples = []
    for number, run in enumerate(pair):
        out = tmp_path / f"scores-{number}"
        given = ("--tasks", "lambada", "--data", data, "--out", out)
        output_of("evaluate", "--own_classes", "--ckpt_path", run, *given)
        samples.append([*files(out, ".jsonl").values()])
    assert samples[0]
    assert samples[0] == samples[1]


def test_exported_files_have_the_same_weights(
    pair: Pair, tmp_path: Path, output_of: OutputOf
) -> None:
    for number, run in enumerate(pair):
        words = ("--format", "consolidated", "--out", tmp_path / f"{number}.safetensors")
        output_of("export", "--own_classes", "--ckpt_path", run, *words)
    one, other = (load_file(tmp_path / f"{number}.safetensors") for number in (0, 1))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    said = output_of("validate", "--own_classes", "--ckpt_path", tmp_path / "1.safetensors")
    assert said == output_of("validate", "--own_classes", "--ckpt_path", pair[1])


@pytest.mark.usefixtures("remote_code")
def test_a_folder_for_transformers_brings_the_classes_along(
    pair: Pair, tmp_path: Path, output_of: OutputOf, remote_code: None
) -> None:
    transformers = pytest.importorskip("transformers")
    # Names of their own: transformers keeps one copy of the code of all folders of a name.
    folder = tmp_path / "with_own_classes"
    output_of("export", "--own_classes", "--ckpt_path", pair[1], "--format", "hf", "--out", folder)
    assert "dualpath_cli" not in (folder / "own_tests_custom_classes.py").read_text()
    tokens = torch.arange(12)[None]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    gate = theirs.model.blocks[0].gate
    assert type(gate).__module__.startswith("transformers_modules.")
    built_in = tmp_path / "with_built_in_ones"
    output_of(
        "export", "--own_classes", "--ckpt_path", pair[0], "--format", "hf", "--out", built_in
    )
    wanted = transformers.AutoModelForCausalLM.from_pretrained(built_in, trust_remote_code=True)
    with torch.no_grad():
        assert torch.equal(theirs.eval()(tokens).logits, wanted.eval()(tokens).logits)
        loaded = {"trust_remote_code": True, "dtype": torch.bfloat16}
        half, wanted_half = (
            transformers.AutoModelForCausalLM.from_pretrained(place, **loaded).eval()
            for place in (folder, built_in)
        )
        assert half.model.blocks[0].gate.proj.weight.dtype == torch.float32
        assert half.model.blocks[0].deep.router.weight.dtype == torch.float32
        assert torch.equal(half(tokens).logits, wanted_half(tokens).logits)
    words = ("--format", "consolidated", "--out", tmp_path / "direct.safetensors")
    output_of("export", "--own_classes", "--ckpt_path", pair[1], *words)
    output_of("import", "--own_classes", "--hf", folder, "--out", tmp_path / "back.safetensors")
    one, other = (tmp_path / f"{name}.safetensors" for name in ("direct", "back"))
    assert one.read_bytes() == other.read_bytes()


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
    write: Write, fit: Fit, refused: Refused, output_of: OutputOf, capsys: Any
) -> None:
    module = write(GATE)
    model = {"gate": f"{module}.Gate"}
    capsys.readouterr()
    run = fit(model=model)
    assert capsys.readouterr().out.endswith(f"--ckpt_path {run} --own_classes\n")
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
    output_of(
        "export",
        "--own_classes",
        "--ckpt_path",
        run,
        "--format",
        "consolidated",
        "--out",
        "run.safetensors",
    )
    for ckpt in (run, "run.safetensors"):
        assert main(["validate", "--own_classes", "--ckpt_path", str(ckpt)]) == 0
        (line,) = [line for line in capsys.readouterr().err.splitlines() if module in line]
        assert line.startswith(f"{module}.Gate has changed since ")
    change(module, GATE)
    assert main(["validate", "--own_classes", "--ckpt_path", str(run)]) == 0
    assert module not in capsys.readouterr().err
    Path(f"{module}.py").unlink()
    change_nothing = (["validate"], ["generate", "--prompt", "a"], ["export", "--format", "hf"])
    sys.modules.pop(module)
    FOUND.clear()
    for words in change_nothing:
        assert main([*words, "--own_classes", "--ckpt_path", str(run)]) == 2
        assert f"No module named '{module}'; Python looks in" in capsys.readouterr().err


def test_without_a_dual_block_or_a_loop_no_class_is_looked_for(fit: Fit) -> None:
    fit(model={"block": "wide", "gate": "not.There", "combination": "not.There"})


MISTAKES = {
    "a name that is no path": ("two_gate", None, "; did you mean 'two_gates'?"),
    "no path": ("my.1gate", None, "or the path of a class such as my.module.Gate, not 'my.1gate'"),
    "no module": ("not_there.Gate", None, "No module named 'not_there'; Python looks in"),
    "no class": ("{}.Gat", GATE, "has no Gat; did you mean 'Gate'?"),
    "a function": ("{}.Gate", "def Gate(config): pass", "is no class of torch.nn.Module"),
    "no forward": ("{}.Gate", GATE.replace("def forward", "def backward"), "has no forward"),
    "no FLOPs": ("{}.Gate", GATE.replace("def flops", "def cost"), "declares no FLOPs"),
    "half a FLOP": ("{}.Gate", GATE.replace("4 * c", "0.5 * c"), "a whole number from 0 on"),
    "a syntax error": ("{}.Gate", GATE + "if", "cannot be imported: SyntaxError"),
    "a broken __init__": ("{}.Gate", GATE.replace(".d_model, 2", ".d, 2"), "__init__(config) fail"),
    "a buffer": (
        "{}.Gate",
        GATE.replace("self.proj =", "self.register_buffer('b', torch.ones(2)); self.proj ="),
        "has a buffer, b, which nothing fills",
    ),
    "a scalar": (
        "{}.Gate",
        GATE.replace("self.proj =", "self.t = nn.Parameter(torch.ones(())); self.proj ="),
        "parameter t has no dimension",
    ),
    "an unused weight": (
        "{}.Gate",
        GATE.replace("self.proj =", "self.t = nn.Parameter(torch.ones(1)); self.proj ="),
        "parameter t gets no gradient",
    ),
    "one gate": ("{}.Gate", GATE.replace(".split(1, dim=-1)", ""), "must give 2 tensors of (B, T"),
    "a look at other tokens": (
        "{}.Gate",
        GATE.replace("self.proj(x_BTD)", "self.proj(x_BTD + x_BTD.mean(1, keepdim=True))"),
        "must follow from its own states alone",
    ),
    "a failing forward": ("{}.Gate", GATE.replace("x_BTD).s", "x_BTD[0, 0, 0, 0]).s"), "forward f"),
    "no number": ("{}.Gate", GATE.replace("self.proj(x_BTD)", "self.proj(x_BTD / 0)"), "no finite"),
    "a kind of nothing": (
        "{}.Gate",
        GATE.replace("(nn.Module):", "(nn.Module):\n    parameter_kinds = {'w': ('norms', 'one')}"),
        "parameter_kinds has 'w', which none of its parameters is: proj.weight, proj.bias",
    ),
    "no kind": (
        "{}.Gate",
        GATE.replace("(nn.Module):", "(nn.Module):\n    parameter_kinds = {'proj.*': 'zero'}"),
        "parameter_kinds['proj.*'] must be (group, start)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("path", "source", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_gate_with_a_mistake_is_one_line(
    path: str, source: str | None, said: str, write: Write, refused: Refused
) -> None:
    error = refused(model={"gate": path.format("" if source is None else write(source))})
    assert said in error
    assert "gate" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (".softmax(-1)", ".sigmoid()", "must sum to 1"),
        (".split(1, dim=-1)", "[..., :1].split(1, dim=-1)", "must give 2 tensors"),
        ("    @static", "    def step_probability(self, h, i): return self.score(h)\n    @static",
         "forward must weigh steps by step_probability"),
    ],
)  # fmt: skip
def test_a_combination_with_a_mistake_is_one_line(
    old: str, new: str, said: str, write: Write, refused: Refused
) -> None:
    error = refused(model={"combination": f"{write(COMBINATION.replace(old, new))}.Combination"})
    assert said in error
    assert error.count("\n") == 1


def test_flops_counts_a_class_in_the_current_directory(
    write: Write, texts: Path, tmp_path: Path, output_of: OutputOf
) -> None:
    """By the command itself, which does not look there by default."""
    module = write(GATE.replace("4 * config", "40 * config"))
    recipe = merge(tiny_recipe(texts, tmp_path), {"model": {"gate": f"{module}.Gate"}})
    Path("recipe.yaml").write_text(yaml.safe_dump(recipe))
    command = [Path(sys.executable).with_name("dualpath"), "flops", "--config", "recipe.yaml"]
    done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True)
    layer = json.loads(done.stdout)["flops_per_token_per_layer"]
    assert layer["gate"] == 40 * 16
    assert layer["linear_total"] == layer["deep"] + layer["wide"] + 40 * 16


def test_what_a_folder_for_transformers_cannot_hold_is_refused(
    write: Write,
) -> None:
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
