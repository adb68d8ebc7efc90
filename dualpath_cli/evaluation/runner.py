"""Benchmarks by lm-evaluation-harness: tasks from files or the hub, documents drawn, the report.

OUT/<model>/results.json      the harness's report, after each benchmark, with facts on the model
OUT/<model>/samples/TASK.jsonl  a line a document
"""

import json
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from datasets import Dataset
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager
from lm_eval.utils import handle_non_serializable
from rich.console import Console

from dualpath_cli.errors import UserError
from dualpath_cli.evaluation.benchmarks import TASKS, TEXT, Benchmark
from dualpath_cli.evaluation.harness import HarnessModel
from dualpath_cli.evaluation.tables import Report, means_of, scores_of
from dualpath_cli.output.console import Progress, counted
from dualpath_cli.system import write_text
from dualpath_cli.text.documents import parse_source, read_documents

SEED = 1234  # of the documents that a limit leaves, drawn as OLMES draws them
SPLITS = ("", "_test", "_val", "_validation")  # ends of a local file's name

for _name in ("lm_eval", "datasets", "huggingface_hub"):
    logging.getLogger(_name).setLevel(logging.ERROR)  # they tell of each file and attempt


class NoData(UserError):
    """A benchmark whose documents or few-shot examples are not where they were looked for."""


@dataclass(frozen=True)
class Asked:
    benchmark: Benchmark
    task: ConfigurableTask
    documents: list[int]  # by their places in file or split
    whole: bool  # whether these are the benchmark's own documents, not a selection that others made

    @property
    def samples(self) -> dict[str, list[int]] | None:
        """The documents as the harness takes them; None for all."""
        every = len(self.documents) == len(self.task.eval_docs)
        return None if every else {self.benchmark.name: self.documents}

    def requests(self) -> list[Instance]:
        """All that a model would be asked."""
        samples = self.samples and self.samples[self.benchmark.name]
        self.task.build_all_requests(samples=samples)
        return self.task.instances


def write_requests(asked: Asked, out: Path) -> Path:
    """Writes OUT/requests/TASK.jsonl, a line a request; returns its path.

    A line has the number of the document, `doc`, that of the request, `idx`, and `context` and
    `continuation`; or the `context` alone that an answer is written after; or a whole `text`.
    """
    path = out / "requests" / f"{asked.benchmark.name}.jsonl"
    names = ("text",) if asked.benchmark.is_text else ("context", "continuation")
    lines = []
    for request in asked.requests():
        texts = [text for text in request.args if isinstance(text, str)]
        place = {"doc": asked.documents[request.doc_id], "idx": request.idx}
        record = place | dict(zip(names, texts, strict=False))
        lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    write_text(path, "".join(lines))
    return path


def ask_text(benchmark: Benchmark, spec: str, limit: int | None) -> Asked:
    """A text of the user's, `NAME=PATH`."""
    source = parse_source(spec)
    texts = Dataset.from_list([{"text": text} for text in read_documents(source)])
    split = benchmark.config["test_split"]
    given = {"custom_dataset": lambda **options: {split: texts}}
    return _asked(benchmark, str(source.path), given, limit)


def ask(benchmark: Benchmark, data: Sequence[Path], limit: int | None) -> Asked:
    """A benchmark from folders `data`, or without any from the hub.

    Raises NoData where no folder has a file of it, or of few-shot examples, nor the hub.
    """
    if not data:
        return _asked(benchmark, f"hf:{benchmark.config['dataset_path']}", {}, limit)
    names = (benchmark.name, *benchmark.config["metadata"].get("files", ()))
    path = _find(data, [f"{name}{split}.jsonl" for name in names for split in SPLITS])
    if path is None:
        raise NoData(f"no {benchmark.name}.jsonl in {', '.join(map(str, data))}")
    if benchmark.is_text:
        return ask_text(benchmark, f"{benchmark.name}={path}", limit)
    files = {benchmark.config["test_split"]: str(path)}
    given: dict[str, Any] = {"dataset_path": "json", "dataset_name": None}
    given["dataset_kwargs"] = {"data_files": files}
    if benchmark.config["num_fewshot"]:
        prefix = _find(data, [f"{name}{split}.fewshot.txt" for name in names for split in SPLITS])
        rows = _find(data, [f"{name}_train.jsonl" for name in names])
        if prefix is not None:
            given |= {"num_fewshot": 0, "fewshot_split": None, "description": _template(prefix)}
        elif rows is not None:
            files[benchmark.config["fewshot_split"]] = str(rows)
        else:
            raise NoData(
                f"{benchmark.name} is asked after {benchmark.config['num_fewshot']} worked "
                f"examples: give --data DIR with {benchmark.name}.fewshot.txt or "
                f"{benchmark.name}_train.jsonl"
            )
    return _asked(benchmark, str(path), given, limit)


