"""Runs the benchmarks on a model, which is loaded without Lightning; what is finished stays.

Each is a task of lm-evaluation-harness, whose own few-shots, filters and metrics are not used.
"""

import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance, OutputType
from lm_eval.api.task import Task
from lm_eval.evaluator import evaluate
from rich.console import Console

from dualpath_cli.errors import RunFailed
from dualpath_cli.evaluation import results
from dualpath_cli.evaluation.benchmarks import NEW_TOKENS, STOPS
from dualpath_cli.evaluation.command import Evaluate, Subject
from dualpath_cli.evaluation.data import Asked
from dualpath_cli.evaluation.formats import Question
from dualpath_cli.evaluation.harness import HarnessModel
from dualpath_cli.evaluation.results import (
    Result,
    Sample,
    score_choices,
    score_gold,
    score_text,
    score_written,
)
from dualpath_cli.kernels.device import device_name
from dualpath_cli.output.console import Progress, counted
from dualpath_cli.recipe.options import read_overrides
from dualpath_cli.run.checkpoint_files import describe
from dualpath_cli.run.run_folder import package_versions
from dualpath_cli.run.weights import autocast_of, device_of, load_model


@dataclass(frozen=True)
class Setting:
    subject: Subject
    options: Evaluate

    @property
    def device(self) -> torch.device:
        return device_of(self.options.device)

    @property
    def window(self) -> int:
        return min(self.options.window, self.subject.trained.settings.model.max_seq_len)

    def facts(self) -> dict[str, Any]:
        """The report's facts on the model and on how it was run; reads all of its weights."""
        trained, change = self.subject.trained, read_overrides(self.options)
        recipe, checkpoint = trained.settings, trained.run.checkpoint
        return {
            "name": self.subject.name,
            "path": self.subject.path,
            "run": f"{recipe.run.recipe}/{recipe.run.name}",
            "step": trained.run.step,
            "checkpoint": str(checkpoint),
            "sha256": _digest(checkpoint, sorted(checkpoint.glob("*.safetensors"))),
            "model": asdict(recipe.model),
            "loops": (change and change.loops) or recipe.model.loops,
            "intervention": change.name if change else "learned",
            "cache": self.options.cache,
            "device": device_name(self.device),
            "precision": self.options.precision,
            "batch_size": self.options.batch_size,
            "window": self.window,
            "versions": package_versions(("dualpath", "torch", "lm_eval")),
        }

    def load(self) -> HarnessModel:
        options, trained = self.options, self.subject.trained
        return HarnessModel(
            load_model(trained, self.device), trained.tokenizer(), self.window, options.batch_size,
            read_overrides(options), autocast_of(options.precision), options.cache == "exact",
        )  # fmt: skip


def _digest(folder: Path, files: Sequence[Path]) -> str:
    """Hash of the names, sizes and hashes of some files of a folder."""
    return hashlib.sha256(json.dumps(describe(folder, files)).encode()).hexdigest()


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


SAMPLE = "sample"  # the one metric that the harness sees: what is known of a document


class HarnessTask(Task):
    """Asks what `Asked` holds."""

    VERSION = 0

    def __init__(self, asked: Asked, window: int) -> None:
        """`window` is how many tokens the model takes, of which an answer gets half at most."""
        self._asked = asked
        self._new_tokens = min(NEW_TOKENS, window // 2)
        self._questions = dict(asked.questions)
        super().__init__(config={"task": asked.benchmark.name, "num_fewshot": 0})

    def download(self, *arguments: Any, **options: Any) -> None:
        """Does nothing: the documents are there."""

    def has_training_docs(self) -> bool:
        return False

    def has_validation_docs(self) -> bool:
        return False

    def has_test_docs(self) -> bool:
        return True

    def test_docs(self) -> Iterable[dict[str, int]]:
        return [{"doc": number} for number in self._questions]

    def fewshot_context(self, doc: dict[str, int], *arguments: Any, **options: Any) -> str:
        return self._asked.prefix

    def doc_to_text(self, doc: dict[str, int]) -> str:
        """Nothing: the contexts are in the requests."""
        return ""

    def doc_to_target(self, doc: dict[str, int]) -> str:
        """Nothing: `process_results` knows what is right."""
        return ""

    def construct_requests(self, doc: dict[str, int], ctx: str, **options: Any) -> list[Instance]:
        """The requests of a document, with what ends an answer that is written."""
        question, metadata = self._questions[doc["doc"]], options["metadata"]
        kind: OutputType = "loglikelihood"
        rest: tuple[Any, ...] = ()
        if isinstance(question, str):
            kind = "loglikelihood_rolling"
        elif self._asked.benchmark.kind == "writing":
            stops = {"until": list(STOPS), "max_gen_toks": self._new_tokens, "do_sample": False}
            kind, rest = "generate_until", (stops,)
        requests = enumerate(self._asked.requests(question))
        return [Instance(kind, doc, texts + rest, n, metadata) for n, texts in requests]

    def process_results(self, doc: dict[str, int], results: list[Any]) -> dict[str, Sample]:
        return {SAMPLE: {**doc, **self._score(self._questions[doc["doc"]], results)}}

    def _score(self, question: Question | str, results: list[Any]) -> Sample:
        if isinstance(question, str):
            return score_text(question, results[0])
        if self._asked.benchmark.kind == "writing":
            return score_written(question, results[0])
        loglikelihoods = [loglikelihood for loglikelihood, _ in results]
        if self._asked.benchmark.kind == "choice":
            n = len(question.continuations)
            return score_choices(question, loglikelihoods[:n], loglikelihoods[n:] or None)
        sample = score_gold(question, loglikelihoods)
        if self._asked.benchmark.kind == "word":
            sample["acc"] = int(results[0][1])
        return sample

    def aggregation(self) -> dict[str, Callable[[list[Sample]], int]]:
        """How many samples there are; their scores are made by `results.metrics_of`."""
        return {SAMPLE: len}

    def higher_is_better(self) -> dict[str, bool]:
        return {SAMPLE: True}
