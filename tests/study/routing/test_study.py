"""`dualpath routing`: its rows, its numbers, its files, its continuation, its
mistakes."""

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.folders import OURS
from dualpath_cli.cli.main import main
from dualpath_cli.data.documents import Source, read_documents
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.data.windows import document_windows
from dualpath_cli.model import RoutingTrace
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.study import parts_of_speech
from dualpath_cli.study.bench import read_arrays
from dualpath_cli.study.parts_of_speech import CLASSES
from dualpath_cli.study.routing.readouts import (
    CORE_READOUTS,
    EXPERT_READOUTS,
    READOUTS,
    STEP_READOUTS,
)
from dualpath_cli.study.routing.tokens import token_texts
from tests.model import reference
from tests.study.conftest import CORE, Studied, Study, data_of, model_of
from tests.training.tiny_run import SEQ_LEN, weights

FIGURES = {"depth", "gate_density", "gate_density_layers", "parts_of_speech"}
FILES = {"routing.parquet", "passes", "page", "summary.json", "index.html"}
PER_LAYER = [
    "gate_deep",
    "gate_wide",
    "update_deep",
    "update_wide",
    "cosine",
    "deep_share",
    "expected_loops",
]
OF_TAGS = {
    "deep_share": "layers",
    "gate_deep": "gate_deep_layers",
    "gate_wide": "gate_wide_layers",
    "expected_loops": "expected_loops_layers",
}
"""Read-outs of a part of speech, and their keys by layer, in the summary."""


def routing(run: Path, *words: str) -> Path:
    assert main(["routing", "--ckpt_path", str(run), *words]) == 0
    out = [words[n + 1] for n, word in enumerate(words) if word == "--out"]
    return Path(out[0]) if out else run / "routing" / "step-00000006"


@pytest.fixture(scope="session")
def whole(studied: Study, texts: Path) -> Studied:
    """Everything of two sources."""
    return studied("routing", "--sequences", "2", *sources_of(texts), drawn=True)


def sources_of(texts: Path) -> list[str]:
    return ["--data.val", f"{{a: {texts / 'val.jsonl'}, b: {texts / 'train.jsonl'}}}"]


def summary_of(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def rows_of(folder: Path) -> dict[str, np.ndarray]:
    """The columns of the table, sorted by source, sequence and position."""
    table = pq.read_table(folder / "routing.parquet")
    table = table.sort_by(
        [(name, "ascending") for name in ("source", "sequence", "position")]
    )
    return {name: np.array(table[name].to_pylist()) for name in table.column_names}


# Rows


def test_every_token_has_a_row_with_what_the_model_did(whole, texts):
    """Against forward passes of one sequence each, cut by hand."""
    rows = rows_of(whole.folder)
    rows = {name: column[rows["source"] == "a"] for name, column in rows.items()}
    model, tokenizer = model_of(whole.run)
    values = tokenizer.token_values()
    row = sequence = 0
    for document in read_documents(Source("a", texts / "val.jsonl")):
        ids = tokenizer.encode(document)
        for start in range(0, len(ids), SEQ_LEN):
            window = ids[start : start + SEQ_LEN]
            inputs = torch.tensor([[tokenizer.eot_id, *window]])
            trace = RoutingTrace()
            with torch.no_grad():
                logits = model(inputs, trace=trace)[0]
            losses = -logits.double().log_softmax(-1)
            for position, id in enumerate(window):
                assert rows["sequence"][row] == sequence
                assert rows["position"][row] == position
                assert rows["token_id"][row] == id
                assert rows["token"][row] == values[id].decode()
                upos = {b"h": "NUM", b" ": "SPACE"}.get(values[id][:1], "NOUN")
                assert rows["upos"][row] == upos
                assert rows["nats"][row] == pytest.approx(
                    float(losses[position, id]), rel=1e-4
                )
                for name in (*PER_LAYER, "step_weights", "step_sizes", "step_cosines"):
                    layers = [
                        getattr(layer, name)[0, position + 1] for layer in trace.layers
                    ]
                    np.testing.assert_allclose(
                        rows[name][row].astype(float),
                        torch.stack(layers),
                        rtol=1e-3,
                        atol=1e-4,
                        err_msg=name,
                    )
                row += 1
            sequence += 1
    assert row == len(rows["token"]) > 100
    assert rows["deep_share"].std() > 0.01


@given(st.text(max_size=12).map(str.encode) | st.binary(max_size=12), st.data())
def test_the_texts_of_tokens_are_the_text_however_it_is_cut(whole, data):
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=8).map(sorted))
    ends = [0, *cuts, len(whole)]
    values = [whole[a:b] for a, b in pairwise(ends)]
    texts = token_texts(values)
    assert "".join(texts) == whole.decode(errors="replace")
    assert len(texts) == len(values)


