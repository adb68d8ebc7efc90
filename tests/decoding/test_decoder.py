"""A decoder gives the logits of the model, also compiled, recorded, or with joined
products."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dualpath_cli.decoding.decoder import (
    RECORDERS,
    ROOM,
    Decoder,
    JoinedAttention,
    JoinedSwiGLU,
    join_products,
)
from dualpath_cli.model import DualPathLM
from dualpath_cli.run.weights import round_weights
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.spec.own_checks import import_classes
from tests.model.reference import difference, random_tokens
from tests.model.small_models import (
    ALL_KINDS,
    CORES,
    EXPERTS,
    OUTPUTS,
    STEPS,
    TOKENS,
    small,
    with_weights,
)

DRAFT = Intervention(loops=1)


class Tape(TorchDispatchMode):
    """A CUDA graph's stand-in: its operations run again on the same memory, without
    Python."""

    def __init__(
        self,
        work: Callable[[], torch.Tensor],
        device: torch.device,
        warm_up: Callable[[], object],
        others: Sequence["Tape"],
    ) -> None:
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

    monkeypatch.setitem(RECORDERS, "cpu", record)
    return made


@pytest.fixture
def graphs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles to graphs that run operation by operation: their kernels take a
    minute."""
    compile_ = torch.nn.Module.compile

    def compiled(
        module: torch.nn.Module, options: dict[str, bool], **others: Any
    ) -> None:
        assert options["deterministic"], (
            "or sums differ from process to process on a GPU"
        )
        compile_(module, **others, backend="aot_eager")

    monkeypatch.setattr(torch.nn.Module, "compile", compiled)


def logits(
    decoder: Decoder, tokens: torch.Tensor, mask: torch.Tensor, drafts: bool = True
) -> list[torch.Tensor]:
    """Of a prompt, of single tokens, of drafts that are forgotten, and of fewer
    texts."""
    decoder.begin(14)
    found = [decoder.logits(tokens[:, :5], mask)[mask]]
    found += [decoder.logits(tokens[:, at : at + 1]) for at in (5, 6)]
    for _ in range(2 * drafts):
        found += [
            decoder.logits(tokens[:, at : at + 1], drafting=True) for at in (7, 8)
        ]
        decoder.rewind(7)
        found.append(decoder.logits(tokens[:, 7:9], last=1))
        decoder.rewind(7)
    decoder.select([2, 0])
    return found + [decoder.logits(tokens[[2, 0], at : at + 1]) for at in (7, 8, 9)]


