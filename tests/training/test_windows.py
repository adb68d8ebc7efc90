"""Windows: every token of a text is scored once, and padding counts nowhere."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.config import ModelConfig
from dualpath_cli.model import DualPathLM
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.training.data.windows import (
    LEAST_DOCUMENTS,
    Windows,
    _drawn_documents,
    collate,
    document_windows,
    padded,
)
from tests.small_tokenizer import tokenizer_with

TOKENIZER = tokenizer_with(["h e", "l l", "he ll"])
documents = st.lists(st.text("hel lo", max_size=30), max_size=6)


@given(documents, st.integers(1, 9))
def test_every_token_is_scored_once_after_an_end_of_text_in_windows_of_one_document(texts, length):
    windows, numbers = document_windows(texts, TOKENIZER, length)
    assert all(window[0] == TOKENIZER.eot_id for window in windows)
    assert all(2 <= len(window) <= length + 1 for window in windows)
    assert numbers == sorted(numbers)
    assert set(numbers) <= set(range(len(texts)))
    for number, text in enumerate(texts):
        own = [w for w, document in zip(windows, numbers, strict=True) if document == number]
        assert [token for window in own for token in window[1:]] == TOKENIZER.encode(text)
        assert all(len(window) == length + 1 for window in own[:-1])


@given(documents, st.integers(1, 9), st.integers(1, 40), st.integers(0, 3))
def test_a_limit_draws_so_many_tokens_of_whole_windows_but_one(texts, length, limit, seed):
    whole, owners = document_windows(texts, TOKENIZER, length)
    drawn, numbers = document_windows(texts, TOKENIZER, length, limit, seed)
    total = sum(len(window) - 1 for window in whole)
    assert sum(len(window) - 1 for window in drawn) == min(limit, total)
    # Each is a window of the text, in the text's order; one at most is cut short.
    assert numbers == sorted(numbers)
    full = {(n, tuple(window.tolist())) for n, window in zip(owners, whole, strict=True)}
    assert sum((n, tuple(w.tolist())) not in full for n, w in zip(numbers, drawn, strict=True)) <= 1
    begin = {(n, window[:k]) for n, window in full for k in range(2, len(window) + 1)}
    assert all((n, tuple(w.tolist())) in begin for n, w in zip(numbers, drawn, strict=True))


def naive_documents(lengths: list[int], limit: int, seed: int) -> set[int]:
    """The first documents in a random order that hold the tokens, a tenth of them each at most."""
    keys = np.random.default_rng((seed, 0)).random(len(lengths))
    chosen, held = set(), 0
    for number in np.argsort(keys):
        if held < limit:
            chosen.add(int(number))
            held += min(lengths[number], -(-limit // LEAST_DOCUMENTS))
    return {number for number in chosen if lengths[number]}


@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.integers(1, 60), st.integers(0, 9))
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
        assert sum(len(w) - 1 for w, n in zip(windows, numbers, strict=True) if n == 0) <= 40
        times[list(set(numbers))] += 1
    # The short ones are drawn about equally often: no place in the file is better than another.
    assert times[1:].min() > 0
    first, second = times[1:16].sum(), times[16:].sum()
    assert abs(first - second) < 5 * np.sqrt(first + second)


def test_of_few_documents_all_are_drawn_from_as_long_as_they_are():
    texts = ["o" * 5000, "e" * 2500, "h" * 500]  # a token each
    windows, numbers = document_windows(texts, TOKENIZER, 10, 2000, 0)
    tokens = np.bincount(numbers, [len(window) - 1 for window in windows])
    assert tokens.sum() == 2000
    np.testing.assert_allclose(tokens / 2000, np.array([5000, 2500, 500]) / 8000, atol=0.06)


def test_another_seed_draws_other_windows_and_the_same_seed_the_same():
    texts = [letter * 40 for letter in "helo" * 20]
    first, again, other = (
        [w.tolist() for w in document_windows(texts, TOKENIZER, 10, 200, seed)[0]]
        for seed in (0, 0, 1)
    )
    assert first == again != other


@given(st.lists(st.integers(2, 20), min_size=1, max_size=9), st.integers(1, 8))
def test_all_ranks_get_full_batches_and_padding_windows_score_nothing(lengths, multiple):
    windows = Windows((np.ones(n, dtype=np.int64) for n in lengths), multiple_of=multiple)
    assert len(windows) % multiple == 0
    assert windows.n_tokens == sum(lengths) - len(lengths)
    _, targets = collate([windows[i] for i in range(len(windows))])
    assert (targets != IGNORE).sum() == windows.n_tokens


@given(st.lists(st.integers(2, 100), min_size=1, max_size=60), st.integers(1, 5), st.integers(1, 3))
def test_batches_hold_each_window_once_in_order_and_no_more_positions_than_a_micro_batch(
    lengths, micro_batch, ranks
):
    windows = Windows(
        (np.ones(n, dtype=np.int64) for n in lengths), multiple_of=micro_batch * ranks
    )
    longest = 99
    batches = windows.batches(micro_batch, longest, ranks)
    assert [place for places in batches for place in places] == list(range(len(windows)))
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
        vocab_size=272, n_layers=2, d_model=16, n_heads=2, n_kv_heads=2, max_seq_len=100,
        loops=2, d_ffn=24, d_ffn_wide=48, gain_init=0.0,
    )  # fmt: skip
    model = DualPathLM(config).double()
    windows = [np.random.default_rng(n).integers(0, 256, n) for n in (5, 30, 90)]
    together = model(*collate(windows))
    longer = model(*collate(windows, last_is_input=True))
    for row, window in enumerate(windows):
        alone = model(torch.from_numpy(window[None, :-1]), torch.from_numpy(window[None, 1:]))
        torch.testing.assert_close(together[row, : len(window) - 1], alone[0])
        torch.testing.assert_close(longer[row, : len(window) - 1], alone[0])
        assert together[row, len(window) - 1 :].eq(0).all()
