"""Recipe and tokenizer of a run are those of its checkpoint, or the run is read by no command."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dualpath_cli.cli.main import main
from tests.tiny_run import SEQ_LEN, back_to_step, of_an_earlier_version, tables

Change = Callable[[dict[str, Any]], object]
WSD = {"schedule": "wsd", "cooldown": 0.5, "warmup_steps": 2}


def edit(path: Path, change: Change) -> None:
    """Changes what a file of JSON or YAML holds."""
    text = path.read_text()
    content = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    change(content)
    path.write_text(json.dumps(content))


def with_model(**values: Any) -> Callable[[Path], None]:
    return lambda run: edit(run / "recipe.yaml", lambda recipe: recipe["model"].update(values))


def with_tokenizer(change: Change) -> Callable[[Path], None]:
    return lambda run: edit(run / "tokenizer.json", lambda tokenizer: change(tokenizer["model"]))


def swap_ids(model: dict[str, Any]) -> None:
    vocab = model["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (with_model(norm_eps=0.1), "has model.norm_eps=0.1, but "),
        (with_model(tie_embeddings=True), "has model.tie_embeddings=True, but "),
        (with_model(max_seq_len=8), "has model.max_seq_len=8, but "),
        (with_tokenizer(lambda model: model["merges"].pop()), "tokenizer.json has the fingerprint"),
        (with_tokenizer(swap_ids), "tokenizer.json has the fingerprint"),
    ],
)
def test_a_run_that_is_not_as_its_checkpoint_is_refused(damage, message, trained, said):
    run = trained()
    damage(run)
    error = said("validate", "--ckpt_path", run)
    assert message in error
    assert f"but {run}/checkpoints/step-00000006 was trained with " in error
    assert "back\n" in error


def test_every_command_that_reads_a_run_refuses_it(trained, tmp_path, said):
    run = trained(optim=WSD)
    with_model(norm_eps=0.1)(run)
    fit = ["fit", "--config", tmp_path / "recipe.yaml", "--model.norm_eps", "0.1"]
    given = ["--ckpt_path", run]
    for words in (
        ["validate", *given],
        ["ablate", *given],
        ["routing", *given, "--text", "hello"],
        ["generate", *given, "--prompt", "hello"],
        ["evaluate", *given, "--out", tmp_path / "scores"],
        ["export", *given, "--format", "consolidated"],
        [*fit],
        [*fit, "--run.name", "other", *given],
        [*fit, "--run.name", "other", "--run.branch_from", run],
    ):
        assert "recipe.yaml has model.norm_eps=0.1, but " in said(*words), words


def test_what_is_not_the_model_may_differ_and_words_may_change_the_model(trained):
    run = trained()
    edit(run / "recipe.yaml", lambda recipe: recipe["data"].update(workers=1, val_seed=3))
    edit(run / "tokenizer.json", lambda tokenizer: tokenizer.update(truncation=None))
    assert main(["validate", "--ckpt_path", str(run), "--model.max_seq_len", "8"]) == 0


def test_a_setting_that_is_newer_than_a_checkpoint_had_its_default(trained, said):
    run = trained()
    edit(
        run / "checkpoints" / "manifests" / "step-00000006.json",
        lambda content: content["run"]["model"].pop("rope_dtype"),
    )
    assert main(["validate", "--ckpt_path", str(run)]) == 0
    with_model(rope_dtype="bfloat16")(run)
    assert "model.rope_dtype=bfloat16" in said("validate", "--ckpt_path", run)


def test_a_run_of_an_earlier_version_is_read_and_goes_on(trained, tmp_path, said):
    run = trained()
    whole = tables(run)
    of_an_earlier_version(run)
    copy = shutil.copytree(run, tmp_path / "copy", symlinks=True)
    assert main(["validate", "--ckpt_path", str(copy)]) == 0
    with_model(tie_embeddings=True)(copy)
    error = said("validate", "--ckpt_path", copy)
    assert "has a head.weight of its own, which the model shares with embed.weight" in error
    back_to_step(run, 2)
    assert main(["fit", "--config", str(tmp_path / "recipe.yaml")]) == 0
    assert tables(run) == whole
    with_model(max_seq_len=SEQ_LEN // 2)(run)
    assert "was trained with 16" in said("validate", "--ckpt_path", run)
