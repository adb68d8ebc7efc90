"""OLMES's renderings of rows, byte for byte, and its scores: the functions of the task files.

A rendering takes a row of the Hugging Face dataset; a row with a `query` is rendered already.
Logarithms are natural, bytes are UTF-8. The space at the beginning of a choice counts among its
bytes and characters.
"""

import math
import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np
from datasets import Dataset
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

Row = dict[str, Any]
Scores = dict[str, Any]  # by the metric's name
Answer = tuple[float, bool]  # log-likelihood, and whether greedy decoding would give this text


class WithUnconditional(ConfigurableTask):
    """Also scores each choice after `Answer:` alone, for `acc_uncond`."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config={name: config[name] for name in config if name != "class"})

    def construct_requests(self, doc: Row, ctx: str, **options: Any) -> list[Instance]:
        given = super().construct_requests(doc, ctx, **options)
        texts = [("Answer:", request.args[1]) for request in given]
        alone = [
            Instance("loglikelihood", doc, pair, len(given) + place, options["metadata"])
            for place, pair in enumerate(texts)
        ]
        return [*given, *alone]


def rows(render: Callable[[Row], Row]) -> Callable[[Dataset], Dataset]:
    """A `process_docs` that renders each row."""

    def checked(row: Row) -> Row:
        row = row if "query" in row else render(row)
        if "gold" in row and not 0 <= row["gold"] < len(row["choices"]):
            raise ValueError(f"answer {row['gold']} is none of {len(row['choices'])} choices")
        return row

    @wraps(render)
    def process(docs: Dataset) -> Dataset:
        return docs.map(checked, keep_in_memory=True)  # cached files would outlive a change here

    return process


@rows
def arc(row: Row) -> Row:
    key, query = str(row["answerKey"]), f"Question: {row['question']}\nAnswer:"
    gold = ("12345" if key.isdigit() else "ABCDE").find(key)
    return {"query": query, "choices": row["choices"]["text"], "gold": gold}


@rows
def hellaswag(row: Row) -> Row:
    """HellaSwag, without the marks of WikiHow."""
    query = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
    choices = [without_brackets(ending) for ending in row["endings"]]
    return {"query": without_brackets(query), "choices": choices, "gold": int(row["label"])}


def without_brackets(text: str) -> str:
    """A text without `[title]`, `[step]` and the like; a title ends the sentence before it."""
    text = re.sub(r"\.? \[title\]", ". ", text.strip())
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


@rows
def piqa(row: Row) -> Row:
    choices = [row["sol1"], row["sol2"]]
    return {"query": f"Goal: {row['goal']}\nAnswer:", "choices": choices, "gold": row["label"]}


@rows
def socialiqa(row: Row) -> Row:
    query = f"Question: {row['context']} {row['question']}\nAnswer:"
    choices = [row[f"answer{letter}"] for letter in "ABC"]
    return {"query": query, "choices": choices, "gold": int(row["label"]) - 1}


@rows
def winogrande(row: Row) -> Row:
    """WinoGrande by partial evaluation: each option in the context, one continuation for both."""
    before, after = row["sentence"].split("_", 1)
    rest, contexts = after.strip(), [before + row[f"option{n}"] for n in (1, 2)]
    return {
        "contexts": contexts,
        "rest": rest,
        "choices": [rest] * 2,
        "gold": int(row["answer"]) - 1,
    }


@rows
def qasper_yesno(row: Row) -> Row:
    """QASPER's yes/no questions: the evidence, then the question."""
    query = f"{' '.join(row['evidence'])}\nQuestion: {row['question']}\nAnswer:"
    choices = ["Yes", "No"]
    return {"query": query, "choices": choices, "gold": choices.index(row["answer"])}


@rows
def minerva_math(row: Row) -> Row:
    query = f"Problem:\n{row['problem']}\n\nSolution:"
    return {"query": query, "choices": [row["solution"]], "gold": 0}


@rows
def lambada(row: Row) -> Row:
    """LAMBADA: the last word of a passage."""
    query, word = row["text"].rsplit(" ", 1)
    return {"query": query, "choices": [word], "gold": 0}


@rows
def texts(row: Row) -> Row:
    row["text"].encode()  # must exist and be valid Unicode
    return {"text": row["text"]}


@rows
def gsm8k(row: Row) -> Row:
    """GSM8K: the model writes the answer. `worked` is OLMES's example from a row.

    As in `normalize_answer_str` of OLMES: without the calculator's marks, with spaces around
    operators (hyphens and signs, too), a capital letter first, a full stop, and `So the answer is
    N.`, with N as in the row.
    """
    answer = row["answer"]
    steps = " ".join(re.sub(r"<<.*?>>", "", answer).split()).partition("####")[0].strip()
    number = answer.rpartition("####")[2].strip()
    steps = (steps[:1].capitalize() + steps[1:]).removesuffix(".")
    worked = re.sub(r" ?([-+*/=]) ?", r" \1 ", f" {steps}. So the answer is {number}.")
    query = f"Question: {row['question']}\nAnswer:"
    return {"query": query, "worked": worked.replace("  ", " ")[1:], "number": last_number(number)}


def last_number(text: str) -> str:
    """The last number of a text, commas inside numbers left out; without one, the text.

    Only a decimal fraction may have a sign, as in OLMES.
    """
    plain = re.sub(r"(\d),(\d)", r"\1\2", text)
    numbers = re.findall(r"[-+]?\d*\.\d+|\d+", plain)
    return numbers[-1] if numbers else plain.strip()


def choice(doc: Row, results: Sequence[Answer]) -> Scores:
    """Whether a model chooses right, by each normalisation, and the right choice's bits per byte.

    The choice with the largest score is taken; among ties, the first. `acc_raw` scores by
    log-likelihood; `acc_per_char` divides it by the choice's characters; `acc_uncond` subtracts the
    log-likelihood after `Answer:` alone.
    """
    n, logs = len(doc["choices"]), np.array([log for log, _ in results])
    raw, alone = logs[:n], logs[n:]
    scores = {"acc_raw": raw, "acc_per_char": raw / [1 + len(text) for text in doc["choices"]]}
    if alone.size:
        scores["acc_uncond"] = raw - alone
    right = {name: int(values.argmax() == doc["gold"]) for name, values in scores.items()}
    return right | gold(doc, results)


def gold(doc: Row, results: Sequence[Answer]) -> Scores:
    size = 1 + len(doc["choices"][doc["gold"]].encode())
    return {"bpb": -results[doc["gold"]][0] / (math.log(2) * size)}


def word(doc: Row, results: Sequence[Answer]) -> Scores:
    return {"acc": int(results[0][1]), **gold(doc, results)}


def written(doc: Row, results: Sequence[str]) -> Scores:
    """Whether the last number in a model's output is the answer."""
    return {"acc": int(last_number(results[0]) == doc["number"])}


def text(doc: Row, results: Sequence[float]) -> Scores:
    """A text's log-likelihood and bytes, for sums over texts."""
    pair = results[0], len(doc["text"].encode())
    return {"rolling_bpb": pair, "rolling_bpb_stderr": pair}


def error_of_ratio(pairs: Sequence[tuple[float, int]]) -> float | str:
    """The standard error of `-sum LL / (ln 2 * sum bytes)`, with texts as a random sample."""
    if len(pairs) < 2:
        return "N/A"  # as in the harness
    bits, sizes = np.array(pairs).T * [[-1 / math.log(2)], [1]]
    residuals, n = bits - bits.sum() / sizes.sum() * sizes, len(pairs)
    return math.sqrt(residuals @ residuals * n / (n - 1)) / sizes.sum()
