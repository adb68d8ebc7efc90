"""What the page has beyond rows: the logit lens by values, costs by direct passes, what is kept."""

import io
import json
import shutil
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from dualpath_cli.cli.main import main
from dualpath_cli.config import ModelConfig
from dualpath_cli.errors import UserError
from dualpath_cli.intervention import Intervention
from dualpath_cli.model import RoutingTrace
from dualpath_cli.recipe.recipes import merge
from dualpath_cli.study import runs
from dualpath_cli.study.passes import read_arrays
from dualpath_cli.study.routing.readouts import dual_layers
from dualpath_cli.study.runs import routings
from dualpath_cli.text.documents import Source, read_documents
from dualpath_cli.text.tokenizer import Tokenizer
from dualpath_cli.training.data.windows import document_windows
from tests.model import reference
from tests.study.conftest import Studied, Study, model_of
from tests.study.routing.conftest import data_of
from tests.study.routing.test_study import routing, rows_of
from tests.tiny_run import SEQ_LEN, weights

MIXED = {
    "n_layers": 3, "block": ["dual", "loop", "dual"], "loops": [3, 4, 2], "n_experts": [5, 0, 0],
}  # fmt: skip


@pytest.fixture(scope="session")
def whole(studied: Study) -> Studied:
    """A loop layer between dual ones, of three loops and five experts, and of two; two beside."""
    words = ["--tagger", "none", "--sequences", "3", "--beside_loops", "2"]
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
    assert json.loads((whole.folder / "summary.json").read_text())["layers"] == [0, 2]
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
    assert source["expert_loads"] == [pytest.approx(loads), [None] * 5]
    assert source["layers"]["load_max"]["mean"] == [pytest.approx(5 * loads.max()), None]
    assert source["layers"]["experts_upos"]["mean"] == [None, None]  # nothing was tagged
    data = data_of(whole.folder / "index.html")["models"]
    assert [(one["experts"], one["chosen"]) for one in data] == [([5, 0], 2), ([5, 0], 2)]


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
            assert page["next"][row] == (-1 if last else window[position + 1])
            if not last:
                nats = -logits.log_softmax(0)[window[position + 1]]
                assert page["nats"][row] == pytest.approx(float(nats), rel=1e-4)
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
    monkeypatch.setattr("dualpath_cli.study.routing.page.passes.likely_tokens", lambda *_: 4)
    folder = routing(whole.copied(tmp_path), "--tagger", "none", "--sequences", "3")
    first, counts = page_of(folder), expected_page["counts"]
    assert first["counts"].tolist() == np.minimum(counts, 4).tolist() == [4, 4, 1]
    assert (first["next"][:8] >= 0).all()  # what comes after the last one is known
    starts = [np.cumsum(page["counts"]) - page["counts"] for page in (first, expected_page)]
    for name in ("said", "shares", "next", "costs"):
        for count, *at in zip(first["counts"], *starts, strict=True):
            read, expected = (
                page[name][start : start + count]
                for page, start in zip((first, expected_page), at, strict=True)
            )
            np.testing.assert_allclose(read, expected, atol=1e-4, err_msg=name)
    head = data_of(folder / "index.html")
    assert [example["count"] for example in head["examples"]] == [4, 4, 1]
    assert [example["length"] for example in head["examples"]] == counts.tolist()


def test_other_loops_beside_the_learned_are_read_from_real_passes(whole, texts):
    page, run = page_of(whole.folder), whole.run
    model, tokenizer = model_of(run)
    start = 0
    for window, count in zip(windows_of(run, texts, range(3)), page["counts"], strict=True):
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
        assert read == pytest.approx(dual_layers(trace)[0, 1:].numpy(), abs=1e-4, nan_ok=True)
        losses = -logits[0].log_softmax(-1)[range(count), window[1:].astype(int)]
        assert page["beside_own_nats"][rows] == pytest.approx(losses.numpy(), abs=1e-4)
        start += count
    head = data_of(whole.folder / "index.html")
    assert [model["steps"] for model in head["models"]] == [[3, 2], [2, 2]]
    names = [model["name"] for model in head["models"]]
    assert names == ["K = 3, 4, 2, as trained", "K = 2, forced"]


def test_passes_of_the_page_are_kept_and_counted(whole, tmp_path, forwards, capsys):
    run, words = whole.copied(tmp_path), ["--tagger", "none", "--sequences", "3"]
    routing(run, *words, "--beside_loops", "2")
    assert forwards.names == []
    forced = (path for path in run.rglob("*.npz") if set(read_arrays(path)) == {"nats", "counts"})
    for path in forced:
        path.unlink()
    routing(run, *words)
    change = ["K=1", "gates=1,0", "gates=0,1", "gates=1,1"]
    places = ["", " layers=0", " layers=2"]
    assert forwards.passes == [name + place for place in places for name in change]
    forwards.names.clear()
    forwards.allowed = 4
    capsys.readouterr()
    words += ["--beside_loops", "2", "--out", str(run / "new")]
    assert main(["routing", "--ckpt_path", str(run), *words]) == 130
    assert "of 16 passes are kept" in capsys.readouterr().out


# Two runs