# Numbers


def test_the_summary_is_what_plain_means_over_the_rows_give(whole):
    summary, rows = summary_of(whole.folder), rows_of(whole.folder)
    averages = []
    for source in ("a", "b"):
        columns = {
            name: column[rows["source"] == source] for name, column in rows.items()
        }
        report = summary["sources"][source]
        assert report["tokens"] == len(columns["nats"])
        assert report["sequences"] == len(set(columns["sequence"]))
        assert report["loss"] == pytest.approx(columns["nats"].mean(), rel=1e-4)
        for name in PER_LAYER:
            mean = columns[name].astype(float).mean(0)
            assert report["layers"][name]["mean"] == pytest.approx(mean, rel=1e-5), name
        assert report["upos"].keys() == {"NUM", "NOUN", "SPACE"}
        for tag in report["upos"]:
            for name, key in OF_TAGS.items():
                mean = columns[name][columns["upos"] == tag].mean(0)
                found = report["upos"][tag]
                assert found[key]["mean"] == pytest.approx(mean, rel=1e-5), name
                assert found[name]["mean"] == pytest.approx(mean.mean(), rel=1e-5)
                assert found[name]["low"] < mean.mean() < found[name]["high"]
        present = {
            n for n, upos in CLASSES.items() if np.isin(columns["upos"], upos).any()
        }
        assert report["classes"].keys() == present
        for name in present:
            member = np.isin(columns["upos"], CLASSES[name])
            inside, outside = (
                columns["deep_share"][its].mean(0) for its in (member, ~member)
            )
            found = report["classes"][name]
            assert found["layers"]["mean"] == pytest.approx(inside - outside, rel=1e-4)
            assert found["difference"]["low"] < (inside - outside).mean()
            assert found["difference"]["high"] > (inside - outside).mean()
        averages.append(columns["deep_share"].mean(0))
    average = summary["average"]["layers"]["deep_share"]["mean"]
    assert average == pytest.approx(np.mean(averages, axis=0), rel=1e-5)


# Files


def test_the_command_writes_and_names_everything(whole):
    folder, shown = whole.folder, whole.shown
    assert folder == whole.run / "routing" / "step-00000006"
    wanted = (
        FILES
        | {OURS}
        | {f"{name}.{kind}" for name in FIGURES for kind in ("png", "pdf")}
    )
    assert {path.name for path in folder.iterdir()} == wanted
    facts = pq.read_schema(folder / "routing.parquet").metadata
    assert facts[b"checkpoint"] == summary_of(folder)["checkpoint"]["sha256"].encode()
    assert facts[b"layers"] == b"[0, 1]"
    about = re.findall(
        "<dt>(.*)</dt><dd>(.*)</dd>", (folder / "index.html").read_text()
    )
    assert dict(about)["a"].startswith("val.jsonl, sha256 ")
    assert f"written to {folder}\n" in shown
    layers = summary_of(folder)["average"]["layers"]
    (late,) = (line for line in shown.splitlines() if line.startswith("late: layer 1"))
    share, low, high = (layers["deep_share"][end][1] for end in ("mean", "low", "high"))
    others = ("gate_deep", "gate_wide", "cosine", "expected_loops")
    means = [f"{layers[name]['mean'][1]:.3f}" for name in others]
    assert late.split()[3:] == [
        f"{share:.3f}",
        f"({low:.3f}",
        "to",
        f"{high:.3f})",
        *means,
    ]


def test_the_page_of_routing_names_every_column_and_every_class(whole):
    path = Path(__file__).parents[3] / "docs" / "routing.md"
    page = path.read_text(encoding="utf-8")
    readouts = [*READOUTS, *STEP_READOUTS, *EXPERT_READOUTS, *CORE_READOUTS]
    written = pq.read_schema(whole.folder / "routing.parquet").names
    named = page.partition("### Columns")[2].partition("\n## ")[0]
    for column in (*written, *readouts):
        assert f"`{column}`" in named
    for name, upos in CLASSES.items():
        assert f"| `{name}` | {', '.join(upos)} |\n" in page


