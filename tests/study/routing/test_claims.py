"""Claims: the numbers they set against a bound and an untrained model, and what they conclude."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest

from dualpath_cli.study.parts_of_speech import measured
from dualpath_cli.study.routing.claims import (
    LEAST_LAYERS,
    Claim,
    claim_table,
    claims,
    decided,
    number_of_tests,
    same_profile,
)
from dualpath_cli.study.routing.readouts import BEFORE
from dualpath_cli.study.routing.summary import Summary
from tests.study.routing.test_summary import RESAMPLED, TAGS, summary_of

NAN = float("nan")


def judged(
    sources: Mapping[str, Summary], untrained: Summary | None = None
) -> dict[tuple[str, str], Claim]:
    """The claims of sources by number and source; the untrained model is flat unless given."""
    flat = summary_of(deep_share=0.5, gate_difference=0.05, cosine=0.6)
    if untrained is None:
        untrained = dataclasses.replace(flat, tag_means=TAGS * 0 + 0.5)
        first = next(iter(sources.values()))
        untrained = dataclasses.replace(untrained, aligned=np.where(first.aligned > -1, 0.5, NAN))
    nulls = dict.fromkeys(sources, untrained)
    return {(claim.number, claim.source): claim for claim in claims(sources, nulls)}


def verdicts(summary: Summary, untrained: Summary | None = None) -> dict[str, str]:
    return {n: claim.verdict for (n, _), claim in judged({"a": summary}, untrained).items()}


# Verdicts


@pytest.mark.parametrize(
    ("value", "untrained", "p", "p_untrained", "verdict"),
    [
        (0.2, 0.0, 0.01, 0.01, "holds"),
        (0.2, 0.0, 0.01, 0.06, "as untrained"),  # no further than the untrained model for certain
        (0.2, 0.3, 0.01, 0.01, "as untrained"),  # and here it was further before training
        (0.2, 0.0, 0.06, 0.01, "open"),
        (-0.2, -0.3, 0.01, 0.01, "fails"),
        (-0.2, 0.0, 0.06, 0.01, "open"),
        (0.2, NAN, 0.01, NAN, "as untrained"),
        (NAN, NAN, NAN, NAN, "open"),
    ],
)
@pytest.mark.parametrize("above", [True, False])
def test_a_claim_holds_beyond_the_bound_and_beyond_the_untrained_model(
    value, untrained, p, p_untrained, verdict, above
):
    side = 1 if above else -1
    claim = Claim(
        "", "", "", side * value, NAN, NAN, 0.0, above, side * untrained, NAN, NAN, p, p_untrained
    )
    assert claim.verdict == verdict


def test_the_tests_of_a_run_are_one_family():
    """Two of three certain tests are so after the correction by Holm for three as well."""
    one = Claim("", "", "", 1.0, NAN, NAN, 0.0, True, 0.0, 0.02, 0.001)
    other = Claim("", "", "", 1.0, NAN, NAN, 0.0, True, 0.0, 0.04, NAN)
    first, second = decided([one, other])
    assert (first.p_untrained_holm, first.p_holm, second.p_holm) == (0.003, 0.04, 0.04)
    assert decided([one, other, other])[0].p_holm == pytest.approx(0.06)
    assert number_of_tests([one, other]) == 3


def test_sources_that_differ_are_mixed():
    one = Claim("", "a", "", 1.0, NAN, NAN, 0.0, True, 0.0, NAN, NAN, 0.01, 0.01)
    like, unlike = (dataclasses.replace(one, source="b", p_holm=p) for p in (0.01, 0.5))
    assert "holds" in claim_table([one, like]).rows[0]
    assert "mixed (holds: a; open: b)" in claim_table([one, unlike]).rows[0]


# One source


def test_the_profile_of_the_paper_holds_and_its_reverse_fails():
    profile = {"deep share, layers 1 to 3": -1, "deep share, layer 5": 1,
               "deep share, layer 5 - layers 1 to 3": 1,
               "deep share, layers 1 to 3 - that of the others": -1}  # fmt: skip
    paper = summary_of(deep_share=[0.45, 0.4, 0.3, 0.3, 0.5, 0.6], cosine=0.1)
    reverse = summary_of(deep_share=[0.4, 0.6, 0.7, 0.7, 0.4, 0.3], cosine=0.9)
    for number in (*profile, "cosine, layers 1 to 3"):
        assert (number, verdicts(paper)[number]) == (number, "holds")
        assert (number, verdicts(reverse)[number]) == (number, "fails")


def test_what_the_untrained_model_has_as_well_was_not_learned():
    """The cosine of two random updates in many dimensions is near zero, and training raises it."""
    trained, untrained = (summary_of(cosine=cosine) for cosine in (0.13, 0.0))
    assert verdicts(trained, untrained)["cosine, layers 1 to 3"] == "as untrained"
    assert verdicts(trained)["cosine, layers 1 to 3"] == "holds"


def test_gates_that_part_with_depth_polarise_the_last_layer_left_out():
    growing = summary_of(gate_difference=[0.1, 0.1, 0.2, 0.3, 0.5, 0.0], only_deep=[0] * 4 + [1, 0])
    found = verdicts(growing)
    assert found["|g_d - g_w|, layer 4 - layers 0 to 1"] == "holds"
    corners = "tokens with gates above 0.9 and below 0.1, layer 4 - layers 0 to 1"
    assert found[corners] == "holds"
    level = verdicts(summary_of(gate_difference=0.2, only_deep=0.0, only_wide=0.0))
    assert level["|g_d - g_w|, layer 4 - layers 0 to 1"] == level[corners] == "open"
    # Followed by a layer without gates, the last one that has them has a scale, too.
    inner = dataclasses.replace(growing, n_layers=7)
    assert "|g_d - g_w|, layers 4 to 5 - layers 0 to 1" in verdicts(inner)


def test_classes_lean_to_the_path_that_the_paper_names():
    deeper, level = (
        dataclasses.replace(
            summary_of(),
            class_differences={
                chosen: np.full((RESAMPLED, 6), difference) for chosen in measured()
            },
        )
        for difference in (0.1, 0.0)
    )
    found = {
        claim.claim: claim.verdict
        for claim in claims({"a": deeper}, {"a": level})
        if " lean" in claim.claim
    }
    assert found == {
        "arithmetic (NUM, SYM) leans deep": "holds",
        "SPACE, PUNCT, SYM lean deep": "holds",
        "ADJ, ADV, PART, PRON, VERB lean wide": "fails",
        "function words (closed classes) lean wide": "fails",
    }


def test_too_few_documents_decide_nothing():
    few = dataclasses.replace(summary_of(deep_share=0.2), clusters=9)
    assert set(verdicts(few).values()) == {"open"}


# Two sources


def anchored(shift: float) -> tuple[Summary, Summary]:
    """Two sources, the first deeper by `shift` after the anchor in the late layers."""
    one = summary_of()
    shares = np.full(one.aligned.shape, np.nan)
    shares[:, BEFORE - 2 : BEFORE + 6] = 0.4
    deeper = shares.copy()
    deeper[:, BEFORE + 1 : BEFORE + 4, 4:] += shift
    deeper[:, BEFORE - 2 : BEFORE + 1] -= 0.9  # before it, which does not count
    deeper[:, BEFORE + 4 :] = np.nan
    return dataclasses.replace(one, aligned=deeper), dataclasses.replace(one, aligned=shares)


def test_two_sources_are_compared_after_the_anchor_in_the_late_layers():
    gsm8k, arc = anchored(0.2)
    number = "mean of 3 positions' deep share, gsm8k - arc"
    for sources in ({"gsm8k": gsm8k, "arc": arc}, {"arc": arc, "gsm8k": gsm8k}):
        nulls = dict(zip(("gsm8k", "arc"), anchored(0.0), strict=True))
        late, every = [c for c in claims(sources, nulls) if c.source == "gsm8k, arc"]
        assert late.number == every.number == number
        assert ("in late layers" in late.claim, "in all layers" in every.claim) == (True, True)
        assert (late.value, every.value) == (pytest.approx(0.2), pytest.approx(0.2 * 2 / 6))
        assert (late.untrained, late.verdict, every.verdict) == (0, "holds", "holds")
    # The paper says nothing of two sources that are both no reasoning task.
    assert not [c for c in judged({"a": gsm8k, "b": arc}).values() if "anchor" in c.claim]


def test_a_pair_knows_no_more_than_its_shorter_source():
    gsm8k, arc = anchored(0.2)
    nulls = dict(zip(("gsm8k", "arc"), anchored(0.0), strict=True))
    short = dataclasses.replace(arc, clusters=9)
    late = [c for c in claims({"gsm8k": gsm8k, "arc": short}, nulls) if "anchor" in c.claim]
    assert [claim.verdict for claim in late] == ["open", "open"]


def ordered(one: np.ndarray, other: np.ndarray) -> Claim:
    sources = {name: dataclasses.replace(summary_of(), tag_means=means)
               for name, means in (("a", one), ("b", other))}  # fmt: skip
    return judged(sources)["rank correlation", "a, b"]


def test_the_order_of_parts_of_speech_is_compared_by_rank():
    same, opposite = (ordered(TAGS, other) for other in (TAGS**3, 1 - TAGS))
    assert (same.value, opposite.value) == (pytest.approx(1), pytest.approx(-1))
    # Of the 120 orders of five tags two agree as well or as badly.
    assert (same.p, opposite.p) == (pytest.approx(2 / 120), pytest.approx(2 / 120))


def test_a_tag_that_a_resample_lacks_is_not_ranked_in_it():
    missing = TAGS.copy()
    missing[1:5, 4] = np.nan  # the deepest one, in too many resamples
    claim = ordered(TAGS, missing)
    assert claim.value == pytest.approx(1)
    assert np.isnan([claim.low, claim.high]).all()


# Two runs


def test_two_runs_share_a_profile_where_their_layers_go_together():
    rising = list(np.linspace(0.1, 0.6, LEAST_LAYERS))
    one, like, unlike = (
        summary_of(LEAST_LAYERS, deep_share=profile)
        for profile in (rising, list(np.square(rising)), rising[::-1])
    )
    flat = summary_of(LEAST_LAYERS, deep_share=list(np.resize([0.5, 0.51], LEAST_LAYERS)))
    (same,), (opposite,) = (
        same_profile("a, b", (one, other), (flat, one)) for other in (like, unlike)
    )
    assert (same.source, same.value > 0.9, opposite.value) == ("a, b", True, pytest.approx(-1))
    assert same.p < 0.01
    fewer = summary_of(LEAST_LAYERS - 1, deep_share=rising[1:])
    assert same_profile("a, b", (fewer, fewer), (fewer, fewer)) == []
