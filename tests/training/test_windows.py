"""Windows: every token of a text is scored once, and padding counts nowhere."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.config import ModelConfig
from dualpath_cli.model import DualPathLM
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.training.windows import Windows, collate, document_windows
from tests.small_tokenizer import tokenizer_with

TOKENIZER = tokenizer_with(["h e", "l l", "he ll"])
documents = st.lists(st.text("hel lo", max_size=30), max_size=6)


@given(documents, st.integers(1, 9))
def test_every_token_is_scored_once_after_an_end_of_text(texts: list[str], length: int) -> None:
    windows = list(document_windows(texts, TOKENIZER, length))
    assert all(window[0] == TOKENIZER.eot_id for window in windows)
    assert all(2 <= len(window) <= length + 1 for window in windows)
    scored = [token for window in windows for token in window[1:]]
    assert scored == [token for text in texts for token in TOKENIZER.encode(text)]


@given(documents, st.integers(1, 9))
def test_no_window_crosses_two_documents(texts: list[str], length: int) -> None:
    apart = [list(document_windows([text], TOKENIZER, length)) for text in texts]
    together = list(document_windows(texts, TOKENIZER, length))
    flat = [window.tolist() for windows in apart for window in windows]
    assert [window.tolist() for window in together] == flat


@given(documents, st.integers(1, 9), st.integers(1, 40))
def test_a_limit_keeps_exactly_the_first_tokens(texts: list[str], length: int, limit: int) -> None:
    whole = [t for w in document_windows(texts, TOKENIZER, length) for t in w[1:]]
    cut = [t for w in document_windows(texts, TOKENIZER, length, limit) for t in w[1:]]
    assert cut == whole[:limit]


@given(st.lists(st.integers(2, 20), min_size=1, max_size=9), st.integers(1, 8))
def test_all_ranks_get_full_batches_and_padding_windows_score_nothing(
    lengths: list[int], multiple: int
) -> None:
    windows = Windows((np.ones(n, dtype=np.int64) for n in lengths), multiple_of=multiple)
    assert len(windows) % multiple == 0
    assert windows.n_tokens == sum(lengths) - len(lengths)
    _, targets = collate([windows[i] for i in range(len(windows))])
    assert (targets != IGNORE).sum() == windows.n_tokens


def test_losses_do_not_depend_on_the_batch_that_a_window_is_in() -> None:
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
