"""Two gloo processes give one process's losses, and their sharded runs are read by one.

Every epoch is one batch of eight blocks: however ranks share it out, each step sees all of it.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from dualpath_cli.config import ModelConfig
from dualpath_cli.recipe.recipes import merge
from dualpath_cli.run.run_folder import find_run, read_recipe
from dualpath_cli.training.parallel import build_model
from dualpath_cli.training.state.weights import load_weights
from tests.conftest import OutputOf
from tests.processes import run_on_ranks, run_on_two_ranks
from tests.tiny_run import (
    SEQ_LEN,
    back_to_step,
    prepare,
    rows,
    tables,
    tiny_recipe,
    train,
    write_blocks,
    write_text,
)


class Runs:
    """Runs of one recipe, made in different ways."""

    def __init__(self, folder: Path, texts: Path) -> None:
        data = prepare(folder / "data", write_blocks(folder / "blocks.jsonl", 8))
        uneven = write_text(folder / "uneven.jsonl", 3, documents=2, words=3)
        batch = 8 * SEQ_LEN
        changes = {
            "run": {"batch_tokens": batch, "max_tokens": 5 * batch, "save_every": 2},
            # Two documents and batches of two: with two ranks, one batch is padding.
            "data": {
                "path": str(data),
                "max_epochs": 9,
                "val": {"uneven": str(uneven), "folder": str(texts / "train")},
            },
        }
        self.folder = folder
        self.recipe = merge(tiny_recipe(texts, folder / "runs"), changes)

    def single(self, tied: bool = False) -> Path:
        """The run of one process; made once, since a finished run is left alone."""
        changes = {"run": {"name": f"single-{tied}"}, "model": {"tie_embeddings": tied}}
        return train(merge(self.recipe, changes), self.folder / "single.yaml")

    def words(self, name: str, **changes: Any) -> list[str]:
        """The command that trains a run `name`."""
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(merge(self.recipe, {"run": {"name": name}, **changes})))
        return ["fit", "--config", str(path)]

    def two_ranks(self, strategy: str, tied: bool = False) -> Path:
        """The run of two processes; continued where it is there already."""
        name = f"{strategy}-{tied}"
        words = self.words(name, model={"tie_embeddings": tied}, trainer={"strategy": strategy})
        run_on_two_ranks(words, self.folder)
        return self.folder / "runs" / "tiny" / name


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, texts: Path) -> Runs:
    return Runs(tmp_path_factory.mktemp("distributed"), texts)


def assert_same_losses(run: Path, expected: Path) -> None:
    wanted_tables = tables(expected)
    for table, logged in tables(run).items():
        for row, wanted in zip(logged, wanted_tables[table], strict=True):
            for column in row.keys() - {"set"}:
                if wanted[column]:
                    assert float(row[column]) == pytest.approx(float(wanted[column]), rel=2e-5), (
                        table, column, row, wanted,
                    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
def test_fsdp_gives_one_process_losses_and_is_read_by_one_process(
    tied: bool, runs: Runs, output_of: OutputOf
) -> None:
    run, expected = runs.two_ranks("fsdp", tied), runs.single(tied)
    assert find_run(str(run)).checkpoint.is_dir(), "each rank writes its shard"
    assert_same_losses(run, expected)

    weights = []
    for folder in (run, expected):
        model = build_model(ModelConfig(**read_recipe(folder)["model"]))
        load_weights(model, find_run(str(folder)).checkpoint)
        weights.append(dict(model.named_parameters()))
    for name, parameter in weights[0].items():
        torch.testing.assert_close(parameter, weights[1][name], rtol=1e-3, atol=1e-5)

    output = output_of("validate", "--ckpt_path", run)
    for last in rows(expected / "validation.csv")[-2:]:
        (loss,) = re.findall(rf"{last['set']} .*? ([\d.]+)", output)
        assert float(loss) == pytest.approx(float(last["loss"]), rel=1e-4)


@pytest.mark.parametrize(
    ("ranks", "other", "tied"),
    [
        (1, "single", False),
        *(pytest.param(2, "ddp", tied, marks=pytest.mark.slow) for tied in (True, False)),
    ],
)
def test_a_run_goes_on_by_another_strategy_and_back(
    ranks: int, other: str, tied: bool, runs: Runs
) -> None:
    name = f"fsdp-{other}-fsdp-{tied}"
    run = runs.folder / "runs" / "tiny" / name
    for strategy, step in (("fsdp", None), (other, 2), ("fsdp", 4)):
        if step is not None:
            assert find_run(str(run)).checkpoint.is_dir() != (strategy == "fsdp")
            back_to_step(run, step)
        changes = {"model": {"tie_embeddings": tied}, "trainer": {"strategy": strategy}}
        run_on_ranks(ranks, runs.words(name, **changes), runs.folder)
    assert_same_losses(run, runs.single(tied))


@pytest.mark.slow
def test_hsdp_on_four_ranks_is_continued_by_fsdp_and_read_by_one_process(
    runs: Runs, output_of: OutputOf
) -> None:
    run = runs.folder / "runs" / "tiny" / "hsdp"
    words = runs.words("hsdp", trainer={"strategy": "hsdp"})
    run_on_ranks(4, [*words, "--run.shard_size", "2"], runs.folder)
    assert_same_losses(run, runs.single())
    back_to_step(run, 4)
    run_on_ranks(4, [*words, "--trainer.strategy", "fsdp"], runs.folder)
    assert_same_losses(run, runs.single())
    output = output_of("validate", "--ckpt_path", run)
    for last in rows(run / "validation.csv")[-2:]:
        (loss,) = re.findall(rf"{last['set']} .*? ([\d.]+)", output)
        assert float(loss) == pytest.approx(float(last["loss"]), rel=1e-4)


@pytest.mark.slow
def test_ddp_gives_one_process_losses(runs: Runs) -> None:
    assert_same_losses(runs.two_ranks("ddp"), runs.single())


@pytest.mark.slow
def test_the_command_starts_the_ranks_itself(runs: Runs) -> None:
    words = runs.words("launched", trainer={"strategy": "ddp", "devices": 2})
    subprocess.run([sys.executable, "-m", "dualpath_cli", *words], check=True)
    run = runs.folder / "runs" / "tiny" / "launched"
    assert_same_losses(run, runs.single())
    assert (run / "curve.png").is_file()
