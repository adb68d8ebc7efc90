"""The loss of a scored token, and bits per byte of text, over batches and ranks."""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torchmetrics import Metric

from dualpath_cli.model.loss import IGNORE

_SUMS = ("nats", "tokens", "text_nats", "text_bytes")


class LanguageModelLoss(Metric):
    """Mean loss per scored token and bits per byte of text.

    Loss is nats per token over all positions whose target is not `loss.IGNORE`. Bits
    per byte is nats / (ln 2 x bytes) over the targets that are text: special tokens
    (end of text) have no bytes and count in neither sum.
    """

    full_state_update = False
    nats: torch.Tensor
    tokens: torch.Tensor
    text_nats: torch.Tensor
    text_bytes: torch.Tensor
    bytes_of_token: torch.Tensor

    def __init__(self, token_bytes: Sequence[int]) -> None:
        """`token_bytes` are the UTF-8 bytes of each token id, 0 for special tokens."""
        super().__init__()
        for name in _SUMS:
            zero = torch.zeros((), dtype=torch.float64)
            self.add_state(name, zero, dist_reduce_fx="sum")

        table = torch.tensor(token_bytes, dtype=torch.int64)
        self.register_buffer("bytes_of_token", table, persistent=False)

    def _apply(
        self,
        fn: Callable[[torch.Tensor], torch.Tensor],
        exclude_state: Sequence[str] = "",
    ) -> nn.Module:
        """Moves the sums to the device of `fn`, and keeps their type.

        Under bf16-true Lightning casts the whole module, but sums in bfloat16 would
        keep 8 bits of a loss.
        """

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(fn(tensor).device)

        return super()._apply(moved, exclude_state)

    def update(self, nll: torch.Tensor, targets: torch.Tensor) -> None:
        """Adds a batch: losses in nats and target ids, both (B, T)."""
        scored = targets != IGNORE
        nll = nll.double() * scored
        n_bytes = self.bytes_of_token[targets.clamp(min=0)] * scored

        self.nats += nll.sum()
        self.tokens += scored.sum()
        self.text_nats += (nll * (n_bytes > 0)).sum()
        self.text_bytes += n_bytes.sum()

    def sums(self) -> dict[str, float]:
        """The sums of all ranks so far; a collective call."""
        total = torch.stack([getattr(self, name) for name in _SUMS])
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(total)
        return dict(zip(_SUMS, total.tolist(), strict=True))

    def add(self, sums: Mapping[str, float]) -> None:
        """Adds the result of `sums`; on one rank only."""
        for name, value in sums.items():
            getattr(self, name).add_(value)

    def compute(self) -> dict[str, torch.Tensor]:
        """Returns `loss` and `bits_per_byte`; nan where nothing was scored."""
        return {
            "loss": self.nats / self.tokens,
            "bits_per_byte": self.text_nats / (math.log(2) * self.text_bytes),
        }
