"""Shards of two and of four ranks become one file, bit for bit, that any strategy starts from."""

from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from dualpath_cli.config import ModelConfig
from dualpath_cli.model import DualPathLM
from dualpath_cli.run.run_folder import find_run, read_recipe
from tests.conftest import Share
from tests.export.conftest import export
from tests.processes import run_on_ranks
from tests.tiny_run import rows, tiny_recipe

rare = pytest.mark.slow
RUNS = [(2, True), *(pytest.param(*run, marks=rare) for run in ((2, False), (4, True), (4, False)))]
VOCABULARY = 275
"""Neither two nor four ranks divide it."""


def trained(share: Share, texts: Path, ranks: int, tied: bool) -> Path:
    """The run of two steps that so many ranks made by FSDP."""

    def fill(folder: Path) -> None:
        recipe = tiny_recipe(texts, folder)
        recipe["model"] |= {"vocab_size": VOCABULARY, "tie_embeddings": tied}
        tokens = recipe["run"]["batch_tokens"]
        recipe["run"] |= {"micro_batch": 1, "max_tokens": 3 * tokens, "save_every": 3}
        recipe["trainer"]["strategy"] = "fsdp"
        (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        run_on_ranks(ranks, ["fit", "--config", str(folder / "recipe.yaml")], folder)

    return share(f"sharded-by-{ranks}-{tied}", fill) / "tiny" / "default"


@pytest.mark.parametrize(("ranks", "tied"), RUNS)
def test_the_file_has_the_weights_bit_for_bit(ranks, tied, share, texts, tmp_path):
    run = trained(share, texts, ranks, tied)
    checkpoint = find_run(str(run)).checkpoint
    assert len(list(checkpoint.glob("*.distcp"))) == ranks
    weights = load_file(export(run, tmp_path / "one.safetensors", form="consolidated"))

    dcp_to_torch_save(checkpoint, tmp_path / "by-torch")
    by_torch = torch.load(tmp_path / "by-torch", weights_only=False)["state_dict"]
    model = DualPathLM(ModelConfig(**read_recipe(run)["model"]))
    assert weights.keys() == dict(model.named_parameters()).keys()
    assert ("head.weight" in weights) != tied
    for name, weight in weights.items():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, by_torch[f"model.{name}"]), name


@rare
def test_two_ranks_score_the_file_as_they_score_the_shards(share, texts, tmp_path):
    run = trained(share, texts, 4, tied=True)
    out = export(run, tmp_path / "one.safetensors", form="consolidated")
    words = ["validate", "--trainer.strategy", "fsdp", "--ckpt_path"]
    of_run, of_file = (run_on_ranks(2, [*words, str(path)], tmp_path)[0] for path in (run, out))
    scores = [
        [line for line in said.splitlines() if "held_out" in line] for said in (of_run, of_file)
    ]
    assert scores[0] == scores[1] != []


@rare
@pytest.mark.parametrize("tied", [True, False])
def test_every_strategy_starts_from_the_file(tied, share, texts, tmp_path):
    run = trained(share, texts, 4, tied)
    out = export(run, tmp_path / "one.safetensors", form="consolidated")
    recipe = read_recipe(run)
    recipe["run"] |= {"dir": str(tmp_path), "micro_batch": 2}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    untrained, *_, last = rows(run / "validation.csv")
    assert float(untrained["loss"]) > float(last["loss"]) + 1e-3
    for strategy, ranks in (("single", 1), ("ddp", 2), ("fsdp", 2)):
        words = ["fit", "--config", str(tmp_path / "recipe.yaml"), "--ckpt_path", str(out)]
        more = ["--run.name", strategy, "--trainer.strategy", strategy]
        run_on_ranks(ranks, [*words, *more], tmp_path)
        first = rows(tmp_path / "tiny" / strategy / "validation.csv")[0]
        assert first["step"] == "0"
        # The trained model's, which is another than the untrained one's.
        assert float(first["loss"]) == pytest.approx(float(last["loss"]), rel=1e-5), strategy
