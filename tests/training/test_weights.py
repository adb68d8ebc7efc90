"""Initial weights are drawn by a new run, and by nothing that reads a checkpoint."""

from pathlib import Path

import pytest

from dualpath_cli.cli import main
from dualpath_cli.model import language_model
from tests.tiny_run import Fit, back_to_step, rows


def test_nothing_is_drawn_where_a_checkpoint_follows(
    fit: Fit, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    draw = language_model.initial_value
    monkeypatch.setattr(
        language_model, "initial_value", lambda *given: drawn.append(given[0]) or draw(*given)
    )
    run = fit()
    assert len(drawn) == len(set(drawn)) > 0
    before = rows(run / "metrics.csv")

    drawn.clear()
    back_to_step(run, 4)
    fit()  # continues
    assert [row["loss"] for row in rows(run / "metrics.csv")] == [row["loss"] for row in before]
    words = ["--ckpt_path", str(run)]
    study = [*words, "--sources", f"held_out={texts / 'val.jsonl'}", "--max_tokens", "40"]
    assert main(["validate", *words]) == 0
    assert main(["ablate", *study, "--suite", "paper"]) == 0
    assert main(["routing", *words, "--text", "hello"]) == 0
    recipe = ["--config", str(tmp_path / "recipe.yaml"), "--run.name", "other"]
    assert main(["fit", *recipe, *words]) == 0
    assert drawn == []
    # Routing of texts is set beside that of the untrained model.
    assert main(["routing", *study, "--tagger", "none"]) == 0
    assert len(drawn) == len(set(drawn)) > 0
