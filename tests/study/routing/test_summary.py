"""What is told from the sums: tags, classes, averages over sources, bands of layers."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.statistics.bootstrap import RESAMPLES
from dualpath_cli.study.parts_of_speech import UPOS, measured
from dualpath_cli.study.routing.readouts import AFTER, BEFORE, READOUTS, SHARE_BINS
from dualpath_cli.study.routing.summary import Summary, experts_table, tag_box
from tests.study.routing.test_readouts import EXPERTS, LAYERS, LOOPS, batch, sums_of

RESAMPLED = 11
TAGS = np.full((RESAMPLED, len(UPOS), 6), np.nan)
TAGS[:, :5] = np.array([0.1, 0.2, 0.3, 0.4, 0.9])[:, None]
"""Deep shares of five parts of speech, (R, tags, layers)."""


def summary_of(layers: int = 6, **means: float | list[float]) -> Summary:
    """A summary without spread: every resample is the same."""
    names = ("deep_share", "gate_difference", "only_deep", "only_wide", "cosine")
    columns = {name: np.broadcast_to(means.get(name, 0.3), (RESAMPLED, layers)) for name in names}
    nothing = np.full((RESAMPLED, len(UPOS), layers), np.nan)
    return Summary(
        tuple(range(layers)), columns, nothing,
        {chosen: np.full((RESAMPLED, layers), np.nan) for chosen in measured()},
        np.full((RESAMPLED, BEFORE + 1 + AFTER, layers), np.nan), clusters=100, n_layers=layers,
    )  # fmt: skip


def from_batch(data: dict[str, torch.Tensor]) -> Summary:
    counts = {"clusters": np.array(len(data["text"])), "experts": np.array([EXPERTS] * LAYERS)}
    sums = sums_of(data) | counts
    return Summary.from_sums(sums, range(LAYERS), LOOPS, LAYERS)


# Means and differences


def test_a_rare_part_of_speech_is_left_out_and_a_frequent_one_is_a_mean():
    data = batch(0, sequences=4, length=30)
    data["text"][:] = True
    data["values"] = data["values"].nan_to_num(0.5)
    data["tags"][:] = UPOS.index("NOUN")
    data["tags"].view(-1)[:9] = UPOS.index("NUM")
    data["tags"].view(-1)[9:19] = UPOS.index("SYM")
    summary = from_batch(data)
    assert {UPOS[place] for place in summary.known_tags} == {"NOUN", "SYM"}  # NUM has nine
    means = [summary.tag_means[0, place].mean() for place in summary.known_tags]
    assert means == sorted(means)
    report = summary.report()["upos"]
    share = data["values"][..., 5].reshape(-1, LAYERS).numpy()
    assert report["SYM"]["layers"]["mean"] == pytest.approx(share[9:19].mean(0))
    assert report["SYM"]["deep_share"]["mean"] == pytest.approx(share[9:19].mean())


def test_a_class_is_compared_with_all_other_tagged_tokens():
    data = batch(3, sequences=6, length=40)
    summary = from_batch(data)
    tags, text = data["tags"].numpy(), data["text"].numpy()
    share = data["values"][..., 5].numpy()
    for chosen in measured():
        member = np.isin(tags, [UPOS.index(tag) for tag in chosen.upos]) & text
        others = (tags >= 0) & ~member & text
        expected = share[member].mean(0) - share[others].mean(0)
        np.testing.assert_allclose(summary.class_differences[chosen][0], expected)


def test_sources_weigh_the_same_however_long_they_are():
    short = from_batch(batch(0, 2, 10))
    long = from_batch(batch(1, 20, 30))
    both = Summary.average([short, long])
    for name in short.means:
        np.testing.assert_allclose(both.means[name], (short.means[name] + long.means[name]) / 2)
    # What one source does not have, the other one decides.
    noun = UPOS.index("NOUN")
    assert np.isnan(short.tag_means[0, noun]).all()
    np.testing.assert_array_equal(both.tag_means[:, noun], long.tag_means[:, noun])


def test_an_average_knows_no_more_than_its_shortest_source():
    few, many = (dataclasses.replace(summary_of(), clusters=n) for n in (9, 1000))
    both = Summary.average([many, few])
    assert both.estimate(both.means["cosine"])["low"] == [None] * 6
    assert many.estimate(many.means["cosine"])["low"] == [0.3] * 6


def test_what_is_in_one_sequence_alone_has_no_interval():
    data = batch(0, sequences=40, length=30)
    data["tags"][:] = UPOS.index("NOUN")
    data["tags"][7] = UPOS.index("SYM")
    data["weights"][7, 1:] = torch.poisson(torch.ones(RESAMPLES))  # none in a third of them
    report = from_batch(data).report()
    assert report["upos"]["SYM"]["deep_share"]["mean"] > 0
    assert report["upos"]["SYM"]["deep_share"]["low"] is None
    assert report["upos"]["NOUN"]["deep_share"]["low"] is not None


def test_agreements_of_experts_are_those_of_their_choices_one_by_one():
    data = batch(3, sequences=4, length=50)
    means = from_batch(data).means
    for layer in range(LAYERS):
        share = data["values"][..., layer, READOUTS.index("deep_share")]
        tokens = [(s, t) for s in range(4) for t in range(50) if data["text"][s, t]]
        choices = [
            (int(expert), share[place].item(), int(data["tags"][place]))
            for place in tokens
            for expert in data["chosen"][place][layer]
        ]
        taken, shares, tags = (np.array(column) for column in zip(*choices, strict=True))
        fitted = np.array([shares[taken == expert].mean() for expert in taken])
        assert means["experts_deep_share"][0, layer] == pytest.approx(fitted.var() / shares.var())
        taken, tags = taken[tags >= 0], tags[tags >= 0]
        own = _nats(np.unique(taken, return_counts=True)[1])
        known = sum(
            (tags == tag).mean() * _nats(np.unique(taken[tags == tag], return_counts=True)[1])
            for tag in set(tags)
        )
        assert means["experts_upos"][0, layer] == pytest.approx((own - known) / own)


def test_without_tags_the_table_of_experts_has_no_column_for_them():
    data = batch(3, sequences=4, length=50)
    tagged, untagged = (
        [c.heading for c in experts_table({"source": from_batch(data | tags)}).columns]
        for tags in ({}, {"tags": torch.full_like(data["tags"], -1)})
    )
    assert untagged == tagged[:-1]


def _nats(counts: np.ndarray) -> float:
    return -sum(p * math.log(p) for p in counts / counts.sum())


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (16, {"early": (0, 4), "middle": (5, 9), "late": (10, 15)}),  # the paper's
        (4, {"early": (0, 0), "middle": (1, 1), "late": (2, 3)}),
        (2, {"early": (0, 0), "late": (1, 1)}),
        (1, {"late": (0, 0)}),
    ],
)
def test_bands_are_thirds_of_the_layers(layers, expected):
    bands = summary_of(layers).bands
    assert {name: (own[0], own[-1]) for name, own in bands.items()} == expected


@pytest.mark.parametrize(
    ("layers", "middle", "last"),
    [
        (16, range(2, 10), [14, 15]),  # the paper's
        (8, range(1, 5), [7]),
        (4, [1], [3]),  # layers 0 and 2 are half in the middle, which is not more than half
        (3, [0, 1], [2]),
        (2, [0], [1]),
        (1, [], [0]),
    ],
)
def test_the_middle_is_the_papers_scaled_to_the_depth(layers, middle, last):
    summary = summary_of(layers)
    assert (summary.middle, summary.last) == (list(middle), last)


def test_layers_without_gates_count_for_the_depth():
    summary = dataclasses.replace(summary_of(4), layers=(1, 7, 8, 14), n_layers=16)
    assert (summary.middle, summary.last) == ([1, 2], [3])
    assert [summary.is_last(place) for place in range(4)] == [False] * 4
    assert dataclasses.replace(summary, n_layers=15).is_last(3)


@given(st.lists(st.integers(0, 5), min_size=SHARE_BINS, max_size=SHARE_BINS).filter(any))
def test_a_box_has_the_quantiles_of_the_shares(counts):
    values = np.repeat((np.arange(SHARE_BINS) + 0.5) / SHARE_BINS, counts)
    box = tag_box(np.array(counts, dtype=float))
    parts = {"whislo": 5, "q1": 25, "med": 50, "q3": 75, "whishi": 95}
    for name, percent in parts.items():
        expected = np.percentile(values, percent, method="inverted_cdf")
        assert box[name] == pytest.approx(expected, abs=1e-9)
