"""`dualpath flops` as its users meet it: output formats, mistakes, help, start-up."""

import csv
import io
import json
import re
import shlex
import subprocess
import sys
from typing import Any

import jsonargparse
import pytest
import yaml

from dualpath_cli import flops, flops_command, recipes
from dualpath_cli.config import ModelConfig
from dualpath_cli.errors import UserError
from dualpath_cli.sizes import parse_size

KEYS = ["block", "alpha", "loops", "d_ffn", "d_ffn_wide", "d_ffn_effective",
        "d_ffn_wide_effective", "params", "params_non_embedding", "flops_per_token_per_layer",
        "budget", "budget_ratio", "reading"]  # fmt: skip
PARTS = ["deep", "wide", "gate", "router", "attention_scores", "linear_total", "total"]
DUAL = "--budget 80M --alpha 50 --k 4"

SMALL: dict[str, Any] = {
    "vocab_size": 96, "n_layers": 3, "d_model": 32, "n_heads": 4, "n_kv_heads": 4,
    "max_seq_len": 16, "block": ["dual", "loop", "wide"], "loops": 2, "d_ffn": 40,
    "d_ffn_wide": 96, "ffn_multiple_of": 8,
}  # fmt: skip


def answer(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Standard output of a command that must succeed."""
    assert flops_command.main(shlex.split(line)) == 0
    return capsys.readouterr().out.rstrip("\n")


def mistake(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of a command that must fail, without its prefix."""
    assert flops_command.main(shlex.split(line)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    prefix = "dualpath flops: error: "
    assert captured.err.startswith(prefix)
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix(prefix).rstrip("\n")


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A recipe named `small`, and one named `longer` that goes over it."""
    known: dict[str, dict[str, Any]] = {
        "small": {"model": dict(SMALL), "run": {"max_tokens": 1000}},
        "longer": {"model": {"max_seq_len": 64}},
        "empty": {"run": {}},
        "typo": {"model": SMALL | {"n_layer": 2}},
        "broken": {"model": SMALL | {"n_heads": 5}},
    }

    def load(name: str) -> dict[str, Any]:
        if name not in known:
            raise UserError(f"no recipe '{name}'")
        return known[name]

    monkeypatch.setattr(recipes, "load", load)
    return known


# Formats


def test_json_is_a_list_of_both_readings_or_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    both = json.loads(answer(f"{DUAL} --format json", capsys))
    assert [model["reading"] for model in both] == ["as_written", "as_trained"]
    for model in both:
        assert list(model) == KEYS
        assert list(model["flops_per_token_per_layer"]) == PARTS
        numbers = [*model["flops_per_token_per_layer"].values(), model["params"], model["budget"]]
        assert all(type(number) is int for number in numbers)
        one = json.loads(answer(f"{DUAL} --format json --reading {model['reading']}", capsys))
        assert one == model
    assert both[1] | {"flops_per_token_per_layer": None} == {
        "block": "dual", "alpha": 50, "loops": 4, "d_ffn": 1600, "d_ffn_wide": 11392,
        "d_ffn_effective": 1280, "d_ffn_wide_effective": 7680, "params": 483_156_880,
        "params_non_embedding": 405_889_936, "flops_per_token_per_layer": None,
        "budget": 80_000_000, "budget_ratio": 82_578_432 / 80_000_000, "reading": "as_trained",
    }  # fmt: skip


def test_csv_holds_what_json_holds(capsys: pytest.CaptureFixture[str]) -> None:
    models = json.loads(answer(f"{DUAL} --format json", capsys))
    rows = list(csv.DictReader(io.StringIO(answer(f"{DUAL} --format csv", capsys))))
    assert len(rows) == len(models)
    for row, model in zip(rows, models, strict=True):
        parts = model.pop("flops_per_token_per_layer")
        flat = model | {f"flops_per_token_per_layer.{k}": v for k, v in parts.items()}
        assert row == {name: str(value) for name, value in flat.items()}


@pytest.mark.parametrize(
    "line",
    [
        DUAL,
        "--budget 80M --block wide",
        "--budget 80M --block loop --k 2",
        "--budget 4M --dim 256 --heads 8 --kv-heads 2 --k 2 --layers 3",
    ],
)
def test_yaml_is_a_model_section_with_the_same_parameters(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    section = yaml.safe_load(answer(f"{line} --format yaml", capsys))
    assert list(section) == ["model"]
    config = ModelConfig(**section["model"])
    model = json.loads(answer(f"{line} --format json --reading as_trained", capsys))
    assert flops.parameters(config) == model["params"]
    assert flops.mean_layer_flops(config) == model["flops_per_token_per_layer"]
    written = yaml.safe_load(answer(f"{line} --format yaml --reading as_written", capsys))
    assert written["model"]["tie_embeddings"] is True


def test_the_table_shows_both_readings_with_every_number(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = answer(DUAL, capsys)
    assert re.search(r"as written +as trained", text)
    for model in json.loads(answer(f"{DUAL} --format json", capsys)):
        shown = [model["d_ffn"], model["d_ffn_wide_effective"], model["params"]]
        for number in [*shown, *model["flops_per_token_per_layer"].values()]:
            assert f"{number:,}" in text
        assert f"{model['budget_ratio']:.4f}" in text
    assert "What differs: " in text
    assert max(map(len, text.splitlines())) <= 100
    assert "What differs" not in answer(f"{DUAL} --reading as_trained", capsys)


def test_a_clamped_width_is_pointed_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert "d_ffn is raised to 64" in answer("--budget 80M --alpha 25 --k 4", capsys)
    assert "raised" not in answer(DUAL, capsys)


# Options


def test_k_is_another_name_of_loops(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer("--budget 80M --k 3", capsys) == answer("--budget 80M --loops 3", capsys)


def test_alpha_50_k_4_of_a_dual_block_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer("--budget 80000000", capsys) == answer(f"{DUAL} --block dual", capsys)


def test_the_backbone_is_free(capsys: pytest.CaptureFixture[str]) -> None:
    line = "--budget 4M --dim 256 --heads 8 --kv-heads 2 --layers 3 --vocab 1000 --seq-len 128"
    model = json.loads(answer(f"{line} --k 2 --reading as_trained --format json", capsys))
    config = ModelConfig(
        vocab_size=1000, n_layers=3, d_model=256, n_heads=8, n_kv_heads=2, max_seq_len=128,
        loops=2, d_ffn=model["d_ffn"], d_ffn_wide=model["d_ffn_wide"],
    )  # fmt: skip
    assert model["params"] == flops.parameters(config)
    assert model["flops_per_token_per_layer"]["attention_scores"] == 3 * 2 * 128 * 256


def test_heads_follow_the_width_unless_given(capsys: pytest.CaptureFixture[str]) -> None:
    section = yaml.safe_load(answer("--budget 80M --dim 512 --format yaml", capsys))["model"]
    assert (section["n_heads"], section["n_kv_heads"]) == (8, 8)


def test_a_width_multiple_holds_for_the_solver_and_both_readings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    written, trained = json.loads(answer(f"{DUAL} --width-multiple 256 --format json", capsys))
    assert written["d_ffn_effective"] == trained["d_ffn_effective"]
    assert trained["d_ffn"] % 256 == trained["d_ffn_effective"] % 256 == 0
    assert trained["budget_ratio"] <= 1


def test_match_total_equals_the_sum_of_a_dual_block(capsys: pytest.CaptureFixture[str]) -> None:
    line = "--budget 80M --k 4 --match total --reading as_written --format json"
    for block in ("dual", "loop", "wide"):
        model = json.loads(answer(f"{line} --block {block}", capsys))
        assert model["match"] == "total"
        assert model["matched_budget"] == 80_000_000 + 5 * 2 * 4096 * 768
        parts = model["flops_per_token_per_layer"]
        spent = parts["linear_total"] + parts["attention_scores"]
        assert model["budget_ratio"] == spent / model["matched_budget"]
        assert model["budget_ratio"] == pytest.approx(1, abs=0.012)
        assert model["loops"] == (1 if block == "wide" else 4)


def test_hours_follow_tokens_gpus_and_rate(capsys: pytest.CaptureFixture[str]) -> None:
    def hours(options: str) -> float:
        line = f"{DUAL} --reading as_trained --format json {options}"
        return json.loads(answer(line, capsys))["training_hours"]

    once = hours("--tokens 38.5B --gpus 64 --tflops 50")
    assert once == pytest.approx(5_705_736_480 * 38.5e9 / (64 * 50e12) / 3600, abs=1e-3)
    assert hours("--tokens 77B --gpus 64 --tflops 50") == pytest.approx(2 * once, abs=2e-3)
    assert hours("--tokens 38.5B --gpus 128 --tflops 100") == pytest.approx(once / 4, abs=1e-3)


def test_assumed_hardware_is_called_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "This hardware is assumed" in answer(DUAL, capsys)
    own = answer(f"{DUAL} --gpus 1 --tflops 400", capsys)
    assert "assumed" not in own
    assert "1 GPU that sustains 400 TFLOP/s" in own


def test_options_without_effect_are_named_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        flops_command.main(shlex.split("--budget 80M --block wide --alpha 3 --k 2 --format json"))
        == 0
    )
    captured = capsys.readouterr()
    json.loads(captured.out)
    assert captured.err.splitlines() == [
        "dualpath flops: note: --alpha has no effect on block 'wide'",
        "dualpath flops: note: --loops has no effect on block 'wide'",
    ]


# Recipes


def test_a_recipe_is_described_as_it_is(recipe: dict, capsys: pytest.CaptureFixture[str]) -> None:
    model = json.loads(answer("--config small --format json", capsys))
    config = ModelConfig(**SMALL)
    assert list(model) == KEYS
    assert model["params"] == flops.parameters(config)
    assert model["flops_per_token_per_layer"] == flops.mean_layer_flops(config)
    assert (model["block"], model["budget"], model["reading"]) == (SMALL["block"], None, None)
    assert "1 dual + 1 loop + 1 wide blocks" in answer("--config small", capsys)


def test_later_recipes_win_and_a_reading_goes_on_top(
    recipe: dict, capsys: pytest.CaptureFixture[str]
) -> None:
    section = yaml.safe_load(
        answer("--config small --config longer --reading as_written --format yaml", capsys)
    )
    fields = {"max_seq_len": 64, "tie_embeddings": True, "ffn_multiple_of": 64}
    assert section["model"].items() >= (SMALL | fields).items()


def test_a_recipe_is_compared_to_a_budget(recipe: dict, capsys: pytest.CaptureFixture[str]) -> None:
    model = json.loads(answer("--config small --budget 40K --format json", capsys))
    assert model["budget_ratio"] == model["flops_per_token_per_layer"]["linear_total"] / 40_000


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--config nowhere", "no recipe 'nowhere'"),
        ("--config empty", "recipe 'empty' has no model section"),
        ("--config typo", "no field 'n_layer'; did you mean 'n_layers'?"),
        ("--config broken", "n_heads=5"),
        ("--config small --k 3 --alpha 5", "drop --alpha, --loops"),
        ("--config small --table", "drop --table"),
    ],
)
def test_mistakes_with_recipes(
    line: str, words: str, recipe: dict, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in mistake(line, capsys)


# Tables


def test_table_lists_the_papers_13_configurations(capsys: pytest.CaptureFixture[str]) -> None:
    models = json.loads(answer("--budget 160M --table --format json --reading as_trained", capsys))
    assert len(models) == 13
    text = answer("--budget 160M --table", capsys)
    for model in models:
        assert f"{model['params'] / 1e6:.1f}M" in text
    assert "1360.8M" in text


def test_table_matched_in_total_spends_the_same_everywhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = "--budget 80M --table --match total --k 3 --reading as_written --format json"
    models = json.loads(answer(line, capsys))
    assert {model["matched_budget"] for model in models} == {80_000_000 + 4 * 2 * 4096 * 768}
    for model in models:
        clamped = (model["alpha"], model["loops"]) == (25, 4)
        assert model["budget_ratio"] == pytest.approx(1, abs=0.06 if clamped else 0.012)


def test_rows_without_room_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert flops_command.main(shlex.split("--budget 60M --table")) == 0
    captured = capsys.readouterr()
    assert "no room for an FFN in a25_k4" in captured.err
    assert "dual a25 K4" not in captured.out
    assert "dual a25 K3" in captured.out


def test_audit_comes_as_text_json_and_csv(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Embeddings are tied" in answer("--audit", capsys)
    record = json.loads(answer("--audit --format json", capsys))
    rows = list(csv.DictReader(io.StringIO(answer("--audit --format csv", capsys))))
    assert len(rows) == len(record["numbers"]) == 96


# Mistakes


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "give --budget"),
        ("--alpha 50", "give --budget"),
        ("--budget 80X", "--budget must be a whole number above 0 such as 80M"),
        ("--budget", "--budget"),
        ("--budget 80M --alpha fifty", "--alpha: invalid float value: 'fifty'"),
        ("--budget 80M --alpha 120", "alpha must lie between 0 and 100 percent, not at 120"),
        ("--budget 80M --k 0", "--loops must be at least 1, not 0"),
        ("--budget 80M --block wid", "not 'wid'; did you mean 'wide'?"),
        ("--budget 80M --reading trained", "did you mean 'as_trained'?"),
        ("--budget 80M --format jsn", "did you mean 'json'?"),
        ("--budget 80M --match all", "--match must be linear or total, not 'all'"),
        ("--budgte 80M", "unknown option '--budgte'; did you mean '--budget'?"),
        ("--budget 80M --qqqqq", "unknown option '--qqqqq'; see --help"),
        ("--bud 80M", "did you mean '--budget'?"),
        ("80M", "unexpected argument '80M'"),
        ("--budget 80M --dim 770 --heads 12", "--heads 11 would"),
        ("--budget 80M --dim 333", "--dim 334 would"),
        ("--budget 80M --kv-heads 5", "does not divide the 12 query heads; 4 would"),
        ("--budget 80M --layers 0", "--layers must be at least 1, not 0"),
        ("--budget 80M --vocab -3", "--vocab must be at least 1, not -3"),
        ("--budget 80M --tokens lots", "--tokens must be a whole number"),
        ("--budget 80M --gpus 0", "--gpus must be at least 1"),
        ("--budget 80M --tflops 0", "--tflops must be a number above 0"),
        ("--budget 80M --tflops nan", "--tflops must be a number above 0"),
        ("--budget 80M --table --k 3", "drop --loops"),
        ("--budget 80M --table --format yaml", "drop --table"),
        ("--budget 1M --table", "would do"),
        ("--audit --budget 80M", "drop --budget"),
        ("--audit --format yaml", "table, json or csv"),
    ],
)
def test_mistakes_are_one_line_with_a_way_out(
    line: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in mistake(line, capsys)


@pytest.mark.parametrize(
    "line",
    [
        "--budget 80M --alpha 20 --k 4",
        "--budget 80M --block loop --k 30",
        "--budget 3M --block wide",
        "--budget 80M --alpha 95 --k 2",
        "--budget 90M --k 50 --match total --block loop",
    ],
)
def test_what_an_impossible_budget_is_told_to_try_really_works(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hint = mistake(line, capsys).split("projections; ")[1].removesuffix(" would do")
    for way in hint.split(" or "):
        if found := re.fullmatch(r"a budget of (\S+)", way):
            parse_size(found[1], "hint")
            instead = re.sub(r"--budget \S+", f"--budget {found[1]}", line)
        elif found := re.fullmatch(r"K=(\d+)", way):
            instead = re.sub(r"--k \S+", f"--k {found[1]}", line)
        else:
            instead = re.sub(r"--alpha \S+", f"--alpha {way.removeprefix('alpha ')}", line)
        assert instead != line
        answer(instead, capsys)


# Both ways in, help, start-up


def both_parsers() -> dict[str, Any]:
    import argparse

    parsers = {"argparse": argparse.ArgumentParser(), "jsonargparse": jsonargparse.ArgumentParser()}
    for parser in parsers.values():
        flops_command.add_arguments(parser)
    return parsers


@pytest.mark.parametrize(
    "line",
    [
        DUAL,
        "--budget 80M --loops 2 --block loop --format yaml",
        "--audit",
        "--budget 80M --table",
        "--budget 1.28G --dim 1024 --kv-heads 4 --format csv --tokens 1e9 --gpus 8 --tflops 300",
        "--config small --config longer --seq-len 8",
        "--budget 80M --match total --format json",
    ],
)
def test_jsonargparse_and_argparse_give_the_same_output(line: str, recipe: dict) -> None:
    outputs = {
        name: flops_command.run(parser.parse_args(shlex.split(line)))
        for name, parser in both_parsers().items()
    }
    assert outputs["argparse"] == outputs["jsonargparse"] != ""


def test_help_is_sentences_and_states_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(answer("--help", capsys).split())
    for option in both_parsers()["argparse"]._actions:
        if "--help" not in option.option_strings:
            assert option.help[0].isalnum()
            assert option.help.endswith(".")
    for default in ("dual.", "50.", "4.", "16.", "768.", "50304.", "38503710720.", "64.", "68"):
        assert f"Default: {default}" in text


def test_answers_import_nothing_slow() -> None:
    """0.3 s for the process leave no room for torch, lightning, rich, jsonargparse or numpy."""
    script = (
        "import sys; from dualpath_cli.cli import main; "
        "codes = [main(['flops', *a.split()]) for a in sys.argv[1:]]; "
        "slow = {'torch', 'lightning', 'rich', 'jsonargparse', 'numpy', 'yaml'}; "
        "slow &= set(sys.modules); "
        "sys.exit(f'{codes} {slow}' if slow or any(codes) else 0)"
    )
    lines = [DUAL, "--audit", "--budget 80M --table", f"{DUAL} --format yaml", "--help"]
    done = subprocess.run([sys.executable, "-c", script, *lines], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
