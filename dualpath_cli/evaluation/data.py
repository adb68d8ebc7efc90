"""The questions of a benchmark: rows of a folder or of the hub, few-shot prefix, limit."""

import hashlib
import json
import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dualpath_cli.errors import UserError
from dualpath_cli.evaluation.benchmarks import Benchmark, Hub
from dualpath_cli.evaluation.formats import ANSWER, BadQuestion, Question, Row, prefix_of
from dualpath_cli.system import write_text
from dualpath_cli.text.documents import Source, parse_source, read_documents
from dualpath_cli.text.rows import BadRow, read_rows

SEED = 1234  # of the documents that a limit leaves, drawn as OLMES draws them


class NoData(UserError):
    """A benchmark whose documents or few-shot examples are not where they were looked for."""


@dataclass(frozen=True)
class Asked:
    benchmark: Benchmark
    questions: Sequence[tuple[int, Question | str]]  # by number in file or split; or texts
    prefix: str  # the few-shot prefix that stands before each context
    origin: str  # where the documents come from
    examples: str | None  # where the few-shot prefix comes from
    documents: int  # how many there are without a limit
    whole: bool = True  # whether the file holds the whole benchmark, not a selection of it

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "documents": len(self.questions), "documents_in_all": self.documents,
            "seed": SEED if len(self.questions) < self.documents else None, "origin": self.origin,
            "shots": self.benchmark.shots, "fewshot": self.examples, "sha256": self.digest,
        }  # fmt: skip

    @cached_property
    def digest(self) -> str:
        """Hash of all contexts, continuations and answers, in their order."""
        digest = hashlib.sha256(json.dumps(self.prefix).encode())
        for number, question in self.questions:
            parts = question if isinstance(question, str) else vars(question)
            digest.update(json.dumps([number, parts]).encode())
        return digest.hexdigest()

    def requests(self, question: Question | str) -> list[tuple[str, ...]]:
        """The texts of a question's requests, one after the other.

        A text itself; the context that an answer is written after; or the context and continuation
        of each choice, those without the question last.
        """
        if isinstance(question, str):
            return [(question,)]
        contexts = [self.prefix + context for context in question.contexts]
        if self.benchmark.kind == "writing":
            return [(contexts[0],)]
        pairs = list(zip(contexts, question.continuations, strict=True))
        if self.benchmark.primary == "acc_uncond":
            pairs += [(ANSWER, continuation) for continuation in question.continuations]
        return list(pairs)


def write_requests(asked: Asked, out: Path) -> Path:
    """Writes OUT/requests/TASK.jsonl, a line a request; returns its path.

    A line has the number of the document, `doc`, that of the request, `idx`, and `context` and
    `continuation`; or the `context` alone that an answer is written after; or a whole `text`.
    """
    path = out / "requests" / f"{asked.benchmark.name}.jsonl"
    names = ("text",) if asked.benchmark.kind == "text" else ("context", "continuation")
    lines = []
    for number, question in asked.questions:
        for place, texts in enumerate(asked.requests(question)):
            request = {"doc": number, "idx": place, **dict(zip(names, texts, strict=False))}
            lines.append(json.dumps(request, ensure_ascii=False) + "\n")
    write_text(path, "".join(lines))
    return path


def ask_text(benchmark: Benchmark, spec: str, limit: int | None) -> Asked:
    """A text of the user's, `NAME=PATH`."""
    source = parse_source(spec)
    texts = list(enumerate(read_documents(source)))
    return _asked(benchmark, texts, limit, "", str(source.path), None)


def ask(
    benchmark: Benchmark, data: Sequence[Path], fewshot: Path | None, limit: int | None
) -> Asked:
    """A benchmark from folders `data`, or without any from the hub; `fewshot` is a folder, too.

    Raises NoData where no folder has a file of it, or of few-shot examples, nor the hub.
    """
    path = _find(data, (benchmark.name, *benchmark.files))
    if data and path is None:
        raise NoData(f"no {benchmark.name}.jsonl in {', '.join(map(str, data))}")
    origin = _hub_name(benchmark.hub) if path is None else str(path)
    if benchmark.kind == "text":
        source = None if path is None else Source(benchmark.name, path)
        texts = _hub_texts(benchmark) if source is None else read_documents(source)
        return _asked(benchmark, list(enumerate(texts)), limit, "", origin, None)
    rows = _hub_rows(benchmark.hub, None) if path is None else _file_rows(path)
    own = benchmark.subject  # tells it from others in one file
    if mixed := own is not None and any(row.get("subject", own) != own for _, row, _ in rows):
        rows = [row for row in rows if row[1].get("subject") == own]
    questions = [(number, _render(benchmark, row, place)) for number, row, place in rows]
    prefix, examples = _prefix(benchmark, data, fewshot)
    return _asked(benchmark, questions, limit, prefix, origin, examples, whole=not mixed)


