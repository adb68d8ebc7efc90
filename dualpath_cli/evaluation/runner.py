"""Benchmarks by lm-evaluation-harness: their tasks, the documents drawn, the scores.

OUT/<model>/results.json        the harness's report, after each benchmark, with facts
                                on the model
OUT/<model>/samples/TASK.jsonl  a line for each document; in `samples/harness` those of
                                the harness's own tasks
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial, wraps
from inspect import getsource
from pathlib import Path
from typing import Any

from datasets import Dataset
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate
from lm_eval.utils import handle_non_serializable
from rich.console import Console

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import remove, write_text
from dualpath_cli.base.output import joined_lines
from dualpath_cli.data.primitives import level_test
from dualpath_cli.evaluation.benchmarks import (
    HARNESS,
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
    verbatim,
)
from dualpath_cli.evaluation.depths import LOOPS
from dualpath_cli.evaluation.harness import HarnessModel
from dualpath_cli.evaluation.harness_tasks import HarnessTask, quietly
from dualpath_cli.evaluation.tasks import olmes
from dualpath_cli.report.console import Progress, counted

SEED = 1234  # of the draw of documents under a limit, as in OLMES


@dataclass(frozen=True)
class LoadedTask:
    """A benchmark as a task of the harness, and the documents to score."""

    benchmark: Benchmark
    task: ConfigurableTask
    documents: list[int]  # places in the file or split

    @property
    def samples(self) -> list[int] | None:
        """The documents as the harness takes them; None for all."""
        takes_all = len(self.documents) == len(self.task.eval_docs)
        return None if takes_all else self.documents

    @property
    def title(self) -> str:
        return self.benchmark.name

    def score(self, model: HarnessModel) -> Any:
        """The harness's report."""
        name = self.benchmark.name
        samples = None if self.samples is None else {name: self.samples}
        return evaluate(model, {"tasks": {name: self.task}}, samples=samples)

    def requests(self) -> list[Instance]:
        self.task.build_all_requests(samples=self.samples)
        return self.task.instances


def write_requests(task: LoadedTask, out: Path) -> Path:
    """Writes OUT/requests/TASK.jsonl, a line for each request; returns its path.

    A line has the number of the document, `doc`, and of the request, `idx`. Then follow
    `context` and `continuation`; or only the `context` of a generated answer; or a
    whole `text`.
    """
    path = out / REQUESTS / f"{task.benchmark.name}.jsonl"
    names = ("text",) if task.benchmark.is_text else ("context", "continuation")

    lines = []
    for request in task.requests():
        texts = [text for text in request.args if isinstance(text, str)]
        record = {"doc": task.documents[request.doc_id], "idx": request.idx}
        record |= zip(names, texts, strict=False)
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


@quietly()
def load_task(
    benchmark: Benchmark, changes: Mapping[str, Any], limit: int | None
) -> LoadedTask:
    """A benchmark's task file with `changes` (empty for the hub), and its documents.

    Raises:
        UserError: if a local file cannot be scored, or there is no network.
        NoData: if the hub lacks the benchmark, or the file has no document of it.
    """
    if benchmark.is_made:
        return _load_made(benchmark, limit)

    config = _with_functions(dict(benchmark.config))
    task_class = config.pop("class", ConfigurableTask)
    # Of the worked examples, the harness takes the first.
    shots = {config.get("fewshot_split"): config["num_fewshot"]}
    config["process_docs"] = _rendered_once(config["process_docs"], first=shots)

    # A local benchmark is named by its files, another by its dataset on the hub.
    files = changes["dataset_kwargs"]["data_files"] if changes else {}
    hub = f"hf:{config['dataset_path']}"
    try:
        task = task_class(config=config | changes)
        docs = task.eval_docs
        # checks the number of worked examples
        task.fewshot_context(docs[0], num_fewshot=task.config.num_fewshot)
    except Exception as error:
        raise _unloadable(benchmark.name, error, files, hub) from None

    # The harness's report names tasks by this.
    task.set_config("task", benchmark.name)
    documents = list(range(len(docs)))
    subject = config["metadata"].get("subject")
    if subject is not None:
        location = files.get(config["test_split"], hub)
        if "subject" in docs.column_names:
            documents = _documents_of_subject(list(docs["subject"]), subject, location)
        elif files and not Path(location).name.startswith(benchmark.name):
            # Every row of the shared file would count in each of its benchmarks.
            raise UserError(
                f"{location} has no field 'subject', which says the benchmark of a "
                f"row; add it, or name the file {benchmark.name}.jsonl"
            )

    return LoadedTask(benchmark, task, _drawn(documents, limit))


def _rendered_once(
    render: Callable[..., Dataset], first: Mapping[str, int]
) -> Callable[..., Dataset]:
    """A `process_docs` that renders each split once, and only the first rows of some.

    The harness asks for the documents many times. Its report has the source of what is
    wrapped.
    """
    return cache(wraps(render)(partial(render, first=first)))


