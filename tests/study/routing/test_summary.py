"""Means from the sums: tags, classes, averages over sources, bands of layers."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.stats import entropy

from dualpath_cli.report.bootstrap import RESAMPLES
from dualpath_cli.study.parts_of_speech import CLASSES, UPOS
from dualpath_cli.study.routing.summary import Summary
from tests.study.routing.test_readouts import EXPERTS, LAYERS, LOOPS, batch, sums_of

RESAMPLED = 11


def summary_of(layers: int = 6) -> Summary:
    """A summary without spread: every resample is the same."""
    columns = {"cosine": np.full((RESAMPLED, layers), 0.3)}
    nothing = np.full((RESAMPLED, len(UPOS), layers), np.nan)
    return Summary(
        tuple(range(layers)), columns, nothing,
        {name: np.full((RESAMPLED, layers), np.nan) for name in CLASSES},
        clusters=100,
    )  # fmt: skip


def from_batch(data: dict[str, torch.Tensor]) -> Summary:
    counts = {"clusters": np.array(len(data["text"])), "experts": np.array([EXPERTS] * LAYERS)}
    sums = sums_of(data) | counts
    return Summary.from_sums(sums, range(LAYERS), LOOPS)


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
    for name, upos in CLASSES.items():
        member = np.isin(tags, [UPOS.index(tag) for tag in upos]) & text
        others = (tags >= 0) & ~member & text
        expected = share[member].mean(0) - share[others].mean(0)
        np.testing.assert_allclose(summary.class_differences[name][0], expected)


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


def test_loads_of_experts_are_those_of_their_choices():
    data = batch(3, sequences=4, length=50)
    means = from_batch(data).means
    for layer in range(LAYERS):
        taken = data["chosen"][data["text"]][:, layer].numpy().ravel()
        loads = np.bincount(taken, minlength=EXPERTS) / len(taken)
        assert means["load_max"][0, layer] == pytest.approx(EXPERTS * loads.max())
        assert means["load_entropy"][0, layer] == pytest.approx(entropy(loads, base=EXPERTS))
        assert means["idle_experts"][0, layer] == 0


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
