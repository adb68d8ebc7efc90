"""What is read of a token: where its sequence is aligned, and what the terminal shows of it."""

import io

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.model.routing import LayerTrace, RoutingTrace
from dualpath_cli.output.console import plain_console
from dualpath_cli.study.routing.readouts import READOUTS
from dualpath_cli.study.routing.study import MOST_ALIGNED, anchor_positions
from dualpath_cli.study.routing.terminal import show

VALUES = [b"<eot>", b"a", b"ab", b"b", b" A", "é".encode()[:1], "é".encode()[1:]]
windows = st.lists(st.lists(st.integers(1, 6), max_size=8), min_size=1, max_size=4)


@given(windows, st.sampled_from(["a", "ab", "ba", "é", "bé", " A", "aba", "zz"]))
def test_the_anchor_is_the_token_in_which_the_word_first_ends(ids, word):
    windows = [np.array([0, *window]) for window in ids]
    positions = anchor_positions(windows, range(len(ids)), VALUES, word)
    for window, position in zip(ids, positions, strict=True):
        # Token by token: the first prefix of the text that holds the word.
        prefixes = [b"".join(VALUES[id] for id in window[: n + 1]) for n in range(len(window))]
        holds = [n + 1 for n, prefix in enumerate(prefixes) if word.encode() in prefix]
        assert position == (holds[0] if holds else -1)


def test_no_more_than_a_thousand_sequences_are_aligned_the_first_ones_of_the_source():
    count = MOST_ALIGNED + 5
    numbers = list(reversed(range(count)))
    positions = anchor_positions([np.array([0, 1])] * count, numbers, VALUES, "a")
    assert (positions >= 0).sum() == MOST_ALIGNED
    assert (positions[:5] == -1).all()  # their numbers are the highest


def layer_of(loops: int, seed: int) -> LayerTrace:
    draw = torch.Generator().manual_seed(seed)
    layer = LayerTrace()
    for name in (*READOUTS, "step_weights", "step_sizes", "step_cosines"):
        if name not in ("deep_share", "expected_loops"):  # these follow from the others
            shape = (2, 5, loops) if name.startswith("step") else (2, 5)
            setattr(layer, name, torch.rand(shape, generator=draw))
    return layer


def test_the_terminal_shows_no_weight_of_a_step_that_a_layer_has_not():
    out = io.StringIO()
    trace = RoutingTrace([layer_of(2, 0), layer_of(3, 1)])
    show(plain_console(file=out), [b"a"] * 4, trace, None)
    rows = [line.split("│") for line in out.getvalue().splitlines() if line.startswith("│")]
    assert [[len(cell.split()) for cell in row[-4:-1]] for row in rows] == [[2] * 3, [3] * 3]
