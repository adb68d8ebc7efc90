"""`dualpath flops`: what its answers hold, for options, recipes and the paper's
table."""

import json
import shlex
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dualpath_cli.cli.main import main
from dualpath_cli.flops import count as flops
from dualpath_cli.spec.config import ModelConfig
from tests.conftest import OutputOf
from tests.flops.test_count_and_widths import small

KEYS = [
    "block",
    "alpha",
    "loops",
    "d_ffn",
    "d_ffn_wide",
    "d_ffn_effective",
    "d_ffn_wide_effective",
    "ffn_multiple_of",
    "params",
    "params_non_embedding",
    "flops_per_token_per_layer",
    "training_flops_per_token",
    "kv_bytes_per_token",
    "budget",
    "budget_ratio",
    "reading",
    "model",
]
PARTS = ["deep", "wide", "gate", "router", "attention_scores", "linear_total", "total"]
DUAL = "--budget 80M --alpha 50 --k 4"

MIXED = small(n_layers=3, block=["dual", "loop", "wide"], loops=2)

Answer = Callable[[str], str]
Described = Callable[[str], Any]


@pytest.fixture
def answer(output_of: OutputOf) -> Answer:
    """What `dualpath flops LINE`, which must succeed, prints."""
    return lambda line: output_of("flops", *shlex.split(line))


@pytest.fixture
def described(answer: Answer) -> Described:
    """What a command writes as JSON."""
    return lambda line: json.loads(answer(f"{line} --format json"))


