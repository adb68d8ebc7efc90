"""Custom classes as built-in ones, in the model and in every command: copies give their
numbers."""

import dataclasses
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath_cli.base.errors import UserError
from dualpath_cli.cli.main import main
from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.export.hf.code import own_files
from dualpath_cli.flops import count
from dualpath_cli.model import DualPathLM, RoutingTrace
from dualpath_cli.recipe.recipes import merge
from dualpath_cli.recipe.settings import OptimSettings
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.spec.own_checks import hashes, import_classes
from dualpath_cli.spec.own_classes import FOUND
from dualpath_cli.training.optim import build_optimizer
from tests.export.conftest import export, load
from tests.model.reference import difference
from tests.model.small_models import ALL_KINDS, EXACT, TOKENS, small
from tests.spec import custom_classes
from tests.study.conftest import OPEN
from tests.training.tiny_run import LONG, Fit, back_to_step, tables, weights

HERE = "tests.spec.custom_classes"
OWN: dict[str, Any] = {"gate": f"{HERE}.TwoGates", "combination": f"{HERE}.Router"}

Pair = tuple[Path, Path]


@pytest.fixture
def pair(trained: Fit) -> Pair:
    """The same run with the built-in gate and router, and with copies of them."""
    changes = merge(OPEN, LONG)
    return trained(**changes), trained(
        **merge(changes, {"model": OWN, "run": {"name": "own"}})
    )


@pytest.mark.parametrize(
    "line", ["validate", "generate --seed 1 --intervention halting=0.3"]
)
def test_commands_answer_the_same(line, pair, output_of):
    command, *words = line.split()
    one, other = (
        output_of(command, "--own_classes", "--ckpt_path", r, *words) for r in pair
    )
    assert one
    assert one == other.replace("own", "default")


@pytest.mark.usefixtures("remote_code")
def test_a_folder_for_transformers_brings_the_classes_along(pair, tmp_path):
    # Names that no other test has: transformers keeps one copy of the code of all
    # folders of one.
    built_in = export(pair[0], tmp_path / "with_built_in_ones")
    folder = export(pair[1], tmp_path / "with_own_classes", "--own_classes")
    assert (
        "dualpath_cli" not in (folder / "own_tests_spec_custom_classes.py").read_text()
    )
    tokens = torch.arange(12)[None]
    for options in ({}, {"dtype": torch.bfloat16}):
        theirs, wanted = load(folder, **options), load(built_in, **options)
        block = theirs.model.blocks[0]
        assert type(block.gate).__module__.startswith("transformers_modules.")
        assert (
            block.gate.proj.weight.dtype
            == block.deep.router.weight.dtype
            == torch.float32
        )
        with torch.no_grad():
            assert torch.equal(theirs(tokens).logits, wanted(tokens).logits)


# A class in a file of the user's own

SOURCE = Path(custom_classes.__file__).read_text()
Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """`write(source)` puts a module into the current directory; returns the module's
    name."""
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
        forget(name)


def forget(module: str) -> None:
    """Imports the module anew when a class of it is named next."""
    sys.modules.pop(module, None)
    for path in [path for path in FOUND if path.startswith(f"{module}.")]:
        del FOUND[path]
    importlib.invalidate_caches()


def change(module: str, source: str) -> None:
    """Another source of a module, as a command that is started anew would read it."""
    Path(f"{module}.py").write_text(source)
    forget(module)


def test_a_run_keeps_the_source_and_is_continued_with_the_same_alone(
    write, fit, refused, capsys
):
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
        r"dualpath fit: error: \S+ was begun with another source of "
        rf"{module}.TwoGates, "
        r"kept in "
        rf"\S+/classes/{module}.py; restore this source or .*--run.name NAME\)\n",
        error,
    )
    assert main(["validate", "--own_classes", "--ckpt_path", str(run)]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if module in line]
    assert line.startswith(f"{module}.TwoGates has changed since ")
    change(module, SOURCE)
    assert main(["validate", "--own_classes", "--ckpt_path", str(run)]) == 0
    assert module not in capsys.readouterr().err
    Path(f"{module}.py").unlink()
    forget(module)
    assert main(["validate", "--own_classes", "--ckpt_path", str(run)]) == 2
    assert f"No module named '{module}'; Python looks in" in capsys.readouterr().err


def test_another_source_is_used_by_a_process_only_when_it_is_imported_anew(write, fit):
    module = write(SOURCE)
    config = small(gate=f"{module}.TwoGates")
    import_classes(config, allowed=True)
    before = hashes(config)
    model = DualPathLM(config, seed=0)

    Path(f"{module}.py").write_text(SOURCE.replace(".sigmoid()", ".tanh()"))
    assert hashes(config) == before
    with pytest.raises(UserError, match="has changed since this process first used it"):
        import_classes(config, allowed=True)

    importlib.reload(sys.modules[module])
    import_classes(config, allowed=True)
    assert hashes(config) != before
    again = DualPathLM(config, seed=0)
    assert not torch.equal(model(TOKENS), again(TOKENS))


