"""Scores of `dualpath evaluate` in a model card, and as entries that the hub reads."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dualpath_cli.errors import UserError, of_content
from dualpath_cli.evaluation.benchmarks import BENCHMARKS
from dualpath_cli.files import read_json


@dataclass(frozen=True)
class Score:
    """A benchmark's primary score."""

    task: str
    metric: str
    value: float
    stderr: float | None
    documents: int
    in_all: int
    shots: int


@dataclass(frozen=True)
class Results:
    """The content of a results.json."""

    scores: tuple[Score, ...]
    how: str
    """How the model was run, as a sentence."""
    learned: bool
    """Whether that was without an intervention."""

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """A row for each benchmark: name, metric, value, standard error, documents, examples."""
        return [
            (s.task, s.metric, f"{s.value:.4f}", "" if s.stderr is None else f"{s.stderr:.4f}",
             f"{s.documents:,} of {s.in_all:,}", str(s.shots))
            for s in self.scores
        ]  # fmt: skip

    def entries(self) -> dict[str, str]:
        """The files of `.eval_results/`: accuracies on whole benchmarks that the hub has, in %.

        Scores of a part, or of forced loops and gates, are in the card alone.
        """
        files = {}
        for score in self.scores:
            whole = score.documents == score.in_all and self.learned
            hub = BENCHMARKS[score.task].hub if score.task in BENCHMARKS else None
            if hub is not None and score.metric.startswith("acc") and whole:
                entry = {
                    "dataset": {"id": hub.path, "task_id": hub.config or "default"},
                    "value": round(100 * score.value, 2),
                    "notes": f"{score.metric}, {score.shots}-shot; {self.how}",
                }
                files[f"{score.task}.yaml"] = yaml.safe_dump([entry], sort_keys=False)
        return files


def read_results(path: Path, run: str, step: int) -> Results:
    """Reads the results.json of `dualpath evaluate`, of this run and step."""
    path = path / "results.json" if path.is_dir() else path
    content = read_json(path, "give a results.json of dualpath evaluate")
    try:
        model = content["model"]
        of = (model["run"], model["step"])
        scores = tuple(_score(task, facts) for task, facts in content["tasks"].items())
        how = (
            f"K = {model['loops']}, {model['intervention']}, {model['precision']} on "
            f"{model['device']}, batches of {model['batch_size']}, windows of {model['window']} "
            f"tokens, dualpath evaluate {model['versions']['dualpath']}"
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"--results '{path}' is no results.json of dualpath evaluate: {of_content(error)}"
        ) from None
    if of != (run, step):
        raise UserError(
            f"--results '{path}' is of {of[0]}, step {of[1]}, not of {run}, step {step}"
        )
    return Results(scores, how, learned=model["intervention"] == "learned")


def _score(task: str, facts: Mapping[str, Any]) -> Score:
    metric = facts["metrics"][facts["primary"]]
    numbers = [facts[name] for name in ("documents", "documents_in_all", "shots")]
    stderr = None if metric["stderr"] is None else _finite(metric["stderr"])
    if not all(type(number) is int for number in numbers):
        raise ValueError(f"{task}: its numbers of documents are {numbers}")
    return Score(task, str(facts["primary"]), _finite(metric["value"]), stderr, *numbers)


def _finite(value: Any) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r:.40} is no number")
    return float(value)