@pytest.fixture
def recipe_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe of a small mixed model, one that changes its length, and one for its
    loops."""
    monkeypatch.chdir(tmp_path)
    recipe = {"model": asdict(MIXED), "run": {"max_tokens": 1000}}
    Path("small.yaml").write_text(yaml.safe_dump(recipe))
    Path("longer.yaml").write_text(yaml.safe_dump({"model": {"max_seq_len": 64}}))
    growing = {"batch_tokens": 100, "loop_schedule": [[0, 1], [0.3, MIXED.loops]]}
    Path("growing.yaml").write_text(yaml.safe_dump({"run": growing}))


# Formats


def test_json_is_one_model_as_trained_or_as_written(described):
    model = described(DUAL)
    assert list(model) == KEYS
    assert list(model["flops_per_token_per_layer"]) == PARTS
    numbers = [
        *model["flops_per_token_per_layer"].values(),
        model["params"],
        model["budget"],
    ]
    assert all(type(number) is int for number in numbers)
    assert model | {"flops_per_token_per_layer": None, "model": None} == {
        "flops_per_token_per_layer": None,
        "model": None,
        "block": "dual",
        "alpha": 50,
        "loops": 4,
        "d_ffn": 1600,
        "d_ffn_wide": 11392,
        "d_ffn_effective": 1280,
        "d_ffn_wide_effective": 7680,
        "ffn_multiple_of": 256,
        "params": 483_156_880,
        "params_non_embedding": 405_889_936,
        "training_flops_per_token": 5_705_736_480,
        "kv_bytes_per_token": 16 * 5 * 2 * 768 * 2,
        "budget": 80_000_000,
        "budget_ratio": 82_578_432 / 80_000_000,
        "reading": "as_trained",
    }
    assert described(f"{DUAL} --reading as_trained") == model
    written = described(f"{DUAL} --reading as_written")
    assert (written["reading"], written["params"]) == ("as_written", 435_086_224)


@pytest.mark.parametrize(
    "line",
    [
        DUAL,
        f"{DUAL} --reading as_written",
        "--budget 80M --block wide",
        "--budget 80M --match total --block loop --k 2",
        "--budget 4M --dim 256 --heads 8 --kv-heads 2 --k 2 --layers 3 --experts 4",
        "--budget 80M --k 2 --core 4-11 --core-loops 2 --injection linear "
        "--core-combination router --step-kv first --untied-steps --no-deep-ffn",
    ],
)
def test_the_model_of_json_is_a_section_of_a_recipe(line, described, tmp_path):
    model = described(line)
    recipe = tmp_path / "solved.yaml"
    recipe.write_text(json.dumps({"model": model["model"]}))
    again = described(f"--config {recipe} --budget {model['budget']}")
    same = [name for name in KEYS if name not in ("alpha", "budget_ratio", "reading")]
    assert {name: again[name] for name in same} == {name: model[name] for name in same}


# Options


@pytest.mark.parametrize(
    ("line", "idle"),
    [
        (
            "--block wide --alpha 3 --k 2 --step-kv first --injection add --top-k 1",
            [
                "--alpha has no effect on block 'wide'",
                "--loops has no effect on block 'wide'",
                "--step-kv has no effect on block 'wide'",
                "--injection has no effect without --core and --core-loops above 1",
                "--top-k has no effect on block 'wide' without --experts",
            ],
        ),
        (
            "--block wide --core 4-11 --injection add",
            [
                "--core has no effect without --core-loops above 1",
                "--injection has no effect without --core-loops above 1",
            ],
        ),
        (
            "--block loop --k 2 --experts 8 --top-k 4",
            [
                "--experts has no effect on block 'loop'",
                "--top-k has no effect on block 'loop'",
            ],
        ),
    ],
)
def test_options_without_effect_are_named_on_stderr(capsys, line, idle):
    assert main(["flops", "--budget", "80M", *line.split(), "--format", "json"]) == 0
    captured = capsys.readouterr()
    json.loads(captured.out)
    assert captured.err.splitlines() == [
        f"dualpath flops: note: {note}" for note in idle
    ]


def test_a_core_and_the_steps_of_a_deep_path_are_those_of_the_options(
    answer, described
):
    line = (
        "--budget 80M --k 2 --core 4-11 --core-loops 3 --injection linear "
        "--core-combination router --step-kv first --untied-steps"
    )
    model = described(f"{line} --width-multiple 8")
    assert model["flops_per_token_per_layer"]["injection"] == 2 * 4 * 768**2 / 16
    assert model["budget_ratio"] == pytest.approx(1, abs=0.01)
    own = {
        "core": [4, 11],
        "core_loops": 3,
        "injection": "linear",
        "core_combination": "router",
        "step_kv": "first",
        "untied_steps": True,
    }
    assert own.items() <= model["model"].items()
    table = answer(line)
    assert "core: layers 4 to 11, R = 3, injection linear, routed\n" in table
    assert "steps: a sublayer each, keys and values of the first\n" in table
    assert "attention scores, 6 passes" in table


def test_without_a_feed_forward_alpha_follows_from_the_deep_paths_projections(
    described,
):
    model = described("--budget 80M --k 4 --no-deep-ffn")
    layer = model["flops_per_token_per_layer"]
    assert (model["d_ffn"], layer["deep"]) == (None, 4 * 8 * 768**2)
    assert model["alpha"] == round(
        100 * layer["deep"] / (layer["deep"] + layer["wide"]), 2
    )


def test_a_width_that_no_step_has_is_not_described(recipe_files, described):
    Path("bare.yaml").write_text("model: {deep_ffn: false}")
    model = described("--config small.yaml --config bare.yaml")
    assert (model["d_ffn"], model["d_ffn_effective"]) == (None, None)
    assert model["model"]["d_ffn"] == MIXED.d_ffn


@pytest.mark.parametrize("core", ["4", "4-16", "11-4", "a-b", "4-", "-1-4"])
def test_a_core_is_two_of_the_layers_in_order(core, capsys):
    assert main(["flops", "--budget", "80M", f"--core={core}"]) == 2
    said = capsys.readouterr().err
    assert f"--core {core} must be FIRST-LAST, two of the layers 0 to 15" in said


@pytest.mark.parametrize("sizes", ["333", "334", "1", "3 --heads 5", "320 --heads 3"])
def test_the_sizes_that_a_refusal_of_heads_names_are_taken(sizes, said, output_of):
    line = f"flops --budget 200M --block wide --dim {sizes}".split()
    *_, ways_out = said(*line).strip().removesuffix(" would").split("; ")
    for way_out in ways_out.split(" or "):
        output_of(*line, *way_out.split())


def test_a_model_matched_in_total_names_its_sum(described):
    model = described("--budget 80M --block loop --match total")
    layer, matched = model["flops_per_token_per_layer"], 80_000_000 + 5 * 2 * 4096 * 768
    assert model["matched_budget"] == matched
    assert (
        model["budget_ratio"]
        == (layer["linear_total"] + layer["attention_scores"]) / matched
    )
    assert model["budget_ratio"] == pytest.approx(1, abs=0.01)


def test_the_backbone_is_free(described):
    line = (
        "--budget 4M --dim 256 --heads 8 --kv-heads 2 --layers 3 --vocab 1000 "
        "--seq-len 128"
    )
    model = described(f"{line} --loops 2")
    assert described(f"{line} --k 2") == model
    config = ModelConfig(
        vocab_size=1000,
        n_layers=3,
        d_model=256,
        n_heads=8,
        n_kv_heads=2,
        max_seq_len=128,
        loops=2,
        d_ffn=model["d_ffn"],
        d_ffn_wide=model["d_ffn_wide"],
    )
    assert model["params"] == flops.parameters(config)
    assert model["flops_per_token_per_layer"]["attention_scores"] == 3 * 2 * 128 * 256


def test_hours_follow_tokens_gpus_and_rate(described):
    def hours(options: str) -> float:
        return described(f"{DUAL} {options}")["training_hours"]

    once = hours("--tokens 38.5B --gpus 64 --tflops 50")
    assert once == pytest.approx(5_705_736_480 * 38.5e9 / (64 * 50e12) / 3600)
    assert hours("--tokens 77B --gpus 64 --tflops 50") == pytest.approx(2 * once)
    assert hours("--tokens 38500 --gpus 128 --tflops 100") == pytest.approx(once / 4e6)


def test_a_plan_of_memory_has_no_hours_on_gpus_that_are_only_assumed(described):
    assert "training_hours" not in described(f"{DUAL} --gpus 64 --plan")


# Recipes


def test_a_recipe_is_described_as_it_is(recipe_files, answer, described):
    model = described("--config small.yaml")
    ratio = described("--config small.yaml --budget 40K")["budget_ratio"]
    assert ratio == model["flops_per_token_per_layer"]["linear_total"] / 40_000
    assert list(model) == KEYS
    assert ModelConfig(**model["model"]) == MIXED
    assert model["params"] == flops.parameters(MIXED)
    assert model["flops_per_token_per_layer"] == flops.mean_layer_flops(MIXED)
    assert (model["block"], model["budget"], model["reading"]) == (
        MIXED.block,
        None,
        None,
    )
    assert "1 dual + 1 loop + 1 wide blocks" in answer("--config small.yaml")


def test_training_flops_of_a_recipe_leave_out_what_gets_no_gradient(
    recipe_files, described, answer
):
    Path("last.yaml").write_text("{model: {block: dual}, run: {backprop_loops: 1}}")
    words = "--config small.yaml --config last.yaml --gpus 1"
    model = replace(MIXED, block="dual")
    expected = flops.training_flops_per_token(model, backprop_loops=1)
    assert described(words)["training_flops_per_token"] == expected
    assert expected < flops.training_flops_per_token(model)
    assert "with run.backprop_loops=1." in answer(words)


def test_training_flops_of_a_recipe_follow_its_schedule_of_loops(
    recipe_files, answer, described
):
    """Three of ten steps have one loop, of six rounded two; of none it is the model's
    own."""
    words = "--config small.yaml --config growing.yaml --gpus 1"
    models = (replace(MIXED, loops=k) for k in (1, MIXED.loops))
    one, all_loops = map(flops.training_flops_per_token, models)
    assert (
        described(words)["training_flops_per_token"] == (3 * one + 7 * all_loops) / 10
    )
    shorter = described(f"{words} --tokens 600")
    assert shorter["training_flops_per_token"] == (2 * one + 4 * all_loops) / 6
    too_short = described(f"{words} --tokens 50")
    assert too_short["training_flops_per_token"] == all_loops
    assert "training FLOPs per token, mean of steps" in answer(words)
