"""`dualpath routing`: its rows, its numbers, its files, its continuation, its mistakes."""

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.cli.main import main
from dualpath_cli.config import ModelConfig
from dualpath_cli.files import OURS
from dualpath_cli.model import RoutingTrace
from dualpath_cli.study import parts_of_speech
from dualpath_cli.study.parts_of_speech import TokenClass, measured
from dualpath_cli.study.routing.tokens import token_texts
from dualpath_cli.text.documents import Source, read_documents
from dualpath_cli.training.data.windows import document_windows
from dualpath_cli.training.parallel import build_model
from tests.study.conftest import OPEN, Studied, Study, model_of
from tests.study.routing.conftest import data_of
from tests.tiny_run import SEQ_LEN

FIGURES = {
    "depth", "steps", "polarisation", "gate_density", "gate_density_layers", "tokens",
    "layers_by_token", "parts_of_speech", "parts_of_speech_box",
}  # fmt: skip
FILES = {"routing.parquet", "passes", "page", "summary.json", "claims.csv", "index.html"}
PER_LAYER = ["gate_deep", "gate_wide", "update_deep", "update_wide", "cosine", "deep_share",
             "expected_loops"]  # fmt: skip


def routing(run: Path, *words: str) -> Path:
    assert main(["routing", "--ckpt_path", str(run), *words]) == 0
    out = [words[n + 1] for n, word in enumerate(words) if word == "--out"]
    return Path(out[0]) if out else run / "routing" / "step-00000006"


