"""Runs of several lengths from one: stable learning rate, then a cool-down for each of them."""

import json
from typing import Any

import torch

from dualpath_cli.recipe.recipes import merge
from tests.tiny_run import SEQ_LEN, rows, tables, weights

WSD = {"schedule": "wsd", "cooldown": 0.5, "warmup_steps": 2}
STEP = 4 * SEQ_LEN


def length(steps: int, **run: Any) -> dict[str, Any]:
    return {"optim": WSD, "run": {"max_tokens": steps * STEP, "save_every": 1, **run}}


def test_a_branch_equals_the_run_of_its_length_and_is_continued_from_its_own_checkpoints(
    fit, capsys
):
    long, short = fit(**length(12, name="long")), fit(**length(6, name="short"))
    shorter = length(6, name="shorter", recipe="other", branch_from=str(long))
    longer = length(12, name="longer", branch_from=str(short))
    assert tables(fit(**longer)) == tables(long)
    branch = fit(**shorter)
    assert tables(branch) == tables(short)
    assert tables(branch)["metrics.csv"] != tables(long)["metrics.csv"][:6], "another cool-down"
    facts = json.loads((branch / "versions.json").read_text())
    assert facts["branched_from"] == f"{long} at step 3"
    assert not (branch / "checkpoints" / "step-00000003").exists(), "the trunk's stays where it is"
    for step in (5, 6):
        (branch / "checkpoints" / f"step-{step:08d}").unlink()
    capsys.readouterr()
    fit(**shorter)
    assert "continued from step 4\n" in capsys.readouterr().out
    assert tables(branch) == tables(short)
    rates = [float(row["lr"]) for row in rows(short / "metrics.csv")]
    assert rates[2:4] == [3e-3] * 2
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[4] < 3e-3


def test_a_branch_has_no_step_whose_loops_its_own_length_would_not_give(fit):
    """Its second phase begins at step 3, the trunk's at step 6: it takes over the checkpoint of 3.

    The cool-down begins at step 5.
    """
    changes = {"optim": WSD | {"cooldown": 0.2}}
    schedule = {"loop_schedule": [[0, 1], [0.5, 2]]}
    long = fit(**length(12, name="long", **schedule) | changes)
    short = fit(**length(6, name="short", **schedule) | changes)
    branch = fit(**length(6, name="branch", branch_from=str(long), **schedule) | changes)
    facts = json.loads((branch / "versions.json").read_text())
    assert facts["branched_from"] == f"{long} at step 3"
    assert tables(branch) == tables(short)
    for name, weight in weights(short).items():
        assert torch.equal(weights(branch)[name], weight), name


def test_what_would_not_be_alike_is_no_trunk(refused, fit):
    trunk = fit(**length(6, name="long"))
    start = {"branch_from": str(trunk), "name": "branch"}
    other = merge(length(6, **start), {"optim": {"lr": 1e-3}})
    assert "optim.lr=0.003, this one has 0.001" in refused(**other)
    for step in (1, 2):
        (trunk / "checkpoints" / f"step-{step:08d}").unlink()
    assert "no checkpoint up to step 2" in refused(**length(4, **start))