PROJ = "self.proj = nn"
KIND = '("matrices", "zero")}'
MISTAKES = {
    # A text in the source of the classes, which is replaced by another, and what is
    # said.
    "no forward": (
        "def forward",
        "def backward",
        "forward on a few tokens fails: NotImpl",
    ),
    "a buffer": (
        PROJ,
        f"self.register_buffer('b', torch.ones(2)); {PROJ}",
        "compute a buffer",
    ),
    "a scalar": (
        PROJ,
        f"self.t = nn.Parameter(torch.ones(())); {PROJ}",
        "t must be a parameter",
    ),
    "an unused weight": (
        PROJ,
        f"self.t = nn.Parameter(torch.ones(1)); {PROJ}",
        "t gets no grad",
    ),
    "a look at other tokens": (
        "j(x_BTD)",
        "j(x_BTD + x_BTD.mean(1, True))",
        "on its own",
    ),
    "no number": ("self.proj(x_BTD)", "self.proj(x_BTD / 0)", "no finite"),
    "a kind of nothing": (
        '"proj.weight":',
        '"w":',
        "has 'w', which matches no parameter",
    ),
    "no kind": (KIND, '"zero"}', "parameter_kinds['proj.weight'] must be one of"),
    "a sum of 2": ("weights, left_BT1]", "weights, left_BT1 + 1]", "must sum to 1"),
    "one weight": ("[*weights, left_BT1]", "weights", "must give 2 tensors"),
    "another probability": (
        "1 = self.step",
        "1 = 0.5 * self.step",
        "weigh steps by step_prob",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_class_with_a_mistake_is_one_line(mistake, write, refused):
    old, new, said = MISTAKES[mistake]
    assert old in SOURCE
    module = write(SOURCE.replace(old, new))
    error = refused(
        model={"gate": f"{module}.TwoGates", "combination": f"{module}.Router"}
    )
    assert said in error
    assert f"model.{'combination' if 'Router' in error else 'gate'} '{module}." in error


def test_what_a_folder_for_transformers_cannot_hold_is_refused(write):
    for line, named in (
        ("import numpy", "numpy"),
        ("from . import other", "."),
        ("import dualpath_cli.spec.config", "dualpath_cli.spec.config"),
        (
            "from dualpath_cli.base.seeds import seed_from",
            "dualpath_cli.base.seeds",
        ),
    ):
        module = write(f"{SOURCE}\ndef late():\n    {line}\n")
        path = f"{module}.TwoGates"
        config = ModelConfig(d_ffn=8, d_ffn_wide=8, gate=path)
        import_classes(config, allowed=True)
        with pytest.raises(UserError, match=rf"{path} cannot go .* imports {named};"):
            own_files(config)


# In the model


MASSLESS = {"combination": f"{HERE}.WithoutMass"}


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    for gate in (OWN["gate"], f"{HERE}.MlpGate"):
        for combination in (OWN["combination"], MASSLESS["combination"]):
            import_classes(small(gate=gate, combination=combination), allowed=True)


@given(
    gates=st.sampled_from(["two_gates", OWN["gate"]]),
    combination=st.sampled_from([OWN["combination"], MASSLESS["combination"]]),
    loops=st.integers(2, 4),
    step_index=st.sampled_from(["zero_based", "one_based"]),
    change=st.sampled_from(
        [
            {},
            {"loops": 1},
            {"loops": 2},
            {"loops": 5},
            {"gates": (0.25, 0.75)},
            {"gates": "shuffled"},
            {"skip": 0.5},
            {"kv_slots": 1},
        ]
    ),
)
@settings(max_examples=40)
def test_copies_do_what_the_built_in_ones_do_under_any_intervention(
    gates, combination, loops, step_index, change
):
    intervention = Intervention(**change)
    config = small(loops=loops, step_index=step_index, gain_init=0.0, init_std=0.3)
    own = dataclasses.replace(config, gate=gates, combination=combination)
    outputs, traces = [], []
    for one in (config, own):
        model, trace = DualPathLM(one, seed=1).double(), RoutingTrace()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".gate." in name:
                    parameter += torch.linspace(-1, 1, parameter.numel()).view_as(
                        parameter
                    )
            outputs.append(
                forward(model, TOKENS, trace=trace, intervention=intervention)
            )
        traces.append(trace)
    assert difference(*outputs) <= EXACT
    for one, other in zip(*(trace.layers for trace in traces), strict=True):
        assert difference(one.step_weights, other.step_weights) <= EXACT
        assert difference(one.expected_loops, other.expected_loops) <= EXACT
        assert torch.equal(one.steps_taken, other.steps_taken)


def test_halting_by_mass_needs_a_class_that_leaves_some():
    by_mass = Intervention(halting=0.1)
    assert by_mass.problem(small(**OWN)) is None
    problem = by_mass.problem(small(**MASSLESS))
    assert problem is not None
    assert "tests.spec.custom_classes.WithoutMass has no step_probability" in problem
    assert Intervention(loops=2).problem(small(loops=1, **MASSLESS)) is not None


def test_flops_are_what_the_class_declares():
    config = small(
        gate=f"{HERE}.MlpGate", combination=MASSLESS["combination"], **ALL_KINDS
    )
    dual, built_in = (
        count.layer_flops(config.layers[0]) for config in (config, small(**ALL_KINDS))
    )
    assert dual.gate == 2 * 5 * (16 + 2)
    assert dual.linear_total - built_in.linear_total == dual.gate - 4 * 16
    assert dual.router == 2 * 17 * 3
    assert dual.total == dual.linear_total + dual.router + dual.attention_scores
    assert (
        count.layer_flops(dataclasses.replace(config, block="loop").layers[0]).gate == 0
    )


def test_parameters_follow_the_class_and_its_defaults():
    config = small(gate=f"{HERE}.MlpGate", init_std=0.5)
    model = DualPathLM(config, seed=0)
    gate = model.blocks[1].gate
    assert (gate.norm.weight == 1).all()
    assert 0.3 < gate.hidden.weight.std() < 0.7
    assert (gate.hidden.bias == 0).all()
    optimizer = build_optimizer(model.named_parameters(), OptimSettings(), 9, config)
    grouped = {
        id(p): group["name"]
        for group in optimizer.param_groups
        for p in group["params"]
    }
    assert {
        name: grouped[id(parameter)] for name, parameter in gate.named_parameters()
    } == {
        "norm.weight": "norms",
        "hidden.weight": "gate",
        "hidden.bias": "biases",
        "out.weight": "gate",
        "out.bias": "biases",
    }
    declared = DualPathLM(small(gate=OWN["gate"]), seed=0).blocks[0].gate
    assert (declared.proj.weight == 0).all()


def test_under_autocast_classes_work_in_the_type_of_their_weights():
    """As the built-in ones do, whatever operations a class is made of."""
    config = small(gain_init=0.0, init_std=0.3, residual_dtype="bfloat16")
    seen = []
    for one in (config, dataclasses.replace(config, **OWN)):
        model, trace = DualPathLM(one, seed=1), RoutingTrace()
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            logits = model(TOKENS, trace=trace)
        assert trace.layers[0].gate_deep.dtype == torch.float32
        assert trace.layers[0].step_weights.dtype == torch.float32
        seen.append(logits)
    assert torch.equal(*seen)


# docs/custom.md: the file that its code makes is trained with, used and exported


PAGE = Path(__file__).parents[2] / "docs" / "custom.md"
OF_PAGE = {"gate": "my_gates.TemperedGate", "combination": "my_gates.SoftmaxOverSteps"}


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    blocks = re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert len(blocks) == 3  # the last has a callback, a logger and a profiler
    (tmp_path / "my_gates.py").write_text("\n\n".join(blocks[:2]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    importlib.invalidate_caches()
    yield
    forget("my_gates")


@pytest.mark.usefixtures("page")
def test_a_model_is_trained_with_it_and_both_classes_learn(fit, output_of, said):
    run = fit(model=OF_PAGE, optim={"lr": 0.05})
    losses = [float(row["loss"]) for row in tables(run)["metrics.csv"]]
    assert losses[-1] < losses[0]
    learned = weights(run)
    for layer in (0, 1):
        for name in ("gate.proj.weight", "gate.log_temperature", "deep.router.slope"):
            assert learned[f"model.blocks.{layer}.{name}"].abs().max() > 0
    error = json.loads(
        output_of("flops", "--config", run / "recipe.yaml", "--format", "json")
    )
    assert error["params"] == sum(value.numel() for value in learned.values())
    assert error["flops_per_token_per_layer"]["gate"] == 4 * 16
    assert error["flops_per_token_per_layer"]["router"] == 2 * 16 * 2
    for words in (["--loops", 3], ["--intervention", "skip=0.4"]):
        assert output_of(
            "generate", "--own_classes", "--ckpt_path", run, "--prompt", "a", *words
        )
    by_mass = ["--prompt", "hello", "--intervention", "halting=0.5"]
    error = said("generate", "--own_classes", "--ckpt_path", run, *by_mass)
    assert "SoftmaxOverSteps has no step_probability" in error


@pytest.mark.usefixtures("page")
def test_a_folder_for_transformers_can_hold_it():
    config = ModelConfig(d_ffn=8, d_ffn_wide=8, **OF_PAGE)
    import_classes(config, allowed=True)
    (text,) = own_files(config).values()
    assert "from .configuration_dualpath import ModelConfig" in text
