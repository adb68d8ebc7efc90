"""The bench of all studies: one source, two processes, a disk that is full."""

import errno
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from dualpath_cli.base import files
from dualpath_cli.cli.main import main
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.training.module import DualPathModule
from tests.cli.processes import run_on_two_ranks
from tests.study.conftest import OPEN
from tests.study.routing.test_study import PER_LAYER, rows_of

NUMBERS = ["loss", "difference", "low", "high"]
NUMBERS += ["expected_loops", "loops_run", "passes"]
"""Of a row of `ablations.json`."""


def test_three_commands_give_one_loss_and_routing_a_row_for_every_text_token(
    run, texts, tmp_path, monkeypatch, figures
):
    paths = {"text": str(texts / "val.jsonl"), "packed": str(texts / "train")}
    validated: dict[str, dict[str, float]] = {}
    publish = DualPathModule.on_validation_epoch_end

    def published(module: DualPathModule) -> None:
        publish(module)
        validated.update(module.val_results)

    monkeypatch.setattr(DualPathModule, "on_validation_epoch_end", published)
    words = ["--ckpt_path", str(run), "--data.val_tokens", "100"]
    words += ["--data.val", json.dumps(paths)]
    assert main(["validate", *words]) == 0
    out = tmp_path / "out"
    words += ["--out", str(out)]
    assert main(["ablate", *words, "--loops", "3"]) == 0
    of_ablate = set(figures)
    figures.clear()
    assert (
        main(["routing", *words, "--tagger", "none", "--no_costs", "--sequences", "1"])
        == 0
    )
    # Neither replaces or deletes a figure of the other.
    assert of_ablate
    assert of_ablate.isdisjoint(figures)
    ablated = json.loads((out / "ablations.json").read_text())
    routed = json.loads((out / "summary.json").read_text())["sources"]
    tokenizer = Tokenizer.load(run / "tokenizer.json")
    n_bytes, rows = tokenizer.token_bytes(), rows_of(out)
    assert tokenizer.eot_id not in rows["token_id"]
    for name, expected in validated.items():
        (learned,) = [
            row
            for row in ablated["rows"]
            if (row["source"], row["intervention"]) == (name, "learned")
        ]
        assert learned["loss"] == pytest.approx(expected["loss"], rel=1e-6)
        assert routed[name]["loss"] == pytest.approx(expected["loss"], rel=1e-6)
        bits_per_byte = expected["bits_per_byte"]
        assert routed[name]["bits_per_byte"] == pytest.approx(bits_per_byte, rel=1e-6)
        ids, nats = (
            rows[column][rows["source"] == name] for column in ("token_id", "nats")
        )
        text_bytes = sum(n_bytes[id] for id in ids.tolist())
        assert nats.sum() / (math.log(2) * text_bytes) == pytest.approx(
            bits_per_byte, rel=1e-5
        )
        scored = ablated["sources"][name]["tokens"]
        assert routed[name]["tokens"] == len(ids)
        # End-of-text within a block is scored, but is context alone; so is the block's
        # first token.
        assert (
            len(ids) == scored == 100
            if name == "text"
            else 48 < len(ids) < scored == 96
        )


def by_one_and_two(
    command: str, run: Path, words: list[str], strategy: str, out: Path
) -> list[Path]:
    """The folders of a study by one process and by two; each window is a batch of its
    own."""
    folders = [out / "one", out / "two"]
    words = [
        command,
        "--ckpt_path",
        str(run),
        "--run.micro_batch",
        "1",
        *words,
        "--out",
    ]
    assert main([*words, str(folders[0])]) == 0
    run_on_two_ranks([*words, str(folders[1]), "--trainer.strategy", strategy], out)
    return folders


