"""A tiny recipe, a tiny data folder, runs that are made of them, and what is in such a
run."""

import csv
import hashlib
import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from dualpath_cli.base.version import versions
from dualpath_cli.cli.main import main
from dualpath_cli.data.manifest import Manifest
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.recipe.recipes import Recipe, merge
from dualpath_cli.recipe.settings import settings_from
from dualpath_cli.report.table import format_csv
from dualpath_cli.run.checkpoint_files import describe, files_of, write_manifest
from dualpath_cli.run.run_folder import newest_checkpoint
from tests.conftest import Share
from tests.data.small_tokenizer import tokenizer_with

if TYPE_CHECKING:
    import torch

RUN = "runs/tiny/default"  # in a folder of `write_home`
SEQ_LEN = 16
MERGES = ["h e", "l l", "he ll"]
LONG: dict[str, Any] = {
    "model": {"max_seq_len": 64},
    "run": {"batch_tokens": 256, "max_tokens": 6 * 256},
}
"""Changes to the tiny recipe: sequences of 64 tokens."""

Fit = Callable[..., Path]
Refused = Callable[..., str]


def write_text(path: Path, seed: int, documents: int, words: int) -> Path:
    """A JSONL file of documents drawn from a few words."""
    draw = random.Random(seed)
    vocabulary = ["hell", "hello", "shell", "cell", "the", "tell", "a", "well"]
    texts = [" ".join(draw.choices(vocabulary, k=words)) for _ in range(documents)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def write_blocks(path: Path, count: int) -> Path:
    """A JSONL file of documents that are one training block each: 16 tokens and
    end-of-text."""
    draw = random.Random(2)
    texts = ["".join(draw.choices("abcd", k=SEQ_LEN)) for _ in range(count)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture(scope="session")
def small() -> Tokenizer:
    """A tokenizer of the bytes and three merges."""
    return tokenizer_with(MERGES)


def prepare(
    folder: Path, text: Path, *options: str, merges: list[str] = MERGES
) -> Path:
    """A data folder made from a JSONL file."""
    tokenizer = folder.with_name(folder.name + "-tokenizer")
    tokenizer.mkdir(parents=True, exist_ok=True)
    tokenizer_with(merges).save(tokenizer)
    words = [
        "--source",
        str(text),
        "--tokenizer",
        str(tokenizer),
        "--out",
        str(folder),
        *options,
    ]
    assert main(["prepare", *words, "--workers", "1"]) == 0
    return folder


@pytest.fixture(scope="session")
def texts(share: Share) -> Path:
    """A folder with train.jsonl, val.jsonl and a data folder `train`."""

    def fill(folder: Path) -> None:
        prepare(
            folder / "train",
            write_text(folder / "train.jsonl", 0, documents=40, words=20),
        )
        write_text(folder / "val.jsonl", 1, documents=5, words=12)

    return share("texts", fill)


def tiny_recipe(texts: Path, runs: Path) -> Recipe:
    """Six steps of four sequences of a model with two layers."""
    return {
        "seed_everything": 1,
        "model": {
            "vocab_size": 272,
            "n_layers": 2,
            "d_model": 16,
            "n_heads": 2,
            "n_kv_heads": 1,
            "max_seq_len": SEQ_LEN,
            "loops": 2,
            "d_ffn": 24,
            "d_ffn_wide": 48,
            "ffn_multiple_of": 8,
            "gain_init": -1.0,
        },
        "optim": {"lr": 3e-3, "lr_start": 3e-4, "lr_end": 3e-4, "warmup_steps": 2},
        "run": {
            "dir": str(runs),
            "recipe": "tiny",
            "max_tokens": 6 * 4 * SEQ_LEN,
            "batch_tokens": 4 * SEQ_LEN,
            "micro_batch": 2,
            "compile": False,
            "log_every": 1,
            "gates_every": 3,
            "validate_every": 3,
            "save_every": 2,
            "keep": 0,
            "tensorboard": False,
        },
        "data": {
            "path": str(texts / "train"),
            "val": {"held_out": str(texts / "val.jsonl")},
            "workers": 0,
        },
        "trainer": {"accelerator": "cpu", "devices": 1},
    }


def train(recipe: Recipe, path: Path, expected: int = 0) -> Path:
    """Runs `fit` on a recipe, written to `path`, without the curve; returns the run
    folder."""
    path.write_text(yaml.safe_dump(recipe))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dualpath_cli.training.curve.draw", lambda run: run / "curve.png")
        assert main(["fit", "--config", str(path)]) == expected
    run = recipe["run"]
    return Path(run["dir"], run["recipe"], run.get("name", "default"))


def digest_of(content: object) -> str:
    """A short name of some content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@pytest.fixture
def fit(texts: Path, tmp_path: Path) -> Fit:
    """Trains the tiny recipe, changed by keyword (section={...}), and returns the run
    folder."""

    def run(**changes: Any) -> Path:
        recipe = merge(tiny_recipe(texts, tmp_path / "runs"), changes)
        return train(recipe, tmp_path / "recipe.yaml")

    return run


@pytest.fixture
def refused(texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Like `fit`, of a recipe that is a mistake, or whose run fails with `code` 1.

    Returns the one line that is said.
    """

    def run(code: int = 2, **changes: Any) -> str:
        recipe = merge(tiny_recipe(texts, tmp_path / "runs"), changes)
        capsys.readouterr()
        train(recipe, tmp_path / "recipe.yaml", expected=code)
        said = capsys.readouterr().err
        assert said.startswith(f"dualpath fit: {({1: 'failed', 2: 'error'})[code]}: ")
        assert said.count("\n") == 1
        return said

    return run


@pytest.fixture
def trained(share: Share, texts: Path, tmp_path: Path) -> Fit:
    """Like `fit`, but trains each recipe once for all tests and returns a copy of the
    run."""

    def copy(**changes: Any) -> Path:
        recipe = merge(tiny_recipe(texts, tmp_path / "runs"), changes)
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        runs = share(
            f"runs-{digest_of(changes)}",
            lambda folder: train(
                merge(recipe, {"run": {"dir": str(folder)}}), folder / "recipe"
            ),
        )
        run = tmp_path / "runs" / "tiny" / recipe["run"].get("name", "default")
        shutil.copytree(runs / "tiny" / run.name, run, symlinks=True)
        text = (run / "recipe.yaml").read_text()
        (run / "recipe.yaml").write_text(
            text.replace(str(runs), str(tmp_path / "runs"))
        )
        return run

    return copy


# What the cases of mistakes start from


def recipe_of_home() -> Recipe:
    """The recipe of tiny.yaml: its paths are those in the folder."""
    recipe = tiny_recipe(Path("texts"), Path("runs"))
    recipe["data"]["val"] = {"held_out": "val.jsonl"}
    return recipe


def write_home(folder: Path) -> None:
    """Fills a folder; nothing in it is trained, as nothing that the cases run reads
    weights."""
    texts = folder / "texts"
    texts.mkdir(parents=True)
    prepare(
        texts / "train", write_text(folder / "train.jsonl", 0, documents=40, words=20)
    )
    write_text(folder / "val.jsonl", 1, documents=5, words=12)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(recipe_of_home()))
    run = folder / RUN
    (run / "checkpoints").mkdir(parents=True)
    checkpoint = run / "checkpoints" / "step-00000002"
    checkpoint.mkdir()
    (checkpoint / "state.json").write_text("{}")
    (run / "checkpoints" / "last").symlink_to("step-00000002")
    shutil.copy(texts / "train" / "tokenizer.json", run)
    resolved = settings_from(recipe_of_home()).as_recipe()
    (run / "recipe.yaml").write_text(yaml.safe_dump(resolved))
    manifest = Manifest.read(texts / "train")
    facts = {
        "id": "1",
        "step": 2,
        "model": resolved["model"],
        "tokenizer": manifest.tokenizer,
        "data_fingerprint": manifest.fingerprint,
    }
    write_manifest(checkpoint, describe(checkpoint, files_of(checkpoint)), facts)
    (run / "versions.json").write_text(json.dumps(versions() | facts))
    rows = [
        {"step": n, "tokens": 64 * n, "loss": 5.5, "seconds": n / 10} for n in (1, 2)
    ]
    (run / "metrics.csv").write_text(format_csv(rows))
    rows = [
        {"step": n, "tokens": 64 * n, "set": "held_out", "loss": 5.5} for n in (0, 2)
    ]
    (run / "validation.csv").write_text(format_csv(rows))
    gates = {"gate_deep": 0.5, "gate_wide": 0.5, "expected_loops": 1.5}
    (run / "routing.csv").write_text(
        format_csv([{"step": 2, "layer": n, **gates} for n in (0, 1)])
    )


@pytest.fixture
def home(share: Share, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a copy of the folder of `write_home`."""
    shutil.copytree(share("home", write_home), tmp_path / "home", symlinks=True)
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path / "home"


# What is in a run

# Columns that say how fast a run was, not what it computed.
MEASURED = {"tokens_per_second", "tflops_per_second", "mfu", "seconds"}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [
            {k: v for k, v in row.items() if k not in MEASURED}
            for row in csv.DictReader(file)
        ]


def tables(run: Path) -> dict[str, list[dict[str, str]]]:
    return {
        name: rows(run / name)
        for name in ("metrics.csv", "validation.csv", "routing.csv")
    }


def losses_in(printed: str) -> dict[str, float]:
    """The loss of each validation set in the table that `validate` prints."""
    found = re.findall(r"(\w+) +│ +([\d.]+) │", printed)
    return {name: float(loss) for name, loss in found}


def saved(checkpoint: Path) -> dict[str, "torch.Tensor"]:
    """The tensors that one rank wrote: `model.NAME` and `optimizer.0.KEY.NAME`."""
    from safetensors.torch import load_file

    files = map(load_file, sorted(checkpoint.glob("*.safetensors")))
    return {name: tensor for file in files for name, tensor in file.items()}


def state(run: Path, step: int, of: str = "") -> dict[str, "torch.Tensor"]:
    """The tensors of a run's checkpoint whose names begin so."""
    tensors = saved(run / f"checkpoints/step-{step:08d}")
    return {name: tensor for name, tensor in tensors.items() if name.startswith(of)}


def weights(run: Path) -> dict[str, "torch.Tensor"]:
    checkpoint = newest_checkpoint(run)
    assert checkpoint is not None
    return {
        name: t for name, t in saved(checkpoint).items() if name.startswith("model.")
    }


def back_to_step(run: Path, step: int) -> None:
    """Leaves a run as if it had been interrupted after a checkpoint, or, at step 0,
    before the first one."""
    checkpoints = run / "checkpoints"
    for path in checkpoints.glob("step-*"):
        if int(path.name.removeprefix("step-")) > step:
            shutil.rmtree(path)
    (checkpoints / "last").unlink()
    if step:
        (checkpoints / "last").symlink_to(f"step-{step:08d}")
