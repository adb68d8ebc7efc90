"""What is told from the sums: tags, classes, averages over sources, the claims' verdicts."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.study.bootstrap import RESAMPLES
from dualpath_cli.study.classes import LEANINGS, UPOS
from dualpath_cli.study.routing.claims import Claim, Pair, claims, same_profile
from dualpath_cli.study.routing.summary import Summary, tag_box
from dualpath_cli.study.routing.sums import AFTER, BEFORE, SHARE_BINS
from tests.study.routing.test_sums import LAYERS, LOOPS, batch, sums_of

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
        {leaning.name: np.full((RESAMPLED, layers), np.nan) for leaning in LEANINGS},
        np.full((RESAMPLED, BEFORE + 1 + AFTER, layers), np.nan), sequences=100,
    )  # fmt: skip


def verdicts(summary: Summary) -> dict[str, str]:
    return {claim.number: claim.verdict for claim in claims({"a": summary}, summary)}


# Means and differences


def test_a_rare_part_of_speech_is_left_out_and_a_frequent_one_is_a_mean():
    data = batch(0, sequences=4, length=30)
    data["text"][:] = True
    data["values"] = data["values"].nan_to_num(0.5)
    data["tags"][:] = UPOS.index("NOUN")
    data["tags"].view(-1)[:9] = UPOS.index("NUM")
    data["tags"].view(-1)[9:19] = UPOS.index("SYM")
    summary = Summary.from_sums(sums_of(data), range(LAYERS), LOOPS)
    assert {UPOS[place] for place in summary.known_tags} == {"NOUN", "SYM"}  # NUM has nine
    means = [summary.tag_means[0, place].mean() for place in summary.known_tags]
    assert means == sorted(means)
    report = summary.report()["upos"]
    share = data["values"][..., 5].reshape(-1, LAYERS).numpy()
    assert report["SYM"]["layers"]["mean"] == pytest.approx(share[9:19].mean(0))
    assert report["SYM"]["deep_share"]["mean"] == pytest.approx(share[9:19].mean())


def test_a_class_is_compared_with_all_other_tagged_tokens():
    data = batch(3, sequences=6, length=40)
    summary = Summary.from_sums(sums_of(data), range(LAYERS), LOOPS)
    tags, text = data["tags"].numpy(), data["text"].numpy()
    share = data["values"][..., 5].numpy()
    for leaning in LEANINGS:
        member = np.isin(tags, [UPOS.index(tag) for tag in leaning.upos]) & text
        others = (tags >= 0) & ~member & text
        expected = share[member].mean(0) - share[others].mean(0)
        np.testing.assert_allclose(summary.class_differences[leaning.name][0], expected)


def test_sources_weigh_the_same_however_long_they_are():
    short = Summary.from_sums(sums_of(batch(0, 2, 10)), range(LAYERS), LOOPS)
    long = Summary.from_sums(sums_of(batch(1, 20, 30)), range(LAYERS), LOOPS)
    both = Summary.average([short, long])
    for name in short.means:
        np.testing.assert_allclose(both.means[name], (short.means[name] + long.means[name]) / 2)
    # What one source does not have, the other one decides.
    noun = UPOS.index("NOUN")
    assert np.isnan(short.tag_means[0, noun]).all()
    np.testing.assert_array_equal(both.tag_means[:, noun], long.tag_means[:, noun])


def test_an_average_knows_no_more_than_its_shortest_source():
    few, many = (dataclasses.replace(summary_of(), sequences=n) for n in (9, 1000))
    both = Summary.average([many, few])
    assert both.estimate(both.means["cosine"])["low"] == [None] * 6
    assert verdicts(both)["cosine, middle band"] == "open"
    assert verdicts(many)["cosine, middle band"] == "holds"


def test_what_is_in_one_sequence_alone_has_no_interval():
    data = batch(0, sequences=40, length=30)
    data["tags"][:] = UPOS.index("NOUN")
    data["tags"][7] = UPOS.index("SYM")
    data["weights"][7, 1:] = torch.poisson(torch.ones(RESAMPLES))  # none in a third of them
    report = Summary.from_sums(sums_of(data), range(LAYERS), LOOPS).report()
    assert report["upos"]["SYM"]["deep_share"]["mean"] > 0
    assert report["upos"]["SYM"]["deep_share"]["low"] is None
    assert report["upos"]["NOUN"]["deep_share"]["low"] is not None


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


@given(st.lists(st.integers(0, 5), min_size=SHARE_BINS, max_size=SHARE_BINS).filter(any))
def test_a_box_has_the_quantiles_of_the_shares(counts):
    values = np.repeat((np.arange(SHARE_BINS) + 0.5) / SHARE_BINS, counts)
    box = tag_box(np.array(counts, dtype=float))
    parts = {"whislo": 5, "q1": 25, "med": 50, "q3": 75, "whishi": 95}
    for name, percent in parts.items():
        expected = np.percentile(values, percent, method="inverted_cdf")
        assert box[name] == pytest.approx(expected, abs=1e-9)


# Claims


@pytest.mark.parametrize(
    ("low", "high", "above", "verdict"),
    [
        (0.1, 0.2, True, "holds"), (0.1, 0.2, False, "fails"), (-0.2, -0.1, True, "fails"),
        (-0.2, -0.1, False, "holds"), (-0.1, 0.1, True, "open"), (-0.1, 0.1, False, "open"),
        (float("nan"), float("nan"), True, "open"),
    ],
)  # fmt: skip
def test_a_claim_is_decided_only_by_a_whole_interval(low, high, above, verdict):
    assert Claim("", "", "", 0.0, low, high, 0.0, above).verdict == verdict


def test_the_profile_of_the_paper_holds_and_its_reverse_fails():
    paper = summary_of(deep_share=[0.45, 0.4, 0.3, 0.3, 0.5, 0.6], cosine=0.1)
    assert verdicts(paper)["deep share, middle band"] == "holds"
    assert verdicts(paper)["deep share, last 1 of 6 layers"] == "holds"
    assert verdicts(paper)["late - middle band"] == "holds"
    assert verdicts(paper)["cosine, middle band"] == "holds"
    reverse = summary_of(deep_share=[0.5, 0.5, 0.7, 0.7, 0.4, 0.3], cosine=0.9)
    assert set(verdicts(reverse).values()) == {"fails", "open"}
    assert verdicts(reverse)["deep share, middle band"] == "fails"


def test_gates_that_part_with_depth_polarise():
    growing = summary_of(gate_difference=[0.1, 0.1, 0.2, 0.3, 0.5, 0.5], only_deep=[0] * 5 + [0.4])
    found = verdicts(growing)
    assert found["|g_d - g_w|, late - early band"] == "holds"
    assert found["tokens with gates above 0.9 and below 0.1, late - early band"] == "holds"
    level = verdicts(summary_of(gate_difference=0.2, only_deep=0.0, only_wide=0.0))
    assert level["|g_d - g_w|, late - early band"] == "open"
    assert len(level) == len(found) - 1  # no token is in a corner: nothing to say of them


def test_two_sources_are_compared_after_the_anchor_in_the_late_layers():
    one = summary_of()
    shares = np.full(one.aligned.shape, np.nan)
    shares[:, BEFORE - 2 : BEFORE + 6] = 0.4
    deeper = shares.copy()
    deeper[:, BEFORE + 1 : BEFORE + 4, 4:] += 0.2  # after the anchor, late
    deeper[:, BEFORE - 2 : BEFORE + 1] -= 0.9  # before it, which does not count
    deeper[:, BEFORE + 4 :] = np.nan
    gsm8k, arc = (dataclasses.replace(one, aligned=each) for each in (deeper, shares))
    for sources in ({"gsm8k": gsm8k, "arc": arc}, {"arc": arc, "gsm8k": gsm8k}):
        late, every = [c for c in claims(sources, one) if c.source == "gsm8k, arc"]
        assert late.number == every.number == "mean of 3 positions' deep share, gsm8k - arc"
        assert ("in late layers" in late.claim, "in all layers" in every.claim) == (True, True)
        assert (late.value, every.value) == (pytest.approx(0.2), pytest.approx(0.2 * 2 / 6))
        assert (late.verdict, every.verdict) == ("holds", "holds")
    # The paper says nothing of two sources that are both no reasoning task.
    assert not [c for c in claims({"a": gsm8k, "b": arc}, one) if "anchor" in c.claim]


def test_a_pair_knows_no_more_than_its_shorter_source():
    shares = np.full(summary_of().aligned.shape, 0.4)
    long = dataclasses.replace(summary_of(), aligned=shares + 0.2, tag_means=TAGS)
    short = dataclasses.replace(summary_of(), aligned=shares, tag_means=TAGS, sequences=9)
    for other, verdict in ((long, "holds"), (short, "open")):
        less = dataclasses.replace(other, aligned=shares)
        pairs = [c for c in claims({"gsm8k": long, "arc": less}, long) if c.source == "gsm8k, arc"]
        assert [claim.verdict for claim in pairs] == [verdict] * 3
        rising = [{**each.means, "deep_share": np.tile(np.arange(6.0), (RESAMPLED, 1))}
                  for each in (long, other)]  # fmt: skip
        runs = (dataclasses.replace(each, means=means)
                for each, means in zip((long, other), rising, strict=True))  # fmt: skip
        (same,) = same_profile(Pair("a", "b", *runs))
        assert same.verdict == verdict


def test_the_order_of_parts_of_speech_is_compared_by_rank():
    plain = summary_of()
    same, opposite = (
        [c for c in claims({"a": dataclasses.replace(plain, tag_means=TAGS),
                            "b": dataclasses.replace(plain, tag_means=other)}, plain)
         if c.source == "a, b"]
        for other in (TAGS**3, 1 - TAGS)
    )  # fmt: skip
    assert (same[0].value, same[0].verdict) == (pytest.approx(1), "holds")
    assert (opposite[0].value, opposite[0].verdict) == (pytest.approx(-1), "fails")


def test_a_tag_that_a_resample_lacks_is_not_ranked_in_it():
    missing = TAGS.copy()
    missing[1:5, 4] = np.nan  # the deepest one, in four of ten resamples
    plain = summary_of()
    sources = {name: dataclasses.replace(plain, tag_means=means)
               for name, means in (("a", TAGS), ("b", missing))}  # fmt: skip
    (claim,) = [c for c in claims(sources, plain) if c.source == "a, b"]
    assert claim.value == pytest.approx(1)
    assert np.isnan([claim.low, claim.high]).all()  # too many resamples say nothing


def test_two_runs_share_a_profile_where_their_layers_go_together():
    one = summary_of(deep_share=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    like, unlike = (summary_of(deep_share=list(0.3 + sign * np.arange(6) / 20)) for sign in (1, -1))
    (same,), (opposite,) = (
        list(same_profile(Pair("a", "b", one, other))) for other in (like, unlike)
    )
    assert (same.verdict, opposite.verdict) == ("holds", "fails")
