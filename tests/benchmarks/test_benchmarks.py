"""The GPU programme on a CPU, tables of results, and steps beside Llamas of equal
FLOPs."""

import fnmatch
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import results
from benchmarks.gpu import correct, decoding, further, once, runs
from benchmarks.gpu.bench import Bench, Rehearsal
from benchmarks.gpu.step import TrainingStep
from benchmarks.llama import llama_width
from benchmarks.results import Rows
from benchmarks.train_step import MODELS, our_config
from benchmarks.turns import in_turns, timed
from dualpath_cli.flops.count import training_flops_per_token
from dualpath_cli.model.gates import PathGate
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.training.module import DualPathModule

# The GPU programme finds what is wrong, loses only what fails, makes up nothing


ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "benchmarks").glob("*.md"))


class Quick(Rehearsal):
    """Without generated code."""

    compiler = "eager"


CPU = Bench(torch.device("cpu"), Quick)


@pytest.mark.parametrize("kind", correct.KINDS)
def test_the_model_is_right_in_each_precision(kind):
    rows = correct.eager(CPU, kind)
    assert len(rows) == 3
    assert all(row["right"] for row in rows.values())


def test_gradients_of_a_run_are_compared_one_by_one(fit, tmp_path, monkeypatch):
    given = {"out": str(tmp_path / "off.json"), "steps": [2]}
    callback = {"class_path": "benchmarks.gpu.runs.Gradients", "init_args": given}
    changes: Any = {"trainer": {"callbacks": [callback]}, "optim": {"clip": 0.0}}
    fit(**changes)
    found = json.loads((tmp_path / "off.json").read_text())["launched"]
    assert found["off"] < 1e-4
    spoiled = "blocks.0.deep.sublayer.attn.k_proj.weight"

    def spoil(module: Any) -> None:
        if module.trainer.global_step == 1:
            module.model.get_parameter(spoiled).grad.zero_()

    monkeypatch.setattr(DualPathModule, "on_after_backward", spoil)
    fit(**changes, run={"name": "spoiled"})
    found = json.loads((tmp_path / "off.json").read_text())["launched"]
    assert (found["worst"], found["off"]) == (spoiled, 1)


def test_gradients_that_loops_cut_are_compared_with_those_of_the_same_loss(
    fit, tmp_path
):
    given = {"out": str(tmp_path / "off.json"), "steps": [2]}
    callback = {"class_path": "benchmarks.gpu.runs.Gradients", "init_args": given}
    core = {"core": [1, 1], "core_loops": 2, "injection": "linear"}
    fit(
        model={"block": "wide", "core_combination": "router", **core},
        run={"backprop_loops": 1, "loop_losses": 0.5},
        trainer={"callbacks": [callback]},
        optim={"clip": 0.0},
    )
    found = json.loads((tmp_path / "off.json").read_text())["launched"]
    assert found["off"] < 1e-4


def test_errors_of_few_numbers_are_relative_to_all_layers_or_to_a_weight():
    wanted = {
        "blocks.0.deep.gains": torch.tensor([0.0, 3.0]),
        "blocks.1.deep.gains": torch.tensor([4.0]),
        "blocks.0.wide.gain": torch.tensor([7.0]),
        "core.router.bias": torch.tensor([1.0]),
        "core.router.weight": torch.full((1, 16), 2.0),
    }
    beside = {name: runs.size_beside(name, wanted).item() for name in wanted}
    assert list(beside.values()) == [5, 5, 7, 8, 8]


def test_options_of_a_run_keep_lists_whole_and_the_last_of_equal_ones():
    changes = {"block": "wide", "core": [1, 1], "untied_steps": True}
    words = f"--run.batch_tokens 64 {runs.words_of(changes)} --run.batch_tokens 256"
    assert runs.options_of(words) == {
        "--run.batch_tokens": "256",
        "--model.block": "wide",
        "--model.core": "[1,1]",
        "--model.untied_steps": "true",
    }


def test_a_run_without_a_graph_neither_passes_nor_fails_for_want_of_room(
    texts, tmp_path, monkeypatch
):
    monkeypatch.setenv("WORK", str(tmp_path))
    shutil.copytree(texts / "train", tmp_path / "sample")
    row = further.no_room(CPU, "capture")["no room, capture"]
    assert row == {
        "exit code": 0,
        "micro-batch": "2 of 2",
        "limit, GB": "none: a CPU records no graph",
    }


def test_a_wrong_model_is_found(monkeypatch):
    learned = PathGate.forward

    def swapped(gate: PathGate, x_BTD: torch.Tensor) -> Any:
        return learned(gate, x_BTD)[:: 1 if x_BTD.dtype == torch.float64 else -1]

    monkeypatch.setattr(PathGate, "forward", swapped)
    assert not correct.check(CPU, "dual", "float32")["right"]
    monkeypatch.setattr(correct, "relative", lambda pairs: float("nan"))
    assert not correct.check(CPU, "dual", "float64")["right"]


@pytest.mark.slow  # it compiles a model and a Llama
def test_decoding_is_measured_beside_a_llama():
    rows = decoding.decode(CPU, batch=2)
    variants = [
        f"context 16, batch 2: {model}, {how}"
        for how in ("eager", "compiled")
        for model in ("dual K2", "Llama")
    ]
    assert list(rows) == variants
    assert all(row["tokens/s"] > 0 for row in rows.values())


