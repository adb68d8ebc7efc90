"""What Lightning and torch find out of a recipe: one line, before anything is written."""

from typing import Any

import pytest

FLATTENED = "lightning.pytorch.strategies.FSDPStrategy"
EARLY_STOPPING = "lightning.pytorch.callbacks.EarlyStopping"
HALF = "lightning.pytorch.plugins.precision.HalfPrecision"
DEEPSPEED = "lightning.pytorch.strategies.DeepSpeedStrategy"

MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"trainer": {"callbacks": {"class_path": "nowhere.X"}}}, "nowhere"),
    (
        {"trainer": {"callbacks": {"class_path": EARLY_STOPPING, "init_args": {"monitor": 3}}}},
        "monitor",
    ),
    ({"trainer": {"plugins": "x"}}, "trainer.plugins"),
    (
        {"trainer": {"plugins": [{"class_path": HALF}]}},
        "Received both `precision=32-true` and `plugins=",
    ),
    ({"trainer": {"strategy": {"class_path": DEEPSPEED}}}, "you must have DeepSp"),
    ({"trainer": {"precision": "transformer-engine"}}, "transformer_engine"),
    ({"trainer": {"devices": [0, 1]}}, "`devices` selected with `CPUAccelerator`"),
    (
        {"run": {"shard_size": 3, "micro_batch": 1}, "trainer": {"strategy": "hsdp", "devices": 4}},
        "run.shard_size=3 does not divide the 4 devices of this run; 2 or 4 would",
    ),
    (
        {"optim": {"name": "muon"}, "trainer": {"strategy": {"class_path": FLATTENED}}},
        "choose single, ddp, fsdp or hsdp, or optim.name=adamw",
    ),
    (
        {"run": {"train_loops": [2]}, "model": {"block": "wide"}},
        "run.train_loops has 2: the model has only wide blocks",
    ),
]


@pytest.mark.parametrize(("changes", "said"), MISTAKES)
def test_a_recipe_that_cannot_be_trained_is_refused_in_one_line(changes, said, refused, tmp_path):
    assert said in refused(**changes)
    assert not (tmp_path / "runs").exists()
