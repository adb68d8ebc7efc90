"""The GPU programme runs on a CPU, finds what is wrong, and never makes up a number."""

import dataclasses
import json
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from benchmarks import turns
from benchmarks.gpu import __main__ as programme
from benchmarks.gpu import attention, correct, memory
from benchmarks.gpu.__main__ import PAGE, PARTS, main
from benchmarks.gpu.parts import Bench, Part, number
from benchmarks.gpu.results import ROOT, Results
from benchmarks.gpu.sizes import MAIN, REHEARSAL, Sizes
from dualpath_cli.errors import UserError
from dualpath_cli.model.gates import PathGate

QUICK = dataclasses.replace(REHEARSAL, compiler="eager")
CPU = Bench(torch.device("cpu"), QUICK)
on_a_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def rehearse(folder: Path, *words: str) -> dict[str, dict[str, Any]]:
    """Rows by part and name of a rehearsal that has to succeed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programme, "REHEARSAL", QUICK)
        assert main([*words, "--rehearse", "--out", str(folder)]) == 0
    files = [json.loads(path.read_text()) for path in folder.glob("gpu-*.json")]
    return {
        file["part"]: {name: row for cell in file["cells"].values() for name, row in cell.items()}
        for file in files
    }


def test_a_rehearsal_finds_the_model_right_and_fills_the_tables(tmp_path: Path) -> None:
    for cells in ("float64*", "bf16, dual", "ceilings", "*micro-batch 1"):
        rows = rehearse(tmp_path, "correct", "ceilings", "step", "--cells", cells)
    assert len(rows["correct"]) == 5
    assert all(row["ok"] for row in rows["correct"].values())
    assert rows["ceilings"]["measured"]["copy_bytes"] > 0
    step = rows["step"][f"{MAIN}, micro-batch 1"]
    assert step["graphs"] == 2, "one of both layers, one of the loss"


@pytest.mark.slow  # it compiles some thirty steps
def test_every_part_can_be_rehearsed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rehearse(tmp_path, "all", "--minutes", "60")
    assert rows.keys() == PARTS.keys()
    assert "Not run" not in capsys.readouterr().out
    assert "No viable backend" in rows["attention"]["cudnn"]["absent"]


def test_a_wrong_model_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert correct.equations(CPU, "dual")["ok"]
    learned = PathGate.forward
    monkeypatch.setattr(PathGate, "forward", lambda gate, x_BTD: learned(gate, x_BTD)[::-1])
    assert not correct.equations(CPU, "dual")["ok"]
    assert not correct.verdict(0.0, float("nan"), correct.FLOAT32)["ok"]


@pytest.mark.parametrize("name", ["flash", "FlexAttention", attention.DOCUMENTS])
def test_an_attention_is_that_of_its_equation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "compiled_flex", lambda: flex_attention)
    monkeypatch.setattr(attention, "DOCUMENT_TOKENS", 20)
    shape = attention.Shape(batch=1, length=128, heads=2, head_size=16)
    q, k, v, _ = (x.detach().float() for x in attention.inputs(shape, CPU.device))
    got = attention.implementation(name, shape, CPU.device)(q, k, v)
    expected = attention.plain(q, k, v, documents=name == attention.DOCUMENTS)
    other = attention.plain(q, k, v, documents=name != attention.DOCUMENTS)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert (got - other).abs().max() > 0.1


def test_a_kernel_that_is_not_there_is_absent() -> None:
    assert attention.row(CPU, "cudnn")["absent"]


class TestOnCuda:
    """What only a GPU runs, with its calls replaced."""

    def test_calls_are_timed_between_events(self, monkeypatch: pytest.MonkeyPatch) -> None:
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

    def test_a_step_that_does_not_fit_is_measured_without_the_limit(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fractions = []
        whole = type("Properties", (), {"total_memory": 160e9})
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: whole)
        monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", fractions.append)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)

        def peak_bytes(*arguments: object) -> float:
            if fractions[-1] < 1:
                raise torch.OutOfMemoryError
            return 90e9

        monkeypatch.setattr(memory, "peak_bytes", peak_bytes)
        row = memory.fit(Bench(torch.device("cuda"), Sizes()), MAIN, "full")[MAIN]
        assert fractions == [0.5, 1.0]
        assert memory.shown("full", row) == "90.0, does not fit"


def test_a_call_goes_on_where_the_last_one_failed_or_ran_out_of_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now, ran = [0.0], []

    def bad() -> dict[str, Any]:
        ran.append("bad")
        if ran.count("bad") == 1:
            now[0] += 40
            raise ValueError("out of luck")
        return {"bad": {}}

    def cell(name: str) -> dict[str, Any]:
        ran.append(name)
        return {name: {}}

    cells = {"good": partial(cell, "good"), "bad": bad, "late": partial(cell, "late")}
    monkeypatch.setitem(PARTS, "part", Part("part", "", [number("x", "x")], lambda bench: cells))
    monkeypatch.setattr(programme, "time", SimpleNamespace(monotonic=lambda: now[0]))
    words = ["part", "--rehearse", "--out", str(tmp_path), "--minutes", "1"]
    assert main(words) == 1
    said = capsys.readouterr().out
    assert "no time for 'late'" in said
    assert "failed: ValueError: out of luck" in said
    assert "Not run: late." in said
    assert main(words) == 0
    assert ran == ["good", "bad", "bad", "late"]


def test_results_of_another_machine_are_not_taken_up(tmp_path: Path) -> None:
    Results(tmp_path, "step", {"torch": "2.11"}).add("a", {"a": {"seconds": 1.0}})
    with pytest.raises(UserError, match=r"was measured with torch 2.11, and now it is 2.15"):
        Results(tmp_path, "step", {"torch": "2.15"})


@pytest.mark.parametrize("rehearsal", [True, False])
def test_measurements_get_onto_the_page_and_a_rehearsal_never_does(
    rehearsal: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = {"rehearsal": rehearsal, "device": "NVIDIA X", "torch": "2.11", "source": "0123"}
    measured = {"matmul_flops": 7.91e14, "copy_bytes": 4.321e12}
    Results(tmp_path, "ceilings", machine).add("ceilings", {"measured": measured})
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    for _ in range(2):
        code = main(["tables", "--out", str(tmp_path), "--page", str(page)])
    text = page.read_text()
    if rehearsal:
        assert code == 2
        assert "is of a rehearsal" in capsys.readouterr().err
        assert text == PAGE.read_text()
    else:
        assert code == 0
        assert text.count("| measured | 791 | 4.32 |") == 1
        assert "NVIDIA X" in text
        assert "\nNot run: correct, step, memory, attention, decode" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stpe", "--rehearse"], "no part 'stpe'; did you mean 'step'?"),
        (["step"], "--rehearse runs everything tiny on the CPU"),
    ],
)
@on_a_cpu
def test_a_mistake_is_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "OUT, the folder of the results, is missing"),
        (["out", "--steps", "7"], "--steps must be a multiple of 4, not '7'"),
        (["out", "--data"], "--data has no value"),
        (["out", "--fast"], "unknown word '--fast'"),
    ],
)
def test_a_mistake_of_the_script_is_one_line(words: list[str], said: str, tmp_path: Path) -> None:
    script = ["bash", str(ROOT / "benchmarks/gpu_fit.sh"), *words]
    done = subprocess.run(script, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