def test_processes_run_cells_and_leave_two_files(tmp_path, monkeypatch):
    monkeypatch.setenv("WORK", str(tmp_path))
    out = tmp_path / "out"
    words = [
        str(out),
        "--rehearse",
        "--slower",
        "10",
        "--only",
        "ceilings*",
        "correct: wide",
    ]
    assert once.main(words) == 0
    assert sorted(path.name for path in out.iterdir()) == ["gpu.json", "log.txt"]
    found = json.loads((out / "gpu.json").read_text())
    assert found["measured"]["ceilings"]["measured"]["bf16 products, TFLOP/s"] > 0
    assert all(row["right"] for row in found["measured"]["correct"].values())
    assert {"git_commit", "date", "machine"} < found["conditions"].keys()


@pytest.mark.parametrize(
    "cell",
    ["fit: fit", "correct: fit wide", "same: repeats", "further: no room, capture"],
)
def test_cells_that_train_have_their_data_prepared_first(cell):
    assert once.cells_like([cell]) == ["fit: sample", cell]
    assert once.cells_like(["correct: wide"]) == ["correct: wide"]


def test_the_last_phase_with_cells_lasts_to_the_end():
    chosen = once.cells_like(["fit: fit", "decode: room *"])
    (first, _, data), (_, _, cells), (last, _, rooms) = once.phases_of(chosen)
    assert (data, cells) == (["fit: sample"], ["fit: fit"])
    assert rooms == ["decode: room 64", "decode: room 16"]
    assert (first, last) == (once.PHASES[0][0], once.PHASES[-1][0])


def test_turns_and_data_are_of_cells_that_there_are():
    assert once.SECONDS.keys() <= once.CELLS.keys()
    for pattern in once.READERS:
        assert fnmatch.filter(once.CELLS, pattern), pattern


MEASURED: dict[str, Rows] = {
    "ceilings": {"measured": {"bf16 products, TFLOP/s": 798.4, "copies, TB/s": 3.0123}},
    "step": {
        "one": {"tokens/s": 53012.3, "graphs": 2, "seconds": [0.3, 0.3]},
        "other": {"failed": "OutOfMemoryError: it does not fit"},
    },
    "fit": {},
}


def test_a_table_has_a_column_a_measurement_and_says_why_a_row_is_empty():
    lines = results.table("step", MEASURED["step"]).splitlines()
    assert lines[0] == "**step**"
    assert lines[2] == "|  | tokens/s | graphs | failed |"
    assert lines[4:] == [
        "| one | 53,012 | 2 |  |",
        "| other |  |  | OutOfMemoryError: it does not fit |",
    ]


@pytest.mark.parametrize("rehearse", [True, False])
def test_results_get_onto_the_page_and_a_rehearsal_never_does(
    rehearse, tmp_path, capsys
):
    facts = {
        "git_commit": None,
        "date": "2026-11-26T12:00",
        "cores": 16,
        "machine": "NVIDIA X",
        "threads": 2,
        "load": 0.5,
        "python": "3.12.3",
        "packages": {"torch": "2.11.0"},
    }
    given = once.argparse.Namespace(out=tmp_path, rehearse=rehearse)
    content = results.result(facts, given, MEASURED)
    (tmp_path / "gpu.json").write_text(results.as_json(content))
    page = tmp_path / "gpu.md"
    page.write_text((ROOT / "docs/benchmarks/gpu.md").read_text())
    codes = [results.main(tmp_path) for _ in range(2)]
    if rehearse:
        assert codes == [2, 2]
        assert "is of a rehearsal" in capsys.readouterr().err
    else:
        assert codes == [0, 0]
    text = page.read_text()
    assert text.count("| measured | 798 | 3.01 |") == (not rehearse)
    assert ("NVIDIA X" in text) == ("2026-11-26" in text) == (not rehearse)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_the_numbers_of_its_files(page):
    assert results.filled(page) == page.read_text(encoding="utf-8")


# A Llama that is set beside a model costs what the model costs


SHAPE = ModelConfig(
    vocab_size=100,
    n_layers=4,
    d_model=64,
    n_heads=2,
    n_kv_heads=2,
    max_seq_len=32,
    d_ffn=64,
    d_ffn_wide=64,
    ffn_multiple_of=64,
)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("layers", [4, 20])
def test_a_llama_of_equal_flops_costs_what_our_model_costs(name, layers):
    flops = training_flops_per_token(our_config(name, SHAPE, 3_000_000))
    # A block of the wide kind is a layer of Llama; its width is given before the 2/3 of
    # SwiGLU.
    wide = llama_width(SHAPE, layers, flops) * 3 // 2
    llama = replace(
        SHAPE, n_layers=layers, block="wide", d_ffn_wide=wide, ffn_multiple_of=1
    )
    assert training_flops_per_token(llama) == pytest.approx(flops, rel=0.005)


@pytest.mark.parametrize(
    "llama_layers", [None, pytest.param(2, marks=pytest.mark.slow)]
)
def test_steps_of_a_model_and_of_a_llama_change_every_parameter(llama_layers):
    bench, config = Bench(torch.device("cpu")), our_config("dual K2", SHAPE, 3_000_000)
    step = TrainingStep(bench, config, 2, compiled=False, llama_layers=llama_layers)
    if llama_layers:
        width = llama_width(config, llama_layers, training_flops_per_token(config))
        assert any(width in parameter.shape for parameter in step.model.parameters())
    before = [parameter.detach().clone() for parameter in step.model.parameters()]
    assert len(in_turns({"": timed(step)}, rounds=2, warm_up=0)[""]) == 2
    assert not any(map(torch.equal, before, step.model.parameters()))
    assert step.tokens_per_step == 2 * SHAPE.max_seq_len