def _find(folders: Sequence[Path], names: Sequence[str]) -> Path | None:
    files = [name + suffix for name in names for suffix in ("", ".gz", ".zst")]
    paths = (folder / file for folder in folders for file in files)
    return next((path for path in paths if path.is_file()), None)


def _template(path: Path) -> str:
    """A file's text as a template of the harness that gives it byte for byte."""
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError:
        raise UserError(f"{path} is no UTF-8") from None
    if not text.endswith("\n\n"):
        raise UserError(f"{path} must end in a blank line, which parts it from the question")
    return "{{" + json.dumps(text, ensure_ascii=False) + "}}"


@cache
def _manager() -> TaskManager:
    return TaskManager(include_path=str(TASKS), include_defaults=False)


def _asked(benchmark: Benchmark, origin: str, given: dict[str, Any], limit: int | None) -> Asked:
    """The task of a task file changed by `given`, and its documents."""
    file = str(benchmark.config["task"])
    try:
        group = {"group": "asked", "task": [{"task": file, **given}]}
        task = _manager().load(group)["tasks"][file]
        docs = task.eval_docs
    except Exception as error:  # whatever the network, the hub, or a row in another format raises
        cause = error.__cause__ or error
        reason = " ".join(f"{type(cause).__name__}: {cause}".split())
        text = f"{origin} cannot be read as {benchmark.name} ({reason:.160})"
        if given:
            raise UserError(text) from None
        # Without a network there is no use in trying the others.
        kind = UserError if isinstance(error, ConnectionError) else NoData
        raise kind(f"{text}; give --data DIR") from None
    if file == TEXT:
        task.set_config("task", benchmark.name)
    numbers = list(range(len(docs)))
    subject = benchmark.config["metadata"].get("subject")
    if subject is not None and "subject" in docs.column_names:
        numbers = [number for number, other in enumerate(docs["subject"]) if other == subject]
        if not numbers:
            raise NoData(f"'{origin}' holds nothing of {benchmark.name}")
    whole = len(numbers) == len(docs)
    if limit is not None and limit < len(numbers):
        numbers = sorted(random.Random(SEED).sample(numbers, limit))
    return Asked(benchmark, task, numbers, whole)


def run(
    model: HarnessModel,
    asked: Sequence[Asked],
    folder: Path,
    facts: Mapping[str, Any],
    console: Console,
) -> Report:
    """Returns the harness's report of all benchmarks; writes it, with `facts`, after each.

    One after the other, so that the requests of a batch share their few-shot examples.
    """
    report: dict[str, Any] = {}
    for one in asked:
        name = one.benchmark.name
        with Progress(console, name, counted("requests")) as progress:
            model.progress = progress
            found: Any = evaluate(model, {"tasks": {name: one.task}}, samples=one.samples)
        for part, content in found.items():
            report[part] = report.get(part, {}) | content
        # Contexts are left out: each repeats the few-shot examples.
        rows = [
            {k: v for k, v in row.items() if k != "arguments"} for row in found["samples"][name]
        ]
        lines = [
            json.dumps(row, default=handle_non_serializable, ensure_ascii=False) for row in rows
        ]
        write_text(folder / "samples" / f"{name}.jsonl", "\n".join(lines) + "\n")
        scores = {part: content for part, content in report.items() if part != "samples"}
        results = {**facts, "means": means_of(scores_of(report)), **scores}
        text = json.dumps(results, default=handle_non_serializable, ensure_ascii=False, indent=2)
        write_text(folder / "results.json", text + "\n")
    return report
