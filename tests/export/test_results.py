"""Scores of `evaluate` in the model card and as entries of the hub."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from dualpath_cli.cli import main
from tests.tiny_run import Fit

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


def export(run: Path, folder: Path, content: object, *words: str) -> int:
    (folder / "results.json").write_text(json.dumps(content))
    given = ["--ckpt_path", str(run), "--format", "hf", "--out", str(folder / "hf")]
    return main(["export", *given, "--results", str(folder), "--overwrite", *words])


def test_all_scores_are_in_the_card_and_whole_accuracies_for_the_hub(
    trained: Fit, tmp_path: Path
) -> None:
    assert export(trained(), tmp_path, RESULTS) == 0
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


def test_scores_under_an_override_stay_in_the_card(trained: Fit, tmp_path: Path) -> None:
    forced = deepcopy(RESULTS)
    forced["model"]["intervention"] = "K=1"
    assert export(trained(), tmp_path, forced) == 0
    assert "K = 2, K=1, float32" in (tmp_path / "hf" / "README.md").read_text()
    assert not (tmp_path / "hf" / ".eval_results").exists()


def test_other_results_are_refused(
    trained: Fit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained()

    def refused(content: object, *words: str) -> str:
        capsys.readouterr()
        assert export(run, tmp_path, content, *words) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said

    def changed(*path: str, value: object) -> dict[str, Any]:
        content = deepcopy(RESULTS)
        place: Any = content
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        return content

    assert "is of tiny/default, step 4, not of tiny/default, step 6" in refused(
        changed("model", "step", value=4)
    )
    assert "is of other/run, step 6" in refused(changed("model", "run", value="other/run"))
    piqa = ("tasks", "piqa")
    for content in (
        [],
        {"model": {}},
        changed("model", "run", value=None) | {"tasks": 3},
        changed(*piqa, "documents", value="10"),
        changed(*piqa, "metrics", "acc_per_char", "value", value=float("nan")),
        changed(*piqa, "metrics", "acc_per_char", "stderr", value="x"),
        changed(*piqa, "primary", value="unknown"),
    ):
        assert "results.json of dualpath evaluate" in refused(content)
    capsys.readouterr()
    (tmp_path / "results.json").write_text(json.dumps(RESULTS))
    words = ["--ckpt_path", str(run), "--format", "consolidated", "--results", str(tmp_path)]
    assert main(["export", *words]) == 2
    assert "--results goes with --format hf alone" in capsys.readouterr().err
