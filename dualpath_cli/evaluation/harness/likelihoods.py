"""Likelihoods of continuations and texts of any length, for every model that is scored."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM

from dualpath_cli.output.console import plain_console
from dualpath_cli.output.progress import Progress, counted

Part = tuple[list[int], int]
"""Ids of which the last is no input, and how many of them at the end are scored."""
Answer = tuple[float, bool]
"""A log-likelihood in nats, and whether the model would write this itself."""


class InParts(TemplateLM):
    """Scores what is longer than the window in `parts_of` it, and tells how far it is."""

    progress = Progress(plain_console(quiet=True), "", counted("requests"))
    window: int
    """The most ids that the model sees at once."""

    @abstractmethod
    def score(self, parts: Sequence[Part]) -> list[Answer]:
        """Scores each part, which fits into the window."""

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[Answer]:
        """Scores each continuation after its context."""
        return super().loglikelihood(requests, disable_tqdm=True)

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = True
    ) -> list[float]:
        """Log-likelihood of each text after end-of-text."""
        texts = [self.tok_encode(request.args[0]) for request in requests]
        whole = [(None, [self.prefix_token_id], ids) for ids in texts]
        return [loglikelihood for loglikelihood, _ in self._loglikelihood_tokens(whole)]

    def _loglikelihood_tokens(self, requests: list[Any], **options: Any) -> list[Answer]:
        """Scores requests of three: their texts, the ids of the context, those to be scored."""
        numbers, parts = [], []
        for number, (_, context, ids) in enumerate(requests):
            for part in parts_of(context or [self.prefix_token_id], ids, self.window):
                numbers.append(number)
                parts.append(part)
        self.progress.begin(len(parts))
        sums, greedy = [0.0] * len(requests), [True] * len(requests)
        for number, (loglikelihood, hit) in zip(numbers, self.score(parts), strict=True):
            sums[number] += loglikelihood
            greedy[number] &= hit
        return list(zip(sums, greedy, strict=True))


def parts_of(context: Sequence[int], ids: Sequence[int], window: int) -> Iterator[Part]:
    """Yields what is read for each part of a continuation, and how many ids at its end are scored.

    Parts have `window` ids, the last one what is left. Each is read after as much of what stands
    before it as there is room for: `window` ids are read, and one more is scored.
    """
    whole = [*context, *ids]
    for start in range(len(context), len(whole), window):
        end = min(start + window, len(whole))
        yield whole[max(0, end - window - 1) : end], end - start
