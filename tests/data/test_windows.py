"""Windows: every token of a text is scored once, and padding counts nowhere.

The order of training: every block once an epoch, whatever number of ranks reads them.
"""

from contextlib import nullcontext
from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.base.errors import UserError
from dualpath_cli.data.blocks import Blocks
from dualpath_cli.data.order import SampleOrder, StepSequences, permutation
from dualpath_cli.data.windows import (
    LEAST_DOCUMENTS,
    Windows,
    _drawn_documents,
    collate,
    document_windows,
    folder_windows,
    padded,
)
from dualpath_cli.model import DualPathLM
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.recipe.recipes import merge
from dualpath_cli.recipe.settings import settings_from
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.training.checks import check_epochs, epochs
from tests.data.faulty_data import write_data_folder
from tests.data.small_tokenizer import tokenizer_with
from tests.training.tiny_run import tiny_recipe

TOKENIZER = tokenizer_with(["h e", "l l", "he ll"])
documents = st.lists(st.text("hel lo", max_size=30), max_size=6)


@given(documents, st.integers(1, 9))
def test_every_token_is_scored_once_after_an_end_of_text_in_windows_of_one_document(
    texts, length
):
    windows, numbers = document_windows(texts, TOKENIZER, length)
    assert all(window[0] == TOKENIZER.eot_id for window in windows)
    assert all(2 <= len(window) <= length + 1 for window in windows)
    assert numbers == sorted(numbers)
    assert set(numbers) <= set(range(len(texts)))
    for number, text in enumerate(texts):
        own = [
            w
            for w, document in zip(windows, numbers, strict=True)
            if document == number
        ]
        assert [token for window in own for token in window[1:]] == TOKENIZER.encode(
            text
        )
        assert all(len(window) == length + 1 for window in own[:-1])


@given(documents, st.integers(1, 9), st.integers(1, 40), st.integers(0, 3))
def test_a_limit_draws_so_many_tokens_of_whole_windows_but_one(
    texts, length, limit, seed
):
    whole, owners = document_windows(texts, TOKENIZER, length)
    drawn, numbers = document_windows(texts, TOKENIZER, length, limit, seed)
    total = sum(len(window) - 1 for window in whole)
    assert sum(len(window) - 1 for window in drawn) == min(limit, total)
    # Each is a window of the text, in the text's order; one at most is cut short.
    assert numbers == sorted(numbers)
    full = {
        (n, tuple(window.tolist())) for n, window in zip(owners, whole, strict=True)
    }
    assert (
        sum(
            (n, tuple(w.tolist())) not in full
            for n, w in zip(numbers, drawn, strict=True)
        )
        <= 1
    )
    begin = {(n, window[:k]) for n, window in full for k in range(2, len(window) + 1)}
    assert all(
        (n, tuple(w.tolist())) in begin for n, w in zip(numbers, drawn, strict=True)
    )


def naive_documents(lengths: list[int], limit: int, seed: int) -> set[int]:
    """The first documents in a random order that hold the tokens, a tenth of them each
    at most."""
    keys = np.random.default_rng((seed, 0)).random(len(lengths))
    chosen, held = set(), 0
    for number in np.argsort(keys):
        if held < limit:
            chosen.add(int(number))
            held += min(lengths[number], -(-limit // LEAST_DOCUMENTS))
    return {number for number in chosen if lengths[number]}


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=40),
    st.integers(1, 60),
    st.integers(0, 9),
)
def test_the_documents_are_the_first_in_a_random_order(lengths, limit, seed):
    texts = ["o" * length for length in lengths]  # a token each
    drawn = _drawn_documents(texts, TOKENIZER, limit, seed)
    assert {number for number, tokens in drawn if len(tokens)} == naive_documents(
        lengths, limit, seed
    )
    assert [number for number, _ in drawn] == sorted(number for number, _ in drawn)


