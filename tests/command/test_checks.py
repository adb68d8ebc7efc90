"""Checks of a recipe against this machine's devices, whatever devices it has."""

from contextlib import nullcontext
from typing import Any

import pytest

from dualpath_cli.command import checks
from dualpath_cli.errors import UserError
from dualpath_cli.recipe.settings import TrainerSettings


@pytest.mark.parametrize(
    ("trainer", "gpus", "message"),
    [
        ({"accelerator": "gpu"}, 0, "trainer.accelerator is gpu, but no GPU is to be seen here"),
        ({"accelerator": "cuda", "devices": 8}, 4, "trainer.devices=8, but 4 GPUs are to be seen"),
        ({"accelerator": "cuda", "devices": 4}, 4, None),
        ({"accelerator": "cuda", "devices": "auto"}, 4, None),
        ({"accelerator": "cuda", "devices": 8}, None, None),
        ({"accelerator": "auto", "devices": 8}, 0, None),
        ({"accelerator": "cpu"}, 0, None),
    ],
)
def test_gpus_that_are_not_there_are_missed_at_once(
    trainer: dict[str, Any], gpus: int | None, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "visible_gpus", lambda: gpus)
    refused = pytest.raises(UserError, match=message) if message else nullcontext()
    with refused:
        checks.check_devices(TrainerSettings(**trainer))


def test_as_many_gpus_are_seen_as_torch_sees() -> None:
    import torch

    assert checks.visible_gpus() in (None, torch.cuda.device_count())
