"""`dualpath export`: whole or not there, nothing damaged, and a RUN of every command."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors import safe_open

from dualpath_cli.cli.main import main
from dualpath_cli.export.hf import folder as hf
from dualpath_cli.model import DualPathLM
from dualpath_cli.run.run_folder import RECIPE, newest_checkpoint, read_recipe
from dualpath_cli.spec.config import ModelConfig
from tests.cli.processes import run_on_ranks, start
from tests.conftest import Share
from tests.export.conftest import contents, export, words
from tests.study.conftest import USERS_OF_FIGURES
from tests.training.tiny_run import rows, saved, tiny_recipe

rare = pytest.mark.slow


def test_an_export_is_whole_or_not_there_and_replaced_on_request_alone(
    trained, tmp_path, monkeypatch, said
):
    run, out = trained(), tmp_path / "exports" / "model"
    given = words(run, out)

    def interrupt(*more: str) -> None:
        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(hf, "save_file", interrupted)
            assert main([*given, *more]) == 130

    interrupt()
    assert list(out.parent.iterdir()) == []
    export(run, out)
    whole = contents(out)
    (out / RECIPE).unlink()
    before = contents(out)
    assert "is there already; give another --out, or --overwrite" in said(*given)
    interrupt("--overwrite")
    assert contents(out) == before
    export(run, out, "--overwrite")
    assert contents(out) == whole
    assert list(out.parent.iterdir()) == [out]


def write_without_end() -> None:
    def wait(*_: object) -> None:
        time.sleep(60)

    hf.save_file = wait


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=rare)])
def test_an_export_holds_its_unfinished_folder_and_removes_it_unless_it_is_killed(
    number, trained, tmp_path, said
):
    run, out = trained(), tmp_path / "exports" / "hf"
    process = start(words(run, out), tmp_path / "log", write_without_end)
    while not (unfinished := list(out.parent.glob("*.partial/new/config.json"))):
        assert process.is_alive(), (tmp_path / "log").read_text()
        time.sleep(0.01)
    assert f"'{out}' is being written by another process; wait" in said(*words(run, out))
    assert unfinished[0].exists()
    os.kill(process.pid or 0, number)
    process.join()
    assert unfinished[0].exists() == (number == signal.SIGKILL)
    assert process.exitcode == (-number if number == signal.SIGKILL else 128 + number)
    export(run, out)
    assert list(out.parent.iterdir()) == [out]


def test_large_models_are_several_files(trained, tmp_path, monkeypatch, output_of):
    run = trained()
    whole = export(run, tmp_path / "whole")
    monkeypatch.setattr(hf, "MOST_BYTES", 4096)
    out = export(run, tmp_path / "parts")
    places = json.loads((out / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(places.values())) > 3
    for name, tensor in saved(whole).items():
        assert torch.equal(saved(out)[name], tensor)
        with safe_open(out / places[name], "pt") as file:
            assert name in file.keys()  # noqa: SIM118
    validate = ["validate", "--ckpt_path"]
    assert output_of(*validate, out) == output_of(*validate, whole) == output_of(*validate, run)


def test_an_exported_folder_is_exported_alike(trained, tmp_path):
    first = export(trained() / "checkpoints" / "step-00000002", tmp_path / "first")
    assert contents(export(first, tmp_path / "again")) == contents(first)
    assert [row["step"] for row in rows(first / "metrics.csv")] == ["1", "2"]


def test_an_exported_folder_is_studied_and_compared_as_its_run(
    trained, tmp_path, output_of, monkeypatch
):
    monkeypatch.setattr(USERS_OF_FIGURES[0], lambda folder, figures: [])
    run = trained()
    compare = ("compare", "--out", tmp_path / "comparison")
    compared = output_of(*compare, run).replace(str(run), "RUN")
    out = export(run, tmp_path / "a" / "b")
    assert output_of(*compare, out).replace(str(out), "RUN") == compared
    of_run = output_of("ablate", "--ckpt_path", run)
    shutil.rmtree(run)
    of_folder = output_of("ablate", "--ckpt_path", out)
    shown = [[line for line in said.splitlines() if "│" in line] for said in (of_run, of_folder)]
    assert shown[0] == shown[1] != []
    assert (out / "ablations" / "step-00000006" / "ablations.csv").is_file()


def test_weights_of_a_folder_are_started_from(trained, tmp_path, said):
    run = trained()
    out = export(run, tmp_path / "out")
    given = ["fit", "--config", str(tmp_path / "recipe.yaml"), "--run.max_tokens", "256"]
    for name, start_of in (("a", run), ("b", out)):
        assert main([*given, "--run.name", name, "--run.init_from", str(start_of)]) == 0
    one, other = (rows(run.with_name(name) / "metrics.csv") for name in "ab")
    assert one == other
    assert one[0] != rows(run / "metrics.csv")[0]
    other = ["--run.name", "c", "--model.loops", "3", "--run.init_from", out]
    assert "model.loops" in said(*given, *other)


RUNS = [(2, True), *(pytest.param(*run, marks=rare) for run in ((2, False), (4, True), (4, False)))]
VOCABULARY = 275  # neither two nor four ranks divide it


def trained_by(share: Share, texts: Path, ranks: int, tied: bool) -> Path:
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


def put_together(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint: the shards of each one below the other, by their offsets."""
    parts: dict[str, list[tuple[int, torch.Tensor]]] = {}
    for path in checkpoint.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            places = json.loads(file.metadata()["DCP_SHARDING_INFO"])
            for name in file.keys():  # noqa: SIM118
                first = (places[name]["saved_offsets"] or [0])[0]
                parts.setdefault(name, []).append((first, file.get_tensor(name)))
    ordered = {k: [t for _, t in sorted(v, key=lambda p: p[0])] for k, v in parts.items()}
    return {k: torch.cat(v) if v[0].ndim else v[0] for k, v in ordered.items()}


@pytest.mark.parametrize(("ranks", "tied"), RUNS)
def test_shards_of_all_ranks_are_exported_bit_for_bit(ranks, tied, share, texts, tmp_path):
    run = trained_by(share, texts, ranks, tied)
    checkpoint = newest_checkpoint(run)
    assert len({path.name[:11] for path in checkpoint.glob("shard-*")}) == ranks
    found = saved(export(run, tmp_path / "out"))
    wanted = put_together(checkpoint)
    model = DualPathLM(ModelConfig(**read_recipe(run)["model"]))
    assert found.keys() == {f"model.{name}" for name, _ in model.named_parameters()}
    assert ("model.head.weight" in found) != tied
    for name, weight in found.items():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, wanted[name]), name