def test_without_a_tagger_there_are_no_parts_of_speech(
    run, figures, monkeypatch, capsys
):
    def absent(pipeline: str) -> str:
        raise UserError("parts of speech need the package spacy")

    monkeypatch.setattr(parts_of_speech, "check_pipeline", absent)
    folder = routing(run, "--no_costs", "--sequences", "4")
    assert (
        "tokens have no parts of speech: parts of speech need"
        in capsys.readouterr().out
    )
    summary = summary_of(folder)
    assert summary["tagger"] is None
    assert summary["sources"]["held_out"]["upos"] == {}
    assert set(rows_of(folder)["upos"]) == {None}
    assert figures["parts_of_speech"] is None
    shown = data_of(folder / "index.html")["examples"]
    assert [example["number"] for example in shown] == [0, 1, 2, 3]


def test_what_is_done_is_not_read_again(run, texts, by_letter, forwards, capsys):
    words = [
        *sources_of(texts),
        "--no_costs",
        "--sequences",
        "2",
        "--data.val_tokens",
        "100",
    ]
    complete = routing(run, *words, "--out", str(run / "complete"))
    batches = len(forwards.names)
    out = ["--out", str(run / "parts")]
    forwards.allowed = batches + batches // 4 + 3  # in the middle of the second source
    assert main(["routing", "--ckpt_path", str(run), *words, *out]) == 130
    left = [p for p in (run / "parts").rglob("*") if p.is_file() and p.name != OURS]
    kinds = sorted((path.name[:2], path.suffix) for path in left)
    # The reading and the lens of the first source; nothing half-written.
    assert kinds == [("a-", ".npz"), ("a-", ".npz"), ("a-", ".parquet")]
    assert (
        "2 of 4 passes are kept; the same command continues" in capsys.readouterr().out
    )
    forwards.names.clear()
    forwards.allowed = float("inf")
    parts = routing(run, *words, *out)
    assert 0 < len(forwards.names) < batches
    # A source without its rows, or with half of its sums, is read again; what is whole
    # is not.
    (tokens,) = [path for path in left if path.suffix == ".parquet"]
    (sums,) = [path for path in left if path.name == f"{tokens.stem}.npz"]
    tokens.unlink()
    sums.write_bytes(sums.read_bytes()[:40])
    continued = len(forwards.names)
    forwards.names.clear()
    routing(run, *words, *out)
    assert 0 < len(forwards.names) < continued
    forwards.names.clear()
    routing(run, *words, *out)
    assert forwards.names == []
    for name in ("summary.json", "index.html"):
        assert (complete / name).read_text() == (parts / name).read_text(), name


def test_a_source_of_an_earlier_call_leaves_nothing_on_the_page(run, texts, by_letter):
    words = ["--no_costs", "--sequences", "2", "--data.val_tokens", "100"]
    folder = routing(run, *words, *sources_of(texts))
    assert {path.name for path in (folder / "page").iterdir()} == {"a.npz", "b.npz"}
    assert routing(run, *words) == folder
    assert {path.name for path in (folder / "page").iterdir()} == {"held_out.npz"}


# What the page has beyond rows: the logit lens by values, costs by direct passes, what
# is kept

MIXED = {
    "n_layers": 3,
    "block": ["dual", "loop", "dual"],
    "loops": [3, 4, 2],
    "n_experts": [5, 0, 0],
}


@pytest.fixture(scope="session")
def mixed(studied: Study) -> Studied:
    """A loop layer between dual ones, of three loops and five experts, and of two."""
    words = ["--tagger", "none", "--sequences", "3"]
    return studied("routing", *words, model=MIXED)


def page_of(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "page" / "held_out.npz") as arrays:
        return dict(arrays)


def windows_of(run: Path, texts: Path, numbers) -> list[np.ndarray]:
    documents = read_documents(Source("a", texts / "val.jsonl"))
    cut, _ = document_windows(
        documents, Tokenizer.load(run / "tokenizer.json"), SEQ_LEN
    )
    return [cut[number] for number in numbers]


def states_of(config: ModelConfig, w: reference.Weights, ids: list[int]) -> list[list]:
    """Input, loops, wide path and output of each dual layer: lists of a vector a
    token."""
    stream, found = [w["embed.weight"][id] for id in ids], []
    for layer, kind in enumerate(config.block_kinds):
        own = reference.below(w, f"blocks.{layer}")
        after = reference.block(own, config, kind, stream)
        if kind == "dual":
            loops = reference.deep_states(reference.below(own, "deep"), config, stream)
            wide = reference.wide_path(reference.below(own, "wide"), config, stream)
            loops += loops[-1:] * (3 - len(loops))  # the page repeats the last one
            found.append([stream, *loops, wide, after])
        stream = after
    return found


