"""`dualpath routing`: its rows, its numbers, its files, its continuation, its mistakes."""

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

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.system import OURS
from dualpath_cli.cli.main import main
from dualpath_cli.data.documents import Source, read_documents
from dualpath_cli.model import RoutingTrace
from dualpath_cli.study import parts_of_speech
from dualpath_cli.study.parts_of_speech import CLASSES
from dualpath_cli.study.routing.tokens import token_texts
from tests.study.conftest import Studied, Study, data_of, model_of
from tests.training.tiny_run import SEQ_LEN

FIGURES = {"depth", "gate_density", "parts_of_speech"}
FILES = {"routing.parquet", "passes", "page", "summary.json", "index.html"}
PER_LAYER = ["gate_deep", "gate_wide", "update_deep", "update_wide", "cosine", "deep_share",
             "expected_loops"]  # fmt: skip


def routing(run: Path, *words: str) -> Path:
    assert main(["routing", "--ckpt_path", str(run), *words]) == 0
    out = [words[n + 1] for n, word in enumerate(words) if word == "--out"]
    return Path(out[0]) if out else run / "routing" / "step-00000006"


@pytest.fixture(scope="session")
def whole(studied: Study, texts: Path) -> Studied:
    """Everything of two sources."""
    return studied("routing", "--sequences", "2", "--sources", *sources_of(texts), drawn=True)


def sources_of(texts: Path) -> list[str]:
    return [f"a={texts / 'val.jsonl'}", f"b={texts / 'train.jsonl'}"]


