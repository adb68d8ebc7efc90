"""`run.micro_batch: auto`: as many sequences as are predicted to fit, decided once."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from dualpath_cli.errors import UserError
from dualpath_cli.flops.memory import Execution, step_memory
from dualpath_cli.recipe.settings import settings_from
from dualpath_cli.session import micro_batch
from dualpath_cli.training.data import data_module
from dualpath_cli.training.data.data_module import DualPathDataModule
from tests.conftest import OutputOf
from tests.tiny_run import SEQ_LEN, Fit, back_to_step, rows

MODEL = {"d_ffn": 1600, "d_ffn_wide": 11392}
SEQUENCES = 512


def decided(
    total: float,
    ranks: int = 1,
    device: str = "cuda",
    checkpointing: Any = "selective",
    **trainer: Any,
) -> int:
    """The size for F80M a50 K4, compiled, on devices of so many bytes."""
    settings = settings_from({"model": MODEL, "run": {"micro_batch": "auto"}, "trainer": trainer})
    strategy = SimpleNamespace(root_device=torch.device(device))
    stub: Any = SimpleNamespace(world_size=ranks, precision="bf16-mixed", strategy=strategy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(micro_batch, "usable_bytes", lambda _: total)
        return micro_batch.fitting_size(settings, stub, True, checkpointing, lambda _: None)


@pytest.mark.parametrize("total", [2e10, 4e10, 7.2e10, 1.27e11])
def test_it_is_the_largest_divisor_of_the_batch_that_fits(total: float) -> None:
    config = settings_from({"model": MODEL}).model
    size = decided(total)
    assert SEQUENCES % size == 0
    assert step_memory(config, size, Execution()).peak <= total
    assert step_memory(config, 2 * size, Execution()).peak > total


def test_ranks_share_the_batch() -> None:
    assert decided(1e15) == SEQUENCES
    assert decided(1e15, ranks=64) == SEQUENCES // 64


def test_fsdp_leaves_more_room() -> None:
    """9 GB are too few for four times the 1.9 GB of weights and a sequence, not for a share."""
    with pytest.raises(UserError):
        decided(9e9, ranks=64)
    assert decided(1.4e10, ranks=64, strategy="fsdp") >= 1


def test_hsdp_leaves_room_by_the_size_of_its_groups() -> None:
    """A memory that is just enough for 2 sequences where 4 GPUs of a node share the weights."""
    config = settings_from({"model": MODEL}).model
    total = step_memory(config, 2, Execution(shards=4)).peak
    assert decided(total, 64, strategy="hsdp", num_nodes=16) == 2
    assert decided(total, 64, strategy="hsdp", num_nodes=32) == 1, "two share them"
    assert decided(total, 64, strategy="hsdp", num_nodes=8) == 2


@pytest.mark.parametrize(
    ("total", "way_out"),
    [(2e10, "try --run.activation_checkpointing full, or --run.micro_batch 1 "),
     (1e9, "try --run.micro_batch 1 ")],
)  # fmt: skip
def test_a_model_that_does_not_fit_is_told_the_ways_out(total: float, way_out: str) -> None:
    config = settings_from({"model": MODEL}).model
    needed = step_memory(config, 1, Execution("none")).peak
    with pytest.raises(UserError, match=way_out) as error:
        decided(total, checkpointing="none")
    assert f"{needed / 1e9:.1f} GB, and {total / 1e9:.1f} GB are planned with" in str(error.value)


def test_a_cpu_takes_one_sequence_of_a_model_that_is_too_large() -> None:
    assert decided(micro_batch.CPU_BYTES, device="cpu") == 1


def test_commands_that_do_not_train_need_no_room_for_training(
    trained: Fit, output_of: OutputOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained()
    monkeypatch.setattr("dualpath_cli.session.lightning_cli.fitting_size", None)
    said = output_of("validate", "--ckpt_path", run, "--run.micro_batch", "auto")
    assert "held_out" in said


def test_it_is_decided_at_each_start(
    fit: Fit, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = rows(fit(run={"name": "by-hand", "micro_batch": 4}) / "metrics.csv")
    run = fit(run={"micro_batch": "auto"})
    said = capsys.readouterr().out
    assert "run.micro_batch=auto takes 4: 0.0 GB predicted, 4.0 GB planned with" in said
    assert f"1 x 4 sequences of {SEQ_LEN}, accumulated 1 times" in said
    assert rows(run / "metrics.csv") == expected

    back_to_step(run, 2)
    monkeypatch.setattr(micro_batch, "CPU_BYTES", 1000)  # as on a machine that is smaller
    fit(run={"micro_batch": "auto"})
    assert f"1 x 1 sequences of {SEQ_LEN}, accumulated 4 times" in capsys.readouterr().out
    for row, wanted in zip(rows(run / "metrics.csv"), expected, strict=True):
        assert float(row["loss"]) == pytest.approx(float(wanted["loss"]), rel=3e-6)
    assert yaml.safe_load((run / "recipe.yaml").read_text())["run"]["micro_batch"] == "auto"
    parts = [json.loads((run / f"versions{part}.json").read_text()) for part in ("", "-00000002")]
    assert [part["micro_batch"] for part in parts] == [4, 1]


def test_ranks_that_decide_differently_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {"run.micro_batch": 4}
    monkeypatch.setattr(data_module, "from_all_ranks", lambda plan: [plan, plan, plan | others])
    trainer = SimpleNamespace(lightning_module=None, ckpt_path=None)
    module = SimpleNamespace(micro_batch=8, data_since=0, trainer=trainer)
    message = r"ranks differ: run.micro_batch is 8 on the first and 4 on rank 2; .* --run.micro_bat"
    with pytest.raises(UserError, match=message):
        DualPathDataModule.setup(module, "fit")  # type: ignore[arg-type]
