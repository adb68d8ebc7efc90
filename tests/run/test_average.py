"""`--average N`: which checkpoints are averaged, the mean of their weights, where it shows."""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from dualpath_cli.base.system import read_csv
from dualpath_cli.cli.main import main
from dualpath_cli.compare.runs import read_run
from dualpath_cli.model import DualPathLM
from dualpath_cli.run.checkpoint_files import describe, files_of, manifest_of, write_manifest
from dualpath_cli.run.run_folder import AVERAGES
from dualpath_cli.run.weights import load_weights
from tests.export.conftest import model_of
from tests.model.small_models import ALL_KINDS, small
from tests.training.tiny_run import back_to_step, rows, saved

CONFIG = small(**ALL_KINDS, tie_embeddings=True)


def written(folder: Path, number: int, weights: dict[str, torch.Tensor]) -> Path:
    path = folder / f"step-{number:08d}"
    path.mkdir()
    (path / "state.json").write_text("{}")
    save_file({f"model.{name}": value for name, value in weights.items()}, path / "a.safetensors")
    write_manifest(path, describe(path, files_of(path)), {})
    return path


def some_weights(seed: int) -> dict[str, torch.Tensor]:
    """Weights of very different sizes; the head is the embedding."""
    draw = torch.Generator().manual_seed(seed)
    sizes = {name: value.shape for name, value in DualPathLM(CONFIG).named_parameters()}
    return {
        name: torch.randn(size, generator=draw) * 10 ** torch.randint(-6, 6, (), generator=draw)
        for name, size in sizes.items()
    }


def loaded(*checkpoints: Path) -> dict[str, np.ndarray]:
    model = DualPathLM(CONFIG)
    load_weights(model, *checkpoints)
    assert model.head.weight is model.embed.weight
    return {name: value.detach().numpy() for name, value in model.named_parameters()}


@settings(max_examples=10)
@given(st.lists(st.integers(0, 99), min_size=1, max_size=4))
def test_the_average_is_the_mean_in_float64_rounded_once(given):
    """Of one, or of equal ones, bit for bit their own weights."""
    with tempfile.TemporaryDirectory() as name:
        each = [some_weights(seed) for seed in given]
        paths = [written(Path(name), number, weights) for number, weights in enumerate(each)]
        mean = loaded(*paths)
        same = loaded(*[paths[0]] * 3)
    for key, value in mean.items():
        by_hand = sum(weights[key].numpy().astype(np.float64) for weights in each) / len(each)
        np.testing.assert_array_equal(value, by_hand.astype(np.float32), err_msg=key)
        np.testing.assert_array_equal(same[key], each[0][key].numpy(), err_msg=key)


def by_hand(run: Path, *steps: int) -> DualPathLM:
    """The run's model with the mean of its checkpoints' weights."""
    model = model_of(run)
    each = [saved(run / "checkpoints" / f"step-{step:08d}") for step in steps]
    mean = {
        name.removeprefix("model."): torch.stack([one[name].double() for one in each]).mean(0)
        for name in each[0]
        if name.startswith("model.")
    }
    model.load_state_dict(mean, strict=False)  # a tied head is there once
    return model


def test_validation_is_of_the_average_and_says_so(fit, tmp_path, capsys):
    run = fit()
    capsys.readouterr()
    assert main(["validate", "--ckpt-path", str(run), "--average", "2"]) == 0
    shown = capsys.readouterr().out
    assert "mean of the weights of 2 checkpoints, steps 4 to 6" in shown
    (row,) = read_csv(run / AVERAGES)
    assert (row["step"], row["average"], row["set"]) == ("6", "2", "held_out")
    assert f"{float(row['bits_per_byte']):.4f}" in shown
    # The same weights, exported, have the same loss, another one than the last step's.
    out = tmp_path / "mean"
    words = ["export", "--ckpt-path", str(run), "--average", "2", "--out", str(out)]
    assert main(words) == 0
    assert main(["validate", "--ckpt-path", str(out)]) == 0
    assert f"{float(row['loss']):.4f}" in capsys.readouterr().out
    assert f"{float(row['loss']):.6f}" != f"{float(rows(run / 'validation.csv')[-1]['loss']):.6f}"
    config = json.loads((out / "config.json").read_text())
    assert config["dualpath"]["averaged_steps"] == [4, 6]
    for name, value in by_hand(run, 4, 6).state_dict().items():
        torch.testing.assert_close(model_of(out).state_dict()[name], value, rtol=0, atol=0)
    # Other texts than the recipe's are not kept; the same ones take the place of the row.
    for more in (["--data.val_tokens", "20"], []):
        words = ["validate", "--ckpt-path", str(run), "--average", "2", *more]
        assert main(words) == 0
        assert read_csv(run / AVERAGES) == [row]
    compared = read_run(run, 2)
    assert compared.scores["held_out"] == float(row["bits_per_byte"])
    checkpoint = run / "checkpoints" / "step-00000004"
    assert main(["validate", "--ckpt-path", str(checkpoint), "--average", "2"]) == 0
    assert "steps 2 to 4" in capsys.readouterr().out
    words = ["fit", "--config", str(tmp_path / "recipe.yaml"), "--ckpt-path", str(checkpoint)]
    assert main(words) == 0
    assert not (run / AVERAGES).exists(), "training went on"


@pytest.mark.parametrize("command", ["validate", "export", "fit"])
@pytest.mark.parametrize("source", ["step", "run"])
def test_a_checkpoint_of_another_step_or_run_is_not_taken_for_the_runs_own(
    command, source, trained, tmp_path, said
):
    """Though its hashes are right: it lies there with its manifest."""
    other, run = trained(run={"name": "other"}, seed_everything=2), trained()
    wrong = run / "checkpoints" / "step-00000004"
    if command == "fit":  # which continues from it
        back_to_step(run, 4)
    taken = wrong.with_name("step-00000002")
    if source == "run":
        taken = other / "checkpoints" / wrong.name
    shutil.copytree(taken, wrong, dirs_exist_ok=True)
    shutil.copyfile(manifest_of(taken), manifest_of(wrong))
    words = {
        "validate": ["--average", "2", "--ckpt-path", str(run)],
        "export": ["--average", "2", "--ckpt-path", str(run)],
        "fit": ["--config", str(tmp_path / "recipe.yaml")],
    }[command]
    fault = "was written at step 2; put" if source == "step" else f"is of another run than {run}"
    assert f"{wrong} {fault}" in said(command, *words)


def test_the_average_of_a_run_in_float64_is_not_rounded(trained, tmp_path):
    run = trained(trainer={"precision": "64-true"})
    words = ["export", "--ckpt-path", str(run), "--average", "3"]
    assert main([*words, "--out", str(tmp_path / "mean")]) == 0
    each = [saved(run / f"checkpoints/step-{step:08d}") for step in (2, 4, 6)]
    for name, value in saved(tmp_path / "mean").items():
        assert torch.equal(value, sum(one[name] for one in each) / 3), name
        assert value.dtype == torch.float64
