"""A run goes on, on other numbers of ranks, micro-batches and loaders, as if it had never moved."""

import os
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from dualpath_cli.recipe.recipes import Recipe, merge
from dualpath_cli.training.module import DualPathModule
from tests.processes import run_on_ranks
from tests.tiny_run import (
    SEQ_LEN,
    back_to_step,
    prepare,
    tables,
    tiny_recipe,
    write_blocks,
)

STEPS = 9


@pytest.fixture(scope="module")
def recipe(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """Nine steps of eight sequences of twenty: epochs end within a step, two of them."""
    folder = tmp_path_factory.mktemp("elastic")
    data = prepare(folder / "data", write_blocks(folder / "blocks.jsonl", 20))
    batch = 8 * SEQ_LEN
    run = {"batch_tokens": batch, "max_tokens": STEPS * batch, "save_every": 3}
    changes = {"run": run, "data": {"path": str(data), "max_epochs": 9}}
    return merge(tiny_recipe(texts, folder / "runs"), changes)


def log_sequences(folder: Path) -> None:
    """Writes down what each step is trained on, a file a rank."""
    training_step = DualPathModule.training_step

    def logged(module: DualPathModule, batch: Any, batch_idx: int) -> torch.Tensor:
        path = folder / f"rank-{os.environ['LOCAL_RANK']}-of-{module.trainer.world_size}.txt"
        with path.open("a") as file:
            for tokens in batch[0].tolist():
                print(module.trainer.global_step + 1, *tokens, file=file)
        return training_step(module, batch, batch_idx)

    DualPathModule.training_step = logged  # type: ignore[method-assign]


def sequences(folder: Path, ranks: int) -> dict[int, list[str]]:
    """What all ranks together were trained on in each step."""
    found = defaultdict(list)
    for rank in range(ranks):
        for line in (folder / f"rank-{rank}-of-{ranks}.txt").read_text().splitlines():
            step, tokens = line.split(" ", 1)
            found[int(step)].append(tokens)
    return {step: sorted(tokens) for step, tokens in found.items()}


def go_on(
    recipe: Recipe, folder: Path, name: str, ranks: int, strategy: str = "ddp", **changes: Any
) -> Path:
    """Trains or continues the run `name` on so many ranks; `changes` are of sections."""
    changed = merge(recipe, {"run": {"name": name}, "trainer": {"strategy": strategy}})
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(merge(changed, changes)))
    run_on_ranks(ranks, ["fit", "--config", str(path)], folder, partial(log_sequences, folder))
    return Path(recipe["run"]["dir"], "tiny", name)


def assert_same_run(run: Path, expected: Path) -> None:
    """The losses are printed with six digits, the last of which may differ by rounding."""
    wanted = tables(expected)
    for name, logged in tables(run).items():
        for row, other in zip(logged, wanted[name], strict=True):
            for column in row.keys() - {"set"}:
                if other[column]:
                    assert float(row[column]) == pytest.approx(float(other[column]), rel=3e-6), (
                        name, column, row, other,
                    )  # fmt: skip


@pytest.fixture(scope="module")
def one_process(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The run of one process, and the folder with what it was trained on."""
    folder = tmp_path_factory.mktemp("one")
    return go_on(recipe, folder, "one", 1, "single"), folder


@pytest.mark.parametrize("strategy", [pytest.param("ddp", marks=pytest.mark.slow), "fsdp"])
def test_a_run_is_the_same_on_1_4_and_2_ranks_in_turn(
    strategy: str, recipe: Recipe, one_process: tuple[Path, Path], tmp_path: Path
) -> None:
    expected, folder = one_process
    wanted = sequences(folder, 1)
    assert [len(wanted[step]) for step in range(1, STEPS + 1)] == [8] * STEPS
    # On 1, 4 and 2 ranks; micro-batches of 2, 1 and 4; loaders 0, 1 and 2.
    run = go_on(recipe, tmp_path, strategy, 1, strategy)
    back_to_step(run, 3)
    four = {"run": {"micro_batch": 1}, "data": {"workers": 1}}
    go_on(recipe, tmp_path, strategy, 4, strategy, **four)
    back_to_step(run, 6)
    go_on(recipe, tmp_path, strategy, 2, strategy, run={"micro_batch": 4}, data={"workers": 2})
    assert_same_run(run, expected)
    assert sequences(tmp_path, 4) == {step: wanted[step] for step in range(4, STEPS + 1)}
    assert sequences(tmp_path, 2) == {step: wanted[step] for step in range(7, STEPS + 1)}


@pytest.mark.slow
def test_where_the_first_ranks_stopped_within_a_validation_the_others_make_it(
    recipe: Recipe, one_process: tuple[Path, Path], tmp_path: Path
) -> None:
    changes = {"run": {"validate_every": 3, "micro_batch": 1}}
    run = go_on(recipe, tmp_path, "validated", 2, **changes)
    back_to_step(run, 6)
    table = run / "validation.csv"
    kept = [line for line in table.read_text().splitlines() if not line.startswith(("6,", "9,"))]
    table.write_text("\n".join(kept) + "\n")
    go_on(recipe, tmp_path, "validated", 1, "single", run={"validate_every": 3, "micro_batch": 8})
    assert_same_run(run, one_process[0])
