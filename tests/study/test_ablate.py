"""The ablation of a checkpoint: its rows, its paired differences, its files, its mistakes."""

import contextlib
import csv
import dataclasses
import hashlib
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from dualpath_cli.cli import main
from dualpath_cli.config import ModelConfig
from dualpath_cli.model import DualPathLM, Intervention
from dualpath_cli.study.ablate import PAPER_ROWS, applicable, bootstrap_interval, compare, score
from dualpath_cli.windows import collate
from tests.training.conftest import Fit

NAMES = [
    "learned",
    *(f"K={loops}" for loops in range(1, 11)),
    "gates=1,0",
    "gates=0,1",
    "gates=0.5,0.5",
    "gates=1,1",
    "shuffled",
]

TINY = ModelConfig(
    vocab_size=32, n_layers=2, d_model=16, n_heads=2, n_kv_heads=2, max_seq_len=16, loops=2,
    d_ffn=24, d_ffn_wide=48, ffn_multiple_of=8, gain_init=0.0, init_std=0.3,
)  # fmt: skip


def tiny_model(**changes) -> DualPathLM:
    model = DualPathLM(dataclasses.replace(TINY, **changes))
    model.init_weights(0)
    for name, parameter in model.named_parameters():
        if "gate.proj" in name:  # all gates are 1/2 at the start: nothing to override or shuffle
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    return model


def windows(*lengths: int) -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    return [draw.integers(0, 32, length) for length in lengths]


# Rows


def test_the_rows_are_the_sixteen_of_the_paper():
    assert [row.name for row in PAPER_ROWS] == NAMES
    assert len(NAMES) == 16


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, NAMES),
        ({"block": "loop"}, NAMES[:11]),
        ({"block": "wide"}, NAMES[:1]),
        ({"block": ["wide", "dual"]}, NAMES),
        ({"loops": 1}, [*NAMES[:2], *NAMES[11:]]),
        ({"loops": 1, "combination": "mean"}, NAMES),
    ],
)
def test_rows_that_make_no_sense_for_a_model_are_left_out_with_a_reason(changes, kept):
    chosen, skipped = applicable(PAPER_ROWS, tiny_model(**changes))
    assert [row.name for row in chosen] == kept
    assert list(skipped) == [name for name in NAMES if name not in kept]
    assert all(reason.startswith("the model ") for reason in skipped.values())


# Scores


def scored(model: DualPathLM, batch: int, lengths=(17, 12, 9, 5, 3)):
    found = windows(*lengths)
    batches = [collate(found[i : i + batch]) for i in range(0, len(found), batch)]
    return score(model, batches, PAPER_ROWS, context=contextlib.nullcontext)


def test_nats_of_a_window_are_the_sum_of_its_token_losses():
    model = tiny_model()
    nats, tokens = scored(model, batch=2)
    assert tokens.tolist() == [16, 11, 8, 4, 2]
    for w, window in enumerate(windows(17, 12, 9, 5, 3)):
        ids = torch.from_numpy(window)[None]
        for r, intervention in enumerate(PAPER_ROWS):
            alone = model(ids[:, :-1], ids[:, 1:], intervention=intervention).sum().item()
            assert nats[w, r] == pytest.approx(alone, rel=1e-5)


def test_no_number_depends_on_the_batch_size():
    (one, tokens), (all_, same) = scored(tiny_model(), 1), scored(tiny_model(), 5)
    assert tokens.tolist() == same.tolist()
    np.testing.assert_allclose(one, all_, rtol=1e-5)


def test_the_trained_loops_differ_from_the_learned_router_by_exactly_nothing():
    nats, _ = scored(tiny_model(loops=3), batch=2)
    assert (nats[:, NAMES.index("K=3")] == nats[:, 0]).all()
    others = np.delete(nats, [0, NAMES.index("K=3")], axis=1)
    assert (others != nats[:, :1]).any(axis=0).all()


def test_windows_that_fill_up_a_batch_count_nowhere():
    found = [*windows(9, 5), np.zeros(1, dtype=np.int64)]
    nats, tokens = score(tiny_model(), [collate(found)], PAPER_ROWS, context=contextlib.nullcontext)
    assert nats.shape == (2, 16)
    assert tokens.tolist() == [8, 4]


# Differences and intervals


