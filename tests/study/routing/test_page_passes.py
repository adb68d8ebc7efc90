"""What the page has beyond rows: the logit lens by values, costs by direct passes, what is kept."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dualpath_cli.cli import main
from dualpath_cli.config import ModelConfig
from dualpath_cli.intervention import Intervention
from dualpath_cli.model import RoutingTrace
from dualpath_cli.study.routing.readouts import dual_layers
from dualpath_cli.text.documents import Source, read_documents
from dualpath_cli.text.tokenizer import Tokenizer
from dualpath_cli.training.data.windows import document_windows
from tests.model import reference
from tests.small_tokenizer import tokenizer_with
from tests.study.conftest import OPEN, Forwards, model_of
from tests.study.routing.pages import data_of
from tests.study.routing.test_study import routing
from tests.tiny_run import SEQ_LEN, Fit, weights

MIXED = {**OPEN["model"], "n_layers": 3, "block": ["dual", "loop", "dual"]}


@pytest.fixture
def run(trained: Fit) -> Path:
    """A run with a loop layer between two dual ones, of three loops."""
    return trained(model=MIXED, optim=OPEN["optim"])


def page_of(run: Path, *words: str, source="held_out") -> dict[str, np.ndarray]:
    folder = routing(run, "--tagger", "none", *words)
    with np.load(folder / "page" / f"{source}.npz") as arrays:
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
            found.append([stream, *loops, wide, after])
        stream = after
    return found


def test_the_lens_is_that_of_a_slow_model_in_float64(run: Path, texts: Path):
    page = page_of(run, "--sequences", "2", "--no_costs")
    config, vocabulary = model_of(run)[0].config, model_of(run)[1].vocab_size
    w = {name.removeprefix("model."): value.double() for name, value in weights(run).items()}
    assert page["numbers"].tolist() == [0, 1]
    row, beyond = 0, False
    for window, count in zip(windows_of(run, texts, [0, 1]), page["counts"], strict=True):
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
            assert page["next"][row] == (-1 if last else window[position + 1])
            if not last:
                nats = -logits.log_softmax(0)[window[position + 1]]
                assert page["nats"][row] == pytest.approx(float(nats), rel=1e-4)
            row += 1
    assert row == len(page["said"]) > 20
    assert page["said"].shape[1:] == (2, config.loops + 3, 3)
    assert beyond  # ids that the tokenizer does not have would have been said


def test_costs_are_those_of_direct_passes(run: Path, texts: Path):
    page = page_of(run, "--sequences", "3")
    model, _ = model_of(run)
    changes = [{"loops": 1}, {"loops": 2}, {"gates": (1.0, 0.0)}, {"gates": (0.0, 1.0)},
               {"gates": (1.0, 1.0)}]  # fmt: skip
    assert page["forced"].tolist() == ["K = 1", "K = 2", "deep only", "wide only", "both open"]
    assert page["costs"].shape[1:] == (3, 5)
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


def test_the_first_tokens_of_a_sequence_give_what_the_whole_one_gives(run: Path, monkeypatch):
    whole = page_of(run, "--sequences", "3", "--out", str(run / "whole"))
    monkeypatch.setattr("dualpath_cli.study.routing.study.likely_tokens", lambda *_: 4)
    first = page_of(run, "--sequences", "3", "--out", str(run / "first"))
    assert first["counts"].tolist() == np.minimum(whole["counts"], 4).tolist() == [4, 4, 1]
    assert (first["next"][:8] >= 0).all()  # what comes after the last one is known
    starts = [np.cumsum(page["counts"]) - page["counts"] for page in (first, whole)]
    for name in ("said", "shares", "next", "costs"):
        for count, *at in zip(first["counts"], *starts, strict=True):
            read, expected = (
                page[name][start : start + count]
                for page, start in zip((first, whole), at, strict=True)
            )
            np.testing.assert_allclose(read, expected, atol=1e-4, err_msg=name)
    head = data_of(run / "first" / "index.html")
    assert [example["count"] for example in head["examples"]] == [4, 4, 1]
    assert [example["length"] for example in head["examples"]] == whole["counts"].tolist()


def test_other_loops_beside_the_learned_are_read_from_real_passes(run: Path, texts: Path):
    page = page_of(run, "--sequences", "2", "--beside_loops", "2", "--no_costs")
    model, tokenizer = model_of(run)
    start = 0
    for window, count in zip(windows_of(run, texts, range(2)), page["counts"], strict=True):
        trace, rows = RoutingTrace(keeps_states=True), slice(start, start + count)
        with torch.no_grad():
            ids = torch.from_numpy(window[None].astype(np.int64))
            logits = model(ids, trace=trace, intervention=Intervention(loops=2))
            states = [
                (layer, state)
                for layer, n in enumerate((0, 2))
                for state in [*trace.layers[n].deep_states, trace.layers[n].wide_state]
            ]
            for at, (layer, state) in enumerate(states):
                lens = model.head(model.norm(state[0, 1:]))[:, : tokenizer.vocab_size]
                expected = lens.softmax(-1).topk(3).values
                shares = page["beside_shares"][rows, layer, 1 + at % 3]
                assert shares == pytest.approx(expected.numpy(), rel=1e-3)
        read = page["beside_read_outs"][rows]
        assert read == pytest.approx(dual_layers(trace)[0, 1:].numpy(), abs=1e-4)
        losses = -logits[0].log_softmax(-1)[range(count), window[1:].astype(int)]
        assert page["beside_own_nats"][rows] == pytest.approx(losses.numpy(), abs=1e-4)
        start += count
    head = data_of(run / "routing" / "step-00000006" / "index.html")
    assert [model["loops"] for model in head["models"]] == [3, 2]
    assert [model["name"] for model in head["models"]] == ["K = 3, as trained", "K = 2, forced"]


def test_passes_of_the_page_are_kept_and_counted(run: Path, forwards: Forwards, capsys):
    routing(run, "--tagger", "none", "--no_costs")
    forwards.names.clear()
    routing(run, "--tagger", "none")
    change = ["K=1", "K=2", "gates=1,0", "gates=0,1", "gates=1,1"]
    places = ["", " layers=0", " layers=2"]
    assert forwards.passes == [name + place for place in places for name in change]
    forwards.names.clear()
    routing(run, "--tagger", "none")
    assert forwards.names == []
    forwards.allowed = 4
    capsys.readouterr()
    words = ["--tagger", "none", "--beside_loops", "2", "--out", str(run / "new")]
    assert main(["routing", "--ckpt_path", str(run), *words]) == 130
    assert "of 19 passes are kept" in capsys.readouterr().out


# Two runs


def test_two_runs_are_on_one_page_with_the_same_texts(trained: Fit, tmp_path: Path, capsys):
    runs = [trained(model={**OPEN["model"], "loops": k}, optim=OPEN["optim"], run={"name": f"k{k}"})
            for k in (2, 3)]  # fmt: skip
    out = tmp_path / "both"
    words = ["--tagger", "none", "--sequences", "3", "--out", str(out)]
    assert main(["routing", "--ckpt_path", *map(str, runs), *words]) == 0
    assert str(out / "beside.html") in capsys.readouterr().out
    assert 'href="beside.html"' in (out / "index.html").read_text()
    both = data_of(out / "beside.html")
    assert [(model["name"], model["loops"]) for model in both["models"]] == [("k2", 2), ("k3", 3)]
    for name, read in zip(("k2", "k3"), both["models"], strict=True):
        own = data_of(out / f"tiny-{name}-step-00000006" / "index.html")
        assert own["models"][0]["means"] == read["means"]
        assert own["models"][0]["forced"] == read["forced"]
        assert own["texts"]["tokens"] == both["texts"]["tokens"]
    assert both["models"][0]["means"] != both["models"][1]["means"]


def test_two_checkpoints_of_a_run_are_named_by_their_steps(run: Path, tmp_path: Path):
    checkpoints = [str(run / "checkpoints" / f"step-0000000{step}") for step in (2, 6)]
    words = ["--tagger", "none", "--no_costs", "--out", str(tmp_path / "both")]
    assert main(["routing", "--ckpt_path", *checkpoints, *words]) == 0
    page = tmp_path / "both" / "beside.html"
    assert [model["name"] for model in data_of(page)["models"]] == ["step 2", "step 6"]
    assert "<h1>tiny-default, step 2 beside step 6</h1>" in page.read_text()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": {"n_layers": 3}}, "layers 0, 1 of the one have gates, layers 0, 1, 2 of the"),
        ({"model": {"max_seq_len": 8}}, "their sequences have up to 16 and 8 tokens"),
        ({"data": {"val_seed": 3, "val_tokens": 60}}, "their sequences differ; give --max_tokens"),
    ],
)
def test_runs_that_cannot_be_side_by_side_say_why(trained, tmp_path, capsys, change, reason):
    other = {"data": {}} | OPEN | change | {"model": OPEN["model"] | change.get("model", {})}
    runs = [trained(**OPEN, run={"name": "one"}), trained(**other, run={"name": "two"})]
    out = tmp_path / "both"
    words = ["--tagger", "none", "--no_costs", "--out", str(out)]
    assert main(["routing", "--ckpt_path", *map(str, runs), *words]) == 0
    assert f"no page of both runs side by side: {reason}" in capsys.readouterr().out
    assert not (out / "beside.html").exists()
    assert (out / "index.html").exists()


def test_runs_of_other_tokenizers_are_not_side_by_side(trained: Fit, tmp_path: Path, capsys):
    runs = [trained(**OPEN, run={"name": name}) for name in ("one", "two")]
    (runs[1] / "tokenizer.json").unlink()
    tokenizer_with(["h e", "l l", "t h"]).save(runs[1])
    for manifest in (runs[1] / "checkpoints" / "manifests").iterdir():  # as if trained with it
        content = json.loads(manifest.read_text())
        content["run"]["tokenizer"] = Tokenizer.load(runs[1]).fingerprint
        manifest.write_text(json.dumps(content))
    words = ["--tagger", "none", "--no_costs", "--out", str(tmp_path / "both")]
    assert main(["routing", "--ckpt_path", *map(str, runs), *words]) == 0
    said = capsys.readouterr().out
    assert "no page of both runs side by side: their tokenizers differ" in said
    assert not (tmp_path / "both" / "beside.html").exists()
    assert json.loads((tmp_path / "both" / "summary.json").read_text())["runs"].keys() == {
        "one",
        "two",
    }
