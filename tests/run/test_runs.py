"""A run's files: each part's recipe and versions; recipe and tokenizer are its
checkpoint's."""

import hashlib
import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest
import yaml

import dualpath_cli
from dualpath_cli.base import version
from dualpath_cli.cli.main import main
from dualpath_cli.recipe.keys import OF_TEXTS
from dualpath_cli.recipe.settings import settings_from
from dualpath_cli.run import run_folder
from dualpath_cli.run.checkpoint_files import manifest_of
from dualpath_cli.spec.config import ModelConfig
from tests.data.faulty_data import swap_ids
from tests.training.tiny_run import RUN, back_to_step

Change = Callable[[dict[str, Any]], object]
WSD = {"schedule": "wsd", "cooldown": 0.5, "warmup_steps": 2}


def edit(path: Path, change: Change) -> None:
    """Changes what a file of JSON or YAML holds."""
    text = path.read_text()
    content = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    change(content)
    path.write_text(json.dumps(content))


def with_model(**values: Any) -> Callable[[Path], None]:
    return lambda run: edit(
        run / "recipe.yaml", lambda recipe: recipe["model"].update(values)
    )


def without_a_merge(run: Path) -> None:
    edit(run / "tokenizer.json", lambda content: content["model"]["merges"].pop())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (with_model(norm_eps=0.1), "has model.norm_eps=0.1, but "),
        (with_model(tie_embeddings=True), "has model.tie_embeddings=True, but "),
        (with_model(max_seq_len=8), "has model.max_seq_len=8, but "),
        (without_a_merge, "tokenizer.json has the fingerprint"),
        (swap_ids, "tokenizer.json has the fingerprint"),
    ],
)
def test_a_run_that_is_not_as_its_checkpoint_is_refused(damage, message, trained, said):
    run = trained()
    damage(run)
    assert message in said("validate", "--ckpt_path", run)


def test_every_command_that_reads_a_run_refuses_it(trained, tmp_path, said):
    run = trained(optim=WSD)
    with_model(norm_eps=0.1)(run)
    fit = ["fit", "--config", tmp_path / "recipe.yaml", "--model.norm_eps", "0.1"]
    given = ["--ckpt_path", run]
    for words in (
        ["validate", *given],
        ["ablate", *given],
        ["routing", *given],
        ["generate", *given, "--prompt", "hello"],
        ["evaluate", *given, "--out", tmp_path / "scores"],
        ["export", *given],
        [*fit],
        [*fit, "--run.name", "other", *given],
        [*fit, "--run.name", "other", "--run.branch_from", run],
    ):
        assert "recipe.yaml has model.norm_eps=0.1, but " in said(*words), words


@pytest.mark.parametrize(
    "line",
    [
        "validate",
        "ablate",
        "routing --tagger none",
        "export",
        "evaluate --tasks c4 --data . --limit 1 --out scores",
    ],
)
def test_weights_are_hashed_once_a_command(line, trained, texts, tmp_path, monkeypatch):
    if line.startswith("evaluate"):
        pytest.importorskip("lm_eval")
    run = trained()
    shutil.copy(texts / "val.jsonl", tmp_path / "c4.jsonl")
    monkeypatch.chdir(tmp_path)
    weights = {path.read_bytes(): path for path in run.rglob("*.safetensors")}
    hashed: Counter[Path] = Counter()
    sha256 = hashlib.sha256

    class Counting:
        def __init__(self, content: bytes = b"") -> None:
            self._digest = sha256()
            self.update(content)

        def update(self, content: bytes) -> None:
            hashed.update(
                [weights[bytes(content)]] if bytes(content) in weights else []
            )
            self._digest.update(content)

        def hexdigest(self) -> str:
            return self._digest.hexdigest()

    monkeypatch.setattr(hashlib, "sha256", Counting)
    command, *words = line.split()
    assert main([command, "--ckpt-path", str(run), *words]) == 0
    assert hashed == dict.fromkeys(
        (run / "checkpoints/step-00000006").glob("*.safetensors"), 1
    )


def test_what_is_not_the_model_may_differ_and_words_may_cut_texts_otherwise(trained):
    run = trained()
    edit(
        run / "recipe.yaml", lambda recipe: recipe["data"].update(workers=1, val_seed=3)
    )
    edit(run / "tokenizer.json", lambda tokenizer: tokenizer.update(truncation=None))
    words = ["--model.max_seq_len", "8", "--model.document_start", "259"]
    assert main(["validate", "--ckpt_path", str(run), *words]) == 0


