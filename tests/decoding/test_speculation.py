"""Drafts change how a text comes about, and not what it is."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath_cli.decoding import writing
from dualpath_cli.decoding.decoder import Decoder
from dualpath_cli.decoding.sampling import Sampling
from dualpath_cli.decoding.writing import (
    DRAFT,
    Addition,
    Drafts,
    Limits,
    Sampler,
    verified,
    write_on,
    write_on_drafts,
)
from dualpath_cli.model import DualPathLM
from dualpath_cli.spec.intervention import Intervention
from tests.base.lazy import Lazy
from tests.model.small_models import small, with_weights

stats = Lazy("scipy.stats")

IDS = 15
CONFIG = small(n_layers=1, max_seq_len=16)
MODEL = with_weights(CONFIG)
OF_DOCUMENTS = with_weights(replace(CONFIG, document_start=3))
VALUES = [bytes([97 + id]) for id in range(IDS)]
several = settings(max_examples=40, derandomize=True, database=None, deadline=None)


def drafted(
    prompt: list[int],
    sampling: Sampling,
    limits: Limits,
    length: int,
    seed: int = 0,
    change: Intervention | None = None,
    model: DualPathLM = MODEL,
) -> tuple[list[Addition], Drafts]:
    """The pieces of a text that is written by drafts, and how these fared."""
    decoder, drafts = Decoder(model, change, draft=DRAFT), Drafts()
    decoder.begin(limits.positions([len(prompt)]))
    generator = torch.Generator().manual_seed(seed)
    pieces = write_on_drafts(
        decoder, prompt, Sampler(sampling, IDS), generator, VALUES, limits, length, drafts
    )
    return list(pieces), drafts


def plain(
    prompt: list[int],
    sampling: Sampling,
    limits: Limits,
    change: Intervention | None = None,
    model: DualPathLM = MODEL,
) -> list[Addition]:
    """The pieces of the same text without drafts."""
    decoder, generator = Decoder(model, change), torch.Generator().manual_seed(0)
    return list(
        write_on(decoder.next_logits, [prompt], Sampler(sampling, IDS), [generator], VALUES, limits)
    )


@several
@given(
    prompt=st.lists(st.integers(0, IDS - 1), min_size=1, max_size=12),
    length=st.integers(1, 7),
    most=st.integers(1, 9),
    eot=st.sampled_from([None, 2, 5, 9]),
    stops=st.sampled_from([(), ("a",), ("gh", "dd")]),
    penalty=st.sampled_from([1.0, 1.5]),
    change=st.sampled_from([None, Intervention(halting=0.5), Intervention(loops=2, skip=0.6)]),
)
def test_the_likeliest_text_is_the_same_to_its_end(
    prompt, length, most, eot, stops, penalty, change
):
    sampling = Sampling(greedy=True, repetition_penalty=penalty)
    limits = Limits(most, 16, eot, stops)
    for model in (MODEL, OF_DOCUMENTS):
        pieces, _ = drafted(prompt, sampling, limits, length, change=change, model=model)
        assert pieces == plain(prompt, sampling, limits, change, model)


def test_some_drafts_are_accepted_and_some_are_not():
    """Or the tests here would be of one case alone."""
    fared = Drafts()
    for seed in range(20):
        _, drafts = drafted([3, seed % IDS], Sampling(), Limits(9, 16, None), 3, seed)
        fared.ids += drafts.ids
        fared.accepted += drafts.accepted
    assert 0.1 < fared.accepted / fared.ids < 0.9


def distribution(prompt: list[int], sampling: Sampling) -> dict[tuple[int, int], float]:
    """What the first two ids of a text are by the model's own probabilities, read as a whole."""
    sampler = Sampler(sampling, IDS)

    def after(ids: list[int]) -> list[float]:
        with torch.no_grad():
            logits_1V = MODEL(torch.tensor([ids]))[:, -1]
        return sampler.probabilities(logits_1V, [ids])[0, :IDS].tolist()

    return {
        (first, second): p * q
        for first, p in enumerate(after(prompt))
        if p > 0
        for second, q in enumerate(after([*prompt, first]))
        if q > 0
    }


def p_value(counts: Counter[tuple[int, int]], expected: dict[tuple[int, int], float]) -> float:
    """Of a chi-square test; pairs of which fewer than five are expected count as one."""
    total = sum(counts.values())
    assert set(counts) <= set(expected)
    often = [pair for pair, p in expected.items() if p * total >= 5]
    observed = [counts[pair] for pair in often]
    wanted = [expected[pair] * total for pair in often]
    rest = (total - sum(observed), total - sum(wanted))
    if rest[1] > 1e-9:
        observed, wanted = [*observed, rest[0]], [*wanted, rest[1]]
    return float(stats.chisquare(observed, wanted).pvalue)


def redrawn_from_the_whole(
    drafted: list[int],
    q_NV: list[torch.Tensor],
    p_NV: torch.Tensor,
    sampler: Sampler,
    generator: torch.Generator,
) -> tuple[int, int]:
    """What is wrong: an id that is not kept is drawn from p instead of max(0, p - q)."""
    kept, drawn = verified(drafted, q_NV, p_NV, sampler, generator)
    if kept < len(drafted):
        drawn = int(sampler.draw(p_NV[kept : kept + 1], [generator]))
    return kept, drawn


@pytest.mark.parametrize(
    ("length", "texts"), [pytest.param(1, 600, marks=pytest.mark.slow), (2, 300)]
)
def test_sampled_texts_are_distributed_as_without_drafts(length, texts, monkeypatch):
    """Pairs of ids, the second of which comes from the same draft, the next one, or neither."""
    prompt, sampling, limits = [3, 7, 1], Sampling(top_k=4), Limits(1 + length, 16, None)

    def p_of_pairs() -> float:
        written = (drafted(prompt, sampling, limits, length, seed)[0] for seed in range(texts))
        counts = Counter((pieces[0].id, pieces[1].id) for pieces in written)
        return p_value(counts, distribution(prompt, sampling))

    assert p_of_pairs() > 0.001
    monkeypatch.setattr(writing, "verified", redrawn_from_the_whole)
    assert p_of_pairs() < 1e-6  # it would show
