"""A model as the harness sees it, against the equations in float64, one request at a
time."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lm_eval.api.instance import Instance
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from dualpath_cli.base.errors import RunFailed, UserError
from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.evaluation.harness import HarnessModel, parts_of
from dualpath_cli.model import DualPathLM
from dualpath_cli.spec.intervention import Intervention
from tests.data.small_tokenizer import tokenizer_with
from tests.model import reference
from tests.model.small_models import ALL_KINDS, small

TOKENIZER = tokenizer_with(["h e", "l l", "he ll", "Ġ t"])
IDS = TOKENIZER.vocab_size
CONFIG = small(vocab_size=272, max_seq_len=64, loops=2, n_layers=1)
WEIGHTS = reference.random_weights(CONFIG, seed=0)
# nats: what float32 differs from float64 in a continuation of a few tokens
FLOAT32 = 2e-5


def harness(batch_size: int = 3, window: int = 64, **options: object) -> HarnessModel:
    model = reference.load(DualPathLM(CONFIG), WEIGHTS)
    return HarnessModel(model, TOKENIZER, window, batch_size, **options)


def log_probabilities(ids: list[int]) -> torch.Tensor:
    """(T, V) in float64 from the equations, the padded rows of the vocabulary left
    out."""
    logits = torch.stack(reference.sequence_logits(WEIGHTS, CONFIG, ids))[:, :IDS]
    return logits - logits.exp().sum(-1, keepdim=True).log()


def by_hand(context: list[int], continuation: list[int]) -> tuple[float, bool]:
    logs = log_probabilities([*context, *continuation][:-1])[-len(continuation) :]
    chosen = [float(logs[place, id]) for place, id in enumerate(continuation)]
    greedy = all(
        int(logs[place].argmax()) == id for place, id in enumerate(continuation)
    )
    return sum(chosen), greedy


def asked(kind: str, *arguments: tuple) -> list[Instance]:
    return [Instance(kind, {}, pair, 0) for pair in arguments]


def written(
    model: HarnessModel, prompts: list[str], most: int = 8, until: tuple = ()
) -> list[str]:
    options = {"until": list(until), "max_gen_toks": most}
    return model.generate_until(
        [Instance("generate_until", {}, (prompt, options), 0) for prompt in prompts]
    )


PROMPTS = ["the cell", "a", "hello hell, tell the tale"]
PAIRS = [
    ("the cell", " tells"),
    ("hell", " a shell"),
    ("Answer:", " hello there"),
    ("one two three four", " x"),
    ("trailing spaces  ", "move"),
    ("a" * 30, " hell" * 3),
    ("", "nothing before"),
    ("  ", "nothing but spaces before"),
]


def test_likelihoods_are_those_of_the_equations_in_float64():
    answers = harness().loglikelihood(asked("loglikelihood", *PAIRS))
    for (context, continuation), (loglikelihood, greedy) in zip(
        PAIRS, answers, strict=True
    ):
        before = TOKENIZER.encode(context.rstrip()) or [TOKENIZER.eot_id]
        whole = TOKENIZER.encode(context + continuation)
        rest = whole[len(before) :] if context.strip() else whole
        expected, written = by_hand(before, rest)
        assert loglikelihood == pytest.approx(expected, abs=FLOAT32)
        assert greedy == written


def test_padded_rows_of_the_vocabulary_get_no_probability_and_are_never_written():
    """They would take it all: their logits are made the largest."""
    model = reference.load(DualPathLM(CONFIG), WEIGHTS)
    with torch.no_grad():
        model.head.weight[IDS:] = 100 * model.head.weight[:1].sign()
    changed = HarnessModel(model, TOKENIZER, 64, 3)
    requests = asked("loglikelihood", *PAIRS)
    assert changed.loglikelihood(requests) == harness().loglikelihood(requests)
    states = torch.ones(IDS, CONFIG.d_model)
    logs, _ = changed._logs_and_greedy(states, torch.arange(IDS))
    assert written(changed, PROMPTS) == written(harness(), PROMPTS)
    assert math.fsum(logs.exp().tolist()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("continuation", ["l", ""])
def test_a_continuation_without_a_token_of_its_own_is_refused(continuation):
    """`hel` has two tokens and `hell` one: nothing is left for `l`."""
    with pytest.raises(UserError, match=rf"'{continuation}' after 'hel' has no token"):
        harness().loglikelihood(asked("loglikelihood", ("hel", continuation)))


def test_batches_and_parts_of_logits_change_likelihoods_by_rounding_alone(monkeypatch):
    requests = asked("loglikelihood", *PAIRS)
    alone = harness(1).loglikelihood(requests)
    monkeypatch.setattr("dualpath_cli.evaluation.harness.LOGITS_AT_ONCE", 2 * IDS)
    for batch_size in (2, 5, 9):
        found = harness(batch_size).loglikelihood(requests)
        assert [a for a, _ in found] == pytest.approx(
            [a for a, _ in alone], abs=FLOAT32
        )
        assert [greedy for _, greedy in found] == [greedy for _, greedy in alone]


def test_what_is_longer_than_the_window_loses_its_beginning_and_is_scored_in_parts():
    """A window and an id are read, of which the last one is no input."""
    encode = TOKENIZER.encode
    found = harness(window=5)._loglikelihood_tokens(
        [("", encode("ab"), encode("cdefghij"))]
    )
    expected = sum(
        by_hand(encode(a), encode(b))[0] for a, b in (("b", "cdefg"), ("efg", "hij"))
    )
    assert found[0][0] == pytest.approx(expected, abs=FLOAT32)


def test_the_likelihoods_of_texts_are_those_of_their_windows_and_of_an_empty_one_0():
    texts = ["hello", "", "the cell tells hell a tale of shells", "a"]
    parts = [parts_of([TOKENIZER.eot_id], TOKENIZER.encode(text), 8) for text in texts]
    expected = [
        sum(by_hand(read[:-n], read[-n:])[0] for read, n in text) for text in parts
    ]
    requests = asked("loglikelihood_rolling", *((text,) for text in texts))
    assert harness(window=8).loglikelihood_rolling(requests) == pytest.approx(
        expected, abs=1e-4
    )


@given(st.lists(st.integers(0, 99), max_size=40), st.integers(1, 12))
def test_texts_are_cut_as_the_harness_cuts_them(ids, window):
    theirs = map(make_disjoint_window, get_rolling_token_windows(ids, 100, window, 1))
    ours = list(parts_of([100], ids, window))
    assert [(read[:-scored], read[-scored:]) for read, scored in ours] == list(theirs)


@pytest.mark.parametrize(
    "change",
    [
        Intervention(loops=1),
        Intervention(gates=(1.0, 0.0)),
        Intervention(gates="shuffled"),
        Intervention(halting=0.9),
    ],
    ids=lambda change: change.name,
)
def test_an_intervention_is_that_of_the_model_whatever_the_batch(change):
    model = reference.load(DualPathLM(CONFIG), WEIGHTS)
    requests = [("", *map(TOKENIZER.encode, pair)) for pair in PAIRS[:4]]
    forced = harness()
    forced.force(change)
    answers = forced._loglikelihood_tokens(requests)
    plain = harness()._loglikelihood_tokens(requests)
    for (_, before, after), (actual, _), (learned, _) in zip(
        requests, answers, plain, strict=True
    ):
        with torch.no_grad():
            logits = forward(
                model, torch.tensor([[*before, *after][:-1]]), intervention=change
            )[0]
        logs = logits[-len(after) :, :IDS].double().log_softmax(-1)
        expected = sum(float(logs[place, id]) for place, id in enumerate(after))
        assert actual == pytest.approx(expected, abs=FLOAT32)
        assert abs(actual - learned) > 1e-3


@pytest.mark.parametrize(
    ("block", "change", "document_start"),
    [
        ({}, None, None),
        ({}, Intervention(gates="shuffled"), TOKENIZER.eot_id),
        (ALL_KINDS, Intervention(loops=3), None),
        (ALL_KINDS, Intervention(halting=0.5), TOKENIZER.eot_id),
    ],
)
def test_what_a_batch_begins_with_is_read_once_and_changes_nothing(
    block, change, document_start, monkeypatch
):
    config = dataclasses.replace(CONFIG, **block, document_start=document_start)
    weights = reference.random_weights(config, seed=1)
    start = [
        *TOKENIZER.encode("tell the tale"),
        TOKENIZER.eot_id,
        *TOKENIZER.encode(" of a shell"),
    ]
    requests = [
        ("", start + TOKENIZER.encode(end), TOKENIZER.encode(" hell, no"))
        for end in (" or two", "s", " and all the cells")
    ]
    answers, read = {}, {True: 0, False: 0}
    for cached in (True, False):
        model = reference.load(DualPathLM(config), weights)

        def count(model, inputs, cached=cached):
            read[cached] += inputs[0].numel()

        model.register_forward_pre_hook(count)
        if not cached:
            monkeypatch.setattr("dualpath_cli.evaluation.harness.LEAST_SHARED", 99)
        found = HarnessModel(model, TOKENIZER, 64, 3)
        found.force(change)
        answers[cached] = [log for log, _ in found._loglikelihood_tokens(requests)]
    assert answers[True] == pytest.approx(answers[False], abs=FLOAT32)
    shuffled = change is not None and change.gates == "shuffled"
    assert read[False] - read[True] == (0 if shuffled else 2 * len(start))


def test_bfloat16_rounds_matrix_products_and_not_sums():
    requests = asked("loglikelihood", *PAIRS)
    model = harness(autocast=torch.bfloat16)
    pairs = zip(
        model.loglikelihood(requests), harness().loglikelihood(requests), strict=True
    )
    differences = [
        abs(rounded - exact) / abs(exact) for (rounded, _), (exact, _) in pairs
    ]
    assert 1e-5 < max(differences) < 0.05
    logs, _ = model._logs_and_greedy(torch.ones(1, CONFIG.d_model), torch.tensor([3]))
    assert logs.dtype == torch.float64


def test_a_model_that_gives_no_numbers_fails():
    model = harness()
    torch.nn.init.constant_(model._model.norm.weight, math.nan)
    with pytest.raises(RunFailed, match="likelihoods are not finite"):
        model.loglikelihood(asked("loglikelihood", *PAIRS))


# What a model writes


def written_by_hand(prompt: str, count: int) -> str:
    """Greedy writing by the equations in float64, the whole text read again for each
    token."""
    ids = TOKENIZER.encode(prompt)
    for _ in range(count):
        ids.append(int(log_probabilities(ids)[-1].argmax()))
    return TOKENIZER.decode(ids[-count:])


def test_a_model_writes_what_the_equations_say():
    texts = [written_by_hand(prompt, 4) for prompt in PROMPTS]
    assert written(harness(), PROMPTS, most=4) == texts
    forced = harness()
    forced.force(Intervention(loops=1))
    assert written(forced, PROMPTS, most=4) != texts


def test_an_empty_prompt_is_end_of_text():
    after_end = TOKENIZER.decode(
        [int(log_probabilities([TOKENIZER.eot_id])[-1].argmax())]
    )
    assert written(harness(), [""], most=1) == [after_end]
    assert written(harness(), ["", *PROMPTS], most=1)[0] == after_end


def test_a_prompt_leaves_room_in_the_window():
    """16 ids: at most 6 new ones, so that 10 of the prompt are read."""
    prompt = "abcdefghijklmnopqrstuvwxyz"
    assert len(TOKENIZER.encode(prompt)) == 26
    cut = TOKENIZER.decode(TOKENIZER.encode(prompt)[-10:])
    assert written(harness(window=16), [prompt], most=6) == written(
        harness(), [cut], most=6
    )


def test_a_stop_ends_a_text_and_is_no_part_of_it():
    (whole,) = written(harness(), PROMPTS[:1])
    stop = whole[len(whole) // 2 :][:2]
    assert written(harness(), PROMPTS[:1], until=(stop, "never")) == [
        whole[: whole.find(stop)]
    ]