def test_a_row_compared_with_itself_differs_by_nothing():
    nats, tokens = scored(tiny_model(), batch=5)
    twice = (Intervention(), Intervention())
    for row in compare("text", twice, nats[:, [3, 3]], tokens):
        assert (row.difference, row.low, row.high) == (0, 0, 0)


def test_losses_and_differences_are_means_per_token():
    nats, tokens = np.array([[10.0, 12.0], [1.0, 4.0]]), np.array([8, 2])
    learned, other = compare("text", PAPER_ROWS[:2], nats, tokens)
    assert (learned.loss, other.loss) == (11 / 10, 16 / 10)
    assert (learned.difference, other.difference) == (0, 5 / 10)
    assert (other.low, other.high) == (2 / 8, 3 / 2)  # each window drawn twice


def test_the_interval_contains_the_mean_and_has_the_width_of_its_standard_error():
    draw = np.random.default_rng(0)
    tokens = draw.integers(50, 100, 400)
    nats = tokens[:, None] * draw.normal([0.3, -2.0], [0.1, 0.5], (400, 2))
    low, high = bootstrap_interval(nats, tokens)
    mean = nats.sum(0) / tokens.sum()
    assert (low < mean).all()
    assert (mean < high).all()
    np.testing.assert_allclose(high - low, 2 * 1.96 * np.array([0.1, 0.5]) / 20, rtol=0.15)
    assert np.array_equal(bootstrap_interval(nats, tokens), (low, high))


def test_a_single_window_has_no_interval():
    low, high = bootstrap_interval(np.ones((1, 3)), np.array([5]))
    assert np.isnan([*low, *high]).all()


# The command


def table_of(folder: Path) -> tuple[dict, list[dict]]:
    report = json.loads((folder / "ablations.json").read_text())
    with (folder / "ablations.csv").open() as file:
        return report, list(csv.DictReader(file))


def test_the_command_writes_every_row_of_every_source(fit: Fit, texts: Path, capsys):
    run = fit()
    assert main(["validate", "--ckpt_path", str(run)]) == 0
    validated = float(re.search(r"held_out\D+([\d.]+)", capsys.readouterr().out)[1])
    assert main(["ablate", "--ckpt_path", str(run)]) == 0
    shown = capsys.readouterr().out
    folder = run / "ablations" / "step-00000006"
    assert sorted(path.name for path in folder.iterdir()) == ["ablations.csv", "ablations.json"]
    assert str(folder / "ablations.json") in shown
    assert "K=2 (as trained)" in shown
    assert "gates=1,0 (deep only)" in shown

    report, rows = table_of(folder)
    assert set(report) == {
        "checkpoint", "model", "precision", "device", "max_tokens", "sources", "bootstrap",
        "interventions", "skipped", "rows",
    }  # fmt: skip
    assert report["checkpoint"]["step"] == 6
    assert Path(report["checkpoint"]["path"]).name == "step-00000006"
    assert ModelConfig(**report["model"]).loops == 2
    assert list(report["interventions"]) == NAMES
    assert report["interventions"]["shuffled"] == {"loops": None, "gates": "shuffled", "seed": 0}
    val = texts / "val.jsonl"
    source = report["sources"]["held_out"]
    assert source["path"] == str(val)
    assert source["sha256"] == hashlib.sha256(val.read_bytes()).hexdigest()
    assert (source["tokens"] > 0, source["sequences"] > 1) == (True, True)

    assert [row["intervention"] for row in rows] == NAMES
    assert {row["source"] for row in rows} == {"held_out"}
    for written, row in zip(report["rows"], rows, strict=True):
        assert {k: str(v) for k, v in written.items()} == row
        assert written["low"] <= written["difference"] <= written["high"]
    assert report["rows"][0]["loss"] == pytest.approx(validated, abs=5e-5)
    as_trained = report["rows"][NAMES.index("K=2")]
    assert [as_trained[key] for key in ("difference", "low", "high")] == [0, 0, 0]


def test_named_sources_a_token_limit_and_a_folder_can_be_given(fit: Fit, texts: Path, tmp_path):
    run, out = fit(), tmp_path / "tables"
    words = ["--sources", f"a={texts / 'train.jsonl'}", str(texts / "val.jsonl"),
             "--max_tokens", "0.02K", "--out", str(out)]  # fmt: skip
    assert main(["ablate", "--ckpt_path", str(run), *words]) == 0
    assert not (run / "ablations").exists()
    report, rows = table_of(out)
    assert {name: source["tokens"] for name, source in report["sources"].items()} == {
        "a": 20,
        "val": 20,
    }
    assert report["max_tokens"] == 20
    assert [row["intervention"] for row in rows] == NAMES * 2