def _asked(
    benchmark: Benchmark,
    questions: Sequence[tuple[int, Question | str]],
    limit: int | None,
    prefix: str,
    origin: str,
    examples: str | None,
    whole: bool = True,
) -> Asked:
    if not questions:
        raise NoData(f"'{origin}' holds nothing of {benchmark.name}")
    chosen = range(len(questions))
    if limit is not None and limit < len(questions):
        chosen = sorted(random.Random(SEED).sample(chosen, limit))  # type: ignore[assignment]
    kept = [questions[number] for number in chosen]
    return Asked(benchmark, kept, prefix, origin, examples, len(questions), whole)


_Numbered = tuple[int, Row, str]  # a row with its number from 0 on, and where it is, for messages


def _render(benchmark: Benchmark, row: Row, place: str) -> Question:
    assert benchmark.render is not None
    try:
        question = benchmark.render(row)
        "".join((*question.contexts, *question.continuations)).encode()
    except BadQuestion as problem:
        raise UserError(f"{place}: {problem}") from None
    except UnicodeEncodeError:
        raise UserError(f"{place}: half of a surrogate pair, which is not valid Unicode") from None
    return question


# Few-shot prefixes


def _prefix(
    benchmark: Benchmark, data: Sequence[Path], fewshot: Path | None
) -> tuple[str, str | None]:
    """The prefix, and where it is from: a file of it, or of questions, or the hub."""
    if not benchmark.shots:
        return "", None
    for folder in (*([] if fewshot is None else [fewshot]), *data):
        for name in (benchmark.name, *benchmark.files):
            if (path := folder / f"{name}.fewshot.txt").is_file():
                return _read_prefix(path), str(path)
        if path_of_rows := _find([folder], [f"{benchmark.name}_train"]):
            return _examples(benchmark, _file_rows(path_of_rows), str(path_of_rows))
    if not data and benchmark.hub is not None and benchmark.hub.examples is not None:
        rows = _hub_rows(benchmark.hub, benchmark.hub.examples)
        return _examples(benchmark, rows, f"{_hub_name(benchmark.hub)}, {benchmark.hub.examples}")
    raise NoData(
        f"{benchmark.name} is asked after {benchmark.shots} worked examples: give --fewshot DIR "
        f"with {benchmark.name}.fewshot.txt or {benchmark.name}_train.jsonl"
    )


def _read_prefix(path: Path) -> str:
    try:
        text = path.read_bytes().decode()  # as it is: newlines stay what they are
    except UnicodeDecodeError:
        raise UserError(f"{path} is no UTF-8") from None
    if not text.endswith("\n\n"):
        raise UserError(f"{path} must end in a blank line, which parts it from the question")
    return text


def _examples(benchmark: Benchmark, rows: Sequence[_Numbered], origin: str) -> tuple[str, str]:
    if len(rows) < benchmark.shots:
        raise UserError(f"{origin} has {len(rows)} rows, {benchmark.shots} examples are needed")
    first = [_render(benchmark, row, place) for _, row, place in rows[: benchmark.shots]]
    return prefix_of(first), f"{origin}, the first {benchmark.shots}"


# Files and the hub


def _find(folders: Sequence[Path], names: Sequence[str]) -> Path | None:
    files = [f"{name}.jsonl{suffix}" for name in names for suffix in ("", ".gz", ".zst")]
    paths = (folder / file for folder in folders for file in files)
    return next((path for path in paths if path.is_file()), None)


def _file_rows(path: Path) -> list[_Numbered]:
    rows: list[_Numbered] = []
    for part in read_rows(path, (), (), lambda count: None, 1 << 20):
        for number, row in part.parsed():
            if isinstance(row, BadRow):
                raise UserError(f"{part.place(number)}: {row}")
            rows.append((len(rows), row, part.place(number)))
    return rows


def _hub_name(hub: Hub | None) -> str:
    assert hub is not None
    return f"hf:{hub.path}" + (f"/{hub.config}" if hub.config else "") + f", {hub.split}"


def _hub_rows(hub: Hub | None, split: str | None) -> list[_Numbered]:
    assert hub is not None
    from datasets import load_dataset

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # or it tells of each attempt
    name = f"hf:{hub.path}"
    try:
        split = split or hub.split
        dataset = load_dataset(hub.path, hub.config, split=split, revision=hub.revision)
        return [(number, row, f"{name} row {number}") for number, row in enumerate(dataset)]
    except Exception as error:  # whatever the network, the hub or a changed dataset raises
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        text = f"{name} cannot be read ({reason:.160}); give --data DIR"
        # Without a network there is no use in trying the others.
        raise (UserError if isinstance(error, ConnectionError) else NoData)(text) from None


def _hub_texts(benchmark: Benchmark) -> Iterator[str]:
    for _, row, place in _hub_rows(benchmark.hub, None):
        if not isinstance(row.get("text"), str):
            raise UserError(f"{place}: no field 'text'")
        yield row["text"]
