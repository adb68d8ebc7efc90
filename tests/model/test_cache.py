"""Attention over a few tokens at a time, with a cache, is attention over all of them."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath_cli.model.attention import Attention, KeyValueCache
from dualpath_cli.model.feed_forward import SwiGLU
from dualpath_cli.model.positions import Positions
from dualpath_cli.model.rope import rope_tables
from dualpath_cli.model.sublayer import Sublayer
from tests.model.reference import difference
from tests.model.small_models import EXACT, small

LENGTHS = st.lists(st.integers(1, 5), min_size=1, max_size=6)
"""Numbers of tokens that come together; all ones is token by token."""


@settings(max_examples=60, derandomize=True, database=None)
@given(
    lengths=LENGTHS | LENGTHS.map(lambda lengths: [1] * sum(lengths)),
    n_kv_heads=st.sampled_from([1, 2, 4]),
    qk_norm=st.sampled_from(["after_rope", "before_rope", "none"]),
    seed=st.integers(0, 99),
)
def test_a_cache_changes_nothing(lengths, n_kv_heads, qk_norm, seed):
    config = small(n_kv_heads=n_kv_heads, qk_norm=qk_norm)
    rng = torch.Generator().manual_seed(seed)
    attention = Attention(config).double()
    sublayer = Sublayer(config, SwiGLU(config.d_model, 16)).double()
    for parameter in [*attention.parameters(), *sublayer.parameters()]:
        parameter.data.normal_(generator=rng)
    x_BTD = torch.randn(2, sum(lengths), config.d_model, generator=rng, dtype=torch.float64)
    gain = torch.tensor(0.7)

    def attend(x, positions, cache=None):
        return attention(x, positions, cache)

    def apply(x, positions, cache=None):
        return sublayer(x, gain, positions, cache=cache)

    for module in (attend, apply):
        whole = module(x_BTD, Positions(rope_tables(config, x_BTD.shape[1], like=x_BTD)))
        cache, outputs, start = KeyValueCache(), [], 0
        for length in lengths:
            positions = Positions(rope_tables(config, length, like=x_BTD, start=start))
            outputs.append(module(x_BTD[:, start : start + length], positions, cache))
            start += length
        assert difference(torch.cat(outputs, dim=1), whole) <= EXACT
        assert cache.keys.shape == (2, start, n_kv_heads, config.head_dim)
