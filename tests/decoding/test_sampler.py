"""Sampling: values are those of transformers, draws have these frequencies, and are seeded."""

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dualpath_cli.decoding.sampling import Sampling
from dualpath_cli.decoding.writing import Sampler
from dualpath_cli.errors import RunFailed

IDS = 23


def generators(count: int, first: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(first + n) for n in range(count)]


@pytest.fixture(scope="module")
def gpt2() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=IDS, n_positions=16, n_embd=8, n_layer=1, n_head=1, initializer_range=2.0,
        bos_token_id=0, eos_token_id=0, pad_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config).eval()


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0.2, 3),
        "top_k": st.integers(0, 30),
        "top_p": st.floats(0.05, 1),
        "min_p": st.floats(0, 1),
        "repetition_penalty": st.floats(0.5, 2),
    },
)


@settings(max_examples=60)
@given(options=OPTIONS, seed=st.integers(0, 99))
@example(options={"top_p": 1e-9}, seed=0)  # less than rounding: the likeliest stays
def test_probabilities_are_those_that_transformers_draws_from(gpt2, options, seed):
    """What its `generate` makes of its own logits: all options, in the order that it takes."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(IDS, (3, 5), generator=draw)
    theirs = gpt2.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=True, max_new_tokens=1,
        return_dict_in_generate=True, output_logits=True, output_scores=True,
        **{"top_k": 0, "top_p": 1.0, **options},
    )  # fmt: skip
    probs = Sampler(Sampling(**options), IDS).probabilities(theirs.logits[0], ids.tolist())
    torch.testing.assert_close(probs, theirs.scores[0].softmax(-1), atol=1e-6, rtol=1e-5)


def test_greedy_takes_the_likeliest_after_the_penalty():
    logits = torch.tensor([[1.0, 3.0, 2.0], [-1.0, -3.0, -1.5]])
    plain = Sampler(Sampling(greedy=True), 3).probabilities(logits, [[1], [0]])
    assert plain.tolist() == [[0, 1, 0], [1, 0, 0]]
    sampling = Sampling(greedy=True, repetition_penalty=2.0)
    penalized = Sampler(sampling, 3).probabilities(logits, [[1, 1], [0]])
    assert penalized.tolist() == [[0, 0, 1], [0, 0, 1]]


@pytest.mark.parametrize("greedy", [False, True])
def test_ids_that_the_tokenizer_lacks_are_never_drawn(greedy):
    logits = torch.zeros(50, 8)
    logits[:, 5:] = 100.0
    sampler = Sampler(Sampling(greedy=greedy, top_k=6, top_p=0.9), 5)
    probs = sampler.probabilities(logits, [[7]] * 50)
    assert probs.shape == logits.shape
    assert (probs[:, 5:] == 0).all()
    assert sampler.draw(probs, generators(50)).max() < 5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_probabilities_are_never_below_float32(dtype):
    probs = Sampler(Sampling(), 4).probabilities(torch.zeros(1, 4, dtype=dtype), [[0]])
    assert probs.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_draws_have_the_frequencies_of_their_probabilities():
    probs = torch.tensor([0.0, 0.5, 0.2, 0.0, 0.29, 0.01, 0.0])
    count = 20_000
    ids = Sampler(Sampling(), 7).draw(probs.expand(count, -1), generators(1) * count)
    found = ids.bincount(minlength=7) / count
    assert (found[probs == 0] == 0).all()
    deviation = (probs * (1 - probs) / count).sqrt()
    assert ((found - probs).abs() <= 4 * deviation).all()


def test_a_draw_depends_on_its_own_generator_alone():
    probs = torch.rand(5, IDS, generator=torch.Generator().manual_seed(1))
    sampler = Sampler(Sampling(), IDS)
    together = sampler.draw(probs, generators(5))
    alone = [sampler.draw(probs[n : n + 1], generators(1, first=n)) for n in range(5)]
    assert together.tolist() == torch.cat(alone).tolist()
    assert len(set(together.tolist())) > 1


@pytest.mark.parametrize("greedy", [False, True])
def test_a_model_that_gives_no_numbers_fails(greedy):
    sampler = Sampler(Sampling(greedy=greedy), 3)
    probs = sampler.probabilities(torch.tensor([[0.0, torch.nan, 1.0]]), [[0]])
    with pytest.raises(RunFailed, match="gives no numbers"):
        sampler.draw(probs, generators(1))
