"""Models for lm-evaluation-harness: likelihoods of texts, and generated texts.

Shapes: B requests of a batch, T positions, D model width, V ids of the tokenizer, N
scored positions.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from torch import nn

from dualpath_cli.base.errors import RunFailed, UserError
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.decoding.cache import Cache
from dualpath_cli.decoding.decoder import Decoder
from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.decoding.options import Sampling
from dualpath_cli.decoding.writing import (
    Limits,
    Sampler,
    batches_by_length,
    generate_batch,
)
from dualpath_cli.evaluation.benchmarks import LogLikelihood
from dualpath_cli.model import DualPathLM
from dualpath_cli.report.console import Progress, counted, plain_console
from dualpath_cli.spec.intervention import Intervention


class ScoredPart(NamedTuple):
    """A part of a continuation, after as many earlier ids as there is room for."""

    ids: list[int]  # the last of them is not an input
    scored: int  # number of ids at the end that are scored


def parts_of(
    context: Sequence[int], ids: Sequence[int], window: int
) -> Iterator[ScoredPart]:
    """Yields the parts in which a continuation of any length is scored.

    `window` ids are scored in each part, the rest in the last one. At most `window` ids
    are read, and one more is scored.
    """
    whole = [*context, *ids]
    for start in range(len(context), len(whole), window):
        end = min(start + window, len(whole))
        first = max(0, end - window - 1)
        yield ScoredPart(whole[first:end], end - start)


LOGITS_AT_ONCE = 1 << 26  # 256 MiB in float32
LEAST_SHARED = 16  # common ids at the start of a batch; fewer are not read apart


class HarnessModel(TemplateLM):
    """A DualPathLM under an intervention, in batches of a fixed size.

    Rows of the vocabulary without a token get no probability. A text longer than the
    window is scored in parts (`parts_of`).
    """

    progress = Progress(plain_console(quiet=True), "", counted("requests"))

    def __init__(
        self,
        model: DualPathLM,
        tokenizer: Tokenizer,
        window: int,
        batch_size: int,
        autocast: torch.dtype | None = None,
    ) -> None:
        """Takes over the model and removes its head: the model then returns states.

        `autocast` is the type of matrix products; None is the weights' type.
        """
        super().__init__()
        self._head_VD = model.head.weight.detach()[: tokenizer.vocab_size].float()
        # The model returns states; logits are made only where they count.
        model.head = nn.Identity()  # type: ignore[assignment]
        self._model = model.eval().requires_grad_(False)
        self._tokenizer = tokenizer
        self.window = window  # the most ids that the model sees at once
        self.longest_answer = window // 2  # in ids: the prompt has the other half
        self._batch_size = batch_size
        self._autocast = autocast
        self.force(None)

    def force(self, intervention: Intervention | None) -> None:
        """Scores and writes under another intervention from now on; None: as
        trained."""
        self._intervention = intervention
        self._cached = not (intervention and intervention.needs_whole_text)

    @property
    def eot_token_id(self) -> int:
        return self._tokenizer.eot_id

    @property
    def device(self) -> torch.device:
        return self._head_VD.device

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **options: Any
    ) -> list[int]:
        return self._tokenizer.encode(string)

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = True
    ) -> list[LogLikelihood]:
        return super().loglikelihood(requests, disable_tqdm=True)

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = True
    ) -> list[float]:
        """Log-likelihood of each text after end-of-text."""
        texts = [self.tok_encode(request.args[0]) for request in requests]
        whole = [(None, [self.prefix_token_id], ids) for ids in texts]
        return [loglikelihood for loglikelihood, _ in self._loglikelihood_tokens(whole)]

    def _loglikelihood_tokens(
        self, requests: list[Any], **options: Any
    ) -> list[LogLikelihood]:
        """Scores requests, triples of texts, ids of the context, and ids to score.

        Raises:
            UserError: for a continuation without an id, which would be certain.
        """
        parts = []
        request_of_part = []
        for number, (texts, context, ids) in enumerate(requests):
            if texts and not ids:
                before, after = texts
                raise UserError(
                    f"{after!r:.40} after {before[-20:]!r} has no token to score: it "
                    "is empty, or the tokenizer joins it to the text before; leave the "
                    "task out"
                )
            before = context or [self.prefix_token_id]
            for part in parts_of(before, ids, self.window):
                parts.append(part)
                request_of_part.append(number)

        self.progress.begin(len(parts))
        sums = [0.0] * len(requests)
        greedy = [True] * len(requests)
        for number, (loglikelihood, is_greedy) in zip(
            request_of_part, self.score(parts), strict=True
        ):
            sums[number] += loglikelihood
            greedy[number] &= is_greedy

        return list(zip(sums, greedy, strict=True))

    def generate_until(
        self, requests: list[Instance], disable_tqdm: bool = True
    ) -> list[str]:
        self.progress.begin(len(requests))
        texts = [""] * len(requests)
        for options, rows in self._by_options(requests).items():
            texts_before = [requests[row].args[0] for row in rows]
            prompts = [
                self.tok_encode(text) or [self.prefix_token_id] for text in texts_before
            ]
            for row, text in zip(rows, self._write(prompts, *options), strict=True):
                texts[row] = text
        return texts

    def _by_options(
        self, requests: Sequence[Instance]
    ) -> dict[tuple[int, tuple[str, ...]], list[int]]:
        """The places of requests by the most new tokens, and the texts that end an
        answer: tasks of a group may differ in both.

        Raises:
            UserError: for answers that are not the likeliest tokens.
        """
        places: dict[tuple[int, tuple[str, ...]], list[int]] = {}
        for place, request in enumerate(requests):
            options = normalize_gen_kwargs(request.args[1])
            if options["do_sample"]:
                raise UserError(
                    f"task '{request.task_name}' draws its answers, and evaluate "
                    "writes the likeliest; export the model, and use lm_eval"
                )
            most = min(options["max_gen_toks"], self.longest_answer)
            stops = tuple(filter(None, options["until"]))
            places.setdefault((most, stops), []).append(place)
        return places

    def _write(
        self, prompts: Sequence[list[int]], most: int, stops: tuple[str, ...]
    ) -> list[str]:
        """The texts after prompts, in their order."""
        decoder = Decoder(self._model, self._intervention, self._autocast)
        sampler = Sampler(Sampling(greedy=True), self._tokenizer.vocab_size)
        token_values = self._tokenizer.token_values()
        limits = Limits(most, self.window, self.eot_token_id, stops)
        lengths = [len(prompt) for prompt in prompts]
        texts = [""] * len(prompts)

        for rows in batches_by_length(lengths, self._batch_size):
            cut = [prompts[row][-(self.window - most) :] for row in rows]
            decoder.begin(limits.positions([len(ids) for ids in cut]))
            new_tokens = generate_batch(
                partial(self._next_logits, decoder),
                cut,
                sampler,
                [torch.Generator()] * len(rows),
                token_values,
                limits,
                decoder.select,
            )
            for token in new_tokens:
                texts[rows[token.row]] += token.text
            self.progress.advance(len(rows))

        return texts

    def _next_logits(
        self, decoder: Decoder, ids_BT: torch.Tensor, mask_BT: torch.Tensor
    ) -> torch.Tensor:
        """The logits of the next token, (B, V): without a head, the decoder returns
        states."""
        return self._logits(decoder.next_logits(ids_BT, mask_BT))

    def score(self, parts: Sequence[ScoredPart]) -> list[LogLikelihood]:
        """Scores parts in batches of similar length, longest first.

        Raises:
            RunFailed: if likelihoods are not finite.
        """
        scores: list[LogLikelihood] = [(0.0, True)] * len(parts)
        lengths = [len(part.ids) for part in parts]
        for rows in batches_by_length(lengths, self._batch_size):
            batch = [parts[row] for row in rows]
            x_BTD = self._states([part.ids[:-1] for part in batch])

            # Each id is predicted by the state before.
            states = []
            targets = []
            for x_TD, part in zip(x_BTD, batch, strict=True):
                inputs = len(part.ids) - 1
                states.append(x_TD[inputs - part.scored : inputs])
                targets += part.ids[-part.scored :]
            targets_N = torch.tensor(targets, device=self.device)
            logs_N, greedy_N = self._logs_and_greedy(torch.cat(states), targets_N)
            if not logs_N.isfinite().all():
                raise RunFailed("the model's likelihoods are not finite")

            sizes = [part.scored for part in batch]
            logs_of_rows = logs_N.split(sizes)
            greedy_of_rows = greedy_N.split(sizes)
            for row, logs, greedy in zip(
                rows, logs_of_rows, greedy_of_rows, strict=True
            ):
                scores[row] = float(logs.sum()), bool(greedy.all())
            self.progress.advance(len(rows))

        return scores

    def _states(self, sequences: Sequence[list[int]]) -> torch.Tensor:
        """The normalised residual stream of sequences, padded on the right, (B, T,
        D)."""
        lengths = [len(ids) for ids in sequences]
        longest = max(lengths)
        eot = self.eot_token_id
        padded = [[*ids, *[eot] * (longest - len(ids))] for ids in sequences]
        ids_BT = torch.tensor(padded)
        mask_BT = torch.arange(longest) < torch.tensor(lengths)[:, None]

        # The common beginning of sequences, mostly few-shot examples, is read once.
        can_share = self._cached and len(sequences) > 1
        shared = shared_beginning(sequences) if can_share else 0
        if shared < LEAST_SHARED:
            return self._forward(ids_BT, mask_BT)

        cache = Cache(self._model.config, capacity=longest)
        x_1TD = self._forward(ids_BT[:1, :shared], mask_BT[:1, :shared], cache=cache)
        cache.select([0] * len(sequences))
        x_BTD = self._forward(ids_BT[:, shared:], mask_BT[:, shared:], cache=cache)
        return torch.cat((x_1TD.expand(len(sequences), -1, -1), x_BTD), dim=1)

    @torch.inference_mode()
    def _forward(
        self, ids_BT: torch.Tensor, mask_BT: torch.Tensor, **options: Any
    ) -> torch.Tensor:
        """The normalised residual stream (B, T, D) of ids; `mask_BT` is False at
        padding."""
        if self._intervention is not None:
            options["intervention"] = self._intervention
            options["token_mask"] = mask_BT.to(self.device)

        is_cast = self._autocast is not None
        with torch.autocast(self.device.type, self._autocast, enabled=is_cast):
            return forward(self._model, ids_BT.to(self.device), **options)

    def _logits(self, x_ND: torch.Tensor) -> torch.Tensor:
        return x_ND.float() @ self._head_VD.T

    @torch.inference_mode()
    def _logs_and_greedy(
        self, x_ND: torch.Tensor, targets_N: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-likelihood of each target in float64, and whether the target is
        likeliest, (N,)."""
        # The logits of all positions may not fit into memory.
        all_logits = len(targets_N) * len(self._head_VD)
        splits = max(1, -(-all_logits // LOGITS_AT_ONCE))
        x_splits = x_ND.tensor_split(splits)
        target_splits = targets_N.tensor_split(splits)

        logs = []
        greedy = []
        for x, targets in zip(x_splits, target_splits, strict=True):
            logits_NV = self._logits(x)
            chosen_N = logits_NV.gather(-1, targets[:, None])[:, 0]
            logs.append((chosen_N - logits_NV.logsumexp(-1)).double())
            greedy.append(logits_NV.argmax(-1) == targets)

        return torch.cat(logs).cpu(), torch.cat(greedy).cpu()


def shared_beginning(sequences: Sequence[list[int]]) -> int:
    """Number of common ids at the start of all sequences, less than the shortest
    length."""
    # By order all other sequences lie between these two, and so share their beginning.
    first = min(sequences)
    last = max(sequences)
    same = 0
    while same < min(len(first), len(last)) and first[same] == last[same]:
        same += 1

    shortest = min(len(ids) for ids in sequences)
    return min(same, shortest - 1)
