"""Runs the benchmarks on one model, one after the other; what is finished is not run again."""

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lm_eval.evaluator import evaluate
from rich.console import Console

from dualpath_cli.errors import RunFailed
from dualpath_cli.evaluation import results
from dualpath_cli.evaluation.data import Asked
from dualpath_cli.evaluation.harness.task import SAMPLE, HarnessTask
from dualpath_cli.evaluation.results import Result
from dualpath_cli.evaluation.scoring import Sample
from dualpath_cli.evaluation.subjects import Setting
from dualpath_cli.output.progress import Progress, counted


def run(
    setting: Setting, facts: dict[str, Any], asked: Sequence[Asked], folder: Path, console: Console
) -> list[Result]:
    """Returns the scores of all benchmarks, from `folder` where they are there already.

    Raises:
        RunFailed: where the model gives no numbers.
        KeyboardInterrupt: says how far it is.
    """
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    found: list[Result] = []
    model = None
    for one in asked:
        name, key = one.benchmark.name, results.key_of(facts, one)
        result = results.find(folder, one, key)
        if isinstance(result, Result):
            console.print(f"{name}: kept from before", highlight=False)
        else:
            if result is not None:
                console.print(f"{name}: {result}; scored again", highlight=False, soft_wrap=True)
            try:
                model = model or setting.load()
                with Progress(console, name, counted("requests")) as progress:
                    model.progress = progress
                    samples = _samples(model, one, setting.window)
                result = results.keep(folder, one, key, samples)
            except KeyboardInterrupt as end:
                done = f"{len(found)} of {len(asked)} benchmarks of {setting.subject.name} are done"
                raise type(end)(f"{done}; the same command goes on from there") from None
        found.append(result)
    return found


def _samples(model: Any, asked: Asked, window: int) -> list[Sample]:
    """The samples of lm-evaluation-harness for a benchmark: one a document, in their order."""
    name = asked.benchmark.name
    tasks = {"tasks": {name: HarnessTask(asked, window)}, "groups": {}}
    report: Any = evaluate(lm=model, task_dict=tasks, bootstrap_iters=0)
    samples: list[Sample] = [sample[SAMPLE] for sample in report["samples"][name]]
    for sample in samples:
        numbers = [*sample.get("loglikelihoods", ()), sample.get("loglikelihood", 0.0)]
        if not all(map(math.isfinite, numbers)):
            raise RunFailed(f"{name}, document {sample['doc']}: the model gives no number")
    return samples
