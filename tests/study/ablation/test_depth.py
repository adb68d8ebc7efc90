"""The suite `depth`: its rows, its division of documents, its numbers by hand."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from dualpath_cli.cli.main import main
from dualpath_cli.data.documents import Source, read_documents
from dualpath_cli.data.windows import Windows, document_windows
from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.report.bootstrap import LEAST_CLUSTERS, clusters_of
from dualpath_cli.run.tables import read_csv
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.study.ablation.depth import MOST_TOKENS, divide
from dualpath_cli.study.ablation.figures import draw_figures
from dualpath_cli.study.ablation.options import DEPTH_HALTING, Ablate
from dualpath_cli.study.ablation.scores import Result
from dualpath_cli.study.bench import read_arrays
from tests.study.conftest import CORE, model_of, naive_loss
from tests.training.tiny_run import SEQ_LEN

TINY = ModelConfig(n_layers=3, loops=3, d_ffn=1600, d_ffn_wide=11392)
EXITS = [
    f"halting={mass:g}{blind}"
    for mass in DEPTH_HALTING
    for blind in ("", " blind=all", " blind=position")
]


def names_of(**changes: Any) -> tuple[list[str], list[str]]:
    """Names of the rows of the suite, and of those that are left out."""
    config = dataclasses.replace(TINY, **changes)
    rows, skipped = Ablate(ckpt_path="RUN", suite=("depth",)).rows(config)
    return [row.intervention.name for row in rows[1:]], list(skipped)


def test_every_number_of_fewer_steps_is_forced_and_held_beside_exits():
    fewer = ["K=1", "held=1", "K=2", "held=2"]
    assert names_of() == (["learned", *fewer, *EXITS], [])
    core = {"core": [1, 2], "core_loops": 2, "core_combination": "router"}
    repetitions = ["R=1", "core_held=1"]
    assert names_of(**core)[0] == ["learned", *fewer, *repetitions, *EXITS]
    assert names_of(**core, block="wide")[0] == ["learned", *repetitions, *EXITS]
    # No layer takes more steps than it was trained with.
    assert names_of(loops=[2, 3, 4])[0][1:5] == ["K=1", "held=1", "K=2", "held=2"]
    # Exits need a router; schedules of no exit are not named.
    assert names_of(combination="mean") == (["learned", *fewer], EXITS[::3])
    assert names_of(loops=1) == ([], [])


@given(
    st.lists(st.integers(1, 400), min_size=2, max_size=60),
    st.integers(1, 5),
    st.booleans(),
)
def test_documents_are_scored_or_fitted_on_and_never_both(
    lengths, multiple_of, has_documents
):
    """Windows of up to 100 tokens; their first token numbers the document."""
    windows, documents = [], []
    for number, length in enumerate(lengths):
        for start in range(0, length, 100):
            tokens = min(100, length - start)
            windows.append(np.full(1 + tokens, number))
            documents.append(number)
    whole = Windows(windows, documents if has_documents else None, multiple_of)
    by_document = has_documents and len(lengths) >= 10
    division = divide("text", whole, multiple_of)

    parts = division.scored, division.fitted
    n_tokens = [part.n_tokens for part in parts]
    assert sum(n_tokens) == whole.n_tokens
    assert min(n_tokens) > 0
    texts = [[*map(bytes, part.windows[: part.n_filled])] for part in parts]
    assert sorted(texts[0] + texts[1]) == sorted(map(bytes, windows))
    assert all(len(part.windows) % multiple_of == 0 for part in parts)
    # Intervals keep their unit, and their number of clusters.
    if division.n_scored + division.n_fitted > LEAST_CLUSTERS:
        kept = clusters_of(division.scored)
        assert kept.unit == division.unit
        assert kept.count >= LEAST_CLUSTERS
    if by_document:
        assert division.unit == "documents"
        numbers = [{int(w[0]) for w in part.windows[: part.n_filled]} for part in parts]
        assert not numbers[0] & numbers[1]
        assert (len(numbers[0]), len(numbers[1])) == (
            division.n_scored,
            division.n_fitted,
        )


def test_no_more_is_fitted_on_than_needed_and_the_source_decides_on_what():
    windows = [np.full(1 + 64, number) for number in range(1000)]
    whole = Windows(windows, list(range(1000)))
    division = divide("text", whole, 1)
    assert division.fitted.n_tokens == MOST_TOKENS
    assert division.scored.n_tokens == 64_000 - MOST_TOKENS

    def fitted(source: str) -> set[int]:
        return {int(window[0]) for window in divide(source, whole, 1).fitted.windows}

    assert fitted("text") == fitted("text") != fitted("other")


# The command


def words_of(texts: Path) -> list[str]:
    source = json.dumps({"text": str(texts / "train.jsonl")})
    # A batch of four times as many windows takes a tiny model no longer.
    return ["--suite", "depth", "--data.val", source, "--run.micro_batch", "8"]


def by_name(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    rows = [row for row in report["rows"] if row["suite"] == "depth"]
    named = {row["intervention"]: row for row in rows}
    assert len(named) == len(rows)
    return named


def losses_by_hand(
    run: Path, folder: Path, change: Intervention, texts: Path
) -> dict[str, float]:
    """Losses of the scored documents in float64, one window at a time: of the model,
    and of its head's input under the numbers that were fitted."""
    model, tokenizer = model_of(run)
    model.double()
    documents = read_documents(Source("text", texts / "train.jsonl"))
    windows, numbers = document_windows(documents, tokenizer, SEQ_LEN)
    division = divide("text", Windows(windows, numbers), 1)

    # Fits are known by the loss before the fit. K=1 and held=1 are the same model, with
    # equal fits.
    before = naive_loss(model, division.fitted.windows, change)
    fit, *_ = [
        arrays
        for path in (folder / "scores").glob("text-*.npz")
        if "affine.matrix" in (arrays := read_arrays(path))
        and math.isclose(float(arrays["affine.loss_before"]), before, rel_tol=1e-6)
    ]
    matrix, bias = (
        torch.from_numpy(fit[f"affine.{name}"]).double() for name in ("matrix", "bias")
    )
    inverse = float(fit["temperature.inverse"][0])
    nats = dict.fromkeys(("", " temperature", " affine"), 0.0)
    for window in division.scored.windows:
        ids = torch.from_numpy(window.astype(np.int64))
        with torch.no_grad():
            (z_TD,) = forward(model, ids[None, :-1], intervention=change, head=False)
        head_VD = model.head.weight.detach()
        for z, target in zip(z_TD, ids[1:], strict=True):
            mapped = {
                "": z,
                " temperature": z * inverse,
                " affine": z + matrix @ z + bias,
            }
            for name, state in mapped.items():
                logits = head_VD @ state
                nats[name] += float(torch.log(torch.exp(logits).sum()) - logits[target])
    return {name: sum_ / division.scored.n_tokens for name, sum_ in nats.items()}


