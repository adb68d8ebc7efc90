"""Two processes give one process's rows and numbers, whole or sharded."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.study.conftest import OPEN
from tests.study.routing.test_study import PER_LAYER, routing, rows_of
from tests.training.conftest import Fit

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_read_what_one_reads(strategy: str, fit: Fit, tmp_path: Path) -> None:
    model = {**OPEN["model"], "max_seq_len": 128}
    run = fit(model=model, optim=OPEN["optim"], run={"batch_tokens": 256, "max_tokens": 768})
    # An odd number of windows, each a batch of its own: one process reads a batch of padding, and
    # one reads a longer window than the other.
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": "hell the " * n}) + "\n" for n in (20, 4, 2)))
    words = ["--sources", str(text), "--run.micro_batch", "1", "--tagger", "none", "--out"]
    one = routing(run, *words, str(tmp_path / "one"))
    two = tmp_path / "two"
    command = [sys.executable, "-m", "dualpath_cli", "routing", "--ckpt_path", str(run), *words]
    command += [str(two), "--trainer.strategy", strategy, "--trainer.devices", "2"]
    subprocess.run(command, check=True, timeout=300)
    expected, read = rows_of(one), rows_of(two)
    assert np.bincount(expected["sequence"]).tolist() == [100, 20, 10]
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
    for name, estimate in sources[0]["layers"].items():
        for end in ("mean", "low", "high"):
            assert sources[1]["layers"][name][end] == pytest.approx(estimate[end], abs=1e-5), name