def test_a_mixed_model_tells_of_its_dual_layers(mixed):
    rows = rows_of(mixed.folder)
    assert rows["deep_share"].shape[1:] == (2,)
    assert rows["step_weights"].shape[1:] == (2, 3)
    assert (rows["step_weights"][:, 1, 2] == 0).all()  # layer 2 has two steps
    assert rows["step_weights"][:, 1, :2].min() > 0
    assert all(
        np.isnan(rows[name][:, 1, 2]).all() for name in ("step_sizes", "step_cosines")
    )
    assert data_of(mixed.folder / "index.html")["layers"] == [0, 2]


@pytest.fixture(scope="session")
def of_core(studied: Study) -> Studied:
    """A dual layer that repeats three times, then another one."""
    words = ["--tagger", "none", "--sequences", "2"]
    return studied("routing", *words, **CORE)


PLACES = [(2, 0), (2, 1), (2, 2), (3, 0)]


def test_a_layer_of_a_core_has_a_place_for_each_repetition(of_core, texts):
    rows = rows_of(of_core.folder)
    (ids,) = windows_of(of_core.run, texts, [1])
    trace = RoutingTrace()
    with torch.inference_mode():
        model_of(of_core.run)[0](torch.tensor(ids[None]), trace=trace)
    at = {(layer.layer, layer.repetition): layer for layer in trace.layers}
    own = rows["sequence"] == 1
    for name in (*PER_LAYER, "step_weights", "step_sizes"):
        expected = torch.stack([getattr(at[place], name)[0, 1:] for place in PLACES], 1)
        np.testing.assert_allclose(rows[name][own], expected, rtol=1e-3, atol=1e-4)
    for name in ("weights", "sizes", "cosines"):
        expected = getattr(trace.core, f"step_{name}")[0, 1:]
        found = rows[f"core_{name}"][own].astype(float)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)

    summary = summary_of(of_core.folder)
    assert (summary["layers"], summary["repetitions"]) == (
        [2, 2, 2, 3],
        [1, 2, 3, None],
    )
    core = summary["sources"]["held_out"]["core"]
    assert core["core_weights"]["mean"] == pytest.approx(
        rows["core_weights"].mean(0), rel=1e-5
    )
    labels = ["2, r 1", "2, r 2", "2, r 3", 3]
    page = data_of(of_core.folder / "index.html")
    assert (page["layers"], page["model"]["repetitions"]) == (labels, 3)
    assert "middle: layer 2, r 2" in of_core.shown
    weights = [f"{mean:.3f}" for mean in core["core_weights"]["mean"]]
    for r, weight in enumerate(weights, 1):
        assert re.search(rf"^r {r} +{weight} ", of_core.shown, re.MULTILINE)


def test_a_repetition_is_read_early_before_the_core_mixes_it(of_core, texts):
    page, (model, tokenizer) = page_of(of_core.folder), model_of(of_core.run)
    (ids,) = windows_of(of_core.run, texts, [0])
    trace = RoutingTrace(keeps_states=True)
    with torch.inference_mode():
        model(torch.tensor(ids[None]), trace=trace)
        outputs = [*trace.core.deep_states, trace.output]
        inputs = [layer.x for layer in trace.layers if layer.gate_deep is not None]
        for place, states in enumerate(zip(inputs, outputs, strict=True)):
            for state, x_BTD in zip((0, -1), states, strict=True):
                logits = model.head(model.norm(x_BTD))[0, 1:, : tokenizer.vocab_size]
                shares = logits.softmax(-1).topk(3).values
                found = page["shares"][: len(shares), place, state]
                np.testing.assert_allclose(found, shares, rtol=1e-3)


def test_forced_repetitions_cost_in_all_layers_and_gates_in_each_place(of_core, texts):
    page, (model, _) = page_of(of_core.folder), model_of(of_core.run)
    names = ["K = 1", "R = 1", "R = 2", "deep only", "wide only", "both open"]
    assert page["forced"].tolist() == names
    (ids,) = windows_of(of_core.run, texts, [0])
    tokens = torch.from_numpy(ids[None].astype(np.int64))

    def cost(**change) -> np.ndarray:
        with torch.no_grad():
            forced, learned = (
                model(tokens[:, :-1], tokens[:, 1:], intervention=made)[0, 1:]
                for made in (Intervention(**change), None)
            )
        return (forced - learned).numpy()

    costs = page["costs"][: len(ids) - 2]
    everywhere = [cost(loops=1), cost(core_loops=1), cost(core_loops=2)]
    np.testing.assert_allclose(costs[:, 0, :3], np.stack(everywhere, 1), atol=1e-4)
    assert np.isnan(costs[:, 1:, 1:3]).all()
    in_layer = cost(gates=(1.0, 0.0), layers=(2,))
    for place in (1, 2, 3):  # all repetitions together
        np.testing.assert_allclose(costs[:, place, 3], in_layer, atol=1e-4)


