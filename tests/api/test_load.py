"""`dualpath_cli.load`: a trained model in Python, against the model itself and the
commands."""

import inspect
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import dualpath_cli as dualpath
from dualpath_cli import api
from dualpath_cli.base.errors import UserError
from dualpath_cli.model import RoutingTrace
from dualpath_cli.recipe.recipes import merge
from dualpath_cli.spec.intervention import Intervention
from tests.study.conftest import CORE, OPEN, model_of
from tests.training.tiny_run import Fit

TEXT = "the shell of the sea"


@pytest.fixture
def run(trained: Fit) -> Path:
    return trained(**OPEN)


def test_the_names_that_a_user_may_rely_on():
    assert dualpath.__all__ == ["LoadedModel", "Loss", "Routing", "__version__", "load"]
    assert dir(dualpath) == sorted(dualpath.__all__)
    public = {name for name in vars(dualpath.LoadedModel) if not name.startswith("_")}
    assert public == {"generate", "logits", "loss", "routing"}
    assert dualpath.Loss._fields == ("nats_per_token", "bits_per_byte", "tokens")
    assert list(inspect.signature(dualpath.load).parameters) == [
        "run",
        "own_classes",
        "device",
    ]
    with pytest.raises(AttributeError, match="no attribute 'open'"):
        dualpath.open  # noqa: B018


def test_a_run_a_checkpoint_and_an_exported_folder_are_one_model(
    run, tmp_path, output_of
):
    output_of("export", "--ckpt_path", run, "--out", tmp_path / "folder")
    model, tokenizer = model_of(run)
    ids = torch.tensor([[tokenizer.eot_id, *tokenizer.encode(TEXT)]])
    expected = model(ids)[0, :, : tokenizer.vocab_size].detach()
    for place in (run, run / "checkpoints" / "last", tmp_path / "folder"):
        loaded = dualpath.load(place)
        folder = place if place == tmp_path / "folder" else run
        assert str(loaded).startswith(
            f"{folder}, step 6: 0.0M parameters, 2 layers, width 16"
        )
        torch.testing.assert_close(loaded.logits(TEXT), expected)
        assert loaded.config == model.config
        assert loaded.tokenizer.fingerprint == tokenizer.fingerprint


def test_losses_are_those_of_the_model_in_windows_of_its_length(run):
    loaded = dualpath.load(run)
    model, tokenizer = model_of(run)
    texts, nats, sizes = [TEXT, "sea " * 60], [], 0
    for text in texts:
        ids = tokenizer.encode(text)
        for start in range(0, len(ids), model.config.max_seq_len):
            part = ids[start : start + model.config.max_seq_len]
            tokens = torch.tensor([[tokenizer.eot_id, *part[:-1]]])
            nats += model(tokens, torch.tensor([part])).flatten().tolist()
            sizes += len(tokenizer.decode(part).encode())
    loss = loaded.loss(texts)
    assert loss.tokens == len(nats)
    assert loss.nats_per_token == pytest.approx(np.mean(nats), rel=1e-5)
    assert loss.bits_per_byte == pytest.approx(
        sum(nats) / (math.log(2) * sizes), rel=1e-5
    )
    assert loaded.loss(TEXT, "K=1") != loaded.loss(TEXT) == loaded.loss([TEXT])


def test_routing_is_what_the_model_writes_down(run):
    model, tokenizer = model_of(run)
    ids = torch.tensor([[tokenizer.eot_id, *tokenizer.encode(TEXT)]])
    trace = RoutingTrace()
    with torch.no_grad():
        model(ids, trace=trace)

    routing = dualpath.load(run).routing(TEXT)
    for name in (*api.BY_APPLICATION, "step_weights"):
        expected = [getattr(layer, name)[0] for layer in trace.layers]
        torch.testing.assert_close(getattr(routing, name), torch.stack(expected, 1))
    assert "".join(routing.tokens[1:]) == TEXT
    assert routing.step_weights.shape == (len(routing.tokens), 2, 3)


def test_routing_as_a_frame_has_a_row_for_each_token_and_layer(run):
    pytest.importorskip("pandas")
    routing = dualpath.load(run).routing(TEXT, "gates=1,0 layers=1")
    frame = routing.frame().set_index(["position", "layer"])
    for (place, layer), row in frame.iterrows():
        assert row["token"] == routing.tokens[place]
        assert row["gate_deep"] == routing.gate_deep[place, layer]
        assert row["step_weight_3"] == routing.step_weights[place, layer, 2]
    assert len(frame) == 2 * len(routing.tokens)
    assert (frame.xs(1, level="layer")["gate_wide"] == 0).all()


def test_a_layer_of_a_core_has_a_column_for_each_repetition(trained):
    """The run's core are layers 1 and 2."""
    loaded = dualpath.load(trained(**merge(OPEN, CORE)))
    assert str(loaded).endswith("K = 2, R = 3")
    for words, repetitions in (("learned", 3), ("R=1", 1), ("R=5", 5)):
        routing = loaded.routing(TEXT, words)
        counts = range(1, repetitions + 1)
        assert routing.layers == [0, *[1, 2] * repetitions, 3]
        assert routing.repetitions == [1, *[r for r in counts for _ in range(2)], 1]
        shape = (len(routing.tokens), repetitions)
        assert routing.core_weights.shape == shape
        torch.testing.assert_close(routing.core_weights.sum(-1), torch.ones(shape[0]))
        has_gates = ~routing.gate_deep.isnan().any(0)
        assert has_gates.tolist() == [layer in (2, 3) for layer in routing.layers]


