"""Classes of one's own in every command: copies give what the built-in ones give, to the last bit."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dualpath_cli.classes import FOUND
from dualpath_cli.cli import main
from dualpath_cli.recipes import merge
from tests.conftest import OutputOf
from tests.study.conftest import OPEN
from tests.tiny_run import Fit, Refused, tables, tiny_recipe, train, weights

OWN = {"gate": "tests.own_classes.TwoGates", "combination": "tests.own_classes.Router"}
LONG: dict[str, Any] = {
    "model": {"max_seq_len": 64}, "run": {"batch_tokens": 256, "max_tokens": 6 * 256}
}  # fmt: skip

Pair = tuple[Path, Path]


@pytest.fixture
def pair(trained: Fit) -> Pair:
    """The same run with the built-in gate and router, and with copies of them."""
    changes = merge(OPEN, LONG)
    return trained(**changes), trained(**merge(changes, {"model": OWN, "run": {"name": "own"}}))


def files(folder: Path, suffix: str) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.rglob(f"*{suffix}"))}


def test_training_and_validation_are_the_same(pair: Pair, output_of: OutputOf) -> None:
    assert tables(pair[0]) == tables(pair[1])
    one, other = map(weights, pair)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    said = [output_of("validate", "--ckpt_path", run) for run in pair]
    assert said[0].replace("default", "own") == said[1]


def test_counts_are_the_same(pair: Pair, output_of: OutputOf) -> None:
    said = [
        json.loads(output_of("flops", "--config", run / "recipe.yaml", "--format", "json"))
        for run in pair
    ]
    assert said[0] == said[1]


def test_ablations_are_the_same(pair: Pair, tmp_path: Path, output_of: OutputOf) -> None:
    for suite in ("paper", "post-hoc", "skip"):
        tables = []
        for number, run in enumerate(pair):
            out = tmp_path / f"{suite}-{number}"
            output_of("ablate", "--ckpt_path", run, "--suite", suite, "--out", out)
            tables.append(files(out, ".csv"))
        assert tables[0], suite
        assert tables[0] == tables[1], suite


def test_routing_is_the_same(pair: Pair, tmp_path: Path, output_of: OutputOf) -> None:
    tables = []
    for number, run in enumerate(pair):
        out = tmp_path / str(number)
        output_of("routing", "--ckpt_path", run, "--tagger", "none", "--out", out)
        tables.append(files(out, ".csv"))
    assert tables[0]
    assert tables[0] == tables[1]


def test_texts_are_the_same(pair: Pair, output_of: OutputOf) -> None:
    for words in ([], ["--loops", 2], ["--exit-below", 0.3], ["--skip-below", 0.4]):
        said = [
            output_of("generate", "--ckpt_path", run, "--prompt", "the shell", "--seed", 1, *words)
            for run in pair
        ]
        assert len(said[0]) > len("the shell\n")
        assert said[0] == said[1]
