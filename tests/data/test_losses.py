"""Loss and bits per byte by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.data.losses import LanguageModelLoss
from dualpath_cli.model.loss import IGNORE

TOKEN_BYTES = [1, 3, 2, 0]  # the last one is end-of-text


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 2, 3, IGNORE]), st.floats(0, 20, width=32)),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 5),
)
def test_both_are_the_sums_of_their_definition_however_batched(scored, batch):
    metric = LanguageModelLoss(TOKEN_BYTES)
    for start in range(0, len(scored), batch):
        part = scored[start : start + batch]
        metric.update(
            torch.tensor([[n for _, n in part]]), torch.tensor([[t for t, _ in part]])
        )
    result = metric.compute()
    kept = [(t, n) for t, n in scored if t != IGNORE]
    text = [(t, n) for t, n in kept if TOKEN_BYTES[t]]
    if not kept:
        assert math.isnan(result["loss"])
        return
    assert result["loss"].item() == pytest.approx(sum(n for _, n in kept) / len(kept))
    if text:
        n_bytes = sum(TOKEN_BYTES[t] for t, _ in text)
        expected = sum(n for _, n in text) / math.log(2) / n_bytes
        assert result["bits_per_byte"].item() == pytest.approx(expected)
