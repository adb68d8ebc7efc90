"""Scores of `evaluate` in the model card and as entries of the hub."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from dualpath_cli.cli.main import main
from tests.export.conftest import words

RESULTS: dict[str, Any] = {
    "model": {
        "run": "tiny/default", "step": 6, "loops": 2, "intervention": "learned",
        "precision": "float32", "device": "cpu", "batch_size": 16, "window": 16,
        "versions": {"dualpath": "0.1.0"},
    },
    "tasks": {
        "piqa": {
            "primary": "acc_per_char", "documents": 1838, "documents_in_all": 1838, "shots": 5,
            "metrics": {"acc_per_char": {"value": 0.51234, "stderr": 0.01},
                        "bpb": {"value": 1.5, "stderr": 0.1}},
        },
        "arc_easy": {
            "primary": "acc_per_char", "documents": 100, "documents_in_all": 2376, "shots": 5,
            "metrics": {"acc_per_char": {"value": 0.25, "stderr": None}},
        },
        "novels": {
            "primary": "rolling_bpb", "documents": 3, "documents_in_all": 3, "shots": 0,
            "metrics": {"rolling_bpb": {"value": 1.25, "stderr": 0.2}},
        },
    },
}  # fmt: skip


def with_results(run: Path, folder: Path, content: object) -> list[str]:
    """The command that exports a run with these results into `hf` in the folder."""
    (folder / "results.json").write_text(json.dumps(content))
    return words(run, folder / "hf", "--results", folder)


def test_all_scores_are_in_the_card_and_whole_accuracies_for_the_hub(trained, tmp_path):
    assert main(with_results(trained(), tmp_path, RESULTS)) == 0
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "| piqa | acc_per_char | 0.5123 | 0.0100 | 1,838 of 1,838 | 5 |" in card
    assert "| arc_easy | acc_per_char | 0.2500 |  | 100 of 2,376 | 5 |" in card
    assert "| novels | rolling_bpb | 1.2500 | 0.2000 | 3 of 3 | 0 |" in card
    assert "K = 2, learned, float32 on cpu, batches of 16" in card
    (entry,) = (tmp_path / "hf" / ".eval_results").iterdir()
    (said,) = yaml.safe_load(entry.read_text())
    assert entry.name == "piqa.yaml"
    assert said["dataset"] == {"id": "ybisk/piqa", "task_id": "default"}
    assert said["value"] == 51.23
    assert said["notes"].startswith("acc_per_char, 5-shot; K = 2")


def test_scores_under_an_override_stay_in_the_card(trained, tmp_path):
    forced = deepcopy(RESULTS)
    forced["model"]["intervention"] = "K=1"
    assert main(with_results(trained(), tmp_path, forced)) == 0
    assert "K = 2, K=1, float32" in (tmp_path / "hf" / "README.md").read_text()
    assert not (tmp_path / "hf" / ".eval_results").exists()


PIQA = ("tasks", "piqa")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("model", "step"), 4, "is of tiny/default, step 4, not of tiny/default, step 6"),
        (("model",), {}, "it lacks 'run'"),
        ((*PIQA, "metrics", "acc_per_char", "value"), float("nan"), "nan is no number"),
    ],
)
def test_other_results_are_refused(path, value, message, trained, tmp_path, said):
    content = place = deepcopy(RESULTS)
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    error = said(*with_results(trained(), tmp_path, content))
    assert message in error
    assert str(tmp_path) in error
