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

from dualpath_cli.cli import main
from dualpath_cli.config import ModelConfig
from dualpath_cli.recipes import merge
from dualpath_cli.run_folder import find_run, read_recipe
from dualpath_cli.training.parallel import build_model
from dualpath_cli.training.weights import load_weights
from tests.training.conftest import SEQ_LEN, prepare, tiny_recipe, write_blocks, write_text
from tests.training.test_fit import back_to_step, rows

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory, texts: Path) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("distributed")
    data = prepare(folder / "data", write_blocks(folder / "blocks.jsonl", 8))
    uneven = write_text(folder / "uneven.jsonl", 3, documents=2, words=3)
    batch = 8 * SEQ_LEN
    changes = {
        "run": {"batch_tokens": batch, "max_tokens": 5 * batch, "micro_batch": 2, "save_every": 2},
        # Two documents and batches of two: with two ranks, one batch is padding.
        "data": {
            "path": str(data),
            "max_epochs": 9,
            "val": {"uneven": str(uneven), "folder": str(texts / "train")},
        },
    }
    return merge(tiny_recipe(texts, folder / "runs"), changes)


def train(recipe: dict[str, Any], name: str, strategy: str, **changes: dict[str, Any]) -> Path:
    """Trains in processes of their own, as the command does, and returns the run folder."""
    devices = 1 if strategy == "single" else 2
    trainer = {"strategy": strategy, "devices": devices}
    recipe = merge(recipe, {**changes, "run": {"name": name}, "trainer": trainer})
    path = Path(recipe["run"]["dir"]).parent / f"{name}.yaml"
    path.write_text(yaml.safe_dump(recipe))
    subprocess.run([sys.executable, "-m", "dualpath_cli", "fit", "--config", str(path)], check=True)
    return Path(recipe["run"]["dir"]) / "tiny" / name


def assert_same_losses(run: Path, expected: Path) -> None:
    for table in ("metrics.csv", "validation.csv", "routing.csv"):
        for row, wanted in zip(rows(run / table), rows(expected / table), strict=True):
            for column in row.keys() - {"set"}:
                if wanted[column]:
                    assert float(row[column]) == pytest.approx(float(wanted[column]), rel=2e-5), (
                        table, column, row, wanted,
                    )  # fmt: skip


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def single(request: pytest.FixtureRequest, recipe: dict[str, Any]) -> tuple[bool, Path]:
    tied = request.param
    return tied, train(recipe, f"single-{tied}", "single", model={"tie_embeddings": tied})


def test_fsdp_gives_one_process_losses_and_is_read_by_one_process(
    single: tuple[bool, Path], recipe: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    tied, expected = single
    run = train(recipe, f"fsdp-{tied}", "fsdp", model={"tie_embeddings": tied})
    assert find_run(str(run)).checkpoint.is_dir(), "each rank writes its shard"
    assert_same_losses(run, expected)

    weights = []
    for folder in (run, expected):
        model = build_model(ModelConfig(**read_recipe(folder)["model"]))
        load_weights(model, find_run(str(folder)).checkpoint)
        weights.append(dict(model.named_parameters()))
    for name, parameter in weights[0].items():
        torch.testing.assert_close(parameter, weights[1][name], rtol=1e-3, atol=1e-5)

    if not tied:  # interrupted after step 4 and continued, on two processes again
        back_to_step(run, 4)
        train(recipe, f"fsdp-{tied}", "fsdp")
        assert_same_losses(run, expected)

    assert main(["validate", "--ckpt_path", str(run)]) == 0
    shown = capsys.readouterr().out
    for last in rows(expected / "validation.csv")[-2:]:
        (loss,) = re.findall(rf"{last['set']} .*? ([\d.]+)", shown)
        assert float(loss) == pytest.approx(float(last["loss"]), rel=1e-4)


def test_ddp_gives_one_process_losses(single: tuple[bool, Path], recipe: dict[str, Any]) -> None:
    tied, expected = single
    if not tied:  # tying matters to sharding alone
        assert_same_losses(train(recipe, "ddp", "ddp"), expected)