def _unloadable(
    name: str, error: Exception, files: Mapping[str, str], hub: str
) -> UserError:
    """The fault of a benchmark whose documents cannot be loaded.

    They are in local `files`, by split; without any, in the dataset `hub`.
    """
    if isinstance(error, olmes.BadDocument):
        reason = f"row {error.row} cannot be scored as {name}: {error.reason}"
        if files:
            return UserError(f"{files[error.split]} {reason}")
        return NoData(f"{hub} {error.split} {reason}; give --data DIR")

    # anything from network or hub, or a file in another format
    reason = f"cannot be read as {name} ({_cause_text(error)})"
    if files:
        return UserError(f"{', '.join(files.values())} {reason}")
    # Without a network all other benchmarks would fail, too.
    is_offline = isinstance(error, ConnectionError)
    error_class = UserError if is_offline else NoData
    return error_class(f"{hub} {reason}; give --data DIR")


def _load_made(benchmark: Benchmark, limit: int | None) -> LoadedTask:
    """A level of a reasoning primitive, with its documents and examples."""
    level = level_test(benchmark.name)
    rows = [
        {"query": question, "choices": [f"{answer}\n"], "gold": 0}
        for question, answer in level.questions
    ]
    changes = {
        "task": benchmark.name,
        "description": verbatim(level.examples),
        "custom_dataset": lambda **_: {"test": Dataset.from_list(rows)},
    }
    task = ConfigurableTask(config=_with_functions(benchmark.config) | changes)
    return LoadedTask(benchmark, task, _drawn(list(range(len(rows))), limit))


def _drawn(documents: list[int], limit: int | None) -> list[int]:
    """The documents to score, drawn as in OLMES where there are more than `limit`."""
    if limit is None or limit >= len(documents):
        return documents
    return sorted(random.Random(SEED).sample(documents, limit))


def _cause_text(error: Exception) -> str:
    cause = error.__cause__ or error
    return f"{type(cause).__name__}: {joined_lines(cause, 160)}"


def _documents_of_subject(
    subjects: Sequence[str], wanted: str, location: str
) -> list[int]:
    """The places of the rows with a subject; `subjects` are those of all rows.

    Raises UserError for a row of an unknown subject, which would count in no benchmark,
    and NoData without a row of the wanted one.
    """
    documents = []
    for place, subject in enumerate(subjects):
        if subject not in SUBJECTS:
            names = ", ".join(SUBJECTS)
            raise UserError(
                f"{location} row {place + 1}: subject {subject!r:.40} is none of "
                f"{names}"
            )
        if subject == wanted:
            documents.append(place)

    if not documents:
        raise NoData(f"{location} has no row with the subject {wanted!r}")
    return documents


@quietly()
def score_tasks(
    model: HarnessModel,
    tasks: Sequence[LoadedTask | HarnessTask],
    folder: Path,
    facts: Mapping[str, Any],
    console: Console,
    depth: str = "",
) -> Report:
    """Returns the harness's report of all tasks; writes the report, with `facts`, after
    each. Earlier results in the folder stay until the first.

    The harness's own tasks are the report's part `harness`. `depth` is for the bar of
    progress.
    """
    # One by one, so that the requests of a batch share few-shot examples, and an
    # interrupted call keeps the benchmarks before.
    report: dict[str, Any] = {"results": {}}
    for task in tasks:
        title = " ".join(filter(None, (task.title, depth)))
        with Progress(console, title, counted("requests")) as progress:
            model.progress = progress
            found = task.score(model)
        if task is tasks[0]:
            _remove_results(folder)

        samples = folder / SAMPLES
        part_of_report = report
        if isinstance(task, HarnessTask):
            samples /= HARNESS
            part_of_report = report.setdefault(HARNESS, {})
        for part, content in found.items():
            part_of_report[part] = part_of_report.get(part, {}) | content

        # Contexts are left out: each repeats the few-shot examples.
        for name, rows in found["samples"].items():
            lines = [_json(_without(row, "arguments")) + "\n" for row in rows]
            write_text(samples / f"{name}.jsonl", "".join(lines))
        write_text(folder / RESULTS, _json(_results(facts, report), indent=2) + "\n")

    return report


def _remove_results(folder: Path) -> None:
    """Removes an earlier evaluation's samples and depths, which would stand beside new
    results."""
    for place in (folder / SAMPLES, *folder.glob("[KR]=*"), *folder.glob(f"{LOOPS}.*")):
        remove(place)


def _results(facts: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """The content of results.json: a report without its samples."""
    results = {
        **facts,
        "means": means_of(scores_of(report)),
        **_without(report, "samples"),
    }
    if HARNESS in report:
        results[HARNESS] = _without(report[HARNESS], "samples")
    return results


def _source_of(part: Any) -> Any:
    """The source of a function, else what the harness writes, which is an address where
    a function lies deep in a configuration."""
    try:
        return getsource(part)
    except (TypeError, OSError):
        return handle_non_serializable(part)


_json = partial(json.dumps, default=_source_of, ensure_ascii=False)


def _without(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != name}
