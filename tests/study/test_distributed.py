"""Two processes give the numbers of one, whole or sharded, and routing the same rows."""

import json
from pathlib import Path

import numpy as np
import pytest

from dualpath_cli.cli.main import main
from tests.processes import run_on_two_ranks
from tests.study.conftest import OPEN
from tests.study.routing.test_study import PER_LAYER, rows_of

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("strategy", ["ddp", "fsdp"])]


def studied(command: str, run: Path, words: list[str], strategy: str, out: Path) -> list[Path]:
    """The folders of a study by one process and by two; each window is a batch of its own."""
    folders = [out / "one", out / "two"]
    words = [command, "--ckpt_path", str(run), "--run.micro_batch", "1", *words, "--out"]
    assert main([*words, str(folders[0])]) == 0
    run_on_two_ranks([*words, str(folders[1]), "--trainer.strategy", strategy], out)
    return folders


def test_two_processes_score_what_one_scores(strategy, run, tmp_path):
    # An odd number of windows: one process scores a batch of padding.
    suites = ["--suite", "paper", "halting", "skip", "kv-slots"]
    words = [*suites, "--loops", "1,2,3", "--max_tokens", "130"]
    folders = studied("ablate", run, words, strategy, tmp_path)
    one, two = (json.loads((folder / "ablations.json").read_text()) for folder in folders)
    assert (one["devices"], two["devices"]) == (1, 2)
    assert one["sources"] == two["sources"]
    assert one["sources"]["held_out"]["sequences"] % 2 == 1
    assert len(one["rows"]) == len(two["rows"]) == 9 + 8 + 6 + 2
    for expected, row in zip(one["rows"], two["rows"], strict=True):
        assert row["intervention"] == expected["intervention"]
        for key in ("loss", "difference", "low", "high", "expected_loops", "loops_run", "passes"):
            assert row[key] == pytest.approx(expected[key], abs=1e-6), (row["intervention"], key)
    assert len({round(row["loss"], 5) for row in one["rows"]}) > 8
    # Each pass is kept once, and found again by the same command.
    kept = list((folders[1] / "scores").iterdir())
    assert len(kept) == len(two["rows"])


def test_two_processes_read_what_one_reads(strategy, trained, tmp_path):
    model = {**OPEN["model"], "max_seq_len": 128}
    run = trained(model=model, optim=OPEN["optim"], run={"batch_tokens": 256, "max_tokens": 768})
    # One process reads a batch of padding, and one a longer window than the other.
    text = tmp_path / "text.jsonl"
    # As many documents as an interval takes, one window each.
    words = ("hell the " * n for n in (20, 4, 2, *[1] * 8))
    text.write_text("".join(json.dumps({"text": line}) + "\n" for line in words))
    words = ["--sources", str(text), "--tagger", "none", "--beside_loops", "2"]
    one, two = studied("routing", run, words, strategy, tmp_path)
    expected, read = rows_of(one), rows_of(two)
    assert np.bincount(expected["sequence"]).tolist() == [100, 20, 10, *[5] * 8]
    for name in ("source", "sequence", "position", "token"):
        assert (expected[name] == read[name]).all(), name
    for name in ("nats", *PER_LAYER, "step_weights"):
        np.testing.assert_allclose(read[name], expected[name], atol=2e-6, rtol=1e-5, err_msg=name)
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (one, two)]
    assert [summary["devices"] for summary in summaries] == [1, 2]
    sources = [summary["sources"]["text"] for summary in summaries]
    assert sources[0]["sequences"] == sources[1]["sequences"]
    assert sources[0]["sequences"] % 2 == 1
    assert sources[1]["loss"] == pytest.approx(sources[0]["loss"], abs=1e-6)
    nulls = [summary["untrained"]["text"] for summary in summaries]
    for one_read, two_read in (sources, nulls):
        for name, estimate in one_read["layers"].items():
            # A loop's first update has none before it, to which it would have a cosine.
            assert (None in estimate["low"]) == (name == "step_cosine_1"), name
            for end in ("mean", "low", "high"):
                assert two_read["layers"][name][end] == pytest.approx(estimate[end], abs=1e-5), name
    # What the page has, sequence by sequence, whichever rank read it.
    pages = [np.load(folder / "page" / "text.npz") for folder in (one, two)]
    assert pages[0]["counts"].tolist() == [100, 20, 10, *[5] * 8]
    assert set(pages[0]) == set(pages[1]) > {"said", "costs", "beside_said"}
    for name in set(pages[0]) - {"forced", "said", "beside_said"}:
        np.testing.assert_allclose(pages[1][name], pages[0][name], atol=1e-5, rtol=1e-4)
    # The untrained model is not the trained one, whose sharded weights it took the place of.
    shares = [read["layers"]["gate_deep"]["mean"] for read in (sources[1], nulls[1])]
    assert np.abs(np.subtract(*shares)).max() > 0.01
