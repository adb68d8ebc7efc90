"""What the page has beyond rows: the logit lens by values, costs by direct passes, what is kept."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from dualpath_cli.cli.main import main
from dualpath_cli.data.documents import Source, read_documents
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.data.windows import document_windows
from dualpath_cli.model import RoutingTrace
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.study.passes import read_arrays
from tests.model import reference
from tests.study.conftest import Studied, Study, data_of, model_of
from tests.study.routing.test_study import routing, rows_of
from tests.training.tiny_run import SEQ_LEN, weights

MIXED = {
    "n_layers": 3, "block": ["dual", "loop", "dual"], "loops": [3, 4, 2], "n_experts": [5, 0, 0],
}  # fmt: skip


@pytest.fixture(scope="session")
def whole(studied: Study) -> Studied:
    """A loop layer between dual ones, of three loops and five experts, and of two."""
    words = ["--tagger", "none", "--sequences", "3"]
    return studied("routing", *words, model=MIXED)


def page_of(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "page" / "held_out.npz") as arrays:
        return dict(arrays)


def windows_of(run: Path, texts: Path, numbers) -> list[np.ndarray]:
    documents = read_documents(Source("a", texts / "val.jsonl"))
    cut, _ = document_windows(documents, Tokenizer.load(run / "tokenizer.json"), SEQ_LEN)
    return [cut[number] for number in numbers]


def states_of(config: ModelConfig, w: reference.Weights, ids: list[int]) -> list[list]:
    """Input, loops, wide path and output of each dual layer: lists of a vector a token."""
    stream, found = [w["embed.weight"][id] for id in ids], []
    for layer, kind in enumerate(reference.kinds(config)):
        own = reference.below(w, f"blocks.{layer}")
        after = reference.block(own, config, kind, stream)
        if kind == "dual":
            loops = reference.deep_states(reference.below(own, "deep"), config, stream)
            wide = reference.wide_path(reference.below(own, "wide"), config, stream)
            loops += loops[-1:] * (3 - len(loops))  # the page repeats the last one
            found.append([stream, *loops, wide, after])
        stream = after
    return found


def test_a_mixed_model_tells_of_its_dual_layers(whole):
    rows = rows_of(whole.folder)
    assert rows["deep_share"].shape[1:] == (2,)
    assert rows["step_weights"].shape[1:] == (2, 3)
    assert (rows["step_weights"][:, 1, 2] == 0).all()  # layer 2 has two steps
    assert rows["step_weights"][:, 1, :2].min() > 0
    assert all(np.isnan(rows[name][:, 1, 2]).all() for name in ("step_sizes", "step_cosines"))
    assert data_of(whole.folder / "index.html")["layers"] == [0, 2]


def test_every_token_has_its_experts_where_a_layer_has_any(whole, texts):
    (model, _), rows = model_of(whole.run), rows_of(whole.folder)
    (ids,) = windows_of(whole.run, texts, [1])
    trace = RoutingTrace()
    with torch.inference_mode():
        model(torch.tensor(ids[None]), trace=trace)
    own = rows["sequence"] == 1
    experts, weights = (rows[name][own] for name in ("experts", "expert_weights"))
    assert (experts[:, 0] == trace.layers[0].experts[0, 1:].numpy()).all()
    expected = trace.layers[0].expert_weights[0, 1:].numpy()
    np.testing.assert_allclose(weights[:, 0], expected, atol=1e-5)
    assert (experts[:, 1] == -1).all()
    assert np.isnan(weights[:, 1]).all()
    # The load is over all tokens, and so are page and table.
    loads = np.bincount(rows["experts"][:, 0].ravel(), minlength=5) / rows["experts"][:, 0].size
    summary = json.loads((whole.folder / "summary.json").read_text())
    source = summary["sources"]["held_out"]
    assert source["expert_loads"] == [pytest.approx(loads), []]
    assert source["layers"]["load_max"]["mean"] == [pytest.approx(5 * loads.max()), None]
    data = data_of(whole.folder / "index.html")["model"]
    assert (data["experts"], data["chosen"]) == ([5, 0], 2)


def test_the_lens_is_that_of_a_slow_model_in_float64(whole, texts):
    page, run = page_of(whole.folder), whole.run
    config, vocabulary = model_of(run)[0].config, model_of(run)[1].vocab_size
    w = {name.removeprefix("model."): value.double() for name, value in weights(run).items()}
    assert page["numbers"].tolist() == [0, 1, 2]
    row, beyond = 0, False
    for window, count in zip(windows_of(run, texts, [0, 1]), page["counts"], strict=False):
        assert count == len(window) - 1
        layers = states_of(config, w, window.tolist())
        for position in range(1, len(window)):
            for layer, states in enumerate(layers):
                for place, state in enumerate(states):
                    normed = reference.rms_norm(state[position], w["norm.weight"], config.norm_eps)
                    logits = w["head.weight"] @ normed
                    beyond |= bool((logits.topk(3).indices >= vocabulary).any())
                    shares = logits[:vocabulary].softmax(0)
                    said = page["said"][row, layer, place]
                    expected = shares.topk(3).values.tolist()
                    assert page["shares"][row, layer, place] == pytest.approx(expected, rel=1e-3)
                    assert shares[said].tolist() == pytest.approx(expected, rel=1e-3)
            last = position == len(window) - 1
            assert page["next_ids"][row] == (-1 if last else window[position + 1])
            if not last:
                nats = -logits.log_softmax(0)[window[position + 1]]
                assert page["next_nats"][row] == pytest.approx(float(nats), rel=1e-4)
            row += 1
    assert row == page["counts"][:2].sum() > 20
    assert page["said"].shape[1:] == (2, 3 + 3, 3)
    assert beyond  # ids that the tokenizer does not have would have been said


def test_costs_are_those_of_direct_passes(whole, texts):
    page, run = page_of(whole.folder), whole.run
    model, _ = model_of(run)
    changes = [{"loops": 1}, {"gates": (1.0, 0.0)}, {"gates": (0.0, 1.0)}, {"gates": (1.0, 1.0)}]
    assert page["forced"].tolist() == ["K = 1", "deep only", "wide only", "both open"]
    assert page["costs"].shape[1:] == (3, 4)
    start = 0
    for window, count in zip(windows_of(run, texts, range(3)), page["counts"], strict=True):
        ids = torch.from_numpy(window[None].astype(np.int64))
        costs = page["costs"][start : start + count]
        assert np.isnan(costs[-1]).all()  # nothing comes after the last token
        for place, layers in enumerate((None, (0,), (2,))):
            for column, change in enumerate(changes):
                with torch.no_grad():
                    losses = [
                        model(ids[:, :-1], ids[:, 1:], intervention=made)[0, 1:]
                        for made in (Intervention(layers=layers, **change), None)
                    ]
                expected = (losses[0] - losses[1]).numpy()
                assert costs[:-1, place, column] == pytest.approx(expected, abs=1e-4)
        start += count
    assert np.nanstd(page["costs"], axis=0).min() > 1e-3


def test_the_first_tokens_of_a_sequence_give_what_the_whole_one_gives(whole, tmp_path, monkeypatch):
    expected_page = page_of(whole.folder)
    monkeypatch.setattr("dualpath_cli.study.routing.page.passes.tokens_with_room", lambda *_: 4)
    folder = routing(whole.copied(tmp_path), "--tagger", "none", "--sequences", "3")
    first, counts = page_of(folder), expected_page["counts"]
    assert first["counts"].tolist() == np.minimum(counts, 4).tolist() == [4, 4, 1]
    assert (first["next_ids"][:8] >= 0).all()  # what comes after the last one is known
    starts = [np.cumsum(page["counts"]) - page["counts"] for page in (first, expected_page)]
    for name in ("said", "shares", "next_ids", "costs"):
        for count, *at in zip(first["counts"], *starts, strict=True):
            read, expected = (
                page[name][start : start + count]
                for page, start in zip((first, expected_page), at, strict=True)
            )
            np.testing.assert_allclose(read, expected, atol=1e-4, err_msg=name)
    head = data_of(folder / "index.html")
    assert [len(example["tokens"]) for example in head["examples"]] == [4, 4, 1]
    assert [example["length"] for example in head["examples"]] == counts.tolist()


def test_passes_of_the_page_are_kept_and_counted(whole, tmp_path, forwards, monkeypatch, capsys):
    run, words = whole.copied(tmp_path), ["--tagger", "none", "--sequences", "3"]
    routing(run, *words)
    assert forwards.names == []
    own = {"next_nats", "counts", "seal"}
    forced = (path for path in run.rglob("*.npz") if set(read_arrays(path)) == own)
    for path in forced:
        path.unlink()
    routing(run, *words)
    change = ["K=1", "gates=1,0", "gates=0,1", "gates=1,1"]
    places = ["", " layers=0", " layers=2"]
    assert forwards.passes == [name + place for place in places for name in change]
    routing(run, "--tagger", "none", "--sequences", str(1 << 20))  # all that there are
    monkeypatch.setattr("dualpath_cli.study.routing.page.MOST_BYTES", 1)
    assert main(["routing", "--ckpt_path", str(run), "--sequences", str(1 << 20)]) == 2
    assert re.search("no room for [0-9]+ sequences of held_out; give", capsys.readouterr().err)