ONE_BASED = {"model": {"step_index": "one_based"}}
"""So that held states and forced steps differ from two steps on."""


def test_rows_are_those_of_the_model_and_its_fitted_numbers_in_float64(studied, texts):
    of_run = studied("ablate", *words_of(texts), **ONE_BASED)
    report = json.loads((of_run.folder / "ablations.json").read_text())
    rows = by_name(report)
    fits = report["depth"]["sources"]["text"]["fits"]
    learned = losses_by_hand(of_run.run, of_run.folder, Intervention(), texts)
    for change in (
        Intervention(),
        Intervention(loops=1),
        Intervention(loops=2),
        Intervention(held=2),
    ):
        losses = learned
        if change != Intervention():
            losses = losses_by_hand(of_run.run, of_run.folder, change, texts)
        for read_out, loss in losses.items():
            row = rows[change.name + read_out]
            assert row["loss"] == pytest.approx(loss, rel=1e-5)
            assert row["difference"] == pytest.approx(
                loss - learned[read_out], abs=1e-5
            )
            if change == Intervention():
                assert row["repaired"] is None
            elif row["repaired"] is not None:
                trained = rows[change.name]["difference"]
                share = 1 - row["difference"] / trained
                assert row["repaired"] == pytest.approx(share)
                assert row["repaired_low"] <= share <= row["repaired_high"]
        for fit in fits[change.name].values():
            assert fit["loss"] <= fit["loss_before"]
    assert rows["held=2"]["loss"] != rows["K=2"]["loss"]
    assert rows["K=1 affine"]["repaired"] is not None
    assert (rows["held=2"]["passes"], rows["learned"]["passes"]) == (3, 4)


def test_a_study_in_float64_has_the_rows_of_one_in_float32(studied, texts):
    found = []
    for precision in ((), ("--trainer.precision", "64-true")):
        of_run = studied("ablate", *words_of(texts), *precision, **ONE_BASED)
        report = json.loads((of_run.folder / "ablations.json").read_text())
        found.append(by_name(report))

    rows, others = found
    assert rows.keys() == others.keys()
    for name, row in rows.items():
        # A fit may end a step apart.
        near = 1e-5 if row["read_out"] == "trained" else 1e-4
        assert others[name]["loss"] == pytest.approx(row["loss"], abs=near), name


def test_a_schedule_is_as_deep_as_the_exit_beside_it(studied, texts):
    of_run = studied("ablate", *words_of(texts), **ONE_BASED)
    rows = by_name(json.loads((of_run.folder / "ablations.json").read_text()))
    depths = set()
    for mass in DEPTH_HALTING:
        exit_ = rows[f"halting={mass:g}"]
        depths.add(round(exit_["passes"], 3))
        for blind in ("all", "position"):
            row = rows[f"halting={mass:g} blind={blind}"]
            assert row["passes"] == pytest.approx(exit_["passes"], abs=0.02)
            assert row["over_exit"] == pytest.approx(row["loss"] - exit_["loss"])
            assert row["over_exit_low"] <= row["over_exit"] <= row["over_exit_high"]
    assert len(depths) > 2
    # Both tables are printed, and what was fitted on is said.
    facts = json.loads((of_run.folder / "ablations.json").read_text())["depth"]
    fitted = facts["sources"]["text"]["fitted"]["count"]
    assert f"of {fitted} documents that are not scored (seed 0)" in of_run.shown
    assert "blind: position" in of_run.shown
    (header, *_) = (of_run.folder / "ablations.csv").read_text().splitlines()
    assert header.endswith("over_exit,over_exit_low,over_exit_high")


