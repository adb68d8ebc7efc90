"""A run in one file: it says what it is, all commands take it, a damaged one is refused.

Shards of two and of four ranks become one bit for bit, from which any strategy starts.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from dualpath_cli.cli.main import main
from dualpath_cli.config import ModelConfig
from dualpath_cli.export import weights as export_weights
from dualpath_cli.model import DualPathLM
from dualpath_cli.run import run_file
from dualpath_cli.run.run_folder import find_run, read_recipe
from tests.conftest import Share
from tests.export.conftest import export
from tests.processes import run_on_ranks
from tests.study.conftest import USERS_OF_FIGURES
from tests.tiny_run import back_to_step, rows, tiny_recipe, weights
from tests.training.test_checkpoint_faults import sharded


def exported(run: Path) -> Path:
    """The file that a run of the tiny recipe is exported to by default."""
    assert main(["export", "--ckpt_path", str(run), "--format", "consolidated"]) == 0
    return run / "export" / "tiny-default-step-00000006.safetensors"


def test_the_file_says_what_it_is(trained):
    run = trained()
    with (run / "recipe.yaml").open("a") as recipe:
        recipe.write(f"# {run_file.NO_HASH}\n")  # as the place of the hash looks
    out = exported(run)
    assert not run_file.was_changed(out)
    saved = weights(run)
    assert load_file(out).keys() == {name.removeprefix("model.") for name in saved}
    for name, weight in load_file(out).items():
        assert torch.equal(weight, saved[f"model.{name}"])
    with safe_open(out, framework="pt") as file:
        said = file.metadata()
    versions = json.loads((run / "versions.json").read_text())
    assert said["run"] == "tiny/default"
    assert (said["step"], said["tokens"]) == ("6", str(6 * 4 * 16))
    assert json.loads(said["versions"])["data_fingerprint"] == versions["data_fingerprint"]
    assert said["recipe"] == (run / "recipe.yaml").read_text()
    assert said["tokenizer"] == (run / "tokenizer.json").read_text()
    assert said["exported_with"] == versions["packages"]["dualpath"]


def test_a_checkpoint_inside_a_run_and_a_file_are_exported_too(trained, tmp_path, capsys):
    run = trained()
    checkpoint = run / "checkpoints" / "step-00000002"
    first = export(checkpoint, tmp_path / "first.safetensors", form="consolidated")
    capsys.readouterr()
    again = export(first, tmp_path / "again.safetensors", form="consolidated")
    assert "tiny/default, step 2: " in capsys.readouterr().out
    assert first.read_bytes() == again.read_bytes()
    back_to_step(run, 2)
    for name, weight in load_file(again).items():
        assert torch.equal(weight, weights(run)[f"model.{name}"])


def test_shards_are_read_in_portions(trained, tmp_path, monkeypatch):
    run = trained(model={"n_experts": 3})
    expected = load_file(exported(run))
    sharded(run)
    portions = []
    read = export_weights.read_weights
    monkeypatch.setattr(export_weights, "AT_ONCE", 4096)
    monkeypatch.setattr(
        export_weights, "read_weights",
        lambda wanted, folder: portions.append(wanted) or read(wanted, folder),
    )  # fmt: skip
    found = load_file(export(run, tmp_path / "one.safetensors", form="consolidated"))
    assert len(portions) > 3
    for portion in portions:
        size = sum(4 * tensor.numel() for tensor in portion.values())
        assert size <= 4096 or len(portion) == 1
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_studies_of_a_file_write_beside_it(trained, tmp_path, output_of, monkeypatch):
    monkeypatch.setattr(USERS_OF_FIGURES[0], lambda folder, figures: [])
    run = trained()
    out = shutil.move(exported(run), tmp_path / "model.safetensors")
    of_run = output_of("ablate", "--ckpt_path", run)
    shutil.rmtree(run)
    of_file = output_of("ablate", "--ckpt_path", out)
    tables = [[line for line in said.splitlines() if "│" in line] for said in (of_run, of_file)]
    assert tables[0] == tables[1] != []
    assert (tmp_path / "model" / "ablations" / "step-00000006" / "ablations.csv").is_file()


def test_weights_of_a_file_are_started_from(trained, tmp_path, said):
    run = trained()
    out = exported(run)
    given = ["fit", "--config", str(tmp_path / "recipe.yaml"), "--run.max_tokens", "256"]
    for name, start in (("a", run), ("b", out)):
        assert main([*given, "--run.name", name, "--ckpt_path", str(start)]) == 0
    one, other = (rows(run.with_name(name) / "metrics.csv") for name in "ab")
    assert one == other
    assert one[0] != rows(run / "metrics.csv")[0]
    other = ["--run.name", "c", "--model.loops", "3", "--ckpt_path", out]
    assert "model.loops" in said(*given, *other)


def test_a_damaged_file_is_refused(trained, said):
    out = exported(trained())
    whole = out.read_bytes()
    for damage, message in (
        (whole[:-1], "bytes instead of"),
        (whole[:4], "is no file of safetensors"),
        (b"\xff" * 64, "is no file of safetensors"),
        (whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:], "changed since it was exported"),
        (whole.replace(b"lr: 0.003", b"lr: 0.004"), "changed since it was exported"),
    ):
        assert damage != whole
        out.write_bytes(damage)
        assert message in said("validate", "--ckpt_path", out)


def test_a_file_of_others_is_refused(tmp_path, said):
    out = tmp_path / "model.safetensors"
    metadata = {"dualpath": "1", "run": "a/../x", "step": "1", "sha256": "0", "recipe": "",
                "versions": "", "tokenizer": ""}  # fmt: skip
    for facts, message in (
        ({"format": "pt"}, "was not written by this version's dualpath export"),
        (metadata | {"dualpath": "2"}, "its layout is another"),
        (metadata, "the run's name in its header must be a plain name"),
        (metadata | {"run": "a/b", "step": "x"}, "is no run of dualpath"),
        (metadata | {"run": "a/b", "step": "-1"}, "the step in its header must be at least 0"),
        (metadata | {"run": "a/b"}, "is empty; give sections"),
    ):
        save_file({"x": torch.zeros(2)}, out, facts)
        assert message in said("validate", "--ckpt_path", out)


rare = pytest.mark.slow
RUNS = [(2, True), *(pytest.param(*run, marks=rare) for run in ((2, False), (4, True), (4, False)))]
VOCABULARY = 275  # neither two nor four ranks divide it


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