OTHER_MODEL = {
    "vocab_size": 300,
    "n_layers": 3,
    "d_model": 32,
    "n_heads": 4,
    "n_kv_heads": 2,
    "block": ["dual", "wide"],
    "loops": 7,
    "d_ffn": 32,
    "d_ffn_wide": 64,
    "ffn_multiple_of": 4,
    "n_experts": 2,
    "top_k": 1,
    "balance": "none",
    "balance_rate": 0.5,
    "tie_embeddings": True,
    "rope_base": 10.0,
    "qk_norm": "before_rope",
    "norm_eps": 0.1,
    "gate": "softmax",
    "combination": "mean",
    "step_index": "one_based",
    "step_conditioning": "film",
    "gain_init": -7.0,
    "init_std": 0.5,
    "residual_dtype": "bfloat16",
    "rope_dtype": "bfloat16",
    "untied_steps": True,
    "step_kv": "first",
    "deep_ffn": False,
    "core": [0, 1],
    "core_loops": 2,
    "injection": "add",
    "core_combination": "router",
}
"""Another value of each key of a model that its weights are trained under."""


def test_no_words_or_recipe_give_a_run_another_model(trained, tmp_path, said):
    assert (
        OTHER_MODEL.keys() == {field.name for field in fields(ModelConfig)} - OF_TEXTS
    )
    run, overlay = trained(), tmp_path / "overlay.yaml"
    ways = product(("validate", "ablate", "routing"), ("words", "recipe"))
    for (key, value), (command, way) in zip(
        OTHER_MODEL.items(), cycle(ways), strict=False
    ):
        overlay.write_text(yaml.safe_dump({"model": {key: value}}))
        words = (
            ["--model", json.dumps({key: value})]
            if way == "words"
            else ["--config", overlay]
        )
        error = said(command, "--ckpt_path", run, *words)
        assert f" model.{key}={value}, but '{run}' was trained with" in error
    assert sorted(path.name for path in run.glob("*/step-*")) == [
        f"step-{step:08d}" for step in (2, 4, 6)
    ], "no results"


def test_a_setting_that_is_newer_than_a_checkpoint_had_its_default(trained, said):
    run = trained()
    edit(
        run / "checkpoints" / "manifests" / "step-00000006.json",
        lambda content: content["run"]["model"].pop("rope_dtype"),
    )
    assert main(["validate", "--ckpt_path", str(run)]) == 0
    with_model(rope_dtype="bfloat16")(run)
    assert "model.rope_dtype=bfloat16" in said("validate", "--ckpt_path", run)


def test_parts_that_began_later_go_where_a_run_is_taken_back(tmp_path):
    other = tmp_path / "versions-mine20260101.json"
    other.write_text("{}")
    run_folder.write_start(tmp_path, {}, {"part": 1})
    run_folder.write_start(tmp_path, {}, {"part": 2}, step=20)
    # in a copy, or by a clock that went back
    os.utime(tmp_path / "versions.json", (2e9, 2e9))
    assert run_folder.facts_now(tmp_path)["part"] == 2
    assert (tmp_path / "recipe-00000020.yaml").exists()
    run_folder.write_start(tmp_path, {}, {"part": 3}, step=10)
    assert run_folder.facts_now(tmp_path)["part"] == 3
    assert not (tmp_path / "recipe-00000020.yaml").exists()
    assert other.exists()


def test_a_continued_part_of_an_earlier_version_may_name_the_class_of_a_strategy(home):
    run = home / RUN
    first = settings_from(run_folder.read_recipe(run))
    part = run / "recipe-00000001.yaml"
    shutil.copy(run / "recipe.yaml", part)
    strategy = {"class_path": "lightning.pytorch.strategies.FSDPStrategy"}
    edit(part, lambda recipe: recipe["trainer"].update(strategy=strategy))
    parts = run_folder.settings_of_parts(run, first)
    assert parts[1].trainer.strategy == "auto"


def test_the_commit_is_that_of_this_code_not_of_a_repository_around_it(
    tmp_path, monkeypatch
):
    """An environment lies in another project; a checkout tracks the file that asks."""

    def git(*words: str) -> str:
        who = ("-c", "user.name=x", "-c", "user.email=x@y")
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *who, *words],
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    code = tmp_path / ".venv" / "version.py"
    code.parent.mkdir()
    code.write_text("")
    monkeypatch.setattr(version, "__file__", str(code))
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "their own")
    assert version._git_commit() is None
    git("add", "-f", ".venv")
    git("commit", "-q", "-m", "a checkout of ours")
    assert version._git_commit() == git("rev-parse", "HEAD")
    code.write_text("1")
    assert version._git_commit() == git("rev-parse", "HEAD") + "+changes"


def test_a_checkout_that_is_not_installed_has_a_version(monkeypatch):
    def found(name: str) -> str:
        assert name != "dualpath", "which has no metadata"
        return "1.0"

    monkeypatch.setattr("importlib.metadata.version", found)
    packages = version.versions()["packages"]
    assert packages["dualpath"] == dualpath_cli.__version__
    assert packages["lightning"] == "1.0"


@pytest.mark.parametrize("command", ["validate", "fit"])
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
        "validate": ["--ckpt-path", str(wrong)],
        "fit": ["--config", str(tmp_path / "recipe.yaml")],
    }[command]
    fault = (
        "was written at step 2; put"
        if source == "step"
        else f"is of another run than {run}"
    )
    assert f"{wrong} {fault}" in said(command, *words)