def assert_alike(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for own, other in zip(found, wanted, strict=True):
        assert difference(own, other) <= OUTPUTS


def padding(padded: bool) -> torch.Tensor:
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[0, :2] = not padded
    return mask


CHANGES = [None, Intervention(kv_slots=1), Intervention(halting=0.6, skip=0.6)]


CORE = {
    "core": [0, 0],
    "core_loops": 2,
    "core_combination": "router",
    "injection": "linear",
    "step_kv": "first",
}


def check_compiled(
    change: Intervention | None, drafts: bool, **changes: object
) -> None:
    config = small(n_layers=1, loops=2, **changes)
    tokens, mask = random_tokens(config, batch=3, length=10), padding(True)
    eager, compiled = (
        Decoder(with_weights(config), change, compiled=compiled, draft=DRAFT)
        for compiled in (False, True)
    )
    wanted = logits(eager, tokens, mask, drafts)
    assert_alike(logits(compiled, tokens, mask, drafts), wanted)
    room = ROOM if "cpu" in RECORDERS else 14
    assert compiled.cache_bytes == eager.cache_bytes * ROOM / room


@pytest.mark.parametrize("model", [{}, CORE], ids=["blocks", "core"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change and change.name)
@pytest.mark.usefixtures("graphs_alone")
def test_compiled_logits_are_the_same(change, model):
    check_compiled(change, drafts=change is None, **model)


@pytest.mark.usefixtures("graphs_alone")
def test_compiled_logits_are_the_same_where_passes_are_recorded(monkeypatch):
    recorded: list[object] = []
    monkeypatch.setitem(
        RECORDERS, "cpu", lambda work, *_: recorded.append(work()) or work
    )
    check_compiled(None, drafts=True)
    assert len(recorded) == 2 * 4, (
        "a token, a draft, two at once, and a token of fewer texts"
    )


@pytest.mark.slow
def test_logits_are_the_same_with_kernels():
    check_compiled(None, drafts=False)


@pytest.mark.parametrize(
    "change", [None, CHANGES[-1]], ids=lambda change: change and change.name
)
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
def test_passes_of_any_number_of_lengths_are_compiled():
    """As drafts are verified; torch's own limits would end them."""
    limits = {"recompile_limit": 2, "accumulated_recompile_limit": 2}
    config = small(n_layers=1, loops=1)
    tokens = random_tokens(config, batch=1, length=11)
    with torch._dynamo.config.patch(limits):
        decoders = [
            Decoder(with_weights(config), compiled=compiled)
            for compiled in (False, True)
        ]
        for decoder in decoders:
            decoder.begin(11)
        for part in tokens.split([1, 1, 2, 3, 4], dim=1):
            wanted, found = (decoder.logits(part) for decoder in decoders)
            assert difference(found, wanted) <= OUTPUTS


# Passes that are recorded once, and run again on tensors of fixed places


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("document_start", [None, 3])
@pytest.mark.parametrize(
    "change", [None, Intervention(kv_slots=1), Intervention(gates=(1, 0.5))], ids=str
)
def test_recorded_logits_are_the_same(
    change, document_start, padded, tapes, monkeypatch
):
    config = small(**ALL_KINDS, document_start=document_start)
    model, tokens = with_weights(config), random_tokens(config, batch=3, length=10)
    decoder, mask = Decoder(model, change, draft=DRAFT), padding(padded)
    twice = [logits(decoder, tokens, mask) for _ in range(2)]
    assert len(tapes) == 2 * 4, (
        "a token, a draft, two at once, and a token of fewer texts"
    )
    monkeypatch.undo()
    wanted = logits(Decoder(model, change, draft=DRAFT), tokens, mask)
    for found in twice:
        assert_alike(found, wanted)


@pytest.mark.parametrize("change", [None, Intervention(kv_slots=1)], ids=str)
def test_recorded_logits_of_a_core_are_the_same(change, tapes, monkeypatch):
    model, mask = with_weights(small(**CORES["routed"])), padding(True)
    tokens = random_tokens(model.config, batch=3, length=10)
    draft = Intervention(core_loops=1)
    found = logits(Decoder(model, change, draft=draft), tokens, mask)
    assert len(tapes) == 4
    monkeypatch.undo()
    assert_alike(found, logits(Decoder(model, change, draft=draft), tokens, mask))


def test_a_second_batch_of_as_many_texts_is_recorded_no_more(tapes):
    model = with_weights(small())
    decoder, tokens = Decoder(model), random_tokens(model.config, batch=2, length=9)
    for capacity in (9, 7):
        decoder.begin(capacity)
        for part in (tokens[:, :4], tokens[:, 4:5], tokens[:, 5:6]):
            decoder.logits(part)
    assert len(tapes) == 1


@pytest.mark.parametrize(
    ("changes", "change"),
    [
        ({}, Intervention(halting=0.6)),
        ({}, Intervention(skip=0.6)),
        ({}, Intervention(gates="shuffled")),
        (EXPERTS, None),
        ({"gate": "tests.spec.custom_classes.MlpGate"}, None),
    ],
)
def test_these_run_as_they_are(changes, change, tapes):
    import_classes(small(**changes), allowed=True)
    decoder = Decoder(DualPathLM(small(**changes), seed=0), change)
    decoder.begin(16)
    for at in range(3):
        decoder.logits(TOKENS[:, at : at + 1])
    assert not tapes


# Joined products, in the same memory and under the same names

VARIANTS = [
    ALL_KINDS,
    {"n_kv_heads": 4},
    {"n_kv_heads": 1, "qk_norm": "none"},
    {"qk_norm": "before_rope"},
    {"step_conditioning": "film"},
    EXPERTS,
    CORES["routed"],
    *STEPS.values(),
]


def pair(changes: dict[str, object]) -> tuple[DualPathLM, DualPathLM]:
    """A model, and the same one with joined products."""
    model = DualPathLM(
        small(**changes, gain_init=0.0, init_std=0.3), seed=0
    ).requires_grad_(False)
    joined = copy.deepcopy(model)
    join_products(joined)
    return model, joined


def decode(
    model: DualPathLM, compiled: bool = False, **options: object
) -> torch.Tensor:
    """Logits of a prompt and of three tokens after it."""
    decoder, tokens = (
        Decoder(model, compiled=compiled, **options),
        random_tokens(model.config, 2, 8),
    )
    decoder.begin(8)
    parts = [tokens[:, :5], *tokens[:, 5:].split(1, 1)]
    return torch.cat([decoder.logits(part) for part in parts], 1)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_joined_logits_and_names_are_the_same(changes):
    model, joined = pair(changes)
    wanted, found = decode(model), decode(joined)
    assert (found - wanted).abs().max() <= 1e-6 * wanted.abs().max()
    torch.testing.assert_close(joined.state_dict(), model.state_dict(), rtol=0, atol=0)


@pytest.mark.usefixtures("graphs_alone")
def test_joined_logits_are_the_same_compiled_after_the_model_itself():
    """One model's compiled code is not the other's."""
    graphs = torch._dynamo.utils.counters["stats"]
    model, joined = pair({})
    wanted, before = decode(model, compiled=True), graphs["unique_graphs"]
    found = decode(joined, compiled=True)
    assert graphs["unique_graphs"] > before
    assert (found - wanted).abs().max() <= 1e-6 * wanted.abs().max()


def test_joined_products_take_no_more_memory():
    _, joined = pair(ALL_KINDS)
    stores = {
        x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
        for x in [*joined.parameters(), *joined.buffers()]
    }
    assert sum(stores.values()) == sum(x.nbytes for x in joined.parameters())
    kinds = [type(module) for module in joined.modules()]
    assert JoinedAttention in kinds
    assert JoinedSwiGLU in kinds


def test_joined_products_are_in_the_type_of_rounded_weights():
    model = DualPathLM(small(), seed=0).requires_grad_(False)
    round_weights(model, torch.bfloat16)
    wanted = decode(model, autocast=torch.bfloat16)
    join_products(model)
    found = decode(model, autocast=torch.bfloat16)
    assert (found - wanted).abs().max() <= 0.02 * wanted.abs().max()
