"""Runs that were begun when the optimizer had a group of each group of decay go on as they were."""

import copy
import csv
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from dualpath_cli.config import GROUP_OF, ModelConfig
from dualpath_cli.model import DualPathLM
from dualpath_cli.model.parameters import kind_of
from dualpath_cli.recipe.optimizer import OptimSettings
from dualpath_cli.training import module
from dualpath_cli.training.optim import build_optimizer, build_scheduler
from dualpath_cli.training.state.groups import by_kind
from tests.model.small_models import ALL_KINDS, TARGETS, TOKENS, small
from tests.processes import run_on_ranks
from tests.tiny_run import Fit, back_to_step, rows, weights

OPTIM = OptimSettings(lr=1e-2, lr_start=1e-3, warmup_steps=2, decay=["matrices", "gains"])


def before_kinds(
    parameters: Any,
    settings: OptimSettings,
    total_steps: int,
    config: ModelConfig | None = None,
    products: torch.dtype | None = None,
) -> torch.optim.AdamW:
    """The optimizer as it was: groups by decay, in the order of their first parameters."""
    members: dict[str, list[torch.nn.Parameter]] = {}
    for name, parameter in parameters:
        members.setdefault(kind_of(name, config, parameter.ndim).group, []).append(parameter)
    groups = [
        {"params": p, "name": name, "weight_decay": 0.3 if name in settings.decay else 0.0}
        for name, p in members.items()
    ]
    return torch.optim.AdamW(
        groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True
    )


@pytest.mark.parametrize("tied", [False, True])
def test_moments_rates_and_decay_go_to_their_parameters(tied: bool) -> None:
    config = small(tie_embeddings=tied, step_conditioning="film", **ALL_KINDS)

    def steps(lm: DualPathLM, optimizer: Any, count: int) -> None:
        scheduler = build_scheduler(optimizer, 9, OPTIM)
        for _ in range(count):
            optimizer.zero_grad()
            lm(TOKENS, TARGETS).mean().backward()
            optimizer.step()
            scheduler.step()

    old = DualPathLM(config, seed=0)
    optimizer = before_kinds(old.named_parameters(), OPTIM, 9)
    steps(old, optimizer, 3)
    new = DualPathLM(config)
    new.load_state_dict(old.state_dict())
    kinds = [kind_of(name).kind for name, _ in new.named_parameters()]
    other = build_optimizer(new.named_parameters(), OPTIM, 9)
    names = [group["name"] for group in other.param_groups]
    state = by_kind(copy.deepcopy(optimizer.state_dict()), kinds)
    assert by_kind(state, kinds) == state, "one that is by kind already stays as it is"
    other.load_state_dict(state)
    assert [group["name"] for group in other.param_groups] == names
    rates = {
        group["name"]: (group["lr"], group["weight_decay"]) for group in optimizer.param_groups
    }
    for group in other.param_groups:
        assert (group["lr"], group["weight_decay"]) == rates[GROUP_OF[group["name"]]]
    for mine, theirs in zip(new.parameters(), old.parameters(), strict=True):
        for key, value in other.state[mine].items():
            assert torch.equal(value, optimizer.state[theirs][key])
    steps(old, optimizer, 2)
    steps(new, other, 2)
    assert all(map(torch.equal, new.parameters(), old.parameters()))


def as_before() -> None:
    """Makes `fit` write what it wrote before there were kinds."""
    module.build_optimizer = before_kinds


def without_new_keys(run: Path) -> None:
    """Takes out of a run what earlier versions did not write."""
    path = run / "recipe.yaml"
    recipe = yaml.safe_load(path.read_text())
    for key in ("lr_scale", "base_width"):
        del recipe["optim"][key]
    path.write_text(yaml.safe_dump(recipe))
    with (run / "metrics.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    kept = [column for column in table[0] if not column.startswith("lr_")]
    lines = [kept, *([row[column] for column in kept] for row in table)]
    (run / "metrics.csv").write_text("".join(",".join(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("begun", "continued"),
    [
        ("single", "single"),
        ("fsdp", "fsdp"),
        pytest.param("fsdp", "single", marks=pytest.mark.slow),
        pytest.param("single", "fsdp", marks=pytest.mark.slow),
    ],
)
def test_a_run_begun_before_goes_on_as_if_it_had_begun_now(
    begun: str, continued: str, fit: Fit, trained: Fit, tmp_path: Path
) -> None:
    whole = trained()
    words = ["fit", "--config", str(tmp_path / "recipe.yaml"), "--run.name", "before"]
    run_on_ranks(1, [*words, "--trainer.strategy", begun], tmp_path, as_before)
    run = whole.with_name("before")
    without_new_keys(run)
    back_to_step(run, 4)
    run_on_ranks(1, [*words, "--trainer.strategy", continued], tmp_path)
    for row, wanted in zip(rows(run / "metrics.csv"), rows(whole / "metrics.csv"), strict=True):
        for column, value in wanted.items():
            if column.startswith("lr_") and int(row["step"]) <= 4:
                assert row[column] == "", "they were not written then"
            elif begun == continued == "single":
                assert row[column] == value
            else:
                assert float(row[column]) == pytest.approx(float(value), rel=3e-6)
    if begun == continued == "single":
        expected = weights(whole)
        assert all(torch.equal(value, expected[name]) for name, value in weights(run).items())


def test_the_rate_of_each_kind_is_logged(fit: Fit) -> None:
    run = fit(optim={"lr_scale": {"gate": 3, "gains": 0}, "base_width": 8}, model={"d_ffn": 40})
    scales = {"hidden": 0.5, "head": 0.5, "router": 0.5, "gate": 1.5, "gains": 0.0}
    for row in rows(run / "metrics.csv"):
        rates = {name[3:]: float(value) for name, value in row.items() if name.startswith("lr_")}
        assert rates.keys() == GROUP_OF.keys() - {"conditioning"}
        for kind, rate in rates.items():
            assert rate == pytest.approx(scales.get(kind, 1.0) * float(row["lr"]), rel=1e-5)
