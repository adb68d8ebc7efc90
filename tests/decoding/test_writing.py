"""Writing: samples, text as it comes, batches by a small float64 model, drafts."""

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dualpath_cli.base.errors import RunFailed
from dualpath_cli.decoding import writing
from dualpath_cli.decoding.decoder import Decoder
from dualpath_cli.decoding.options import Sampling
from dualpath_cli.decoding.writing import (
    DraftCounts,
    Limits,
    NewToken,
    Sampler,
    TextStream,
    draft_of,
    generate_batch,
    generate_with_drafts,
    verify_draft,
)
from dualpath_cli.model import DualPathLM
from dualpath_cli.run.weights import round_weights
from dualpath_cli.spec.intervention import Intervention
from tests.conftest import Lazy, examples
from tests.model import reference
from tests.model.reference import random_tokens
from tests.model.small_models import ALL_KINDS, small, with_weights

stats = Lazy("scipy.stats")

GPT2_IDS = 23


def generators(count: int, first: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(first + n) for n in range(count)]


@pytest.fixture(scope="module")
def gpt2() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=GPT2_IDS,
        n_positions=16,
        n_embd=8,
        n_layer=1,
        n_head=1,
        initializer_range=2.0,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config).eval()


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0.2, 3),
        "top_k": st.integers(0, 30),
        "top_p": st.floats(0.05, 1),
    },
)


