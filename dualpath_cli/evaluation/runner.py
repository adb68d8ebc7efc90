"""Runs the benchmarks on a model, which is loaded without Lightning; what is finished stays."""

import hashlib
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from lm_eval.evaluator import evaluate
from rich.console import Console

from dualpath_cli.errors import RunFailed
from dualpath_cli.evaluation import results
from dualpath_cli.evaluation.data import Asked
from dualpath_cli.evaluation.harness.model import HarnessModel
from dualpath_cli.evaluation.harness.task import SAMPLE, HarnessTask
from dualpath_cli.evaluation.request import Evaluate, Subject
from dualpath_cli.evaluation.results import Result
from dualpath_cli.evaluation.scoring import Sample
from dualpath_cli.files import read_json
from dualpath_cli.generation.loading import autocast_of, device_of, load_model
from dualpath_cli.kernels.device import device_name
from dualpath_cli.options import read_overrides
from dualpath_cli.output.progress import Progress, counted
from dualpath_cli.run.checkpoint_files import describe, files_of
from dualpath_cli.run.exported_folder import check_unchanged, is_exported
from dualpath_cli.run.run_folder import package_versions

_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")
"""The names of the longest text in configurations of transformers."""


@dataclass(frozen=True)
class Setting:
    """How a model is evaluated."""

    subject: Subject
    options: Evaluate

    @property
    def device(self) -> torch.device:
        """Raises UserError for one that is not there."""
        return device_of(self.options.device)

    @property
    def window(self) -> int:
        """Tokens that the model sees at most."""
        if self.subject.trained is not None:
            lengths = [self.subject.trained.settings.model.max_seq_len]
        else:
            config = _config(self.subject)
            lengths = [n for name in _LENGTHS if isinstance(n := config.get(name), int)]
        return min(self.options.window, *lengths) if lengths else self.options.window

    def facts(self) -> dict[str, Any]:
        """The report's facts on the model and on how it was run; reads all of its weights."""
        subject, trained = self.subject, self.subject.trained
        change = read_overrides(self.options)
        facts: dict[str, Any] = {"name": subject.name, "path": subject.path}
        if trained is None:
            facts |= {"sha256": _digest(Path(subject.path)), "model": _config(subject)}
        else:
            recipe, checkpoint = trained.settings, trained.run.checkpoint
            facts |= {
                "run": f"{recipe.run.recipe}/{recipe.run.name}",
                "step": trained.run.step,
                "checkpoint": str(checkpoint),
                "sha256": _digest(checkpoint),
                "model": asdict(recipe.model),
                "loops": (change and change.loops) or recipe.model.loops,
                "intervention": change.name if change else "learned",
                "cache": self.options.cache,
            }
        packages = ("dualpath", "torch", "lm_eval", *(("transformers",) if trained is None else ()))
        return facts | {
            "device": device_name(self.device),
            "precision": self.options.precision,
            "batch_size": self.options.batch_size,
            "window": self.window,
            "versions": package_versions(packages),
        }

    def load(self) -> Any:
        """The model as lm-evaluation-harness sees one."""
        options, trained = self.options, self.subject.trained
        if trained is None:
            from dualpath_cli.evaluation.harness.hugging_face import HuggingFaceModel

            if is_exported(folder := Path(self.subject.path)):
                check_unchanged(folder)
            return HuggingFaceModel.load(
                folder, self.window, options.batch_size, str(self.device),
                options.precision, options.trust_remote_code,
            )  # fmt: skip
        tokenizer = trained.tokenizer()
        return HarnessModel(
            load_model(trained, self.device), tokenizer, self.window, options.batch_size,
            read_overrides(options), autocast_of(options.precision), options.cache == "exact",
        )  # fmt: skip


def _config(subject: Subject) -> dict[str, Any]:
    """The configuration of a Hugging Face directory."""
    return read_json(Path(subject.path) / "config.json")


def _digest(path: Path) -> str:
    """Hash of the names, sizes and hashes of a file, or of all files of a folder."""
    return hashlib.sha256(json.dumps(describe(path, files_of(path))).encode()).hexdigest()


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
