"""Read-outs of tokens: their sums against loops."""

import math
from itertools import pairwise

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.pytorch.strategies import SingleDeviceStrategy

from dualpath_cli.report.bootstrap import resample_weights
from dualpath_cli.study.parts_of_speech import UPOS
from dualpath_cli.study.routing.readouts import (
    CONTRIBUTION_BINS,
    CONTRIBUTION_END,
    GATE_BINS,
    READOUTS,
    STEP_READOUTS,
    RoutingSums,
    Sums,
    _bin,
    columns,
)

LAYERS, LOOPS, EXPERTS, TAKEN = 2, 3, 5, 2
COLUMN = {name: number for number, name in enumerate(columns(LOOPS))}


def batch(seed: int, sequences: int, length: int) -> dict[str, torch.Tensor]:
    """Random read-outs of sequences, some of whose positions are not text."""
    draw = np.random.default_rng(seed)
    values = draw.random((sequences, length, LAYERS, len(READOUTS) + len(STEP_READOUTS) * LOOPS))
    values[..., 2:4] *= 20
    text = draw.random((sequences, length)) < 0.8
    values[~text] = math.nan  # what is no text must not count, whatever it holds
    chosen = draw.random((sequences, length, LAYERS, EXPERTS)).argsort(-1)[..., :TAKEN]
    return {
        "values": torch.from_numpy(values),
        "chosen": torch.from_numpy(chosen.copy()),
        "text": torch.from_numpy(text),
        "weights": torch.from_numpy(np.stack([resample_weights("a", n) for n in range(sequences)])),
        "tags": torch.from_numpy(draw.integers(-1, len(UPOS), (sequences, length))),
    }


def sums_of(*batches: dict[str, torch.Tensor]) -> Sums:
    metric = RoutingSums(LAYERS, LOOPS, EXPERTS, torch.device("cpu"))
    for one in batches:
        metric.update(**one)
    return metric.compute(SingleDeviceStrategy())


def rows_of(whole: dict[str, torch.Tensor], rows: slice) -> dict[str, torch.Tensor]:
    return {name: tensor[rows] for name, tensor in whole.items()}


def test_every_sum_is_that_of_a_loop_over_tokens_and_layers():
    data = batch(0, sequences=5, length=70)
    actual = sums_of(data)
    expected = {name: np.zeros_like(array) for name, array in actual.items()}
    for s in range(5):
        weight = data["weights"][s].numpy()
        for t in range(70):
            if not data["text"][s, t]:
                continue
            expected["tokens"] += weight
            tag = int(data["tags"][s, t])
            if tag >= 0:
                expected["tag_tokens"][:, tag] += weight
            for layer in range(LAYERS):
                read = data["values"][s, t, layer].tolist()
                g_d, g_w, norm_d, norm_w, _, share = read[:6]
                for name, value in {
                    **dict(zip(READOUTS, read, strict=False)),
                    **{
                        f"{name}_{k + 1}": read[len(READOUTS) + place * LOOPS + k]
                        for place, name in enumerate(("step", "step_size", "step_cosine"))
                        for k in range(LOOPS)
                    },
                }.items():
                    expected["sums"][:, layer, COLUMN[name]] += weight * value
                expected["gate_density"][layer, int(g_d * GATE_BINS), int(g_w * GATE_BINS)] += 1
                deep, wide = (
                    int(math.log1p(g * norm) * CONTRIBUTION_BINS / CONTRIBUTION_END)
                    for g, norm in ((g_d, norm_d), (g_w, norm_w))
                )
                expected["contribution_density"][layer, deep, wide] += 1
                if tag >= 0:
                    expected["tag_sums"][:, tag, layer] += weight * share
                for expert in data["chosen"][s, t, layer].tolist():
                    expected["expert_tokens"][:, layer, expert] += weight
    for name, array in expected.items():
        assert array.any(), name
        np.testing.assert_allclose(actual[name], array, rtol=1e-12, atol=1e-12, err_msg=name)


@settings(max_examples=20)
@given(st.integers(0, 1000), st.lists(st.integers(0, 6), max_size=3), st.randoms())
def test_batches_and_their_order_do_not_matter(seed, cuts, random):
    data = batch(seed, sequences=6, length=9)
    ends = sorted({0, 6, *cuts})
    batches = [rows_of(data, slice(a, b)) for a, b in pairwise(ends)]
    random.shuffle(batches)
    whole, split = sums_of(data), sums_of(*batches)
    for name, array in whole.items():
        np.testing.assert_allclose(split[name], array, rtol=1e-12, atol=1e-12, err_msg=name)


def test_nan_and_infinity_are_in_the_bins_of_the_ends():
    values = torch.tensor([math.nan, -1.0, 0.0, 0.5, 1.0, 2.0, math.inf])
    assert _bin(values, 10, 1.0).tolist() == [0, 0, 0, 5, 9, 9, 9]
