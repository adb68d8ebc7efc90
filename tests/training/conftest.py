"""A tiny recipe, a tiny data folder, and the command that trains on them."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dualpath_cli.cli import main
from dualpath_cli.recipes import Recipe, merge
from tests.small_tokenizer import tokenizer_with

SEQ_LEN = 16

Fit = Callable[..., Path]


def write_text(path: Path, seed: int, documents: int, words: int) -> Path:
    """A JSONL file of documents drawn from a few words."""
    draw = random.Random(seed)
    vocabulary = ["hell", "hello", "shell", "cell", "the", "tell", "a", "well"]
    texts = [" ".join(draw.choices(vocabulary, k=words)) for _ in range(documents)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def write_blocks(path: Path, count: int) -> Path:
    """A JSONL file of documents that are one training block each: 16 tokens and end-of-text."""
    draw = random.Random(2)
    texts = ["".join(draw.choices("abcd", k=SEQ_LEN)) for _ in range(count)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def prepare(folder: Path, text: Path, tokens: int | None = None) -> Path:
    """A data folder made from a JSONL file."""
    from data_prep.__main__ import main as data_prep

    tokenizer = folder.with_name(folder.name + "-tokenizer")
    tokenizer.mkdir(parents=True, exist_ok=True)
    tokenizer_with(["h e", "l l", "he ll"]).save(tokenizer)
    limit = [] if tokens is None else ["--tokens", str(tokens)]
    words = ["--source", str(text), "--tokenizer", str(tokenizer), "--out", str(folder), *limit]
    assert data_prep(words) == 0
    return folder


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.jsonl, val.jsonl and a data folder `train`."""
    folder = tmp_path_factory.mktemp("texts")
    prepare(folder / "train", write_text(folder / "train.jsonl", 0, documents=40, words=20))
    write_text(folder / "val.jsonl", 1, documents=5, words=12)
    return folder


def tiny_recipe(texts: Path, runs: Path) -> Recipe:
    """Six steps of four sequences of a model with two layers."""
    return {
        "seed_everything": 1,
        "model": {
            "vocab_size": 272, "n_layers": 2, "d_model": 16, "n_heads": 2, "n_kv_heads": 1,
            "max_seq_len": SEQ_LEN, "loops": 2, "d_ffn": 24, "d_ffn_wide": 48,
            "ffn_multiple_of": 8, "gain_init": -1.0,
        },
        "optim": {"lr": 3e-3, "lr_start": 3e-4, "lr_end": 3e-4, "warmup_steps": 2},
        "run": {
            "dir": str(runs), "recipe": "tiny", "max_tokens": 6 * 4 * SEQ_LEN,
            "batch_tokens": 4 * SEQ_LEN, "micro_batch": 2, "compile": False, "log_every": 1,
            "gates_every": 3, "validate_every": 3, "save_every": 2, "keep": 0,
            "tensorboard": False,
        },
        "data": {
            "path": str(texts / "train"), "val": {"held_out": str(texts / "val.jsonl")},
            "workers": 0,
        },
        "trainer": {"accelerator": "cpu", "devices": 1},
    }  # fmt: skip


@pytest.fixture
def fit(texts: Path, tmp_path: Path) -> Fit:
    """Trains the tiny recipe, changed by keyword (section={...}), and returns the run folder."""

    def run(expected: int = 0, **changes: Any) -> Path:
        recipe = merge(tiny_recipe(texts, tmp_path / "runs"), changes)
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(recipe))
        assert main(["fit", "--config", str(path)]) == expected
        return tmp_path / "runs" / recipe["run"]["recipe"] / recipe["run"].get("name", "default")

    return run
