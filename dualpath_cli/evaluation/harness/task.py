"""A benchmark as a task of lm-evaluation-harness: its requests, and what becomes of the answers."""

from collections.abc import Callable, Iterable
from typing import Any

from lm_eval.api.instance import Instance, OutputType
from lm_eval.api.task import Task

from dualpath_cli.evaluation.benchmarks import NEW_TOKENS, STOPS
from dualpath_cli.evaluation.data import Asked
from dualpath_cli.evaluation.formats import Question
from dualpath_cli.evaluation.scoring import (
    Sample,
    score_choices,
    score_gold,
    score_text,
    score_written,
)

SAMPLE = "sample"
"""The one metric that the harness sees: what is known of a document."""


class HarnessTask(Task):
    """Asks what `Asked` holds; the harness's own few-shots, filters and metrics are not used."""

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
        """No: the few-shot prefix is made already."""
        return False

    def has_validation_docs(self) -> bool:
        """No."""
        return False

    def has_test_docs(self) -> bool:
        """Yes: all documents."""
        return True

    def test_docs(self) -> Iterable[dict[str, int]]:
        """The numbers of the documents."""
        return [{"doc": number} for number in self._questions]

    def fewshot_context(self, doc: dict[str, int], *arguments: Any, **options: Any) -> str:
        """The few-shot prefix; the contexts follow in `construct_requests`."""
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
        """The sample of a document."""
        sample = self._score(self._questions[doc["doc"]], results)
        return {SAMPLE: {**doc, **sample}}

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
        """How many samples there are; their scores are made by `scoring.metrics_of`."""
        return {SAMPLE: len}

    def higher_is_better(self) -> dict[str, bool]:
        """Means nothing of a count."""
        return {SAMPLE: True}