@pytest.fixture(scope="session")
def both(opened, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of two runs of one step, of two loops and of three, and what was printed."""
    folder = tmp_path_factory.mktemp("both")
    words = ["--tagger", "none", "--no_costs", "--sequences", "3"]
    for loops in (2, 3):
        run = opened(model={"loops": loops})
        shutil.copytree(run, folder / "runs" / f"k{loops}", symlinks=True)
    runs = [str(folder / "runs" / f"k{loops}") for loops in (2, 3)]
    with redirect_stdout(io.StringIO()) as shown, pytest.MonkeyPatch.context() as patch:
        patch.setattr("dualpath_cli.study.routing.report.save", lambda folder, figures: [])
        assert main(["routing", "--ckpt_path", *runs, *words, "--out", str(folder / "out")]) == 0
    return folder / "out", shown.getvalue()


def test_several_runs_stand_side_by_side(both):
    out, shown = both
    summary = json.loads((out / "summary.json").read_text())
    assert list(summary["runs"]) == ["k2", "k3"]
    page = (out / "index.html").read_text()
    for name, line in summary["runs"].items():
        folder = f"runs-{name}-step-00000006"
        single = json.loads((out / folder / "summary.json").read_text())
        assert line["layers"] == single["average"]["layers"]
        assert f'href="{folder}/index.html"' in page
        for claim in single["claims"]:
            assert f"<td>{claim['value']:+.3f} {claim['verdict']}</td>" in page
    drawn = {path.stem for path in out.glob("*.png")}
    assert drawn == {"depth", "polarisation", "steps"}
    assert (out / "claims.csv").read_text().count("\nk3,") == len(single["claims"]) > 2
    assert "run 2 of 2" in shown


def test_two_runs_are_on_one_page_with_the_same_texts(both):
    out, shown = both
    assert str(out / "beside.html") in shown
    assert 'href="beside.html"' in (out / "index.html").read_text()
    page = data_of(out / "beside.html")
    models = [(model["name"], model["steps"]) for model in page["models"]]
    assert models == [("k2", [2, 2]), ("k3", [3, 3])]
    for name, read in zip(("k2", "k3"), page["models"], strict=True):
        own = data_of(out / f"runs-{name}-step-00000006" / "index.html")
        assert own["models"][0]["means"] == read["means"]
        assert own["models"][0]["forced"] == read["forced"]
        assert own["texts"]["tokens"] == page["texts"]["tokens"]
    assert page["models"][0]["means"] != page["models"][1]["means"]


def test_two_checkpoints_of_a_run_are_named_by_their_steps(both, tmp_path):
    """As two folders of one name but for their steps are."""
    folders = [tmp_path / f"tiny-k2-step-0000000{step}" for step in (2, 6)]
    reports = []
    for folder, step in zip(folders, (2, 6), strict=True):
        shutil.copytree(both[0] / "runs-k2-step-00000006", folder)
        reports.append(json.loads((folder / "summary.json").read_text()))
        reports[-1]["checkpoint"]["step"] = step
    names = [folder.name for folder in folders]
    (page,) = runs._write_beside(folders, reports, names, tmp_path, Console(file=io.StringIO()))
    assert [model["name"] for model in data_of(page)["models"]] == ["step 2", "step 6"]
    assert "<h1>tiny-k2, step 2 beside step 6</h1>" in page.read_text()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sources": {"held_out": {"tokenizer": "another"}}}, "their tokenizers differ"),
        ({"layers": [0]}, "layers 0, 1 of the one have gates, layers 0 of the other"),
        ({"model": {"max_seq_len": 8}}, "their sequences have up to 16 and 8 tokens"),
    ],
)
def test_runs_that_cannot_be_side_by_side_say_why(both, tmp_path, change, reason):
    folders = [both[0] / f"runs-k{loops}-step-00000006" for loops in (2, 3)]
    reports = [json.loads((folder / "summary.json").read_text()) for folder in folders]
    reports[1] = merge(reports[1], change)
    console = Console(width=200, file=io.StringIO())
    assert runs._write_beside(folders, reports, ["k2", "k3"], tmp_path, console) == []
    assert f"no page of both runs side by side: {reason}" in console.file.getvalue()


def test_runs_of_other_sequences_are_not_side_by_side(both, tmp_path):
    folders = [tmp_path / f"runs-k{loops}-step-00000006" for loops in (2, 3)]
    for folder in folders:
        shutil.copytree(both[0] / folder.name, folder)
    path = folders[1] / "page" / "held_out.npz"
    arrays = read_arrays(path)
    np.savez(path, **{**arrays, "numbers": arrays["numbers"][::-1]})
    console = Console(width=200, file=io.StringIO())
    written = routings(folders, tmp_path, console)
    reason = "their sequences differ; give --max-tokens and --data.val_seed for both"
    assert f"no page of both runs side by side: {reason}" in console.file.getvalue()
    assert tmp_path / "beside.html" not in written
    assert (tmp_path / "index.html").exists()


def test_several_runs_have_one_set_of_sources(both, tmp_path):
    folders = [tmp_path / str(loops) for loops in (2, 3)]
    summary = (both[0] / "runs-k2-step-00000006" / "summary.json").read_text()
    for folder, name in zip(folders, ("held_out", "other"), strict=True):
        folder.mkdir()
        (folder / "summary.json").write_text(summary.replace('"held_out": {', f'"{name}": {{'))
    with pytest.raises(UserError, match="name different validation sets: give --sources"):
        routings(folders, tmp_path, Console(file=io.StringIO()))