@settings(max_examples=60)
@given(options=OPTIONS, seed=st.integers(0, 99))
@example(options={"top_p": 1e-9}, seed=0)  # less than rounding: the likeliest stays
def test_probabilities_are_those_that_transformers_draws_from(gpt2, options, seed):
    """What its `generate` makes of its own logits: all options, in the order that it
    takes."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(GPT2_IDS, (3, 5), generator=draw)
    theirs = gpt2.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        max_new_tokens=1,
        return_dict_in_generate=True,
        output_logits=True,
        output_scores=True,
        **{"top_k": 0, "top_p": 1.0, **options},
    )
    probs = Sampler(Sampling(**options), GPT2_IDS).probabilities(theirs.logits[0])
    torch.testing.assert_close(
        probs, theirs.scores[0].softmax(-1), atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize("greedy", [False, True])
def test_ids_that_the_tokenizer_lacks_are_never_drawn(greedy):
    logits = torch.zeros(50, 8)
    logits[:, 5:] = 100.0
    sampler = Sampler(Sampling(greedy=greedy, top_k=6, top_p=0.9), 5)
    probs = sampler.probabilities(logits)
    assert probs.shape == logits.shape
    assert (probs[:, 5:] == 0).all()
    assert sampler.draw(probs, generators(50)).max() < 5


def test_draws_have_the_frequencies_of_their_probabilities():
    probs = torch.tensor([0.0, 0.5, 0.2, 0.0, 0.29, 0.01, 0.0])
    ids = Sampler(Sampling(), 7).draw(probs.expand(20_000, -1), generators(1) * 20_000)
    found = ids.bincount(minlength=7) / 20_000
    assert ((found - probs).abs() <= 4 * (probs * (1 - probs) / 20_000).sqrt()).all()


@pytest.mark.parametrize("greedy", [False, True])
def test_a_model_that_gives_no_numbers_fails(greedy):
    sampler = Sampler(Sampling(greedy=greedy), 3)
    probs = sampler.probabilities(torch.tensor([[0.0, torch.nan, 1.0]]))
    with pytest.raises(RunFailed, match="logits are nan or infinite"):
        sampler.draw(probs, generators(1))


PARTS = [
    b"a",
    b"b",
    b".",
    b"ab.",
    b"a.b",
    "é".encode()[:1],
    "é".encode()[1:],
    "日".encode()[:2],
    "日".encode()[2:],
    b"\xff",
    "日é".encode(),
]
"""Of ids: texts, parts of characters, and a byte that is of none."""
STOPS = st.lists(st.text("ab.é日", min_size=1, max_size=4), max_size=3)
PARTS_OF_TEXT = st.lists(st.integers(0, len(PARTS) - 1), max_size=12)


def decoded(ids: list[int]) -> str:
    return b"".join(PARTS[id] for id in ids).decode("utf-8", errors="replace")


def until_stop(ids: list[int], stops: list[str]) -> tuple[str, bool]:
    """The text before the first stop, looked for anew after each id in all that there
    is."""
    for count in range(1, len(ids) + 1):
        text = decoded(ids[:count])
        places = [text.find(stop) for stop in stops if stop in text]
        if places:
            return text[: min(places)], True
    return decoded(ids), False


@given(PARTS_OF_TEXT, STOPS)
@example([0, 1, 0, 1, 2], ["abab.", "b."])
@example([5, 5, 6, 7], ["é"])
def test_the_pieces_add_up_to_the_text_before_the_first_stop(ids, stops):
    stream, pieces = TextStream(PARTS, stops), []
    for id in ids:
        pieces.append(stream.push(id))
        if stream.stopped:
            break
    pieces.append(stream.finish())
    assert ("".join(pieces), stream.stopped) == until_stop(ids, stops)


@given(PARTS_OF_TEXT, PARTS_OF_TEXT, STOPS)
def test_what_was_given_out_holds_whatever_follows(ids, later, stops):
    """The prefix is certain: neither half a character nor the beginning of a stop is in
    it."""
    stream = TextStream(PARTS, stops)
    given_out = "".join(stream.push(id) for id in ids)
    assert until_stop([*ids, *later], stops)[0].startswith(given_out)


def test_nothing_is_held_back_that_is_certain():
    stream = TextStream(PARTS, ["ab.ab"])
    pushed = [stream.push(id) for id in (0, 1, 1, 2, 5, 6, 3, 2)]
    assert pushed == ["", "", "abb", ".", "", "é", "", "ab.."]


CONFIG = small(**ALL_KINDS)
WEIGHTS = reference.random_weights(CONFIG, seed=0)
IDS = 15
"""Of a tokenizer that is smaller than the vocabulary of 17."""
EOT, NO_EOT = 3, -1
PROMPTS = [[3, 7, 1], [3], [3, 9, 9, 2, 5, 11, 4], [3, 14]]
VALUES = [bytes([97 + id]) for id in range(IDS)]


def pieces_of(
    prompts: list[list[int]],
    seeds: list[int],
    sampling: Sampling | None = None,
    change: Intervention | None = None,
    **limits: object,
) -> list[list[NewToken]]:
    """The pieces of each text."""
    model = with_weights(CONFIG, WEIGHTS)
    found: list[list[NewToken]] = [[] for _ in prompts]
    decoder = Decoder(model, change)
    for piece in generate_batch(
        decoder.next_logits,
        prompts,
        Sampler(sampling or Sampling(), IDS),
        [torch.Generator().manual_seed(seed) for seed in seeds],
        VALUES,
        Limits(**{"max_new_tokens": 8, "window": 16, "eot_id": NO_EOT, **limits}),
        decoder.select,
    ):
        found[piece.row].append(piece)
    return found


def ids_of(texts: list[list[NewToken]]) -> list[list[int]]:
    return [[piece.id for piece in pieces] for pieces in texts]


def test_what_fills_a_batch_up_changes_no_text_and_gives_none():
    """Also where half of the batch has ended, and only some are selected."""
    options = {"eot_id": EOT, "max_new_tokens": 12}
    whole = pieces_of(PROMPTS, [0, 1, 2, 3], **options)
    filled = pieces_of([*PROMPTS, [3], [3]], [0, 1, 2, 3], **options)
    assert len({len(pieces) for pieces in whole}) > 1, "they end at different steps"
    assert filled == [*whole, [], []]


def test_greedy_writing_is_what_the_equations_say():
    """An argmax at a time, the whole text read again for each."""
    written = ids_of(
        pieces_of(PROMPTS, [0] * 4, Sampling(greedy=True), max_new_tokens=5)
    )
    for prompt, new in zip(PROMPTS, written, strict=True):
        ids = list(prompt)
        for _ in range(5):
            logits = reference.sequence_logits(WEIGHTS, CONFIG, ids)[-1][:IDS]
            ids.append(int(logits.argmax()))
        assert new == ids[len(prompt) :]


@pytest.mark.parametrize(
    "change",
    [
        None,
        Intervention(loops=1, gates=(1.0, 0.2)),
        Intervention(halting=0.5),
        Intervention(halting=0.5, skip=0.5),
        Intervention(kv_slots=1),
    ],
    ids=lambda change: change and change.name,
)
@settings(max_examples=4)
@given(seeds=st.lists(st.integers(0, 2**40), min_size=4, max_size=4), eot=st.booleans())
def test_a_text_is_the_same_alone_and_in_any_batch(change, seeds, eot):
    """In float64, where rounding decides nothing: seeded draws after prompts of mixed
    lengths."""
    options = {"change": change, "eot_id": EOT if eot else NO_EOT}
    together = pieces_of(PROMPTS, seeds, **options)
    for n, prompt in enumerate(PROMPTS):
        alone = pieces_of([prompt], [seeds[n]], **options)
        assert ids_of(alone) == [ids_of(together)[n]]
    backwards = pieces_of(PROMPTS[::-1], seeds[::-1], **options)
    assert ids_of(backwards)[::-1] == ids_of(together)


def test_a_window_ends_a_text_that_fills_it():
    """16 positions: the last id is not read, so that it may be one more."""
    texts = pieces_of(PROMPTS, [1, 2, 3, 4], max_new_tokens=14)
    assert [len(pieces) for pieces in texts] == [14, 14, 10, 14]
    assert [pieces[-1].end for pieces in texts] == [
        "length",
        "length",
        "window",
        "length",
    ]
    assert (
        Limits(14, 16, NO_EOT).positions([len(prompt) for prompt in PROMPTS]) == 7 + 13
    )
    full = pieces_of([[3] * 16], [1])
    assert [[piece.end for piece in pieces] for pieces in full] == [["window"]]


def test_half_of_a_batch_is_dropped_when_it_has_ended():
    """Of four texts with one, two, five and six ids, by which a pass is as wide as is
    left."""
    model, widths = with_weights(CONFIG, WEIGHTS), []
    decoder = Decoder(model)

    def next_logits(ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        widths.append(len(ids_BT))
        return decoder.next_logits(ids_BT, mask_BT)

    limits = [16 + 1 - new for new in (1, 2, 5, 6)]
    prompts = [[3] * length for length in limits]  # the window ends them
    pieces = generate_batch(
        next_logits,
        prompts,
        Sampler(Sampling(), IDS),
        [torch.Generator()] * 4,
        VALUES,
        Limits(99, 16, NO_EOT),
        decoder.select,
    )
    assert sorted(piece.row for piece in pieces) == [0, *[1] * 2, *[2] * 5, *[3] * 6]
    assert widths == [4, 4, 2, 2, 2, 1]


def test_end_of_text_and_stops_are_not_written_and_what_comes_after_does_not_matter():
    """The row of a text that has ended is read on, and may give no numbers."""

    def next_logits(ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        logits_BV = torch.zeros(len(ids_BT), IDS)
        logits_BV[0] = -torch.inf if ids_BT.shape[1] == 1 else torch.arange(IDS) * 99.0
        logits_BV[2, 0] = 99.0
        return logits_BV

    pieces = generate_batch(
        next_logits,
        [[1], [1, 2], [1]],
        Sampler(Sampling(), IDS),
        [torch.Generator()] * 3,
        VALUES,
        Limits(4, 16, IDS - 1, ("aa",)),
    )
    ended = [(piece.row, piece.text, piece.end) for piece in pieces if piece.row != 1]
    assert ended == [(0, "", "eot"), (2, "", None), (2, "", "stop")]


@pytest.mark.parametrize("tied", [False, True])
def test_rounded_weights_give_what_autocast_gives(tied):
    """Bit for bit, in half the memory; the embedding, the router and the gates stay as
    they are."""
    config = small(**ALL_KINDS, tie_embeddings=tied)
    tokens = random_tokens(config, batch=2, length=6)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        wanted = DualPathLM(config, seed=0)(tokens)
    model = DualPathLM(config, seed=0)
    round_weights(model, torch.bfloat16)
    assert torch.equal(Decoder(model, autocast=torch.bfloat16).logits(tokens), wanted)
    types = {name: weight.dtype for name, weight in model.named_parameters()}
    assert types["blocks.0.deep.sublayer.ffn.up_proj.weight"] == torch.bfloat16
    kept = ("embed.weight", "blocks.0.gate.proj.weight", "blocks.0.deep.router.weight")
    assert {types[name] for name in kept} == {torch.float32}


# Drafts change how a text comes about, and not what it is

MODEL = with_weights(small(n_layers=1))
DRAFT = draft_of(MODEL.config)
OF_DOCUMENTS = with_weights(small(n_layers=1, document_start=3))


def drafted(
    prompt: list[int],
    sampling: Sampling,
    limits: Limits,
    length: int,
    seed: int = 0,
    change: Intervention | None = None,
    model: DualPathLM = MODEL,
    draft: Intervention = DRAFT,
) -> tuple[list[NewToken], DraftCounts]:
    """The pieces of a text that is written by drafts, and how these fared."""
    decoder, drafts = Decoder(model, change, draft=draft), DraftCounts()
    decoder.begin(limits.positions([len(prompt)]))
    generator = torch.Generator().manual_seed(seed)
    pieces = generate_with_drafts(
        decoder,
        prompt,
        Sampler(sampling, IDS),
        generator,
        VALUES,
        limits,
        length,
        drafts,
    )
    return list(pieces), drafts


def plain(
    prompt: list[int],
    sampling: Sampling,
    limits: Limits,
    change: Intervention | None = None,
    model: DualPathLM = MODEL,
) -> list[NewToken]:
    """The pieces of the same text without drafts."""
    decoder, generator = Decoder(model, change), torch.Generator().manual_seed(0)
    return list(
        generate_batch(
            decoder.next_logits,
            [prompt],
            Sampler(sampling, IDS),
            [generator],
            VALUES,
            limits,
        )
    )


@pytest.mark.parametrize(
    ("changes", "draft"),
    [
        ({}, Intervention(loops=1)),
        ({"core": [0, 1], "core_loops": 3}, Intervention(loops=1, core_loops=1)),
        (
            {"core": [0, 1], "core_loops": 3, "block": "wide"},
            Intervention(core_loops=1),
        ),
    ],
)
def test_a_draft_runs_every_loop_once(changes, draft):
    config = small(n_layers=2, gain_init=0.0, init_std=0.3, **changes)
    assert draft_of(config) == draft
    assert draft.problem(config) is None
    model = DualPathLM(config, seed=0).double()
    limits = Limits(6, 24, NO_EOT)
    greedy = Sampling(greedy=True)
    expected = plain([1, 2], greedy, limits, model=model)
    pieces, counts = drafted([1, 2], greedy, limits, 3, model=model, draft=draft)
    assert [piece.id for piece in pieces] == [piece.id for piece in expected]
    assert counts.ids > 0


@settings(max_examples=examples(40))
@given(
    prompt=st.lists(st.integers(0, IDS - 1), min_size=1, max_size=12),
    length=st.integers(1, 7),
    most=st.integers(1, 9),
    eot=st.sampled_from([NO_EOT, 2, 5, 9]),
    stops=st.sampled_from([(), ("a",), ("gh", "dd")]),
    change=st.sampled_from(
        [None, Intervention(halting=0.5), Intervention(loops=2, skip=0.6)]
    ),
)
def test_the_likeliest_text_is_the_same_to_its_end(
    prompt, length, most, eot, stops, change
):
    sampling, limits = Sampling(greedy=True), Limits(most, 16, eot, stops)
    for model in (MODEL, OF_DOCUMENTS):
        pieces, _ = drafted(
            prompt, sampling, limits, length, change=change, model=model
        )
        assert pieces == plain(prompt, sampling, limits, change, model)


def test_some_drafts_are_accepted_and_some_are_not():
    """Or the tests here would be of one case alone."""
    fared = DraftCounts()
    for seed in range(20):
        _, drafts = drafted([3, seed % IDS], Sampling(), Limits(9, 16, NO_EOT), 3, seed)
        fared.ids += drafts.ids
        fared.accepted += drafts.accepted
    assert 0.1 < fared.accepted / fared.ids < 0.9


def distribution(prompt: list[int], sampling: Sampling) -> dict[tuple[int, int], float]:
    """What the first two ids of a text are by the model's own probabilities, read as a
    whole."""
    sampler = Sampler(sampling, IDS)

    def after(ids: list[int]) -> list[float]:
        with torch.no_grad():
            logits_1V = MODEL(torch.tensor([ids]))[:, -1]
        return sampler.probabilities(logits_1V)[0, :IDS].tolist()

    return {
        (first, second): p * q
        for first, p in enumerate(after(prompt))
        if p > 0
        for second, q in enumerate(after([*prompt, first]))
        if q > 0
    }


def p_value(
    counts: Counter[tuple[int, int]], expected: dict[tuple[int, int], float]
) -> float:
    """Of a chi-square test; pairs of which fewer than five are expected count as
    one."""
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
    """What is wrong: an id that is not kept is drawn from p instead of max(0, p -
    q)."""
    kept, drawn = verify_draft(drafted, q_NV, p_NV, sampler, generator)
    if kept < len(drafted):
        drawn = int(sampler.draw(p_NV[kept : kept + 1], [generator]))
    return kept, drawn


@pytest.mark.parametrize(
    ("length", "texts"), [pytest.param(1, 600, marks=pytest.mark.slow), (2, 300)]
)
def test_sampled_texts_are_distributed_as_without_drafts(length, texts, monkeypatch):
    """Pairs of ids, the second of which comes from the same draft, the next one, or
    neither."""
    prompt, sampling, limits = (
        [3, 7, 1],
        Sampling(top_k=4),
        Limits(1 + length, 16, NO_EOT),
    )

    def p_of_pairs() -> float:
        written = (
            drafted(prompt, sampling, limits, length, seed)[0] for seed in range(texts)
        )
        counts = Counter((pieces[0].id, pieces[1].id) for pieces in written)
        return p_value(counts, distribution(prompt, sampling))

    assert p_of_pairs() > 0.001
    monkeypatch.setattr(writing, "verify_draft", redrawn_from_the_whole)
    assert p_of_pairs() < 1e-6  # it would show
