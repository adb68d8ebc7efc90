"""The GPU programme runs on a CPU, finds what is wrong, and never makes up a number."""

import dataclasses
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from benchmarks.gpu import __main__ as programme
from benchmarks.gpu import attention, clock, correct, memory
from benchmarks.gpu.__main__ import PAGE, PARTS, Deadline, attempt, main
from benchmarks.gpu.parts import Bench, Cell
from benchmarks.gpu.results import ROOT, Results
from benchmarks.gpu.sizes import MAIN, REHEARSAL, Sizes
from benchmarks.gpu.tables import table_of
from benchmarks.gpu.training import TrainingStep, Variant, build_optimizer
from dualpath_cli.errors import UserError
from dualpath_cli.model.gates import PathGate
from dualpath_cli.output.table import markdown
from dualpath_cli.recipe.settings import OptimSettings
from dualpath_cli.training import optim

QUICK = dataclasses.replace(REHEARSAL, compiler="eager")
CPU = Bench(torch.device("cpu"), QUICK)
EAGER = Variant(1, compile=False)


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
    for cells in ("float64*", "bf16, [dlw]???", "ceilings", "*micro-batch 1"):
        rows = rehearse(tmp_path, "correct", "ceilings", "step", "--cells", cells)
    assert len(rows["correct"]) == 6
    assert all(row["ok"] for row in rows["correct"].values())
    assert rows["ceilings"]["measured"]["copy_bytes"] > 0
    step = rows["step"][f"{MAIN}, micro-batch 1"]
    assert step["graphs"] == 2, "one of both layers, one of the loss"


@pytest.mark.slow  # it compiles some thirty steps
def test_every_part_can_be_rehearsed(tmp_path: Path) -> None:
    rows = rehearse(tmp_path, "all", "--minutes", "60")
    for part in PARTS.values():
        expected = {name for cell in part.cells(CPU) for name in cell.rows}
        assert rows[part.name].keys() == expected
    assert "No viable backend" in rows["attention"]["cudnn"]["absent"]


def test_a_wrong_model_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert correct.equations(CPU, "dual")["ok"]
    learned = PathGate.forward
    monkeypatch.setattr(PathGate, "forward", lambda gate, x_BTD: learned(gate, x_BTD)[::-1])
    assert not correct.equations(CPU, "dual")["ok"]


def test_what_is_no_number_is_wrong() -> None:
    assert correct.verdict(0.0, 0.0, correct.FLOAT32)["ok"]
    assert not correct.verdict(0.0, float("nan"), correct.FLOAT32)["ok"]


def test_the_optimizer_decays_what_the_recipes_decay() -> None:
    model = TrainingStep(CPU, CPU.sizes.model(MAIN), EAGER).model
    ours = build_optimizer(model)
    theirs = optim.build_optimizer(model.named_parameters(), OptimSettings(), total_steps=9)
    assert decays(ours) == decays(theirs)
    assert ours.defaults["betas"] == theirs.defaults["betas"]


def decays(optimizer: torch.optim.Optimizer) -> dict[int, float]:
    return {
        id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]
    }


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
        assert clock.seconds_of(call, device, 3, warm_up=2) == [0.005] * 3
        assert clock.kernel_seconds([call, call], device, 3) == 0.005

    def test_what_does_not_fit_is_measured_without_the_limit(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fractions = []
        whole = type("Properties", (), {"total_memory": 160e9})
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: whole)
        monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", fractions.append)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)

        def make_steps(*arguments: object) -> dict[str, float]:
            if fractions[-1] < 1:
                raise torch.OutOfMemoryError
            return {"allocated": 90e9, "reserved": 95e9}

        monkeypatch.setattr(memory, "make_steps", make_steps)
        bench = Bench(torch.device("cuda"), Sizes())
        row = memory.fit(bench, MAIN, "full")[MAIN]
        assert fractions == [0.5, 1.0]
        assert memory.shown("full", row) == "90.0, does not fit"


class TestResults:
    def test_cells_that_were_measured_are_not_run_again(self, tmp_path: Path) -> None:
        first = Results(tmp_path, "step", {"torch": "2.11"})
        first.add("good", {"a": {"seconds": 1.0}})
        first.add("bad", {"b": {"failed": "out of luck"}})
        second = Results(tmp_path, "step", {"torch": "2.11"})
        assert second.has("good")
        assert not second.has("bad")
        assert not second.has("new")

    def test_those_of_another_machine_are_not_taken_up(self, tmp_path: Path) -> None:
        Results(tmp_path, "step", {"torch": "2.11"}).add("a", {"a": {"seconds": 1.0}})
        with pytest.raises(UserError, match=r"was measured with torch 2.11, and now it is 2.15"):
            Results(tmp_path, "step", {"torch": "2.15"})

    def test_a_rehearsal_never_gets_onto_the_page(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        Results(tmp_path, "ceilings", {"rehearsal": True}).add("ceilings", {"measured": {}})
        page = tmp_path / "page.md"
        page.write_text(PAGE.read_text())
        assert main(["tables", "--out", str(tmp_path), "--page", str(page)]) == 2
        assert "is of a rehearsal" in capsys.readouterr().err
        assert page.read_text() == PAGE.read_text()

    def test_measurements_get_onto_the_page(self, tmp_path: Path) -> None:
        machine = {"rehearsal": False, "device": "NVIDIA X", "torch": "2.11", "source": "0123"}
        measured = {"matmul_flops": 7.91e14, "copy_bytes": 4.321e12}
        Results(tmp_path, "ceilings", machine).add("ceilings", {"measured": measured})
        page = tmp_path / "page.md"
        page.write_text(PAGE.read_text())
        for _ in range(2):
            assert main(["tables", "--out", str(tmp_path), "--page", str(page)]) == 0
        text = page.read_text()
        assert text.count("| measured | 791 | 4.32 |") == 1
        assert "NVIDIA X" in text
        assert "\nNot run: correct, step, memory, attention, decode" in text

    def test_rows_that_were_not_measured_are_named_below_the_table(self) -> None:
        rows = {"f80m_wide": {"failed": "out of luck"}}
        text = markdown(table_of(PARTS["step"], Bench(torch.device("cpu"), Sizes()), rows))
        assert "| f80m\\_wide | failed: out of luck |" in text
        assert text.endswith("f160m\\_a25\\_k4, f80m\\_loop\\_k4, f80m\\_a50\\_k2.\n")


def test_the_page_has_a_place_and_a_description_for_every_part() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in PARTS:
        assert f"\n| `{name}` | " in page
        assert f"<!-- gpu {name} -->\n" in page


def test_a_cell_that_would_end_too_late_is_not_begun() -> None:
    deadline = Deadline(100)
    assert deadline.allows_one_more()
    deadline.longest = 101
    assert not deadline.allows_one_more()


def test_a_cell_that_fails_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    rows = attempt(Cell("a", ("a", "b"), lambda: {"a": 1 / 0}), Deadline(1))
    assert rows == {name: {"failed": "ZeroDivisionError: division by zero"} for name in "ab"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stpe", "--rehearse"], "no part 'stpe'; did you mean 'step'?"),
        (["step"], "--rehearse runs everything tiny on the CPU"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
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
