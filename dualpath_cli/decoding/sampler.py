"""Sampler: from logits to the next id of each sequence of a batch.

Shapes: B sequences, V rows of the vocabulary, I ids that the tokenizer has.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from dualpath_cli.decoding.sampling import Sampling
from dualpath_cli.errors import RunFailed


class Sampler:
    """Draws as `sampling` says, from the ids of the tokenizer."""

    def __init__(self, sampling: Sampling, ids: int) -> None:
        """`ids` are those that the tokenizer has; rows of the vocabulary beyond get nothing."""
        self._sampling = sampling
        self._ids = ids

    def probabilities(
        self, logits_BV: torch.Tensor, ids_of_each: Sequence[Sequence[int]]
    ) -> torch.Tensor:
        """Maps logits to probabilities (B, V), in float32 or, of such logits, in float64.

        `ids_of_each` are the ids of each text so far, with its prompt, without padding.
        """
        sampling, vocabulary = self._sampling, logits_BV.shape[-1]
        exact = torch.promote_types(logits_BV.dtype, torch.float32)
        logits_BI = logits_BV[:, : self._ids].to(exact)
        if sampling.repetition_penalty != 1:
            logits_BI = self._penalized(logits_BI, ids_of_each)
        if sampling.greedy:
            probs_BI = F.one_hot(logits_BI.argmax(-1), logits_BI.shape[-1]).to(exact)
            probs_BI = probs_BI.masked_fill(logits_BI.isnan().any(-1, keepdim=True), torch.nan)
        else:
            probs_BI = self._filtered(logits_BI / sampling.temperature).softmax(-1)
        return F.pad(probs_BI, (0, vocabulary - probs_BI.shape[-1]))

    def draw(self, probs_BV: torch.Tensor, generators: Sequence[torch.Generator]) -> torch.Tensor:
        """Draws an id of each sequence, (B,), on the CPU.

        Each takes one number of its own generator, on the CPU, so that it depends neither on the
        batch nor, except for rounding, on the device.

        Raises:
            RunFailed: if probabilities are nan or infinite.
        """
        numbers_B = torch.stack(
            [torch.rand((), dtype=torch.float64, generator=each) for each in generators]
        )
        cumulative_BV = probs_BV.double().cumsum(-1)
        all_B1 = cumulative_BV[:, -1:].contiguous()
        wanted_B1 = numbers_B[:, None].to(probs_BV.device) * all_B1
        ids_B1 = torch.searchsorted(cumulative_BV, wanted_B1, right=True)
        # Where rounding makes the number the whole sum, the last id that has any probability.
        ids_B1 = ids_B1.minimum(torch.searchsorted(cumulative_BV, all_B1))
        ids_B = torch.where(all_B1.isfinite(), ids_B1, -1)[:, 0].cpu()
        if (ids_B < 0).any():
            raise RunFailed("the model gives no numbers: its logits are nan or infinite")
        return ids_B

    def _penalized(
        self, logits_BI: torch.Tensor, ids_of_each: Sequence[Sequence[int]]
    ) -> torch.Tensor:
        there_BI = torch.zeros(logits_BI.shape, dtype=torch.bool)
        for there_I, ids in zip(there_BI, ids_of_each, strict=True):
            there_I[torch.tensor(ids)] = True
        penalty = self._sampling.repetition_penalty
        penalized_BI = torch.where(logits_BI < 0, logits_BI * penalty, logits_BI / penalty)
        return torch.where(there_BI.to(logits_BI.device), penalized_BI, logits_BI)

    def _filtered(self, logits_BI: torch.Tensor) -> torch.Tensor:
        """Applies top_k, top_p and min_p: the logits of ids that they exclude become -inf."""
        sampling = self._sampling
        if sampling.top_k:
            least_B1 = logits_BI.topk(min(sampling.top_k, logits_BI.shape[-1])).values[:, -1:]
            logits_BI = logits_BI.masked_fill(logits_BI < least_B1, -torch.inf)
        if sampling.top_p < 1:
            sorted_BI, order_BI = logits_BI.sort()
            out_BI = sorted_BI.softmax(-1).cumsum(-1) <= 1 - sampling.top_p
            out_BI[:, -1] = False
            logits_BI = logits_BI.masked_fill(out_BI.scatter(1, order_BI, out_BI), -torch.inf)
        if sampling.min_p is not None:
            probs_BI = logits_BI.softmax(-1)
            least_B1 = sampling.min_p * probs_BI.amax(-1, keepdim=True)
            logits_BI = logits_BI.masked_fill(probs_BI < least_B1, -torch.inf)
        return logits_BI
