"""The order of the data: every block once an epoch, whatever number of ranks reads them."""

from collections import Counter
from contextlib import nullcontext
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.cli.checks import check_epochs, epochs
from dualpath_cli.errors import UserError
from dualpath_cli.recipe.recipes import merge
from dualpath_cli.recipe.settings import settings_from
from dualpath_cli.training.data.blocks import Blocks
from dualpath_cli.training.data.order import MicroBatches, SampleOrder, permutation
from tests.manifests import write_data_folder
from tests.small_tokenizer import tokenizer_with
from tests.tiny_run import tiny_recipe

CHUNKS = st.lists(st.integers(0, 7), min_size=1, max_size=6).filter(any)
SEEDS = st.integers(0, 2**32)


def epoch(order: SampleOrder, number: int) -> list[tuple[int, int]]:
    """Chunk and block at each position of an epoch."""
    first = number * order.epoch_blocks
    return [order.at(position) for position in range(first, first + order.epoch_blocks)]


@given(CHUNKS, SEEDS, st.integers(0, 5))
def test_an_epoch_holds_every_block_once_and_each_chunk_whole(chunk_blocks, seed, number):
    seen = epoch(SampleOrder(chunk_blocks, seed), number)
    of_chunk = [chunk for chunk, count in enumerate(chunk_blocks) for _ in range(count)]
    assert sorted(block for _, block in seen) == list(range(sum(chunk_blocks)))
    assert all(of_chunk[block] == chunk for chunk, block in seen)
    turns = [chunk for chunk, _ in seen]
    changes = sum(before != after for before, after in pairwise(turns))
    assert changes == len(set(turns)) - 1


@given(CHUNKS, SEEDS, st.lists(st.integers(0, 200), min_size=1, max_size=20))
def test_what_is_at_a_position_does_not_depend_on_what_was_asked_before(
    chunk_blocks, seed, positions
):
    asked = SampleOrder(chunk_blocks, seed)
    for position in positions:
        fresh = SampleOrder(chunk_blocks, seed)
        assert asked.at(position) == fresh.at(position)
        assert asked.next_chunk(position) == fresh.next_chunk(position)


@given(CHUNKS, SEEDS)
def test_the_next_chunk_is_the_one_that_is_read_next(chunk_blocks, seed):
    order = SampleOrder(chunk_blocks, seed)
    chunks = [chunk for number in range(3) for chunk, _ in epoch(order, number)]
    for position in range(2 * order.epoch_blocks):
        end_of_epoch = (position // order.epoch_blocks + 1) * order.epoch_blocks
        # A chunk that ends one epoch and begins the next one is read twice.
        later = range(position + 1, end_of_epoch)
        change = next((p for p in later if chunks[p] != chunks[position]), end_of_epoch)
        assert order.next_chunk(position) == chunks[change]


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = [epoch(SampleOrder([40, 60], seed), number) for seed in (0, 1) for number in (0, 1)]
    for one in orders:
        assert sum(one == other for other in orders) == 1


def test_an_order_is_random():
    # The first block of 4,000 epochs is each of ten as often as chance has it: chi-squared with 9
    # degrees of freedom is above 27.9 once in a thousand.
    order = SampleOrder([4, 6], 3)
    counts = Counter(order.at(number * 10)[1] for number in range(4000))
    # A chunk is first in half of the epochs, whatever it holds.
    expected = [500.0] * 4 + [4000 / 12] * 6
    assert sum((counts[i] - mean) ** 2 / mean for i, mean in enumerate(expected)) < 27.9


def test_a_permutation_is_the_same_on_every_machine():
    # Written down once: a run that is continued elsewhere must find its order.
    assert permutation(8, 0, 0).tolist() == [2, 4, 3, 5, 7, 6, 1, 0]
    assert permutation(6, 7, 1, 2).tolist() == [1, 5, 4, 3, 0, 2]


@given(st.data())
def test_ranks_and_micro_batches_share_out_the_same_steps(data):
    divisors = [1, 2, 3, 4, 6, 8, 12, 24]
    ranks = data.draw(st.sampled_from(divisors))
    micro_batch = data.draw(st.sampled_from([n for n in divisors if 24 // ranks % n == 0]))
    start, origin = data.draw(st.integers(3, 9)), data.draw(st.integers(0, 3))
    parts = [MicroBatches(start, 10, 24, micro_batch, ranks, rank, origin) for rank in range(ranks)]
    accumulate = 24 // ranks // micro_batch
    assert {len(part) for part in parts} == {10 * accumulate}
    listed = [list(part) for part in parts]
    assert {len(micro_batches) for micro_batches in listed} == {(10 - start) * accumulate}
    for step in range(10 - start):
        of_step = [
            position
            for micro_batches in listed
            for batch in micro_batches[step * accumulate : (step + 1) * accumulate]
            for position in batch
        ]
        first = (start - origin + step) * 24
        assert sorted(of_step) == list(range(first, first + 24))
    whole = list(MicroBatches(origin, 10, 24, micro_batch, ranks, 0, origin))
    assert listed[0] == whole[(start - origin) * accumulate :], "a later start has the rest"


@pytest.mark.parametrize(
    ("max_tokens", "since", "passes"), [(256, 0, 1), (400, 0, 1.5), (319, 0, 1), (400, 2, 1)]
)
def test_an_epoch_is_as_many_sequences_as_the_chunks_have(max_tokens, since, passes, tmp_path):
    manifest = write_data_folder(tmp_path / "data", [5] * 400, tokenizer_with(["h e"]), 100)
    assert len(Blocks(str(tmp_path / "data"), 65)) == 4
    run = {"max_tokens": max_tokens, "batch_tokens": 64}
    recipe = tiny_recipe(tmp_path, tmp_path) | {"run": run}
    settings = settings_from(merge(recipe, {"model": {"max_seq_len": 64}}))
    assert epochs(settings, manifest, since) == passes
    with pytest.raises(UserError, match="epochs of the 4 seq") if passes > 1 else nullcontext():
        check_epochs(settings, manifest, since)