def test_a_frame_of_a_core_names_the_repetition(trained):
    pytest.importorskip("pandas")
    routing = dualpath.load(trained(**merge(OPEN, CORE))).routing(TEXT, "R=2")
    frame = routing.frame().set_index(["position", "layer", "repetition"])
    places = enumerate(zip(routing.layers, routing.repetitions, strict=True))
    for column, (layer, repetition) in places:
        found = frame.loc[(3, layer, repetition), "update_wide"]
        assert found == routing.update_wide[3, column]


@pytest.mark.parametrize("loops", [1, 5])
def test_layers_of_other_numbers_of_steps_share_a_tensor(loops, run):
    loaded = dualpath.load(run)
    weights = loaded.routing(TEXT, f"K={loops} layers=1").step_weights
    assert weights.shape[-1] == max(loops, loaded.config.loops)
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))
    assert (weights[:, 1, loops:] == 0).all()
    assert (weights[:, 0, loaded.config.loops :] == 0).all()
    assert not weights.requires_grad
    assert not weights.is_inference(), "a user may compute on with it"


def test_what_a_block_has_not_is_nan(trained):
    routing = dualpath.load(trained(model={"block": "wide"})).routing(TEXT)
    assert routing.gate_deep.isnan().all()
    assert not routing.update_wide.isnan().any()
    assert routing.step_weights.shape[-1] == 0


def test_texts_are_those_of_the_command(run, tmp_path, output_of):
    words = ["--prompt", "the", "--max_new_tokens", "12", "--greedy"]
    output_of("generate", "--ckpt_path", run, *words, "--out", tmp_path / "text.jsonl")
    text = json.loads((tmp_path / "text.jsonl").read_text())["text"]
    loaded = dualpath.load(run)
    assert loaded.generate("the", max_new_tokens=12, greedy=True) == text
    drawn = [loaded.generate("the", max_new_tokens=12, seed=seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_each_text_of_a_list_has_the_result_that_it_has_by_itself(run):
    loaded, texts = dualpath.load(run), [TEXT, "", "tell"]
    logits, routings = loaded.logits(texts, "K=1"), loaded.routing(tuple(texts))
    written = loaded.generate(iter(texts), max_new_tokens=5, seed=3)
    assert len(logits) == len(routings) == len(written) == 3
    for text, found, routing, new in zip(texts, logits, routings, written, strict=True):
        torch.testing.assert_close(found, loaded.logits(text, "K=1"), rtol=0, atol=0)
        assert routing.tokens == loaded.routing(text).tokens
        torch.testing.assert_close(routing.gate_deep, loaded.routing(text).gate_deep)
        assert new == loaded.generate(text, max_new_tokens=5, seed=3)
    assert loaded.logits([]) == loaded.routing([]) == loaded.generate([]) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (wrong, f"must be a string or a list of strings, not {type(wrong).__name__}")
        for wrong in (None, 5, b"the", {"text": "the"}, {"the"}, Path("the"))
    ]
    + [
        (["the", wrong], rf"\[1\] must be a string, not {type(wrong).__name__}")
        for wrong in (None, ["sea"], 5, b"the")
    ],
)
def test_what_is_no_text_is_one_sentence(given, said, run):
    loaded = dualpath.load(run)
    for read in (loaded.logits, loaded.routing, loaded.loss, loaded.generate):
        with pytest.raises(TypeError, match=said):
            read(given)
        with pytest.raises(
            TypeError, match="intervention must be text such as 'K=1', not list"
        ):
            read(TEXT, intervention=["K=1"])


def test_mistakes_are_one_line(run):
    loaded = dualpath.load(run)
    for read in (loaded.logits, loaded.loss):
        with pytest.raises(UserError, match="layers"):
            read(TEXT, "layers=7 K=1")
    of_ablate = (
        Intervention(halting=0.1, blind="position"),
        Intervention(gates=(1, 0), tokens="word"),
    )
    for change in of_ablate:
        for read in (loaded.loss, loaded.routing, loaded.generate):
            with pytest.raises(UserError, match="only `dualpath ablate`"):
                read(TEXT, intervention=change)
    for read in (loaded.generate, loaded.loss):
        with pytest.raises(UserError, match="half of a surrogate pair"):
            read("a\ud800")
    for wrong in (
        {"temperature": 0.0},
        {"top_p": 1.5},
        {"top_k": -1},
        {"max_new_tokens": 0},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            loaded.generate(TEXT, **wrong)
    with pytest.raises(UserError, match="`loss` cuts longer ones"):
        loaded.routing("sea " * 400)
    with pytest.raises(UserError, match="no token"):
        loaded.loss([""])
