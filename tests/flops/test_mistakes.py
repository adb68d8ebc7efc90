"""`dualpath flops` and mistakes: one line on stderr, exit code 2, and a way out that works."""

import argparse
import re
import shlex
from itertools import product
from pathlib import Path

import pytest

from dualpath_cli.cli.main import main
from dualpath_cli.flops.command import add_arguments


def mistake(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of a command that must fail, without its prefix."""
    assert main(["flops", *shlex.split(line)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    prefix = "dualpath flops: error: "
    assert captured.err.startswith(prefix)
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix(prefix).rstrip("\n")


def values() -> list[str]:
    """Every option that takes a value; that of a recipe has tests of its own below."""
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    return [a.option_strings[0] for a in parser._actions if a.nargs != 0 and a.dest != "config"]


@pytest.mark.parametrize(
    ("option", "value"),
    [pair for pair in product(values(), ["wrong", "0"]) if pair != ("--experts", "0")],  # dense
)
def test_a_value_that_cannot_be_is_named_with_its_option(option, value, capsys):
    others = {"--budget": "", "--tokens": "--budget 80M", "--decode": "--budget 80M"}.get(
        option, "--budget 80M --plan"
    )
    said = mistake(f"{others} {option} {value}", capsys)
    assert option.lstrip("-") in said
    assert re.search(rf"(not|not at|value:|{option.lstrip('-')}) '?{value}\b", said)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--alpha 50", "give --budget"),
        ("--budget 80X", "--budget must be a whole number above 0 such as 80M"),
        ("--budget 80M --alpha 120", "alpha must lie between 0 and 100 percent, not at 120"),
        ("--budget 80M --alpha 0.5", "alpha is in percent: 50 rather than 0.5"),
        ("--budget 80M --tflops nan", "--tflops must be from 1e-06 to 1e+09, not nan"),
        ("--budget 80M --block wid", "--block 'wid' is none; did you mean 'wide'?"),
        ("--budget 80M --block wide,dul", "--block 'dul' is none; did you mean 'dual'?"),
        ("--budget 80M --loops 1,x", "one for each layer such as 1,4,1,1, not '1,x'"),
        ("--budget 80M --loops 1,0", "--loops must be at least 1, not 0"),
        ("--budget 80M --loops 1,4 --layers 4", "--loops lists 2 layers, and the model has 4"),
        ("--budget 80M --loops 1,4 --match total", "--match total goes with one kind of block"),
        ("--budgte 80M", "unknown option '--budgte'; did you mean '--budget'?"),
        ("--budget 80M --experts 2 --top-k 3", "--experts 2: top_k=3 experts of n_experts=2 can"),
        ("--config quickstart --experts 4", "the recipe's own model; drop --experts"),
        ("--budget 80M --dim 770 --heads 12", "--heads 11 would"),
        ("--budget 80M --dim 333", "--dim 334 would"),
        ("--budget 80M --kv-heads 5", "does not divide the 12 query heads; 4 would"),
        ("--budget 80M --table --k 3", "drop --loops"),
        ("--budget 1M --table", "would do"),
        (
            "--config f80m_wide --plan --gpus 12",
            "--gpus 12 are no whole nodes of --gpus-per-node 8; 16 would be",
        ),
        ("--config f80m_wide --plan --gpus 64 --shard-size 6", "--gpus-per-node 8; 8 would"),
        ("--config f80m_wide --plan --gpus 48", "--batch-tokens 2162688 would do"),
        (
            "--config f80m_wide --plan --gpus 1024",
            "512 sequences of 4,096, of which --gpus 1024 "
            "cannot get equally many; --batch-tokens 4194304 would do, a batch that the paper",
        ),
        ("--budget 80M --format csv", "--format 'csv' is none; choose from table, json"),
        ("--budget 80M --decode 32x4096@0TB/s", "such as 32x4096@3.35TB/s, not '32x4096@0TB/s'"),
        ("--config f80m_wide --plan --decode 1x1@1GB/s", "drop --decode"),
        ("--config f80m_wide --gpus-per-node 4", "drop --gpus-per-node"),
        ("--budget 80M --plan --table", "drop --table"),
    ],
)
def test_mistakes_are_one_line_with_a_way_out(line, words, capsys):
    assert words in mistake(line, capsys)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--config nowhere", "no recipe 'nowhere'"),
        ("--config empty.yaml", "recipe 'empty.yaml' has no model section"),
        ("--config typo.yaml", "unknown key 'model.n_layer'; did you mean 'n_layers'?"),
        ("--config broken.yaml", "'broken.yaml': model: d_model=768 with n_heads=5"),
        ("--config empty.yaml --k 3 --alpha 5", "drop --alpha, --loops"),
        ("--config mun.yaml --plan --gpus 8", "optim.name 'mun' is none; did you mean 'muon'?"),
        ("--config draws.yaml", "run.train_loops goes with one number in model.loops"),
    ],
)
def test_mistakes_with_recipes_name_the_recipe(line, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    widths = "d_ffn: 64, d_ffn_wide: 64"
    Path("empty.yaml").write_text("run: {max_tokens: 5}")
    Path("mun.yaml").write_text(f"model: {{{widths}, max_seq_len: 4096}}\noptim: {{name: mun}}")
    Path("typo.yaml").write_text(f"model: {{{widths}, n_layer: 2}}")
    Path("broken.yaml").write_text(f"model: {{{widths}, n_heads: 5}}")
    layers = f"model: {{{widths}, n_layers: 2, loops: [1, 4]}}"
    Path("draws.yaml").write_text(f"{layers}\nrun: {{train_loops: [2, 4]}}")
    assert words in mistake(line, capsys)