def test_every_token_has_its_experts_where_a_layer_has_any(mixed, texts):
    (model, _), rows = model_of(mixed.run), rows_of(mixed.folder)
    (ids,) = windows_of(mixed.run, texts, [1])
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
    loads = (
        np.bincount(rows["experts"][:, 0].ravel(), minlength=5)
        / rows["experts"][:, 0].size
    )
    summary = json.loads((mixed.folder / "summary.json").read_text())
    source = summary["sources"]["held_out"]
    assert source["expert_loads"] == [pytest.approx(loads), []]
    means = {
        "load_max": 5 * loads.max(),
        "load_entropy": entropy(loads, base=5),
        "idle_experts": (loads == 0).sum(),
    }
    for name, mean in means.items():
        assert source["layers"][name]["mean"] == [pytest.approx(mean), None]
    data = data_of(mixed.folder / "index.html")["model"]
    assert (data["experts"], data["chosen"]) == ([5, 0], 2)


def test_the_lens_is_that_of_a_slow_model_in_float64(mixed, texts):
    page, run = page_of(mixed.folder), mixed.run
    config, vocabulary = model_of(run)[0].config, model_of(run)[1].vocab_size
    w = {
        name.removeprefix("model."): value.double()
        for name, value in weights(run).items()
    }
    row, beyond = 0, False
    for window, count in zip(
        windows_of(run, texts, [0, 1]), page["counts"], strict=False
    ):
        assert count == len(window) - 1
        layers = states_of(config, w, window.tolist())
        for position in range(1, len(window)):
            for layer, states in enumerate(layers):
                for place, state in enumerate(states):
                    normed = reference.rms_norm(
                        state[position], w["norm.weight"], config.norm_eps
                    )
                    logits = w["head.weight"] @ normed
                    beyond |= bool((logits.topk(3).indices >= vocabulary).any())
                    shares = logits[:vocabulary].softmax(0)
                    said = page["said"][row, layer, place]
                    expected = shares.topk(3).values.tolist()
                    assert page["shares"][row, layer, place] == pytest.approx(
                        expected, rel=1e-3
                    )
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


def test_costs_are_those_of_direct_passes(mixed, texts):
    page, run = page_of(mixed.folder), mixed.run
    model, _ = model_of(run)
    changes = [
        {"loops": 1},
        {"gates": (1.0, 0.0)},
        {"gates": (0.0, 1.0)},
        {"gates": (1.0, 1.0)},
    ]
    assert page["forced"].tolist() == ["K = 1", "deep only", "wide only", "both open"]
    assert page["costs"].shape[1:] == (3, 4)
    start = 0
    for window, count in zip(
        windows_of(run, texts, range(3)), page["counts"], strict=True
    ):
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


def test_the_first_tokens_of_a_sequence_give_what_the_whole_one_gives(
    mixed, tmp_path, monkeypatch
):
    expected_page = page_of(mixed.folder)
    monkeypatch.setattr(
        "dualpath_cli.study.routing.page.passes.tokens_with_room", lambda *_: 4
    )
    folder = routing(mixed.copied(tmp_path), "--tagger", "none", "--sequences", "3")
    first, counts = page_of(folder), expected_page["counts"]
    assert first["counts"].tolist() == np.minimum(counts, 4).tolist() == [4, 4, 1]
    assert (first["next_ids"][:8] >= 0).all()  # what comes after the last one is known
    starts = [
        np.cumsum(page["counts"]) - page["counts"] for page in (first, expected_page)
    ]
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


def test_passes_of_the_page_are_kept_and_counted(
    mixed, tmp_path, forwards, monkeypatch, capsys
):
    run, words = mixed.copied(tmp_path), ["--tagger", "none", "--sequences", "3"]
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
    assert re.search(
        "no room for [0-9]+ sequences of held_out; give", capsys.readouterr().err
    )
