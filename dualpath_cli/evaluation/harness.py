"""Models for lm-evaluation-harness: likelihoods of texts of any length, and generated
texts.

Shapes: B requests of a batch, T positions, D model width, V ids of the tokenizer, N
scored positions.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from torch import nn

from dualpath_cli.base.errors import RunFailed
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.decoding.cache import Cache
from dualpath_cli.decoding.decoder import Decoder
from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.decoding.options import Sampling
from dualpath_cli.decoding.writing import Limits, Sampler, batches, write_on
from dualpath_cli.model import DualPathLM
from dualpath_cli.report.console import Progress, counted, plain_console
from dualpath_cli.spec.intervention import Intervention

# ids, the last of which is no input; number of scored ids at the end
Part = tuple[list[int], int]
Answer = tuple[float, bool]  # nats, and whether greedy decoding would give this text


def parts_of(context: Sequence[int], ids: Sequence[int], window: int) -> Iterator[Part]:
    """Yields the ids read for each part of a continuation, and the number scored at
    their end.

    Parts have `window` ids; the last part has the rest. Each part is read after as many
    earlier ids as there is room for: `window` ids are read, and one more is scored.
    """
    whole = [*context, *ids]
    for start in range(len(context), len(whole), window):
        end = min(start + window, len(whole))
        yield whole[max(0, end - window - 1) : end], end - start


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
        intervention: Intervention | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        """Takes the model over, which loses its head.

        `autocast` is the type of matrix products; None is the weights' type.
        """
        super().__init__()
        self._head_VD = model.head.weight.detach()[: tokenizer.vocab_size].float()
        model.head = nn.Identity()  # type: ignore[assignment] # logits are made where they count
        self._model = model.eval().requires_grad_(False)
        self._tokenizer = tokenizer
        self.window = window  # the most ids that the model sees at once
        self._batch_size = batch_size
        self._intervention = intervention
        self._autocast = autocast
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
    ) -> list[Answer]:
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
    ) -> list[Answer]:
        """Scores requests, triples of texts, ids of the context, and ids to score."""
        numbers, parts = [], []
        for number, (_, context, ids) in enumerate(requests):
            for part in parts_of(context or [self.prefix_token_id], ids, self.window):
                numbers.append(number)
                parts.append(part)
        self.progress.begin(len(parts))
        sums, greedy = [0.0] * len(requests), [True] * len(requests)
        for number, (loglikelihood, hit) in zip(
            numbers, self.score(parts), strict=True
        ):
            sums[number] += loglikelihood
            greedy[number] &= hit
        return list(zip(sums, greedy, strict=True))

    def generate_until(
        self, requests: list[Instance], disable_tqdm: bool = True
    ) -> list[str]:
        self.progress.begin(len(requests))
        texts = [""] * len(requests)
        prompts = [self.tok_encode(request.args[0]) for request in requests]
        for rows in batches([len(prompt) for prompt in prompts], self._batch_size):
            options = requests[rows[0]].args[1]
            most = min(options["max_gen_toks"], self.window // 2)
            decoder = Decoder(self._model, self._intervention, self._autocast)
            read = [prompts[row][-(self.window - most) :] for row in rows]
            limits = Limits(
                most, self.window, self.eot_token_id, tuple(options["until"])
            )
            decoder.begin(limits.positions([len(ids) for ids in read]))
            pieces = write_on(
                # The model's head returns states; logits are computed from these.
                lambda *given, states=decoder.next_logits: self._logits(states(*given)),
                read,
                Sampler(Sampling(greedy=True), self._tokenizer.vocab_size),
                [torch.Generator()] * len(rows),
                self._tokenizer.token_values(),
                limits,
                decoder.select,
            )
            for piece in pieces:
                texts[rows[piece.row]] += piece.text
            self.progress.advance(len(rows))
        return texts

    def score(self, parts: Sequence[Part]) -> list[Answer]:
        """Scores parts in batches of similar length, longest first.

        Raises:
            RunFailed: if likelihoods are not finite.
        """
        answers: list[Answer] = [(0.0, True)] * len(parts)
        for rows in batches([len(ids) for ids, _ in parts], self._batch_size):
            read, spans = zip(*(parts[row] for row in rows), strict=True)
            x_BTD = self._states([ids[:-1] for ids in read])
            x_ND = torch.cat(
                [
                    x_BTD[place, len(ids) - 1 - span : len(ids) - 1]
                    for place, (ids, span) in enumerate(zip(read, spans, strict=True))
                ]
            )
            targets = [
                id for ids, span in zip(read, spans, strict=True) for id in ids[-span:]
            ]
            logs_N, hits_N = self._logs_and_hits(
                x_ND, torch.tensor(targets, device=self.device)
            )
            if not logs_N.isfinite().all():
                raise RunFailed("the model's likelihoods are not finite")
            scored = zip(rows, logs_N.split(spans), hits_N.split(spans), strict=True)
            for row, logs, hits in scored:
                answers[row] = float(logs.sum()), bool(hits.all())
            self.progress.advance(len(rows))
        return answers

    def _states(self, sequences: Sequence[list[int]]) -> torch.Tensor:
        """The normalised residual stream of sequences, padded on the right, (B, T, D).

        Their common beginning, mostly few-shot examples, is read once.
        """
        longest = max(map(len, sequences))
        rows = [
            [*ids, *[self.eot_token_id] * (longest - len(ids))] for ids in sequences
        ]
        lengths_B1 = torch.tensor([[len(ids)] for ids in sequences])
        ids_BT, mask_BT = torch.tensor(rows), torch.arange(longest) < lengths_B1
        shared = (
            shared_beginning(sequences) if self._cached and len(sequences) > 1 else 0
        )
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
            options |= {
                "intervention": self._intervention,
                "token_mask": mask_BT.to(self.device),
            }
        with torch.autocast(
            self.device.type, self._autocast, enabled=self._autocast is not None
        ):
            return forward(self._model, ids_BT.to(self.device), **options)

    def _logits(self, x_ND: torch.Tensor) -> torch.Tensor:
        return x_ND.float() @ self._head_VD.T

    @torch.inference_mode()
    def _logs_and_hits(
        self, x_ND: torch.Tensor, targets_N: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-likelihood of each target in float64, and whether the target is
        likeliest, (N,)."""
        parts = -(-len(targets_N) * len(self._head_VD) // LOGITS_AT_ONCE)
        logs, hits = [], []
        for x, targets in zip(
            x_ND.tensor_split(max(parts, 1)),
            targets_N.tensor_split(max(parts, 1)),
            strict=True,
        ):
            logits_NV = self._logits(x)
            chosen_N = logits_NV.gather(-1, targets[:, None])[:, 0]
            logs.append((chosen_N - logits_NV.logsumexp(-1)).double())
            hits.append(logits_NV.argmax(-1) == targets)
        return torch.cat(logs).cpu(), torch.cat(hits).cpu()


def shared_beginning(sequences: Sequence[list[int]]) -> int:
    """Number of common ids at the start of all sequences, less than the shortest
    length."""
    least, most = min(sequences), max(sequences)  # all others lie between these two
    pairs = zip(least, most, strict=False)
    same = next(
        (place for place, (one, other) in enumerate(pairs) if one != other), len(least)
    )
    return min(same, *(len(ids) - 1 for ids in sequences))
