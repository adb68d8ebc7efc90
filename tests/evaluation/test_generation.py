"""What lm-evaluation-harness gets to read: a batch writes what each prompt does alone."""

import pytest
import torch
from lm_eval.api.instance import Instance

from dualpath_cli.evaluation.harness_model import HarnessModel
from dualpath_cli.intervention import Intervention
from dualpath_cli.model import DualPathLM
from tests.evaluation.test_harness_model import CONFIG, IDS, TOKENIZER, WEIGHTS, harness
from tests.model import reference

PROMPTS = ["the cell", "a", "hello hell, tell the tale", "well then", "of shells"]


def written(model: HarnessModel, prompts: list[str], most: int = 8, until: tuple = ()) -> list[str]:
    options = {"until": list(until), "max_gen_toks": most}
    return model.generate_until(
        [Instance("generate_until", {}, (prompt, options), 0) for prompt in prompts]
    )


def by_hand(prompt: str, count: int) -> str:
    """Greedy writing by the equations in float64, the whole text read again for each token."""
    ids = TOKENIZER.encode(prompt)
    new: list[int] = []
    for _ in range(count):
        logits = reference.sequence_logits(WEIGHTS, CONFIG, [*ids, *new])[-1][:IDS]
        new.append(int(logits.argmax()))
        if new[-1] == TOKENIZER.eot_id:
            return TOKENIZER.decode(new[:-1])
    return TOKENIZER.decode(new)


def test_a_model_writes_what_the_equations_say():
    assert written(harness(), PROMPTS[:2], most=4) == [by_hand(p, 4) for p in PROMPTS[:2]]


@pytest.mark.parametrize(
    "change", [None, Intervention(loops=3), Intervention(halting=0.5)], ids=str
)
@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_batches_of_any_size_write_the_same_with_and_without_a_cache(
    batch_size: int, change: Intervention | None
):
    alone = [written(harness(1, cached=False, intervention=change), [p])[0] for p in PROMPTS]
    for cached in (True, False):
        model = harness(batch_size, cached=cached, intervention=change)
        assert written(model, PROMPTS) == alone
    assert len(set(alone)) > 1


def test_padded_rows_of_the_vocabulary_are_never_written():
    model = reference.load(DualPathLM(CONFIG), WEIGHTS)
    with torch.no_grad():
        model.head.weight[IDS:] = 100 * model.head.weight[:1].sign()
    assert written(HarnessModel(model, TOKENIZER, 64, 3), PROMPTS) == written(harness(), PROMPTS)


def test_a_prompt_leaves_room_in_the_window():
    """16 ids: at most 6 new ones, so that 10 of the prompt are read."""
    prompt = "abcdefghijklmnopqrstuvwxyz"
    assert len(TOKENIZER.encode(prompt)) == 26
    cut = TOKENIZER.decode(TOKENIZER.encode(prompt)[-10:])
    assert written(harness(window=16), [prompt], most=6) == written(harness(), [cut], most=6)


def test_a_stop_ends_a_text_and_is_no_part_of_it():
    (whole,) = written(harness(), PROMPTS[:1])
    stop = whole[len(whole) // 2 :][:2]
    assert written(harness(), PROMPTS[:1], until=(stop, "never")) == [whole[: whole.find(stop)]]