def test_a_core_is_held_and_exits_beside_schedules(studied, texts):
    of_run = studied("ablate", *words_of(texts), **CORE)
    rows = by_name(json.loads((of_run.folder / "ablations.json").read_text()))
    for repetitions in (1, 2):
        held, forced = rows[f"core_held={repetitions}"], rows[f"R={repetitions}"]
        assert held["passes"] == forced["passes"] < rows["learned"]["passes"]
        assert held["core_loops_run"] == repetitions
    exit_ = rows["halting=0.5"]
    assert exit_["passes"] < rows["learned"]["passes"]
    for blind in ("all", "position"):
        row = rows[f"halting=0.5 blind={blind}"]
        assert row["passes"] == pytest.approx(exit_["passes"], abs=0.1)


def test_loops_that_do_nothing_cost_nothing_and_leave_nothing_to_repair(studied, texts):
    """With gains of 1e-13 each step is the identity in float32."""
    still = {"model": {"gain_init": -30.0}}
    of_run = studied("ablate", *words_of(texts), **still)
    report = json.loads((of_run.folder / "ablations.json").read_text())
    for name, row in by_name(report).items():
        assert abs(row["difference"]) < 1e-5, name
        assert row["repaired"] is None, name
        assert abs(row["over_exit"] or 0) < 1e-5, name


def test_what_is_finished_is_not_fitted_or_scored_again(
    studied, texts, tmp_path, forwards
):
    of_run = studied("ablate", *words_of(texts), **ONE_BASED)
    run = of_run.copied(tmp_path)
    words = ["ablate", "--ckpt_path", str(run), *words_of(texts)]
    forwards.names.clear()
    assert main(words) == 0
    assert forwards.passes == []
    (table,) = run.glob("ablations/*/ablations.csv")
    assert table.read_text() == (of_run.folder / "ablations.csv").read_text()
    # Without a schedule's pass, its exit is known from its file.
    for path in (table.parent / "scores").glob("*.npz"):
        arrays = read_arrays(path)
        if "steps" not in arrays and "nats_affine" not in arrays and "nats" in arrays:
            path.unlink()
    assert main(words) == 0
    assert all("blind" in name or name == "learned" for name in forwards.passes)
    assert table.read_text() == (of_run.folder / "ablations.csv").read_text()


def test_too_few_windows_to_divide_are_refused(run, tmp_path, capsys):
    (tmp_path / "one.txt").write_text("hell the hell")
    words = ["--suite", "depth", "--data.val", f"{{one: {tmp_path / 'one.txt'}}}"]
    assert main(["ablate", "--ckpt_path", str(run), *words]) == 2
    said = capsys.readouterr().err
    assert "--suite depth: 'one' has 1 window, and some must be left" in said


def test_other_suites_have_no_column_of_depth(studied):
    short = studied("ablate", "--loops", "1-2")
    (row, *_) = read_csv(short.folder / "ablations.csv")
    assert "read_out" not in row
    assert not any(name.startswith(("repaired", "over_exit")) for name in row)


def test_a_figure_has_a_line_for_each_way_to_fewer_steps(
    tmp_path, figures: dict[str, Figure | None]
):
    def rows(change: Intervention, passes: float) -> list[Result]:
        plain = Result("depth", change, "text", 2.0, 0.1, 0.0, 0.2, 1.0, passes, 1.0)
        affine = dataclasses.replace(plain, read_out="affine", difference=0.05)
        return [plain] if change.halting is not None else [plain, affine]

    changes = [
        (Intervention(), 4.0),
        (Intervention(loops=1), 2.0),
        (Intervention(held=1), 2.0),
        (Intervention(halting=0.5), 3.0),
        (Intervention(halting=0.5, blind="all"), 3.0),
        (Intervention(halting=0.5, blind="position"), 3.0),
    ]
    results = [row for change, passes in changes for row in rows(change, passes)]
    draw_figures(tmp_path, results, TINY)
    figure = figures["fewer_steps"]
    assert figure is not None
    (ax,) = figure.axes
    lines = {
        line.get_label(): line for line in ax.get_lines() if len(line.get_xdata()) > 1
    }
    ends = {name: list(line.get_xdata()) for name, line in lines.items()}
    assert ends == {
        "fewer steps, forced": [2.0, 4.0],
        "fewer steps, forced; affine": [2.0, 4.0],
        "fewer steps, held": [2.0, 4.0],
        "fewer steps, held; affine": [2.0, 4.0],
        "exits": [3.0, 4.0],
        "blind: one for all tokens": [3.0, 4.0],
        "blind: by position": [3.0, 4.0],
    } | {name: x for name, x in ends.items() if name.startswith("_")}
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width, "no name is cut"
    # A row of the suite is of fewer documents, and in no other figure.
    assert figures["forced_loops"] is None
