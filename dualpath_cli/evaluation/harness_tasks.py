"""Tasks of lm-evaluation-harness by their own names, scored by their own rules.

The harness finds and loads them, also those of `--include-path`; documents, few-shot
examples, filters and metrics are its own.
"""

import logging
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED
from lm_eval.evaluator import evaluate
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.tasks import TaskManager

from dualpath_cli.base.errors import UserError, did_you_mean
from dualpath_cli.base.output import joined_lines
from dualpath_cli.evaluation.benchmarks import HARNESS, NAMES, SUITES
from dualpath_cli.evaluation.harness import HarnessModel

LEVELS = {
    "lm_eval": logging.ERROR,
    "datasets": logging.ERROR,
    "datasets.packaged_modules": logging.CRITICAL,  # formats: what they log they raise
    "huggingface_hub": logging.ERROR,
}
"""What libraries may log, while they load and score."""


@contextmanager
def quietly() -> Iterator[None]:
    """Silences libraries that log each file and attempt."""
    before = {name: logging.getLogger(name).level for name in LEVELS}
    try:
        for name, level in LEVELS.items():
            logging.getLogger(name).setLevel(level)
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


@dataclass(frozen=True)
class HarnessTask:
    """A task, or a group of tasks, by the name that the user gave."""

    name: str
    loaded: Any  # what the harness's TaskManager loads: tasks and groups
    limit: int | None  # the first documents of each task; None for all

    @property
    def title(self) -> str:
        return f"{HARNESS}:{self.name}"

    @property
    def longest_answer(self) -> int:
        """The most tokens that the tasks let a model write; 0 if none is written."""
        limits = [
            normalize_gen_kwargs(task.get_config("generation_kwargs"))["max_gen_toks"]
            for task in self.loaded["tasks"].values()
            if task.OUTPUT_TYPE == "generate_until"
        ]
        return max(limits, default=0)

    def score(self, model: HarnessModel) -> Any:
        """The harness's report, each time with the same worked examples."""
        for task in self.loaded["tasks"].values():
            task.set_fewshot_seed(DEFAULT_OTHER_SEED)
        return evaluate(model, self.loaded, limit=self.limit)


def find_tasks(names: Sequence[str], folders: Sequence[Path]) -> TaskManager:
    """Finds the task files of these names, also in `folders`.

    Raises:
        UserError: for a name that neither the harness nor a folder has.
    """
    manager = TaskManager(include_path=[str(folder) for folder in folders])
    known = set(manager.all_tasks)
    for name in names:
        if name not in known:
            all_names = (*SUITES, *NAMES, *manager.all_tasks)
            way_out = did_you_mean(name, all_names) or (
                f"; choose from {', '.join((*SUITES, *NAMES))}, or from `lm_eval ls "
                "tasks`"
            )
            unread = _unreadable(folders)
            raise UserError(f"unknown benchmark '{name}'{unread}{way_out}")
    return manager


def _unreadable(folders: Sequence[Path]) -> str:
    """The first task file that the harness passes over, as a part of a message."""
    # A private name, so that its loss would cost no more than this message.
    from lm_eval.tasks._yaml_loader import load_yaml

    for folder in folders:
        for path in sorted(folder.glob("**/*.yaml")):
            try:
                load_yaml(path, resolve_func=False)
            except Exception as error:  # of YAML, or of a file that it includes
                text = joined_lines(error, 300)
                return f"; {path} cannot be read ({text})"
    return ""


def load_harness_task(
    manager: TaskManager, name: str, limit: int | None
) -> HarnessTask:
    """Loads a task with its documents, and prepares it as `lm_eval run` does.

    Raises:
        UserError: if its data set, metric or worked examples cannot be had, or if it
            runs code.
    """
    # Some tasks shuffle the choices of their documents.
    random.seed(DEFAULT_RANDOM_SEED)
    np.random.seed(DEFAULT_OTHER_SEED)
    try:
        loaded = manager.load([name])
    except Exception as error:
        # anything from network, hub or a task file
        text = joined_lines(error, 300)
        way_out = (
            "check the network: data that is not in the cache (HF_HOME) is downloaded "
            "from the Hugging Face hub"
        )
        # Some tasks assert the version of a package.
        if isinstance(error, ImportError | AssertionError):
            way_out = (
                "install what its code imports; lm_eval has extras for some tasks, "
                "such as pip install 'lm_eval[ifeval,math]'"
            )
        raise UserError(
            f"{HARNESS}:{name} cannot be loaded ({type(error).__name__}: {text}); "
            f"{way_out}"
        ) from None

    for task in loaded["tasks"].values():
        if getattr(task, "UNSAFE_CODE", False):
            raise UserError(
                f"{HARNESS}:{name} runs code that the model writes; export the model, "
                "and use lm_eval with --confirm_run_unsafe_code"
            )
        if getattr(task, "MULTIMODAL", False):
            raise UserError(f"{HARNESS}:{name} is of images or sound, not of text")

        # As `simple_evaluate` of the harness: no example unless the task says so.
        shots = task.get_config("num_fewshot")
        if shots is None:
            task.set_config("num_fewshot", 0)
        elif shots:
            _check_examples(task, f"{HARNESS}:{name}", shots)
    return HarnessTask(name, loaded, limit)


def _check_examples(task: Any, name: str, shots: int) -> None:
    """Raises UserError unless a task has as many worked examples as it asks for."""
    try:
        task.set_fewshot_seed(DEFAULT_OTHER_SEED)
        task.fewshot_context(task.eval_docs[0], num_fewshot=shots)
    except Exception as error:  # of a sampler or a template
        text = joined_lines(error, 160)
        raise UserError(
            f"{name} cannot draw {shots} worked examples ({type(error).__name__}: "
            f"{text}); give its file a smaller num_fewshot, or more rows"
        ) from None


@quietly()
def load_harness_tasks(
    names: Sequence[str], folders: Sequence[Path], limit: int | None
) -> list[HarnessTask]:
    """The harness's own tasks of these names; `folders` have more task files.

    Raises:
        UserError: for a name that is unknown, or a task that cannot be loaded.
    """
    manager = find_tasks(names, folders)
    return [load_harness_task(manager, name, limit) for name in names]
