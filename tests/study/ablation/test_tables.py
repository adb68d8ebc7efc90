"""The rows of each suite, and the tables of an ablation on the screen and in files."""

import csv
import dataclasses
import io
import json
from pathlib import Path

import pytest

from dualpath_cli.flops.paper import inference_ablation, token_class_excess
from dualpath_cli.report.console import plain_console
from dualpath_cli.report.table import Table, show
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.study.ablation.figures import draw
from dualpath_cli.study.ablation.options import SUITES, Selection, applicable, default_classes
from dualpath_cli.study.ablation.tables import (
    AUTHORS,
    Excess,
    Result,
    excess_table,
    layer_table,
    source_table,
    write,
)
from dualpath_cli.study.controls import Match
from dualpath_cli.study.parts_of_speech import OTHERS, ForcedClass, TokenClass

TINY = ModelConfig(n_layers=3, loops=2, d_ffn=1600, d_ffn_wide=11392)
NAMES = ["learned", *(f"K={loops}" for loops in range(1, 11)), "gates=1,0", "gates=0,1",
         "gates=0.5,0.5", "gates=1,1", "shuffled"]  # fmt: skip


def selection(*suites: str, **changes) -> Selection:
    plain = Selection(
        suites, tuple(range(1, 11)), shuffles=1, controls=1, classes=default_classes()
    )
    return dataclasses.replace(plain, **changes)


def names(*suites: str, config: ModelConfig = TINY, **changes) -> list[str]:
    return [row.intervention.name for row in selection(*suites, **changes).rows(config)]


def test_the_rows_are_the_sixteen_of_the_paper():
    assert names("paper") == NAMES
    assert len(NAMES) == 16


def test_every_row_but_the_trained_loops_comes_in_each_layer_alone():
    listed = names("layers", loops=(1, 2))
    assert listed[0] == "learned"
    assert listed[1:4] == ["K=1 layers=0", "K=1 layers=1", "K=1 layers=2"]
    assert not any(name.startswith("K=2 ") for name in listed)
    assert len(listed) == 1 + 6 * 3


def test_layers_without_what_is_overridden_are_left_out_quietly():
    config = dataclasses.replace(TINY, block=["wide", "loop", "dual"])
    listed = names("layers", loops=(1,), config=config)
    assert listed[1:3] == ["K=1 layers=1", "K=1 layers=2"]
    assert [name for name in listed if "gates=1,0" in name] == ["gates=1,0 layers=2"]


def test_a_further_class_is_forced_where_its_entry_says_so_and_is_not_the_authors(monkeypatch):
    known = default_classes()
    plain, forced = (TokenClass(name, ("NOUN",), name == "forced") for name in ("plain", "forced"))
    monkeypatch.setattr("dualpath_cli.study.parts_of_speech.OTHERS", (*OTHERS, plain, forced))
    assert default_classes() == (*known, forced.to("wide"), forced.to("deep"))
    assert set(AUTHORS) < set(known)
    assert {chosen.name for chosen in AUTHORS} == {"arithmetic", "function"}


def test_no_two_rows_of_all_suites_have_one_name():
    listed = names(*SUITES)
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize(
    ("suite", "model", "chosen", "rows"),
    [
        ("paper", {}, {"loops": (1, 20), "shuffles": 2},
         ["K=1", "K=20", *NAMES[11:], "shuffled:1"]),
        ("kv-slots", {"loops": 4}, {}, ["kv_slots=1", "kv_slots=2", "kv_slots=3"]),
        (
            "experts", {"d_ffn_wide": 400, "n_experts": 3}, {"shuffles": 2},
            ["experts=1", "experts=3", "experts=random", "experts=random:1"],
        ),
        (
            "token-classes", {},
            {"classes": (ForcedClass("verbs", ("VERB",), "deep"),), "controls": 2},
            [f"gates=1,0 tokens={name}verbs{n}"
             for name, n in (("", ""), ("random-as-", ""), ("random-as-", ":1"))],
        ),
    ],
)  # fmt: skip
def test_the_rows_of_a_suite_follow_the_model_and_what_was_chosen(suite, model, chosen, rows):
    config = dataclasses.replace(TINY, **model)
    assert names(suite, config=config, **chosen) == ["learned", *rows]


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, NAMES),
        ({"block": "loop"}, NAMES[:11]),
        ({"block": "wide"}, NAMES[:1]),
        ({"block": ["wide", "dual", "wide"]}, NAMES),
        ({"loops": 1}, [*NAMES[:2], *NAMES[11:]]),
        ({"loops": 1, "combination": "mean"}, NAMES),
    ],
)
def test_rows_that_make_no_sense_for_a_model_are_left_out_with_a_reason(changes, kept):
    config = dataclasses.replace(TINY, **changes)
    chosen, skipped = applicable(selection("paper").rows(config), config)
    assert [row.intervention.name for row in chosen] == kept
    assert list(skipped) == [name for name in NAMES if name not in kept]
    assert all(reason.startswith("the model ") for reason in skipped.values())


NAN = float("nan")


def result(source: str = "text", suite: str = "paper", difference: float = 0.5, **override):
    """A row of an intervention given by keywords; without any, of the learned router."""
    intervention = Intervention(**override)
    suite = suite if override else "baseline"
    return Result(
        suite, intervention, source, 2 + difference, difference, 0.25, 0.75, 1.5, 2.25, 2.0
    )


DEEP = (1.0, 0.0)
ARITHMETIC = ForcedClass("arithmetic", ("NUM", "SYM"), "wide")
MATCH = Match(0.75, 1.5, 2.0, 1.75)
EXCESS = Excess(ARITHMETIC, "gsm8k", 30, 0.3, 0.5, 0.125, 0.375, 0.25, 0.5, 1.25, 0.875, 1.5, MATCH)