def summary_of(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def rows_of(folder: Path) -> dict[str, np.ndarray]:
    """The columns of the table, sorted by source, sequence and position."""
    table = pq.read_table(folder / "routing.parquet")
    table = table.sort_by([(name, "ascending") for name in ("source", "sequence", "position")])
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
                assert rows["nats"][row] == pytest.approx(float(losses[position, id]), rel=1e-4)
                for name in (*PER_LAYER, "step_weights", "step_sizes", "step_cosines"):
                    layers = [getattr(layer, name)[0, position + 1] for layer in trace.layers]
                    np.testing.assert_allclose(
                        rows[name][row].astype(float), torch.stack(layers),
                        rtol=1e-3, atol=1e-4, err_msg=name,
                    )  # fmt: skip
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
        columns = {name: column[rows["source"] == source] for name, column in rows.items()}
        report = summary["sources"][source]
        assert report["tokens"] == len(columns["nats"])
        assert report["sequences"] == len(set(columns["sequence"]))
        assert report["loss"] == pytest.approx(columns["nats"].mean(), rel=1e-4)
        for name in PER_LAYER:
            mean = columns[name].astype(float).mean(0)
            assert report["layers"][name]["mean"] == pytest.approx(mean, rel=1e-5), name
        for tag in ("NUM", "NOUN", "SPACE"):
            mean = columns["deep_share"][columns["upos"] == tag].mean(0)
            assert report["upos"][tag]["layers"]["mean"] == pytest.approx(mean, rel=1e-5)
        present = {n for n, upos in CLASSES.items() if np.isin(columns["upos"], upos).any()}
        assert report["classes"].keys() == present
        for estimate in (report["classes"][name]["difference"] for name in present):
            assert estimate["low"] < estimate["mean"] < estimate["high"]
        averages.append(columns["deep_share"].mean(0))
    average = summary["average"]["layers"]["deep_share"]["mean"]
    assert average == pytest.approx(np.mean(averages, axis=0), rel=1e-5)


# Files


def test_the_command_writes_and_names_everything(whole):
    folder, shown = whole.folder, whole.shown
    assert folder == whole.run / "routing" / "step-00000006"
    wanted = FILES | {OURS} | {f"{name}.{kind}" for name in FIGURES for kind in ("png", "pdf")}
    assert {path.name for path in folder.iterdir()} == wanted
    facts = pq.read_schema(folder / "routing.parquet").metadata
    assert facts[b"checkpoint"] == summary_of(folder)["checkpoint"]["sha256"].encode()
    assert facts[b"layers"] == b"[0, 1]"
    about = re.findall("<dt>(.*)</dt><dd>(.*)</dd>", (folder / "index.html").read_text())
    assert dict(about)["a"].startswith("val.jsonl, sha256 ")
    assert f"written to {folder}\n" in shown
    layers = summary_of(folder)["average"]["layers"]
    (late,) = (line for line in shown.splitlines() if line.startswith("late: layer 1"))
    share, low, high = (layers["deep_share"][end][1] for end in ("mean", "low", "high"))
    others = ("gate_deep", "gate_wide", "cosine", "expected_loops")
    means = [f"{layers[name]['mean'][1]:.3f}" for name in others]
    assert late.split()[3:] == [f"{share:.3f}", f"({low:.3f}", "to", f"{high:.3f})", *means]


def test_without_a_tagger_there_are_no_parts_of_speech_and_chosen_sequences_come_first(
    run, figures, monkeypatch, capsys
):
    def absent(pipeline: str) -> str:
        raise UserError("parts of speech need the package spacy")

    monkeypatch.setattr(parts_of_speech, "check_pipeline", absent)
    words = ["--no_costs", "--examples", "held_out:3", "held_out:1", "--sequences", "4"]
    folder = routing(run, *words)
    assert "tokens have no parts of speech: parts of speech need" in capsys.readouterr().out
    summary = summary_of(folder)
    assert summary["tagger"] is None
    assert summary["sources"]["held_out"]["upos"] == {}
    assert set(rows_of(folder)["upos"]) == {None}
    assert figures["parts_of_speech"] is None
    shown = data_of(folder / "index.html")["examples"]
    assert [example["number"] for example in shown] == [3, 1, 0, 2]


def test_what_is_done_is_not_read_again(run, texts, by_letter, forwards, capsys):
    words = ["--sources", *sources_of(texts), "--no_costs", "--sequences", "2"]
    words += ["--max_tokens", "100"]
    complete = routing(run, *words, "--out", str(run / "complete"))
    batches = len(forwards.names)
    out = ["--out", str(run / "parts")]
    forwards.allowed = batches + batches // 4 + 3  # in the middle of the second source
    assert main(["routing", "--ckpt_path", str(run), *words, *out]) == 130
    left = [p for p in (run / "parts").rglob("*") if p.is_file() and p.name != OURS]
    kinds = sorted((path.name[:2], path.suffix) for path in left)
    # The reading and the lens of the first source; nothing half-written.
    assert kinds == [("a-", ".npz"), ("a-", ".npz"), ("a-", ".parquet")]
    assert "2 of 4 passes are kept; the same command continues" in capsys.readouterr().out
    forwards.names.clear()
    forwards.allowed = float("inf")
    parts = routing(run, *words, *out)
    assert 0 < len(forwards.names) < batches
    # A source without its rows, or with half of its sums, is read again; what is whole is not.
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


# In the terminal


def test_a_text_is_printed_with_its_deep_shares(run, capsys):
    model, tokenizer = model_of(run)
    ids = tokenizer.encode("hell the")
    trace = RoutingTrace()
    with torch.no_grad():
        model(torch.tensor([[tokenizer.eot_id, *ids]]), trace=trace)
    shares = torch.stack([layer.deep_share[0, 1:] for layer in trace.layers], 1)
    capsys.readouterr()
    assert main(["routing", "--ckpt_path", str(run), "--text", "hell the"]) == 0
    shown = capsys.readouterr().out
    assert "\nhell the\n" in shown
    for id, row in zip(ids, shares.tolist(), strict=True):
        token = tokenizer.token_values()[id].decode()
        cells = r" +".join(f"{share:.2f}" for share in (np.mean(row), *row))
        assert re.search(rf"^{re.escape(token)} +{cells}", shown, re.MULTILINE), (token, cells)
    names = ("gate_deep", "update_wide", "cosine", "expected_loops", "step_weights", "step_sizes")
    for n, layer in enumerate(trace.layers):
        (line,) = re.findall(rf"^│ +{n} │(.*)│$", shown, re.MULTILINE)
        cells = [cell.strip() for cell in line.split("│")]
        g_d, size, cosine, loops, weights, sizes = (
            getattr(layer, name)[0, 1:].mean(0).numpy() for name in names
        )
        shown_means = [float(cells[k]) for k in (1, 4, 5, 6)]
        assert shown_means == pytest.approx([*map(float, (g_d, size, cosine, loops))], abs=6e-4)
        assert [float(w) for w in cells[7].split()] == pytest.approx(weights, abs=6e-3)
        assert [float(w) for w in cells[8].split()] == pytest.approx(sizes, rel=0.06)
    assert not (run / "routing").exists()
    assert main(["routing", "--ckpt_path", str(run), "--text", "hell the " * 20]) == 0
    assert "\n" + "hell the " * 20 in capsys.readouterr().out  # several sequences


def test_the_page_of_a_text_is_that_of_a_source_with_it_alone(run, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("hell the")
    words = ["--tagger", "none"]
    study = [*words, "--sources", f"text={tmp_path / 'text.txt'}", "--out", str(tmp_path / "study")]
    assert main(["routing", "--ckpt_path", str(run), *study]) == 0
    capsys.readouterr()
    text = [*words, "--text", "hell the", "--out"]
    assert main(["routing", "--ckpt_path", str(run), *text, str(tmp_path / "text")]) == 0
    assert "\nhell the\n" in capsys.readouterr().out
    ours, theirs = (data_of(tmp_path / name / "index.html") for name in ("text", "study"))
    assert ours == theirs
    summaries = [summary_of(tmp_path / name) for name in ("text", "study")]
    assert summaries[0]["average"] == summaries[1]["average"]
    assert main(["routing", "--ckpt_path", str(run), *text, str(tmp_path / "text")]) == 0, "again"
    capsys.readouterr()
    assert main(["routing", "--ckpt_path", str(run), *text, str(tmp_path / "study")]) == 2
    assert "study' has the routing of whole sources; give another" in capsys.readouterr().err
    assert summary_of(tmp_path / "study") == summaries[1]
