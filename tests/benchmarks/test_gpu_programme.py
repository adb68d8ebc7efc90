"""The GPU programme runs on a CPU, finds what is wrong, loses only what fails, makes up nothing."""

import json
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any, cast

import pytest
import torch

from benchmarks import results, turns
from benchmarks.gpu import correct, kernels, once
from benchmarks.gpu.bench import MAIN, Bench, Rehearsal
from benchmarks.results import Rows
from dualpath_cli.model.gates import PathGate
from dualpath_cli.training.module import DualPathModule

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "benchmarks").glob("*.md"))


class Quick(Rehearsal):
    """Without generated code."""

    compiler = "eager"


CPU = Bench(torch.device("cpu"), Quick)


@pytest.mark.parametrize("name", [f"step: {MAIN}", "ceilings: measured", "attention: as chosen"])
def test_a_cell_measures_in_its_turn_alone(name):
    """And all that is compiled, one graph of both layers and one of the loss, is so before."""
    timed: list[str] = []
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with pytest.MonkeyPatch.context() as patch:
        for module in (once.step, kernels):
            for clock in {"seconds_of", "kernel_seconds"} & set(dir(module)):
                take = getattr(module, clock)
                patch.setattr(
                    module, clock, lambda *a, take=take, **k: timed.append("timed") or take(*a, **k)
                )
        bench = Bench(CPU.device, CPU.sizes, lambda: timed.append("alone"))
        (row,) = once.CELLS[name](bench).values()
    assert timed[0] == "alone"
    assert "timed" in timed
    assert row.get("graphs", 2) == 2
    assert all(value >= 0 for key, value in row.items() if isinstance(value, float))


@pytest.mark.parametrize("kind", correct.KINDS)
def test_the_model_is_right_in_each_precision(kind):
    rows = correct.eager(CPU, kind)
    assert len(rows) == 3
    assert all(row["right"] for row in rows.values())


def test_gradients_of_a_run_are_compared_one_by_one(fit, tmp_path, monkeypatch):
    given = {"out": str(tmp_path / "off.json"), "steps": [2]}
    callback = {"class_path": "benchmarks.gpu.watch.Gradients", "init_args": given}
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


def test_a_wrong_model_is_found(monkeypatch):
    learned = PathGate.forward

    def swapped(gate: PathGate, x_BTD: torch.Tensor) -> Any:
        return learned(gate, x_BTD)[:: 1 if x_BTD.dtype == torch.float64 else -1]

    monkeypatch.setattr(PathGate, "forward", swapped)
    assert not correct.check(CPU, "dual", "float32")["right"]
    monkeypatch.setattr(correct, "relative", lambda pairs: float("nan"))
    assert not correct.check(CPU, "dual", "float64")["right"]


def test_a_wrong_kernel_is_found():
    ids_BT = torch.arange(128)[None] // 50
    shape, right = (1, 128, 2, 16), kernels.document_mask(ids_BT)
    assert kernels.worst_error(shape, right, right, CPU.device) < 0.02
    assert kernels.worst_error(shape, None, right, CPU.device) > 0.1


@pytest.mark.slow  # it compiles a model and a Llama
def test_decoding_is_measured_beside_a_llama():
    rows = kernels.decode(CPU, batch=2)
    assert len(rows) == 6
    assert all(row["tokens/s"] > 0 for row in rows.values())


def test_on_cuda_calls_are_timed_between_events(monkeypatch):
    now = [0.0]

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = now[0]

        def elapsed_time(self, later: "Event") -> float:
            return later.at - self.at

    def call() -> None:
        now[0] += 5.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: call())
    device = torch.device("cuda")
    assert turns.seconds_of(call, device, 3, warm_up=2) == [0.005] * 3
    assert turns.kernel_seconds([call, call], device, 3) == 0.005


class Stub:
    """A worker without a process: ready at a look, measured by a turn, or neither."""

    def __init__(self, name: str, events: list[str], ready_at: int, says: Rows | None) -> None:
        self.name, self.events, self.looks, self.says = name, events, ready_at, says
        self.ready, self.rows = False, cast(Rows | None, None)

    def look(self) -> None:
        self.looks -= 1
        self.ready = self.looks < 0

    def turn(self, seconds: float) -> None:
        self.events.append(f"{self.name} measured")
        self.ready, self.rows = False, self.says

    def signal(self, number: int) -> None:
        self.events.append(f"{self.name} {'paused' if number == SIGSTOP else 'on'}")
        assert number in (SIGSTOP, SIGCONT)

    def end(self) -> None:
        self.events.append(f"{self.name} ended")


def run_phase(monkeypatch: pytest.MonkeyPatch, *stubs: Stub) -> dict[str, Rows | None]:
    """Rows by name of a phase of ten seconds, of which a look at all takes one."""
    now = [0.0]
    monkeypatch.setattr(once.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(once.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + 1))
    done: dict[str, Rows | None] = {}
    add: Callable[[Any], None] = lambda worker: done.update({worker.name: worker.rows})  # noqa: E731
    once.run_phase(cast(Any, stubs), 10, 5, add)
    return done


def test_the_first_that_is_ready_is_measured_while_others_are_paused(monkeypatch):
    events: list[str] = []
    row: Rows = {"": {"seconds": 1.0}}
    first, second = Stub("first", events, 2, row), Stub("second", events, 0, row)
    late = Stub("late", events, 99, row)
    done = run_phase(monkeypatch, first, second, late)
    assert events == [
        "first paused", "late paused", "second measured", "first on", "late on", "second ended",
        "late paused", "first measured", "late on", "first ended", "late ended",
    ]  # fmt: skip
    assert list(done) == ["second", "first", "late"]
    assert done["first"] == done["second"] == row
    assert done["late"] == {"": {"failed": "TimeoutError: its phase has ended"}}


@pytest.mark.parametrize("ready", [False, True])
def test_a_process_that_dies_loses_itself_alone(ready):
    worker = once.Worker.__new__(once.Worker)
    worker.ready, worker.rows = ready, None
    worker._pipe, theirs = Pipe()
    theirs.close()
    if ready:
        worker.turn(5)
    else:
        worker.look()
    assert worker.rows == {"": {"failed": "RuntimeError: the process has ended"}}
    assert not worker.ready


def test_processes_run_cells_and_leave_two_files(tmp_path, monkeypatch):
    monkeypatch.setenv("WORK", str(tmp_path))
    out = tmp_path / "out"
    words = [str(out), "--rehearse", "--slower", "10", "--only", "ceilings*", "correct: wide"]
    assert once.main(words) == 0
    assert sorted(path.name for path in out.iterdir()) == ["gpu.json", "log.txt"]
    found = json.loads((out / "gpu.json").read_text())
    assert found["measured"]["ceilings"]["measured"]["bf16 products, TFLOP/s"] > 0
    assert all(row["right"] for row in found["measured"]["correct"].values())
    assert {"git_commit", "source", "date", "machine"} < found["conditions"].keys()


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
def test_results_get_onto_the_page_and_a_rehearsal_never_does(rehearse, tmp_path, capsys):
    facts = {
        "git_commit": None, "source": results.source(), "date": "2026-11-26T12:00", "cores": 16,
        "machine": "NVIDIA X", "threads": 2, "load": 0.5, "python": "3.12.3",
        "packages": {"torch": "2.11.0"},
    }  # fmt: skip
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
