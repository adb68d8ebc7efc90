"""The functions of the task files: OLMES's renderings, byte for byte, and its scores.

A rendering takes a row of the Hugging Face dataset; a row with a `query` is rendered
already. Logarithms are natural, bytes are UTF-8. The space at the beginning of a choice
counts among its bytes and characters.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from typing import Any

import numpy as np
from datasets import Dataset
from datasets.fingerprint import generate_fingerprint
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from dualpath_cli.base.errors import did_you_mean
from dualpath_cli.data.rows import BadRow
from dualpath_cli.evaluation.benchmarks import LogLikelihood

DatasetRow = dict[str, Any]
DocumentScores = dict[str, Any]  # by the metric's name


class WithUnconditional(ConfigurableTask):
    """Also scores each choice after only `Answer:`, for `acc_uncond`."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(
            config={name: config[name] for name in config if name != "class"}
        )

    def construct_requests(
        self, doc: DatasetRow, ctx: str, **options: Any
    ) -> list[Instance]:
        requests = super().construct_requests(doc, ctx, **options)
        unconditional = []
        for number, request in enumerate(requests, len(requests)):
            pair = ("Answer:", request.args[1])
            metadata = options["metadata"]
            unconditional.append(Instance("loglikelihood", doc, pair, number, metadata))

        return [*requests, *unconditional]


class BadDocument(ValueError):
    """A row that has nothing to score; names its split, its number from 1 on, and the
    reason."""

    def __init__(self, split: str, row: int, reason: str) -> None:
        super().__init__(f"{split} row {row}: {reason}")
        self.split, self.row, self.reason = split, row, reason


Render = Callable[[DatasetRow], DatasetRow]


def rows(*texts: str, **lists: int) -> Callable[[Render], Callable[..., Dataset]]:
    """Makes a rendering of a row a `process_docs`, which renders each row of a split.

    `texts` are the fields of a rendered row with a text, `lists` those with several,
    and their least number. With `choices`, `gold` is the place of the right one.

    The function takes a split and `first`, the number of rows that count of a split by
    its name; all rows of any other split count. It raises BadDocument for the first row
    that lacks one of these fields or its answer.
    """

    def decorate(render: Render) -> Callable[..., Dataset]:
        checked = partial(_checked_row, render, texts, lists)

        @wraps(render)
        def process(docs: Dataset, first: Mapping[str, int] = {}) -> Dataset:
            return _render_split(checked, docs, first)

        return process

    return decorate


def _checked_row(
    render: Render, texts: Iterable[str], lists: Mapping[str, int], row: DatasetRow
) -> DatasetRow:
    """A rendered row; raises BadRow for one that lacks a field or its answer."""
    rendered = row if "query" in row else render(row)
    for field in texts:
        _text(rendered, field)
    for field, least in lists.items():
        _texts(rendered, field, least)

    if "choices" in lists:
        places = [str(place) for place in range(len(rendered["choices"]))]
        rendered["gold"] = _place(rendered, "gold", places)
    return rendered


def _render_split(render: Render, docs: Dataset, first: Mapping[str, int]) -> Dataset:
    split = str(docs.split)
    counted = min(first.get(split, len(docs)), len(docs))

    def render_numbered(row: DatasetRow, number: int) -> DatasetRow:
        try:
            return render(row)
        except BadRow as bad:
            raise BadDocument(split, number + 1, str(bad)) from None

    # Not cached in files, which would outlive a change of this module, so that the
    # fingerprint needs no hash of the function, which is slow to make.
    return docs.select(range(counted)).map(
        render_numbered,
        with_indices=True,
        keep_in_memory=True,
        new_fingerprint=generate_fingerprint(docs),
    )


def _value(row: DatasetRow, field: str) -> Any:
    if field not in row:
        fields = ", ".join(row) or "none"
        hint = did_you_mean(field, row) or f" (fields: {fields})"
        raise BadRow(f"no field '{field}'{hint}")
    return row[field]