def shown(table: Table) -> str:
    file = io.StringIO()
    show(plain_console(file=file), table)
    return file.getvalue()


def written(folder: Path, results: list[Result], excesses: list[Excess]) -> dict[str, str]:
    paths = write(folder, {"model": {"loops": 4}}, results, excesses, 4)
    return {path.name: path.read_text() for path in paths}


def test_files_hold_all_numbers(tmp_path):
    results = [result(difference=0.0), dataclasses.replace(result(loops=1), low=NAN)]
    files = written(tmp_path, results, [EXCESS])
    report = json.loads(files["ablations.json"])
    assert report["model"] == {"loops": 4}
    assert report["rows"][0] == dataclasses.asdict(results[0]) | {"intervention": "learned"}
    assert report["rows"][1]["low"] is None
    names = {"token_class": "arithmetic", "upos": "NUM,SYM", "path": "wide"}
    record = dataclasses.asdict(EXCESS) | names
    match = {f"match_{key}": value for key, value in record.pop("match").items()}
    assert report["excess"] == [record | match]
    rows = list(csv.DictReader(io.StringIO(files["ablations.csv"])))
    assert [row["intervention"] for row in rows] == ["learned", "K=1"]
    assert (rows[0]["low"], rows[1]["low"]) == ("0.25", "")
    (row,) = csv.DictReader(io.StringIO(files["token_classes.csv"]))
    assert (row["token_class"], row["excess"]) == ("arithmetic", "0.375")
    written(tmp_path, results, [])
    assert not (tmp_path / "token_classes.csv").exists(), "that suite is no longer asked for"


def test_a_source_is_a_column(tmp_path):
    results = [row for source in ("a", "b") for row in (result(source), result(source, loops=4))]
    results.append(result("b", difference=-0.25, gates=DEEP))
    files = written(tmp_path, results, [])
    assert files["ablations.md"].splitlines()[2:] == [
        "| intervention | a | b |",
        "| --- | ---: | ---: |",
        "| learned | 2.5000 (+0.5000) | 2.5000 (+0.5000) |",
        "| K=4 (as trained) | 2.5000 (+0.5000) | 2.5000 (+0.5000) |",
        "| gates=1,0 (deep only) |  | 1.7500 (-0.2500) |",
    ]
    assert "token_classes.csv" not in files


def test_each_suite_is_a_table_of_its_own(tmp_path):
    results = [result(), result(suite="halting", halting=0.1), result(suite="skip", skip=0.1)]
    text = written(tmp_path, results, [EXCESS])["ablations.md"]
    assert "| halting=0.1 | 2.5000 (+0.5000, 2.25 passes) |" in text
    assert "| skip=0.1 | 2.5000 (+0.5000, 2.25 passes) |" in text
    assert (
        "| arithmetic wide | gsm8k | 30 | 30.0 % | +0.5000 | +0.1250 | +0.3750 | "
        "+0.2500 to +0.5000 | +1.250 | +0.875 to +1.500 |" in text
    )
    assert text.count("| learned | 2.5000 (+0.5000) |") == 2
    assert text.count("| --- |") == 3


def test_a_layer_is_a_column():
    rows = [result(difference=0.1, loops=1, layers=(0,)),
            result(difference=0.2, loops=1, layers=(10,)),
            result(difference=0.3, gates=DEEP, layers=(10,))]  # fmt: skip
    text = shown(layer_table("title", rows, last_is_dual=False))
    assert "│ K=1          │ +0.1000 │ +0.2000 │" in text
    assert "│ gates=1,0    │         │ +0.3000 │" in text
    assert "final RMSNorm" not in text
    assert "final RMSNorm" in shown(layer_table("title", rows, last_is_dual=True))


def test_every_row_of_the_papers_table_is_a_row_of_ours(paper_source):
    tables = json.loads((paper_source / "tables.json").read_text())
    theirs = tables["inference_ablations"]["rows"]
    for name, losses in zip(NAMES, theirs.values(), strict=True):
        for source, loss in losses.items():
            assert inference_ablation(name, source) == loss


def test_papers_losses_and_differences_stand_beside_ours():
    assert inference_ablation("gates=0,1", "TriviaQA") == 7.747
    assert inference_ablation("K=11", "gsm8k") is inference_ablation("K=1", "novels") is None
    assert token_class_excess("function deep", "wikitext_103") == 0.14
    assert token_class_excess("function wide", "gsm8k") is None
    text = shown(source_table("title", [result("gsm8k", loops=1)], 4, paper=True))
    assert "│ 3.592 │" in " ".join(text.split())
    assert "│ +1.444 │" in " ".join(text.split())
    text = shown(excess_table("title", [EXCESS], paper=True))
    assert "│ +0.37 │" in " ".join(text.split())
    numbers = dataclasses.replace(ARITHMETIC, upos=("NUM",))  # not the class of that name
    other = dataclasses.replace(EXCESS, token_class=numbers)
    assert "+0.37 " not in shown(excess_table("title", [other], paper=True))
    assert "75 % at the same position" in " ".join(text.split())


def test_losses_that_are_no_numbers_do_not_stop_the_figures(tmp_path, drawn):
    rows = [
        result(), result(loops=1), result(loops=2), result(suite="layers", loops=1, layers=(0,)),
        result(suite="layers", loops=1, layers=(1,)), result(suite="halting", halting=0.5),
    ]  # fmt: skip
    rows = [dataclasses.replace(row, difference=NAN, low=NAN, high=NAN) for row in rows]
    assert len(draw(tmp_path, rows, 2)) == 6
    # Figures of suites that are no longer asked for go.
    draw(tmp_path, rows[:3], 2)
    assert {path.stem for path in tmp_path.iterdir()} == {"forced_loops"}