def test_a_long_first_document_is_not_the_whole_sample():
    texts = ["o" * 5000, *("l" * 50 for _ in range(30))]
    times = np.zeros(31)
    for seed in range(60):
        windows, numbers = document_windows(texts, TOKENIZER, 10, 400, seed)
        assert sum(len(window) - 1 for window in windows) == 400
        assert len(set(numbers)) >= LEAST_DOCUMENTS
        assert (
            sum(len(w) - 1 for w, n in zip(windows, numbers, strict=True) if n == 0)
            <= 40
        )
        times[list(set(numbers))] += 1
    # The short ones are drawn about equally often: no place in the file is better than
    # another.
    assert times[1:].min() > 0
    first, second = times[1:16].sum(), times[16:].sum()
    assert abs(first - second) < 5 * np.sqrt(first + second)


@given(st.lists(st.integers(2, 20), min_size=1, max_size=9), st.integers(1, 8))
def test_all_ranks_get_full_batches_and_padding_windows_score_nothing(
    lengths, multiple
):
    windows = Windows(
        (np.ones(n, dtype=np.int64) for n in lengths), multiple_of=multiple
    )
    assert len(windows) % multiple == 0
    assert windows.n_tokens == sum(lengths) - len(lengths)
    _, targets = collate([windows[i] for i in range(len(windows))])
    assert (targets != IGNORE).sum() == windows.n_tokens


@given(
    st.lists(st.integers(2, 100), min_size=1, max_size=60),
    st.integers(1, 5),
    st.integers(1, 3),
)
def test_batches_hold_each_window_once_in_order_and_no_more_than_a_micro_batch(
    lengths, micro_batch, ranks
):
    windows = Windows(
        (np.ones(n, dtype=np.int64) for n in lengths), multiple_of=micro_batch * ranks
    )
    longest = 99
    batches = windows.batches(micro_batch, longest, ranks)
    assert [place for places in batches for place in places] == list(
        range(len(windows))
    )
    for number, places in enumerate(batches):
        shapes = {
            collate([windows[place] for place in places[rank::ranks]])[0].shape
            for rank in range(ranks)
        }
        rows = {shape[0] for shape in shapes}
        assert rows == {len(places) // ranks}, "ranks run in step"
        assert all(shape.numel() <= micro_batch * padded(longest) for shape in shapes)
        if padded(len(windows[places[0]]) - 1) == padded(longest):
            assert rows == {micro_batch}, "a graph is compiled for one shape"
        elif number + 1 < len(batches):
            assert len(places) // ranks >= micro_batch


def test_losses_do_not_depend_on_the_batch_that_a_window_is_in():
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=272,
        n_layers=2,
        d_model=16,
        n_heads=2,
        n_kv_heads=2,
        max_seq_len=100,
        loops=2,
        d_ffn=24,
        d_ffn_wide=48,
        gain_init=0.0,
    )
    model = DualPathLM(config).double()
    windows = [np.random.default_rng(n).integers(0, 256, n) for n in (5, 30, 90)]
    together = model(*collate(windows))
    longer = model(*collate(windows, last_is_input=True))
    for row, window in enumerate(windows):
        alone = model(
            torch.from_numpy(window[None, :-1]), torch.from_numpy(window[None, 1:])
        )
        torch.testing.assert_close(together[row, : len(window) - 1], alone[0])
        torch.testing.assert_close(longer[row, : len(window) - 1], alone[0])
        assert together[row, len(window) - 1 :].eq(0).all()