def _string(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise BadRow(f"{name} {value!r:.40} is not a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadRow(
            f"{name} has half of a surrogate pair: not valid Unicode"
        ) from None
    return value


def _text(row: DatasetRow, field: str) -> str:
    """Returns a field's text, which must not be blank."""
    text = _string(_value(row, field), field)
    if not text.strip():
        raise BadRow(f"{field} {text!r:.40} is empty")
    return text


def _list(row: DatasetRow, field: str) -> list[Any]:
    values = _value(row, field)
    if not isinstance(values, list):
        raise BadRow(f"{field} {values!r:.40} is not a list of texts")
    return values


def _texts(row: DatasetRow, field: str, least: int) -> list[str]:
    """Returns the texts of a field, `least` or more, none of them empty."""
    values = _list(row, field)
    if len(values) < least:
        raise BadRow(f"{field} has {len(values)} texts and needs {least}")
    items = {f"{field}[{place}]": value for place, value in enumerate(values)}
    return [_text(items, name) for name in items]


def _place(row: DatasetRow, field: str, answers: Sequence[str]) -> int:
    """Returns the place of a field's value among the possible answers.

    A number counts as its digits; True and 1.0 are not among these.
    """
    value = _value(row, field)
    digits = str(value)
    if digits not in answers:
        known = ", ".join(answers) or "no answers"
        raise BadRow(f"{field} {value!r:.40} is none of {known}")
    return answers.index(digits)


@rows("query", choices=2)
def arc(row: DatasetRow) -> DatasetRow:
    """ARC: the right choice is the one whose label is the key."""
    choices = _value(row, "choices")
    if not isinstance(choices, dict):
        raise BadRow(f"choices {choices!r:.40} is not a mapping with text and label")
    labels = _texts(choices, "label", 2)
    texts = _texts(choices, "text", 2)
    if len(labels) != len(texts):
        raise BadRow(f"choices have {len(labels)} labels and {len(texts)} texts")

    query = f"Question: {_text(row, 'question')}\nAnswer:"
    return {"query": query, "choices": texts, "gold": _place(row, "answerKey", labels)}


@rows("query", choices=2)
def hellaswag(row: DatasetRow) -> DatasetRow:
    """HellaSwag, without the marks of WikiHow."""
    # Some contexts have one part only.
    before = _string(_value(row, "ctx_a"), "ctx_a")
    after = _string(_value(row, "ctx_b"), "ctx_b")
    query = f"{_text(row, 'activity_label')}: {before} {after.capitalize()}"
    choices = [without_brackets(ending) for ending in _texts(row, "endings", 2)]
    gold = _place(row, "label", _numbers(0, len(choices)))
    return {"query": without_brackets(query), "choices": choices, "gold": gold}


def _numbers(first: int, count: int) -> list[str]:
    return [str(number) for number in range(first, first + count)]


def without_brackets(text: str) -> str:
    """A text without `[title]`, `[step]` and the like; a title ends the sentence before
    it."""
    text = re.sub(r"\.? \[title\]", ". ", text.strip())
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


@rows("query", choices=2)
def piqa(row: DatasetRow) -> DatasetRow:
    query = f"Goal: {_text(row, 'goal')}\nAnswer:"
    choices = [_text(row, "sol1"), _text(row, "sol2")]
    gold = _place(row, "label", _numbers(0, 2))
    return {"query": query, "choices": choices, "gold": gold}


@rows("query", choices=3)
def socialiqa(row: DatasetRow) -> DatasetRow:
    query = f"Question: {_text(row, 'context')} {_text(row, 'question')}\nAnswer:"
    choices = [_text(row, f"answer{letter}") for letter in "ABC"]
    gold = _place(row, "label", _numbers(1, 3))
    return {"query": query, "choices": choices, "gold": gold}


@rows("rest", contexts=2, choices=2)
def winogrande(row: DatasetRow) -> DatasetRow:
    """WinoGrande by partial evaluation: each option in the context, one continuation
    for both."""
    sentence = _text(row, "sentence")
    if "_" not in sentence:
        raise BadRow(f"sentence {sentence!r:.40} has no _ to put an option in")

    before, after = sentence.split("_", 1)
    rest = after.strip()
    return {
        "contexts": [before + _text(row, field) for field in ("option1", "option2")],
        "rest": rest,
        "choices": [rest] * 2,
        "gold": _place(row, "answer", _numbers(1, 2)),
    }


@rows("query", choices=2)
def qasper_yesno(row: DatasetRow) -> DatasetRow:
    """QASPER's yes/no questions: the evidence, then the question."""
    evidence = " ".join(_string(part, "evidence") for part in _list(row, "evidence"))
    query = f"{evidence}\nQuestion: {_text(row, 'question')}\nAnswer:"
    choices = ["Yes", "No"]
    return {"query": query, "choices": choices, "gold": _place(row, "answer", choices)}


@rows("query", choices=1)
def minerva_math(row: DatasetRow) -> DatasetRow:
    query = f"Problem:\n{_text(row, 'problem')}\n\nSolution:"
    return {"query": query, "choices": [_text(row, "solution")], "gold": 0}


@rows("query", choices=1)
def lambada(row: DatasetRow) -> DatasetRow:
    """LAMBADA: the last word of a passage."""
    text = _text(row, "text")
    if " " not in text:
        raise BadRow(f"text {text!r:.40} has no space before a last word")
    query, word = text.rsplit(" ", 1)
    return {"query": query, "choices": [word], "gold": 0}


@rows("text")
def texts(row: DatasetRow) -> DatasetRow:
    return {"text": _text(row, "text")}


# after the mark of GSM8K
ANSWER = re.compile(r"[-+]?((\d+|\d{1,3}(,\d{3})+)(\.\d+)?|\.\d+)")


@rows("query", "worked", "number")
def gsm8k(row: DatasetRow) -> DatasetRow:
    """GSM8K: the model writes the answer; `worked` is OLMES's example from a row.

    It ends in `So the answer is N.`, with N as in the row.
    """
    query = f"Question: {_text(row, 'question')}\nAnswer:"
    steps, *marked = _text(row, "answer").split("####")
    if len(marked) != 1:
        raise BadRow(
            f"answer has {len(marked)} marks #### and needs one, before its number"
        )
    number = marked[0].strip()
    if not ANSWER.fullmatch(number):
        raise BadRow(
            f"answer has {number!r:.40} after its mark ####, which is not a number"
        )

    # As in `normalize_answer_str` of OLMES: without the calculator's marks, a capital
    # letter first, spaces around operators (hyphens and signs, too).
    steps = " ".join(re.sub(r"<<.*?>>", "", steps).split())
    steps = (steps[:1].capitalize() + steps[1:]).removesuffix(".")
    worked = re.sub(r" ?([-+*/=]) ?", r" \1 ", f" {steps}. So the answer is {number}.")
    worked = worked.replace("  ", " ").removeprefix(" ")
    return {"query": query, "worked": worked, "number": last_number(number)}


def last_number(text: str) -> str:
    """The last number of a text, commas inside numbers left out; without one, the text.

    Only a decimal fraction may have a sign, as in OLMES.
    """
    plain = re.sub(r"(\d),(\d)", r"\1\2", text)
    numbers = re.findall(r"[-+]?\d*\.\d+|\d+", plain)
    return numbers[-1] if numbers else plain.strip()


def choice(doc: DatasetRow, results: Sequence[LogLikelihood]) -> DocumentScores:
    """Whether a model chooses right, by each normalisation, and `gold`.

    The choice with the largest score is taken; among ties, the first. `acc_raw` scores
    by log-likelihood; `acc_per_char` divides it by the choice's characters;
    `acc_uncond` subtracts the log-likelihood after only `Answer:`.
    """
    count = len(doc["choices"])
    logs = np.array([log for log, _ in results])
    raw = logs[:count]
    unconditional = logs[count:]

    characters = [1 + len(text) for text in doc["choices"]]  # with the space before
    scores = {
        "acc_raw": raw,
        "acc_per_char": raw / characters,
    }
    if unconditional.size:
        scores["acc_uncond"] = raw - unconditional

    is_right = {
        name: int(values.argmax() == doc["gold"]) for name, values in scores.items()
    }
    return is_right | gold(doc, results)


def gold(doc: DatasetRow, results: Sequence[LogLikelihood]) -> DocumentScores:
    """Bits per byte of the right choice, with the space before it."""
    log, _ = results[doc["gold"]]
    size = 1 + len(doc["choices"][doc["gold"]].encode())
    return {"bpb": -log / (math.log(2) * size)}


def word(doc: DatasetRow, results: Sequence[LogLikelihood]) -> DocumentScores:
    """Whether greedy decoding would write the word, and `gold`."""
    _, is_greedy = results[0]
    return {"acc": int(is_greedy), **gold(doc, results)}


def answer(doc: DatasetRow, results: Sequence[LogLikelihood]) -> DocumentScores:
    """Whether greedy decoding would write the answer of a reasoning primitive, and its
    bits per byte; no space stands before the answer."""
    log, is_greedy = results[0]
    size = len(doc["choices"][0].encode())
    return {"acc": int(is_greedy), "bpb": -log / (math.log(2) * size)}


def written(doc: DatasetRow, results: Sequence[str]) -> DocumentScores:
    """Whether the last number in a model's output is the answer."""
    return {"acc": int(last_number(results[0]) == doc["number"])}


def text(doc: DatasetRow, results: Sequence[float]) -> DocumentScores:
    """A text's log-likelihood and bytes, for sums over texts."""
    pair = results[0], len(doc["text"].encode())
    return {"rolling_bpb": pair, "rolling_bpb_stderr": pair}


def error_of_ratio(pairs: Sequence[tuple[float, int]]) -> float | str:
    """The standard error of `-sum LL / (ln 2 * sum bytes)`, with texts as a random
    sample."""
    if len(pairs) < 2:
        return "N/A"  # as in the harness

    logs, sizes = np.array(pairs).T
    bits = logs * (-1 / math.log(2))
    # The delta method: a ratio's error is that of its residuals.
    residuals = bits - bits.sum() / sizes.sum() * sizes
    n = len(pairs)
    return math.sqrt(residuals @ residuals * n / (n - 1)) / sizes.sum()
