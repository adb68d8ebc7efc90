"""A pass that is recorded once, and run again on tensors of fixed places, gives the same logits."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dualpath_cli.decoding import decoder as module
from dualpath_cli.decoding.decoder import Decoder
from dualpath_cli.decoding.writing import DRAFT
from dualpath_cli.model import DualPathLM
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.spec.own_checks import import_classes
from tests.model.reference import difference, random_tokens
from tests.model.small_models import ALL_KINDS, EXPERTS, OUTPUTS, TOKENS, small, with_weights


class Tape(TorchDispatchMode):
    """A CUDA graph's stand-in: its operations run again on the same memory, without Python."""

    def __init__(
        self, work: Callable[[], torch.Tensor], device: torch.device,
        warm_up: Callable[[], object], others: Sequence["Tape"],
    ) -> None:  # fmt: skip
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []
        warm_up()
        with self:
            self.result = work()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def __call__(self) -> torch.Tensor:
        for func, args, kwargs, result in self.calls:
            for old, new in zip(
                tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True
            ):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)
        return self.result


@pytest.fixture
def tapes(monkeypatch: pytest.MonkeyPatch) -> list[Tape]:
    """All that is recorded."""
    made: list[Tape] = []

    def record(*given: Any) -> Tape:
        made.append(Tape(*given))
        return made[-1]

    monkeypatch.setitem(module.RECORDERS, "cpu", record)
    return made


def logits(decoder: Decoder, tokens: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    """Of a prompt, of single tokens, of drafts that are forgotten, and of fewer texts; twice."""
    found = []
    for _ in range(2):
        decoder.begin(14)
        found.append(decoder.logits(tokens[:, :5], mask)[mask])
        found += [decoder.logits(tokens[:, at : at + 1]) for at in (5, 6)]
        for _ in range(2):
            found += [decoder.logits(tokens[:, at : at + 1], drafting=True) for at in (7, 8)]
            decoder.rewind(7)
            found.append(decoder.logits(tokens[:, 7:9], last=1))
            decoder.rewind(7)
        decoder.select([2, 0])
        found += [decoder.logits(tokens[[2, 0], at : at + 1]) for at in (7, 8, 9)]
    return found


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("document_start", [None, 3])
@pytest.mark.parametrize(
    "change", [None, Intervention(kv_slots=1), Intervention(gates=(1, 0.5))], ids=str
)
def test_logits_are_those_without_recording(change, document_start, padded, tapes, monkeypatch):
    config = small(**ALL_KINDS, document_start=document_start)
    model, tokens = with_weights(config), random_tokens(config, batch=3, length=10)
    mask = torch.ones(3, 5, dtype=torch.bool)
    if padded:
        mask[0, :2] = False
    found = logits(Decoder(model, change, draft=DRAFT), tokens, mask)
    assert len(tapes) == 2 * 4, "a token, a draft, two at once, and a token of fewer texts"
    monkeypatch.undo()
    for own, other in zip(found, logits(Decoder(model, change, draft=DRAFT), tokens, mask),
                          strict=True):  # fmt: skip
        assert difference(own, other) <= OUTPUTS


def test_a_second_batch_of_as_many_texts_is_recorded_no_more(tapes):
    model = with_weights(small())
    decoder, tokens = Decoder(model), random_tokens(model.config, batch=2, length=9)
    for capacity in (9, 7):
        decoder.begin(capacity)
        for part in (tokens[:, :4], tokens[:, 4:5], tokens[:, 5:6]):
            decoder.logits(part)
    assert len(tapes) == 1


@pytest.mark.parametrize(
    ("changes", "change", "cached"),
    [
        ({}, Intervention(halting=0.6), True),
        ({}, Intervention(skip=0.6), True),
        ({}, None, False),
        (EXPERTS, None, True),
        ({"gate": "tests.spec.custom_classes.MlpGate"}, None, True),
    ],
)
def test_these_run_as_they_are(changes, change, cached, tapes):
    import_classes(small(**changes), allowed=True)
    decoder = Decoder(DualPathLM(small(**changes), seed=0), change, cached=cached)
    decoder.begin(16)
    for at in range(3):
        decoder.logits(TOKENS[:, at : at + 1])
    assert not tapes
