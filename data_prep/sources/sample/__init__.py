"""The sample: a small English corpus of three kinds, equal each time.

Arithmetic with worked answers, questions about an invented world, and plain prose differ in what
they ask of a model, so that routing has something to separate. Held-out texts are new problems, new
tales, and known facts asked in other ways.
"""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Literal

from data_prep.sources.sample import arithmetic, facts, prose
from data_prep.sources.sample.world import distinct
from dualpath_cli.files import write_text
from dualpath_cli.text.byte_level import train
from dualpath_cli.text.tokenizer import Tokenizer

Kind = Literal["arithmetic", "facts", "prose"]
Split = Literal["train", "val"]
KINDS: list[Kind] = ["arithmetic", "facts", "prose"]

N_TRAIN = {"arithmetic": 6000, "prose": 1500}
N_VAL = {"arithmetic": 320, "prose": 80}

VOCAB_SIZE = 2048


def documents(split: Split, kind: Kind | None = None, n: int | None = None) -> Iterator[str]:
    """Yields the first `n` texts (all by default) of a split, of one kind or of all in a mix.

    The mix is in one seeded order. No held-out text occurs in the training texts.
    """
    if kind is None:
        texts = [text for member in KINDS for text in _texts(split, member)]
        Random("order").shuffle(texts)
    else:
        texts = _texts(split, kind)
    return islice(texts, n)


def write_val(folder: Path) -> None:
    """Writes the held-out texts as `arithmetic.jsonl`, `facts.jsonl` and `prose.jsonl`."""
    for kind in KINDS:
        lines = [json.dumps({"text": text}) + "\n" for text in documents("val", kind)]
        write_text(folder / f"{kind}.jsonl", "".join(lines))


def tokenizer() -> Tokenizer:
    """Trains the sample's own tokenizer, of 2,048 entries, on its training texts."""
    return Tokenizer(json.loads(train(documents("train"), VOCAB_SIZE)), "the sample's own")


def _texts(split: Split, kind: Kind) -> list[str]:
    if kind == "facts":
        texts = facts.training() if split == "train" else facts.held_out()
        Random(f"order of {kind}").shuffle(texts)
        return texts
    random = Random(kind)
    endless = arithmetic.problems(random) if kind == "arithmetic" else prose.tales(random)
    # All texts are distinct; the first are held out, those after them are for training.
    texts = distinct(lambda: next(endless), N_VAL[kind] + N_TRAIN[kind])
    return texts[: N_VAL[kind]] if split == "val" else texts[N_VAL[kind] :]