@pytest.mark.parametrize(
    ("block", "kept", "reason"),
    [("loop", 11, "it has no gates"), ("wide", 1, "it has no loop")],
)
def test_loop_and_wide_models_say_which_rows_make_no_sense(block, kept, reason, fit: Fit, capsys):
    run = fit(model={"block": block}, run={"gates_every": 0})
    assert main(["ablate", "--ckpt_path", str(run)]) == 0
    assert re.search(rf"left out .*: the model .*, so {reason}\n", capsys.readouterr().out)
    report, rows = table_of(run / "ablations" / "step-00000006")
    assert [row["intervention"] for row in rows] == NAMES[:kept]
    assert list(report["skipped"]) == NAMES[kept:]


def test_an_interval_that_is_not_there_is_null(fit: Fit, texts: Path):
    run = fit()
    assert main(["ablate", "--ckpt_path", str(run), "--max_tokens", "5"]) == 0
    report, rows = table_of(run / "ablations" / "step-00000006")
    assert all(row["low"] is None and math.isfinite(row["loss"]) for row in report["rows"])
    assert all(row["high"] == "" for row in rows)


# Mistakes


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which a mistake in the words is found without reading its checkpoint."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "step-00000010").touch()
    (folder / "checkpoints" / "last").symlink_to("step-00000010")
    (folder / "recipe.yaml").write_text(json.dumps({"model": dataclasses.asdict(TINY)}))
    (folder / "text.txt").write_text("hello")
    return folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "ablate needs --ckpt_path RUN"),
        ("--ckpt_path nowhere", "no run or checkpoint at 'nowhere'"),
        ("--ckpt_path .", "the run names no validation set; give a text: --sources NAME=PATH"),
        ("--ckpt_path . --sources a=txet.txt", "did you mean 'text.txt'?"),
        ("--ckpt_path . --sources a=text.txt a=recipe.yaml", "its format is not known"),
        ("--ckpt_path . --sources text.txt text=text.txt", "has two texts named 'text'"),
        ("--ckpt_path . --sources", "--sources"),
        ("--ckpt_path . --sources text.txt --max_tokens lots", "--max_tokens must be a whole"),
        ("--ckpt_path . --sources text.txt --out text.txt/x", "'text.txt' is a file"),
        ("--ckpt_path . --sources text.txt --trainer.devices 2", "ablate runs on one device"),
        ("--ckpt_path . --sources text.txt --trainer.strategy ddp", "ablate runs on one device"),
        ("--ckpt_path . --source text.txt", "did you mean '--sources'?"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2_before_the_study_begins(
    words, message, run_folder, capsys, monkeypatch
):
    monkeypatch.chdir(run_folder)
    monkeypatch.setattr("dualpath_cli.training.lightning_cli.run", lambda launch: 0)
    assert main(["ablate", *words.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("dualpath ablate: error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_validate_and_fit_know_nothing_of_its_options(run_folder, capsys, monkeypatch):
    monkeypatch.chdir(run_folder)
    assert main(["validate", "--ckpt_path", ".", "--sources", "text.txt"]) == 2
    assert "unknown argument '--sources'" in capsys.readouterr().err


def test_repeated_it_gives_the_same_tables_and_leaves_no_partial_file(fit: Fit, texts: Path):
    run = fit()
    folder = run / "ablations" / "step-00000006"
    assert main(["ablate", "--ckpt_path", str(run), "--max_tokens", "20"]) == 0
    first = table_of(folder)
    shutil.copy(folder / "ablations.json", folder / "ablations.json.partial")
    assert main(["ablate", "--ckpt_path", str(run), "--max_tokens", "20"]) == 0
    assert table_of(folder) == first
    assert not list(folder.glob("*.partial"))


def test_help_has_a_sentence_for_each_option(capsys):
    with pytest.raises(SystemExit):
        main(["ablate", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "usage: dualpath ablate --ckpt_path RUN" in text
    for option in ("--ckpt_path", "--sources", "--max_tokens", "--out"):
        assert re.search(rf" {option} [^.]*[A-Z][^.]+\.", text), option
