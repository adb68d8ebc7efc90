"""What is compiled, in static shapes, writes what the model itself writes."""

from typing import Any

import pytest
import torch

from dualpath_cli.decoding.decoder import RECORDERS, ROOM, Decoder
from dualpath_cli.decoding.writing import DRAFT
from dualpath_cli.spec.intervention import Intervention
from tests.model.reference import difference, random_tokens
from tests.model.small_models import OUTPUTS, small, with_weights

CHANGES = [None, Intervention(kv_slots=1), Intervention(halting=0.6, skip=0.6)]


@pytest.fixture
def graphs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles to graphs that run operation by operation: their kernels take a minute."""
    compile_ = torch.nn.Module.compile

    def compiled(module: torch.nn.Module, options: dict[str, bool], **others: Any) -> None:
        assert options["deterministic"], "or sums differ from process to process on a GPU"
        compile_(module, **others, backend="aot_eager")

    monkeypatch.setattr(torch.nn.Module, "compile", compiled)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change and change.name)
@pytest.mark.usefixtures("graphs_alone")
def test_logits_are_the_same(change):
    """Of a prompt that is padded, of tokens after it, of a draft, and of several at once."""
    check(change, drafts=change is None)


@pytest.mark.parametrize("change", [None, CHANGES[-1]], ids=lambda change: change and change.name)
@pytest.mark.usefixtures("graphs_alone")
def test_a_position_more_is_no_graph_more(change):
    """Also where now one text goes on, now two or three, and in a second batch."""
    config = small(n_layers=2, loops=3)
    decoder = Decoder(with_weights(config), change, compiled=True)
    tokens = random_tokens(config, batch=3, length=24)
    torch._dynamo.utils.counters.clear()
    graphs = []
    for _ in range(2):
        decoder.begin(24)
        decoder.logits(tokens[:, :2])
        for at in range(2, 24):
            decoder.logits(tokens[:, at : at + 1])
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[1] <= (1 if change is None else 6)


@pytest.mark.usefixtures("graphs_alone")
def test_so_they_are_where_passes_are_recorded(monkeypatch):
    recorded: list[object] = []
    monkeypatch.setitem(RECORDERS, "cpu", lambda work, *_: recorded.append(work()) or work)
    check(None, drafts=True)
    assert len(recorded) == 2 * 3, "a token, a draft and two at once, eager and compiled"


@pytest.mark.slow
def test_so_they_are_with_kernels():
    check(None, drafts=False)


def check(change: Intervention | None, drafts: bool) -> None:
    config = small(n_layers=1, loops=2)
    tokens = random_tokens(config, batch=2, length=9)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[0, :2] = False
    decoders = [
        Decoder(with_weights(config), change, compiled=compiled, draft=DRAFT)
        for compiled in (False, True)
    ]

    def logits(decoder: Decoder) -> list[torch.Tensor]:
        decoder.begin(12)
        found = [decoder.logits(tokens[:, :5], mask[:, :5])[mask[:, :5]]]
        found += [decoder.logits(tokens[:, at : at + 1]) for at in (5, 6)]
        if drafts:
            found.append(decoder.logits(tokens[:, 7:8], drafting=True))
            decoder.rewind(7)
            found.append(decoder.logits(tokens[:, 7:]))
        return found

    eager, compiled = map(logits, decoders)
    for own, other in zip(compiled, eager, strict=True):
        assert difference(own, other) <= OUTPUTS
    room = ROOM if "cpu" in RECORDERS else 12
    assert decoders[1].cache_bytes == decoders[0].cache_bytes * ROOM / room
