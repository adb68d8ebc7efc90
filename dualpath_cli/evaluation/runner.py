"""Benchmarks by lm-evaluation-harness: tasks from files or the hub, documents drawn,
the scores.

OUT/<model>/results.json        the harness's report, after each benchmark, with facts
                                on the model
OUT/<model>/samples/TASK.jsonl  a line for each document
"""

import json
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate
from lm_eval.utils import handle_non_serializable
from rich.console import Console

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import write_text
from dualpath_cli.evaluation.benchmarks import (
    REQUESTS,
    RESULTS,
    SAMPLES,
    SUBJECTS,
    Benchmark,
    Function,
    NoData,
    Report,
    means_of,
    scores_of,
)
from dualpath_cli.evaluation.harness import HarnessModel
from dualpath_cli.evaluation.tasks import olmes
from dualpath_cli.report.console import Progress, counted

SEED = 1234  # of the draw of documents under a limit, as in OLMES


@contextmanager
def _quietly() -> Iterator[None]:
    """Silences libraries that log each file and attempt."""
    loggers = [
        logging.getLogger(name) for name in ("lm_eval", "datasets", "huggingface_hub")
    ]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@dataclass(frozen=True)
class Asked:
    benchmark: Benchmark
    task: ConfigurableTask
    documents: list[int]  # places in the file or split

    @property
    def samples(self) -> dict[str, list[int]] | None:
        """The documents as the harness takes them; None for all."""
        every = len(self.documents) == len(self.task.eval_docs)
        return None if every else {self.benchmark.name: self.documents}

    def requests(self) -> list[Instance]:
        samples = self.samples and self.samples[self.benchmark.name]
        self.task.build_all_requests(samples=samples)
        return self.task.instances


def write_requests(asked: Asked, out: Path) -> Path:
    """Writes OUT/requests/TASK.jsonl, a line for each request; returns its path.

    A line has the number of the document, `doc`, and of the request, `idx`. Then follow
    `context` and `continuation`; or only the `context` of a generated answer; or a
    whole `text`.
    """
    path = out / REQUESTS / f"{asked.benchmark.name}.jsonl"
    names = ("text",) if asked.benchmark.is_text else ("context", "continuation")
    lines = []
    for request in asked.requests():
        texts = [text for text in request.args if isinstance(text, str)]
        place = {"doc": asked.documents[request.doc_id], "idx": request.idx}
        record = place | dict(zip(names, texts, strict=False))
        lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    write_text(path, "".join(lines))
    return path


def _with_functions(part: Any) -> Any:
    """A task file, or a part of the file, with functions in place of their names."""
    if isinstance(part, list):
        return [_with_functions(each) for each in part]
    if isinstance(part, dict):
        return {name: _with_functions(each) for name, each in part.items()}
    return getattr(olmes, part) if isinstance(part, Function) else part


@_quietly()
def ask(benchmark: Benchmark, changes: Mapping[str, Any], limit: int | None) -> Asked:
    """A benchmark's task file with `changes` (empty for the hub), and its documents."""
    config = _with_functions(dict(benchmark.config))
    kind = config.pop("class", ConfigurableTask)
    files = changes["dataset_kwargs"]["data_files"] if changes else {}
    hub = f"hf:{config['dataset_path']}"
    # Of the worked examples, the harness takes the first.
    shots = {config.get("fewshot_split"): config["num_fewshot"]}
    config["process_docs"] = partial(config["process_docs"], first=shots)
    try:
        task = kind(config=config | changes)
        docs = task.eval_docs
        # checks their number
        task.fewshot_context(docs[0], num_fewshot=task.config.num_fewshot)
    except olmes.BadDocument as bad:
        reason = f"row {bad.row} cannot be scored as {benchmark.name}: {bad.reason}"
        if changes:
            raise UserError(f"{files[bad.split]} {reason}") from None
        raise NoData(f"{hub} {bad.split} {reason}; give --data DIR") from None
    except Exception as error:
        # anything from network or hub, or a file in another format
        cause = error.__cause__ or error
        reason = (
            f"{benchmark.name} ({type(cause).__name__}: "
            f"{' '.join(str(cause).split()):.160})"
        )
        if changes:
            raise UserError(
                f"{', '.join(files.values())} cannot be read as {reason}"
            ) from None
        # Without a network all other benchmarks would fail, too.
        kind = UserError if isinstance(error, ConnectionError) else NoData
        raise kind(f"{hub} cannot be read as {reason}; give --data DIR") from None
    task.set_config("task", benchmark.name)
    numbers, subject = list(range(len(docs))), config["metadata"].get("subject")
    if subject is not None and "subject" in docs.column_names:
        subjects = list(docs["subject"])
        # A row of an unknown subject would count in no benchmark.
        strays = [
            number for number, other in enumerate(subjects) if other not in SUBJECTS
        ]
        if strays:
            place = f"{files.get(config['test_split'], hub)} row {strays[0] + 1}"
            names = ", ".join(SUBJECTS)
            raise UserError(
                f"{place}: subject {subjects[strays[0]]!r:.40} is none of {names}"
            )
        numbers = [number for number, other in enumerate(subjects) if other == subject]
    if not numbers:
        raise NoData(f"the file of {benchmark.name} has no document of it")
    if limit is not None and limit < len(numbers):
        numbers = sorted(random.Random(SEED).sample(numbers, limit))
    return Asked(benchmark, task, numbers)


@_quietly()
def run(
    model: HarnessModel,
    asked: Sequence[Asked],
    folder: Path,
    facts: Mapping[str, Any],
    console: Console,
) -> Report:
    """Returns the harness's report of all benchmarks; writes the report, with `facts`,
    after each.

    Benchmarks run one by one, so that the requests of a batch share few-shot examples.
    """
    report: dict[str, Any] = {}
    for one in asked:
        name = one.benchmark.name
        with Progress(console, name, counted("requests")) as progress:
            model.progress = progress
            found: Any = evaluate(
                model, {"tasks": {name: one.task}}, samples=one.samples
            )
        for part, content in found.items():
            report[part] = report.get(part, {}) | content
        # Contexts are left out: each repeats the few-shot examples.
        lines = [
            _json(_without(row, "arguments")) + "\n" for row in found["samples"][name]
        ]
        write_text(folder / SAMPLES / f"{name}.jsonl", "".join(lines))
        results = {
            **facts,
            "means": means_of(scores_of(report)),
            **_without(report, "samples"),
        }
        write_text(folder / RESULTS, _json(results, indent=2) + "\n")
    return report


_json = partial(json.dumps, default=handle_non_serializable, ensure_ascii=False)


def _without(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != name}