@pytest.mark.parametrize(
    "strategy", [pytest.param("ddp", marks=pytest.mark.slow), "fsdp"]
)
def test_two_processes_score_what_one_scores(strategy, run, tmp_path):
    # An odd number of windows: one process scores a batch of padding.
    suites = ["--suite", "paper", "halting", "skip", "kv-slots", "depth"]
    words = [*suites, "--loops", "1,2,3", "--data.val_tokens", "130"]
    folders = by_one_and_two("ablate", run, words, strategy, tmp_path)
    one, two = (
        json.loads((folder / "ablations.json").read_text()) for folder in folders
    )
    assert one["sources"] == two["sources"]
    assert one["sources"]["held_out"]["sequences"] % 2 == 1
    of_depth = 3 * (1 + 2 * 2) + 3 * 6
    assert len(one["rows"]) == len(two["rows"]) == 9 + 8 + 6 + 2 + of_depth
    for expected, row in zip(one["rows"], two["rows"], strict=True):
        assert row["intervention"] == expected["intervention"]
        for key in NUMBERS:
            # A fit may end a step apart.
            near = 1e-6 if row["read_out"] == "trained" else 1e-4
            same = row[key] == pytest.approx(expected[key], abs=near)
            assert same, (row["intervention"], key)
    assert len({round(row["loss"], 5) for row in one["rows"]}) > 8


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_read_what_one_reads(strategy, trained, tmp_path):
    model = {**OPEN["model"], "max_seq_len": 128}
    run = trained(
        model=model, optim=OPEN["optim"], run={"batch_tokens": 256, "max_tokens": 768}
    )
    # One process reads a batch of padding, and one a longer window than the other.
    text = tmp_path / "text.jsonl"
    # As many documents as an interval takes, one window each.
    words = ("hell the " * n for n in (20, 4, 2, *[1] * 8))
    text.write_text("".join(json.dumps({"text": line}) + "\n" for line in words))
    words = ["--data.val", f"{{text: {text}}}", "--tagger", "none"]
    one, two = by_one_and_two("routing", run, words, strategy, tmp_path)
    expected, read = rows_of(one), rows_of(two)
    assert np.bincount(expected["sequence"]).tolist() == [100, 20, 10, *[5] * 8]
    for name in ("source", "sequence", "position", "token"):
        assert (expected[name] == read[name]).all(), name
    for name in ("nats", *PER_LAYER, "step_weights"):
        np.testing.assert_allclose(
            read[name], expected[name], atol=2e-6, rtol=1e-5, err_msg=name
        )
    summaries = [
        json.loads((folder / "summary.json").read_text()) for folder in (one, two)
    ]
    sources = [summary["sources"]["text"] for summary in summaries]
    assert sources[0]["sequences"] == sources[1]["sequences"] == 11
    assert sources[1]["loss"] == pytest.approx(sources[0]["loss"], abs=1e-6)
    one_read, two_read = (source["layers"] for source in sources)
    for name, estimate in one_read.items():
        # A loop's first update has none before it, to which it would have a cosine.
        assert (None in estimate["low"]) == (name == "step_cosine_1"), name
        for end in ("mean", "low", "high"):
            assert two_read[name][end] == pytest.approx(estimate[end], abs=1e-5), name
    # What the page has, sequence by sequence, whichever rank read it.
    pages = [np.load(folder / "page" / "text.npz") for folder in (one, two)]
    assert pages[0]["counts"].tolist() == [100, 20, 10, *[5] * 8]
    assert set(pages[0]) == set(pages[1]) > {"said", "costs"}
    for name in set(pages[0]) - {"forced", "said"}:
        np.testing.assert_allclose(pages[1][name], pages[0][name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "number"),
    [
        (["ablate", "--loops", "1-2"], errno.ENOSPC),
        (
            ["routing", "--tagger", "none", "--no_costs", "--sequences", "1"],
            errno.EROFS,
        ),
    ],
)
def test_a_study_on_a_full_disk_ends_in_one_line_and_goes_on_with_what_it_kept(
    options, number, studied, tmp_path, monkeypatch, capsys
):
    command, *others = options
    run = studied(*options).copied(tmp_path)
    words = [command, "--ckpt_path", str(run), *others]
    passes = [
        path
        for folder in ("scores", "passes")
        for path in run.glob(f"*/step-*/{folder}/*.npz")
    ]
    for path in passes:
        path.unlink()
    synced: list[Path] = []

    def sync(path: Path) -> None:  # a disk with room for two more whole files
        synced.append(path)
        if len(synced) > 2:
            raise OSError(number, os.strerror(number))

    capsys.readouterr()
    with monkeypatch.context() as full:
        full.setattr(files, "sync", sync)
        assert main(words) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"dualpath {command}: error: '{run}")
    assert os.strerror(number) in said
    assert said.count("\n") == 1
    assert not list(run.rglob(f"*{files.PARTIAL}"))
    kept = {path: path.stat().st_mtime_ns for path in passes if path.exists()}
    assert 0 < len(kept) < len(passes)
    assert main(words) == 0
    assert all(path.exists() for path in passes)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
