"""What cannot be trained as a recipe asks: one line that names it, before anything is written."""

from typing import Any

import pytest

FLATTENED = "lightning.pytorch.strategies.FSDPStrategy"
EARLY_STOPPING = "lightning.pytorch.callbacks.EarlyStopping"
HALF = "lightning.pytorch.plugins.precision.HalfPrecision"
DEEPSPEED = "lightning.pytorch.strategies.DeepSpeedStrategy"
WIDE = {"block": "wide"}

MISTAKES: list[tuple[dict[str, Any], str]] = [
    # What Lightning finds out.
    ({"trainer": {"callbacks": {"class_path": "nowhere.X"}}}, "nowhere"),
    ({"trainer": {"callbacks": {"class_path": 3}}}, "trainer.callbacks"),
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
    ({"trainer": {"devices": -1}}, "`devices` selected with `CPUAccelerator`"),
    # Times and strategies.
    ({"trainer": {"max_time": {"minutes": 1.5}}}, "not '{'minutes': 1.5}'"),
    ({"trainer": {"max_time": {"hours": -1}}}, "not '{'hours': -1}'"),
    ({"trainer": {"max_time": {"weeks": 10**9}}}, "not '{'weeks': 1000000000}'"),
    (
        {
            "run": {"shard_size": 3, "micro_batch": 1},
            "trainer": {"strategy": "hsdp", "devices": 4},
        },
        "run.shard_size=3 does not divide the 4 devices of this run; 2 or 4 would",
    ),
    (
        {
            "run": {"reduce_dtype": "bfloat16"},
            "trainer": {"devices": 2, "strategy": {"class_path": "DDPStrategy"}},
        },
        "by a strategy given as a class; choose trainer.strategy ddp, fsdp or hsdp",
    ),
    # The optimizer.
    ({"optim": {"name": "lion"}}, "optim.name must be one of adamw, muon, not 'lion'"),
    ({"optim": {"name": "muon", "muon_lr": 0}}, "optim: muon_lr must be above 0, not 0"),
    ({"optim": {"muon_momentum": 1}}, "optim: muon_momentum must be from 0 to below 1, not 1"),
    (
        {"optim": {"name": "muon"}, "trainer": {"strategy": {"class_path": FLATTENED}}},
        "choose single, ddp, fsdp or hsdp, or optim.name=adamw",
    ),
    # A branch of another run.
    ({"run": {"branch_from": "nowhere"}}, "needs optim.schedule wsd"),
    (
        {"run": {"branch_from": "nowhere"}, "optim": {"schedule": "wsd", "decay_sum": 1.0}},
        "instead of decay_sum",
    ),
    (
        {"run": {"branch_from": "nowhere"}, "optim": {"schedule": "wsd"}},
        "no run folder at 'nowhere'",
    ),
    # The loops of steps.
    ({"run": {"train_loops": [0, 2]}}, "different numbers from 1 on"),
    ({"run": {"train_loops": list(range(1, 10))}}, "different numbers from 1 on"),
    (
        {"run": {"train_loops": [2]}, "model": WIDE},
        "run.train_loops has 2: the model has only wide blocks",
    ),
    (
        {"run": {"loop_schedule": [[0, 2]]}, "model": WIDE},
        "run.loop_schedule has 2: the model has only wide blocks",
    ),
    (
        {"run": {"train_loops": [1, 2], "loop_schedule": [[0, 2]]}},
        "train_loops=[1, 2] exclude each other; leave one out",
    ),
    *(
        ({"run": {"loop_schedule": schedule}}, said)
        for schedule, said in (
            ([], "must be one to 8 pairs such as [0, 1], not 0"),
            ([[n / 10, 2] for n in range(9)], "pairs such as [0, 1], not 9"),
            ([[0.1, 1], [0.5, 2]], "that begin at 0 and rise, all below 1, not [0.1, 0.5]"),
            ([[0, 1], [0.5, 1], [0.5, 2]], "all below 1, not [0.0, 0.5, 0.5]"),
            ([[0, 1], [1, 2]], "all below 1, not [0.0, 1.0]"),
            ([[0, 3], [0.5, 2]], "have loops from 1 on that do not fall, not [3, 2]"),
            ([[0, 0], [0.5, 2]], "from 1 on that do not fall, not [0, 2]"),
            ([[0, 1.5]], "must be a list (each a list of a number and a whole number) or null"),
            ([[0, 1]], "ends with 1 loops, but model.loops=2 is what is validated; end it"),
            (
                [[0, 1], [0.95, 2]],
                "trains with 2 in none of the run's 6 steps; leave it out, or raise run.max_tokens",
            ),
        )
    ),
]


@pytest.mark.parametrize(("changes", "said"), MISTAKES)
def test_a_recipe_that_cannot_be_trained_is_refused_in_one_line(changes, said, refused, tmp_path):
    assert said in refused(**changes)
    assert not (tmp_path / "runs").exists()