def test_a_limit_draws_whole_blocks_of_a_folder_by_the_seed(tmp_path):
    folder, tokens = tmp_path / "data", np.arange(20 * 9)
    write_data_folder(folder, tokens, TOKENIZER, 4 * 9)

    def places(limit: int, seed: int = 0) -> list[int]:
        windows = folder_windows(folder, 8, limit, seed)
        return [int(window[0]) // 9 for window in windows]

    whole = [window.tolist() for window in folder_windows(folder, 8)]
    assert whole == tokens.reshape(20, 9).tolist()
    for limit, count in ((1, 1), (15, 1), (16, 2), (159, 19), (160, 20), (999, 20)):
        drawn = places(limit)
        assert drawn == sorted(set(drawn)) == places(limit)
        assert len(drawn) == count
    assert len({tuple(places(40, seed)) for seed in range(5)}) > 1


# The order of training

CHUNKS = st.lists(st.integers(0, 7), min_size=1, max_size=6).filter(any)
SEEDS = st.integers(0, 2**32)


def epoch(order: SampleOrder, number: int) -> list[tuple[int, int]]:
    """Chunk and block at each position of an epoch."""
    first = number * order.epoch_blocks
    return [order.at(position) for position in range(first, first + order.epoch_blocks)]


@given(CHUNKS, SEEDS, st.integers(0, 5))
def test_an_epoch_holds_every_block_once_and_each_chunk_whole(
    chunk_blocks, seed, number
):
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


def test_each_seed_epoch_and_chunk_has_an_order_of_its_own():
    def turns(order: list[tuple[int, int]]) -> list[int]:
        return list(dict.fromkeys(chunk for chunk, _ in order))

    def inside(order: list[tuple[int, int]], own: int) -> tuple[int, ...]:
        return tuple(block - 7 * own for chunk, block in order if chunk == own)

    first = epoch(SampleOrder([7] * 6, 0), 0)
    for other in (epoch(SampleOrder([7] * 6, 0), 1), epoch(SampleOrder([7] * 6, 1), 0)):
        assert turns(other) != turns(first)
        assert inside(other, 0) != inside(first, 0)
    assert len({inside(first, own) for own in range(6)}) > 1


def test_a_permutation_is_the_same_on_every_machine():
    # Written down once: a run that is continued elsewhere must find its order.
    assert permutation(8, 0, 0).tolist() == [2, 4, 3, 5, 7, 6, 1, 0]
    assert permutation(6, 7, 1, 2).tolist() == [1, 5, 4, 3, 0, 2]


@given(st.data())
def test_ranks_share_out_the_same_steps(data):
    ranks = data.draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24]))
    start, origin = data.draw(st.integers(3, 9)), data.draw(st.integers(0, 3))
    parts = [StepSequences(start, 10, 24, ranks, rank, origin) for rank in range(ranks)]
    assert {len(part) for part in parts} == {10}
    listed = [list(part) for part in parts]
    assert {len(steps) for steps in listed} == {10 - start}
    for step in range(10 - start):
        of_step = [steps[step] for steps in listed]
        assert {len(own) for own in of_step} == {24 // ranks}
        first = (start - origin + step) * 24
        assert sorted(chain(*of_step)) == list(range(first, first + 24))
    whole = list(StepSequences(origin, 10, 24, ranks, 0, origin))
    assert listed[0] == whole[start - origin :], "a later start has the rest"


@pytest.mark.parametrize(
    ("max_tokens", "since", "passes"),
    [(256, 0, 1), (400, 0, 1.5), (319, 0, 1), (400, 2, 1)],
)
def test_an_epoch_is_as_many_sequences_as_the_chunks_have(
    max_tokens, since, passes, tmp_path
):
    manifest = write_data_folder(
        tmp_path / "data", [5] * 400, tokenizer_with(["h e"]), 100
    )
    assert len(Blocks(str(tmp_path / "data"), 65)) == 4
    run = {"max_tokens": max_tokens, "batch_tokens": 64}
    recipe = tiny_recipe(tmp_path, tmp_path) | {"run": run}
    settings = settings_from(merge(recipe, {"model": {"max_seq_len": 64}}))
    assert epochs(settings, manifest, since) == passes
    with (
        pytest.raises(UserError, match="epochs of the 4 seq")
        if passes > 1
        else nullcontext()
    ):
        check_epochs(settings, manifest, since)
