"""How a row of a benchmark's data becomes text, byte for byte as OLMES renders it.

Checked against OLMES's own requests in tests/evaluation/test_formats.py. Plain functions: a row
in, a `Question` out. The few-shot prefix is not part of it: it stands before each context.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dualpath_cli.errors import did_you_mean

Row = Mapping[str, Any]  # a row as the Hugging Face dataset or a line of JSON has it

ANSWER = "Answer:"  # the end of a question; alone, the context of likelihoods without the question


class BadQuestion(ValueError):
    """A row that is no question of its benchmark; the message is the reason, without the place."""


@dataclass(frozen=True)
class Question:
    """A row as a model is asked: a request each for pairs of context and continuation."""

    contexts: tuple[str, ...]  # one a request, without the few-shot prefix
    continuations: tuple[str, ...]
    """What the likelihood is of, one a request, with the space it begins with; what a worked
    example would go on with where the model writes the answer itself."""
    gold: int = 0  # which of them is right
    answer: str | None = None  # the right answer where the model writes one

    @property
    def example(self) -> str:
        """The question with its answer, as it stands in a few-shot prefix."""
        return self.contexts[self.gold] + self.continuations[self.gold]


Render = Callable[[Row], Question]


def prefix_of(examples: list[Question]) -> str:
    """The few-shot prefix of worked examples: a blank line after each of them."""
    return "".join(example.example + "\n\n" for example in examples)


def arc(row: Row) -> Question:
    if "query" in row:
        return _ready(row)
    choices = _field(row, "choices")
    if not isinstance(choices, Mapping):
        raise BadQuestion("its choices have no text and label")
    labels = {"1": "A", "2": "B", "3": "C", "4": "D", "5": "E"}
    key = _text(row, "answerKey")
    gold = "ABCDE".find(labels.get(key, key))
    return _choice(f"Question: {_text(row, 'question')}\n{ANSWER}", _texts(choices, "text"), gold)


def hellaswag(row: Row) -> Question:
    """HellaSwag, with the marks of WikiHow cleaned up."""
    if "query" in row:
        return _ready(row)
    context = f"{_text(row, 'ctx_a')} {_text(row, 'ctx_b').capitalize()}"
    query = _without_brackets(f"{_text(row, 'activity_label')}: {context}")
    endings = [_without_brackets(ending) for ending in _texts(row, "endings")]
    return _choice(query, endings, _number(row, "label"))


def _without_brackets(text: str) -> str:
    """Without `[title]`, `[step]` and the like; a title ends the sentence before it."""
    text = re.sub(r"\.? \[title\]", ". ", text.strip())
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def piqa(row: Row) -> Question:
    if "query" in row:
        return _ready(row)
    choices = [_text(row, "sol1"), _text(row, "sol2")]
    return _choice(f"Goal: {_text(row, 'goal')}\n{ANSWER}", choices, _number(row, "label"))


def siqa(row: Row) -> Question:
    if "query" in row:
        return _ready(row)
    question = f"{_text(row, 'context')} {_text(row, 'question')}"
    choices = [_text(row, f"answer{letter}") for letter in "ABC"]
    return _choice(f"Question: {question}\n{ANSWER}", choices, _number(row, "label") - 1)


def winogrande(row: Row) -> Question:
    """WinoGrande by partial evaluation: each option in the context, one continuation for both."""
    before, blank, after = _text(row, "sentence").partition("_")
    if not blank:
        raise BadQuestion("its sentence has no blank '_'")
    contexts = tuple(before + _text(row, f"option{n}") for n in (1, 2))
    gold = _number(row, "answer") - 1
    return _checked(Question(contexts, (" " + after.strip(),) * 2, gold))


def qasper(row: Row) -> Question:
    """QASPER's yes/no questions: the evidence, then the question."""
    if "query" in row:
        return _ready(row)
    query = f"{' '.join(_texts(row, 'evidence'))}\nQuestion: {_text(row, 'question')}\n{ANSWER}"
    return _choice(query, ["Yes", "No"], ("Yes", "No").index(_one_of(row, "answer", "Yes", "No")))


def math(row: Row) -> Question:
    """A problem of MATH; what is scored is its worked solution."""
    context = f"Problem:\n{_text(row, 'problem')}\n\nSolution:"
    return Question((context,), (" " + _text(row, "solution"),))


def lambada(row: Row) -> Question:
    """LAMBADA: the last word of a passage."""
    passage, space, word = _text(row, "text").rpartition(" ")
    if not space:
        raise BadQuestion("its text is one word")
    return Question((passage,), (" " + word,))


def gsm8k(row: Row) -> Question:
    """GSM8K: the model writes the answer. A worked example is what OLMES makes of a row.

    By its `normalize_answer_str`: without the calculator's marks, with spaces around operators
    (hyphens and signs, too), a capital letter first, a full stop, and `So the answer is N.`, N as
    the row has it.
    """
    answer = _text(row, "answer")
    steps = " ".join(re.sub(r"<<.*?>>", "", answer).split()).partition("####")[0].strip()
    number = answer.rpartition("####")[2].strip()
    steps = (steps[:1].capitalize() + steps[1:]).removesuffix(".")
    worked = re.sub(r" ?([-+*/=]) ?", r" \1 ", f" {steps}. So the answer is {number}.")
    context = f"Question: {_text(row, 'question')}\n{ANSWER}"
    return Question((context,), (worked.replace("  ", " "),), answer=last_number(number))


def last_number(text: str) -> str:
    """The last number of a text, commas inside numbers left out; without one, the text.

    A sign belongs to a decimal fraction alone, which is OLMES's reading.
    """
    plain = re.sub(r"(\d),(\d)", r"\1\2", text)
    numbers = re.findall(r"[-+]?\d*\.\d+|\d+", plain)
    return numbers[-1] if numbers else plain.strip()


def _ready(row: Row) -> Question:
    """A row that is rendered already: query, choices, gold."""
    return _choice(_text(row, "query"), _texts(row, "choices"), _number(row, "gold"))


def _choice(query: str, choices: list[str], gold: int) -> Question:
    continuations = tuple(f" {choice}" for choice in choices)
    return _checked(Question((query,) * len(continuations), continuations, gold))


def _checked(question: Question) -> Question:
    if not 0 <= question.gold < len(question.continuations):
        raise BadQuestion(f"its answer is none of its {len(question.continuations)} choices")
    return question


def _field(row: Row, name: str) -> Any:
    if name not in row:
        hint = did_you_mean(name, row) or f" (fields: {', '.join(row) or 'none'})"
        raise BadQuestion(f"no field '{name}'{hint}")
    return row[name]


def _text(row: Row, name: str) -> str:
    value = _field(row, name)
    if not isinstance(value, str):
        raise BadQuestion(f"its {name} is no text but {type(value).__name__}")
    return value


def _texts(row: Row, name: str) -> list[str]:
    values = _field(row, name)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise BadQuestion(f"its {name} are no list of texts")
    return values


def _number(row: Row, name: str) -> int:
    value = _field(row, name)
    try:
        return int(value)
    except (TypeError, ValueError):
        raise BadQuestion(f"its {name} is no whole number but {value!r:.40}") from None


def _one_of(row: Row, name: str, *allowed: str) -> str:
    value = _text(row, name)
    if value not in allowed:
        raise BadQuestion(f"its {name} is '{value:.40}', neither {' nor '.join(allowed)}")
    return value