@pytest.fixture(scope="session")
def whole(studied: Study, texts: Path) -> Studied:
    """Everything of two sources; no sequence of them has the anchor."""
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
                for name in PER_LAYER:
                    expected = [
                        float(getattr(layer, name)[0, position + 1]) for layer in trace.layers
                    ]
                    assert rows[name][row] == pytest.approx(expected, rel=1e-4, abs=1e-5), name
                steps = [layer.step_weights[0, position + 1].tolist() for layer in trace.layers]
                assert rows["step_weights"][row] == pytest.approx(np.array(steps), abs=1e-5)
                for name in ("step_sizes", "step_cosines"):
                    expected = [getattr(layer, name)[0, position + 1].tolist()
                                for layer in trace.layers]  # fmt: skip
                    assert rows[name][row] == pytest.approx(
                        np.array(expected), rel=1e-3, abs=1e-4, nan_ok=True
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
        for chosen in measured():
            present = np.isin(columns["upos"], chosen.upos).any()
            assert (chosen.name in report["classes"]) == present
            if present:
                estimate = report["classes"][chosen.name]["difference"]
                assert estimate["low"] < estimate["mean"] < estimate["high"]
        averages.append(columns["deep_share"].mean(0))
    average = summary["average"]["layers"]["deep_share"]["mean"]
    assert average == pytest.approx(np.mean(averages, axis=0), rel=1e-5)
    classes = {(c["claim"], c["source"]): c["value"] for c in summary["claims"]}
    value = summary["sources"]["a"]["classes"]["arithmetic"]["difference"]["mean"]
    assert classes["arithmetic (NUM, SYM) leans deep", "a"] == value


def questions(path: Path, lead: int, count: int = 12) -> str:
    """A file of questions of about `lead` letters, each with an answer of six."""
    lines = [
        json.dumps({"question": "a" * (lead + n % 2), "answer": "b" * 6}) for n in range(count)
    ]
    path.write_text("\n".join(lines))
    return str(path)


def test_the_anchor_lines_sequences_up(trained, tmp_path, by_letter, figures):
    model = {**OPEN["model"], "max_seq_len": 32}
    run = trained(model=model, optim=OPEN["optim"], run={"batch_tokens": 128, "max_tokens": 768})
    sources = [f"triviaqa={questions(tmp_path / 'two.jsonl', 4)}",
               f"gsm8k={questions(tmp_path / 'one.jsonl', 1)}"]  # fmt: skip
    folder = routing(run, "--sources", *sources, "--anchor", "Answer:", "--no_costs")
    summary, rows = summary_of(folder), rows_of(folder)
    means = []
    for source in ("gsm8k", "triviaqa"):
        assert summary["sources"][source]["anchored"] == 12
        sequence, position, token, share = (
            rows[name][rows["source"] == source]
            for name in ("sequence", "position", "token", "deep_share")
        )
        colons = zip(sequence, position, token, strict=True)
        anchor = {s: p for s, p, t in colons if t == ":"}  # of two colons the later one
        assert len(anchor) == 12
        offset = position - [anchor[s] for s in sequence]
        late = share[:, 1]
        means.append([late[offset == o].mean() for o in range(1, 8)])
    (claim,) = [c for c in summary["claims"] if "in late layers" in c["claim"]]
    assert claim["source"] == "gsm8k, triviaqa"
    assert claim["value"] == pytest.approx(np.mean(np.subtract(*means)), rel=1e-4)
    assert "7 positions" in claim["number"]
    assert figures["aligned"] is not None


def test_another_anchor_is_read_anew_and_one_that_is_nowhere_is_said(
    whole, texts, tmp_path, by_letter
):
    assert summary_of(whole.folder)["sources"]["a"]["anchored"] == 0
    assert "no sequence has the anchor 'Answer': nothing is aligned" in whole.shown
    assert not (whole.folder / "aligned.png").exists()
    words = ["--sources", sources_of(texts)[0], "--anchor", "he", "--no_costs"]
    folder = routing(whole.copied(tmp_path), *words)
    assert summary_of(folder)["sources"]["a"]["anchored"] > 0


def test_a_few_sequences_have_no_intervals_and_that_is_said(run, tmp_path, by_letter, capsys):
    (tmp_path / "short.txt").write_text("hello the cell")
    folder = routing(run, "--sources", str(tmp_path / "short.txt"), "--no_costs")

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    summary = json.loads((folder / "summary.json").read_text(), parse_constant=refuse)
    assert {claim["low"] for claim in summary["claims"]} == {None}
    assert {claim["verdict"] for claim in summary["claims"]} == {"open"}
    said = "short has 1 window: fewer than 10 have no intervals and no tests"
    assert said in capsys.readouterr().out


def test_the_untrained_model_is_the_one_that_the_run_began_with(whole, texts):
    """The weights of the run's seed, read on the same tokens; what is written is of the trained."""
    summary, rows = summary_of(whole.folder), rows_of(whole.folder)
    recipe = yaml.safe_load((whole.run / "recipe.yaml").read_text())
    model = build_model(ModelConfig(**recipe["model"]), seed=recipe["seed_everything"])
    _, tokenizer = model_of(whole.run)
    documents = read_documents(Source("a", texts / "val.jsonl"))
    windows, _ = document_windows(documents, tokenizer, SEQ_LEN)
    cosines = []
    for window in windows:
        trace = RoutingTrace()
        with torch.no_grad():
            model(torch.from_numpy(window[None].astype(np.int64)), trace=trace)
        cosines += torch.stack([layer.cosine[0, 1:] for layer in trace.layers], 1).tolist()
    untrained = summary["untrained"]["a"]["layers"]["cosine"]["mean"]
    assert untrained == pytest.approx(np.mean(cosines, axis=0), rel=1e-4)
    trained = summary["sources"]["a"]["layers"]["cosine"]["mean"]
    written = rows["cosine"][rows["source"] == "a"].astype(float).mean(0)
    assert written == pytest.approx(trained, rel=1e-5)
    assert np.abs(np.subtract(trained, untrained)).max() > 0.01
    (claim,) = [
        claim
        for claim in summary["claims"]
        if (claim["number"], claim["source"]) == ("cosine, layer 0", "a")
    ]
    assert (claim["value"], claim["untrained"]) == pytest.approx((trained[0], untrained[0]))


# Files


def test_the_command_writes_and_names_everything(whole):
    folder, shown = whole.folder, whole.shown
    assert folder == whole.run / "routing" / "step-00000006"
    figures = FIGURES | ({"classes"} if parts_of_speech.OTHERS else set())
    wanted = FILES | {OURS} | {f"{name}.{kind}" for name in figures for kind in ("png", "pdf")}
    assert {path.name for path in folder.iterdir()} == wanted
    for name in ("routing.parquet", "summary.json"):
        assert str(folder / name) in shown
    facts = pq.read_schema(folder / "routing.parquet").metadata
    assert facts[b"checkpoint"] == summary_of(folder)["checkpoint"]["sha256"].encode()
    assert facts[b"layers"] == b"[0, 1]"
    assert all(name in shown for name in FIGURES)
    assert f"page     {(folder / 'index.html').as_uri()}" in shown
    for name in FIGURES:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    assert re.search(r"a +│ +0 │ +0\.\d{3} \(0\.\d{3} to 0\.\d{3}\) │", shown)
    assert re.search(r" a: [\d,]+ tokens, 15 windows; b: ", " ".join(shown.split()))
    assert "│ arithmetic (NUM," in shown


def test_chosen_sequences_come_first(run):
    plain = ["--tagger", "none", "--no_costs"]
    folder = routing(run, *plain, "--examples", "held_out:3", "held_out:1", "--sequences", "4")
    page = (folder / "index.html").read_text()
    assert re.findall(r'"source": "held_out", "number": (\d+)', page) == ["3", "1", "0", "2"]


def test_without_a_tagger_nothing_is_told_of_parts_of_speech(whole, texts, tmp_path, figures):
    words = ["--sources", sources_of(texts)[0], "--tagger", "none", "--no_costs"]
    folder = routing(whole.copied(tmp_path), *words)
    summary = summary_of(folder)
    assert summary["tagger"] is None
    assert summary["sources"]["a"]["upos"] == {}
    assert set(rows_of(folder)["upos"]) == {None}
    assert figures["parts_of_speech"] is figures["parts_of_speech_box"] is None


def test_a_further_class_is_measured_and_shown_apart_from_the_claims(
    whole, texts, tmp_path, by_letter, figures, forwards, monkeypatch, capsys
):
    """One entry in `OTHERS`, after which no pass is made again."""
    others = (*parts_of_speech.OTHERS, TokenClass("mine", ("NOUN", "X")))
    monkeypatch.setattr(parts_of_speech, "OTHERS", others)
    run = whole.copied(tmp_path)
    folder = routing(run, "--sequences", "2", "--sources", *sources_of(texts))
    shown, page = capsys.readouterr().out, (folder / "index.html").read_text()
    assert forwards.names == []
    before, after = summary_of(whole.folder), summary_of(folder)
    assert (after["claims"], after["tests"]) == (before["claims"], before["tests"])
    assert (folder / "claims.csv").read_text() == (whole.folder / "claims.csv").read_text()
    rows = rows_of(folder)
    for source in ("a", "b"):
        found = after["sources"][source]["classes"].pop("mine")["difference"]
        assert after["sources"][source]["classes"] == before["sources"][source]["classes"]
        of_source = rows["source"] == source
        share, nouns = rows["deep_share"][of_source], rows["upos"][of_source] == "NOUN"
        expected = share[nouns].mean() - share[~nouns].mean()
        assert found["mean"] == pytest.approx(expected, rel=1e-4)
        mean, low, high = (f"{found[name]:+.3f}" for name in ("mean", "low", "high"))
        assert f"{mean} in {source}" in page
        assert f"mine │ {source} │ {mean} ({low} to {high})" in " ".join(shown.split())
    assert figures["classes"] is not None
    assert "<dt>class mine</dt><dd>NOUN, X: deep share minus that of other tokens" in page


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
    assert "2 of 6 passes are kept; the same command continues" in capsys.readouterr().out
    forwards.names.clear()
    forwards.allowed = float("inf")
    parts = routing(run, *words, *out)
    assert 0 < len(forwards.names) < batches
    # A source without its rows, or with half of its sums, is read again; what is whole is not.
    damaged = {path.suffix: path for path in left}
    damaged[".parquet"].unlink()
    damaged[".npz"].write_bytes(damaged[".npz"].read_bytes()[:40])
    continued = len(forwards.names)
    forwards.names.clear()
    routing(run, *words, *out)
    assert 0 < len(forwards.names) < continued
    forwards.names.clear()
    routing(run, *words, *out)
    assert forwards.names == []
    for name in ("summary.json", "claims.csv", "index.html"):
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
    assert not (run / "routing").exists()
    assert main(["routing", "--ckpt_path", str(run), "--text", "hell", "--layer", "1"]) == 0
    assert "deep share, layer 1\n" in capsys.readouterr().out


def test_the_page_of_a_text_is_that_of_a_source_with_it_alone(run, tmp_path, figures, capsys):
    (tmp_path / "text.txt").write_text("hell the")
    words = ["--tagger", "none", "--beside_loops", "1"]
    study = [*words, "--sources", f"text={tmp_path / 'text.txt'}", "--out", str(tmp_path / "study")]
    assert main(["routing", "--ckpt_path", str(run), *study]) == 0
    capsys.readouterr()
    text = [*words, "--text", "hell the", "--out"]
    assert main(["routing", "--ckpt_path", str(run), *text, str(tmp_path / "text")]) == 0
    written = tmp_path / "text" / "index.html"
    assert f"page     {written.as_uri()}\n" in capsys.readouterr().out
    ours, theirs = data_of(written), data_of(tmp_path / "study" / "index.html")
    assert np.array_equal(ours.pop("codes"), theirs.pop("codes"))
    assert ours == theirs
    assert main(["routing", "--ckpt_path", str(run), *text, str(tmp_path / "study")]) == 2
    assert "study' has the routing of whole sources; give another" in capsys.readouterr().err
