"""The rows of each suite, and the tables of an ablation on the screen and in files."""

import csv
import dataclasses
import io
import json

import pytest

from dualpath_cli.report.console import plain_console
from dualpath_cli.report.table import Table, show
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.study.ablation.figures import draw
from dualpath_cli.study.ablation.options import SUITES, Ablate
from dualpath_cli.study.ablation.scores import Excess, Result
from dualpath_cli.study.ablation.tables import excess_table, layer_table, source_table, write
from dualpath_cli.study.controls import Match
from dualpath_cli.study.parts_of_speech import ForcedClass

TINY = ModelConfig(n_layers=3, loops=2, d_ffn=1600, d_ffn_wide=11392)
NAMES = ["learned", *(f"K={loops}" for loops in range(1, 11)), "gates=1,0", "gates=0,1",
         "gates=0.5,0.5", "gates=1,1", "shuffled"]  # fmt: skip
EXPERTS = {"d_ffn_wide": 400, "n_experts": 3}


def rows_of(*suites: str, config: ModelConfig = TINY, **options) -> tuple[list[str], list[str]]:
    """Names of the rows of suites, and of those that are left out."""
    rows, skipped = Ablate(ckpt_path="RUN", suite=suites, **options).rows(config)
    assert all(reason.startswith("the model ") for reason in skipped.values())
    return [row.intervention.name for row in rows], list(skipped)


def names(*suites: str, **options) -> list[str]:
    return rows_of(*suites, **options)[0]


def test_every_row_but_the_trained_loops_comes_in_each_layer_alone():
    listed = names("layers", loops="1,2")
    assert listed[0] == "learned"
    assert listed[1:4] == ["K=1 layers=0", "K=1 layers=1", "K=1 layers=2"]
    assert not any(name.startswith("K=2 ") for name in listed)
    assert len(listed) == 1 + 6 * 3


def test_layers_without_what_is_overridden_are_left_out_quietly():
    config = dataclasses.replace(TINY, block=["wide", "loop", "dual"])
    listed = names("layers", loops="1", config=config)
    assert listed[1:3] == ["K=1 layers=1", "K=1 layers=2"]
    assert [name for name in listed if "gates=1,0" in name] == ["gates=1,0 layers=2"]


def test_no_two_rows_of_all_suites_have_one_name():
    listed = names("all", config=dataclasses.replace(TINY, **EXPERTS))
    assert len(listed) == len(set(listed)) > 16 + 4 * len(SUITES)


@pytest.mark.parametrize(
    ("suite", "model", "chosen", "rows"),
    [
        ("paper", {}, {"loops": "1,20", "seeds": 2}, ["K=1", "K=20", *NAMES[11:], "shuffled:1"]),
        ("kv-slots", {"loops": 4}, {}, ["kv_slots=1", "kv_slots=2", "kv_slots=3"]),
        ("experts", EXPERTS, {"seeds": 2},
         ["experts=1", "experts=3", "experts=random", "experts=random:1"]),
        ("token-classes", {}, {"classes": ("verbs=VERB:deep",), "seeds": 2},
         [f"gates=1,0 tokens={name}verbs{n}"
          for name, n in (("", ""), ("random-as-", ""), ("random-as-", ":1"))]),
        ("token-classes", {}, {"seeds": 1},
         [f"gates={gates} tokens={random}{name}" for name in ("arithmetic", "function")
          for gates in ("0,1", "1,0") for random in ("", "random-as-")]),
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
def test_the_papers_sixteen_rows_but_those_that_make_no_sense_for_a_model(changes, kept):
    assert len(NAMES) == 16
    listed, skipped = rows_of("paper", config=dataclasses.replace(TINY, **changes))
    assert listed == kept
    assert skipped == [name for name in NAMES if name not in kept]


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


def test_files_hold_all_numbers_and_the_tables_of_the_screen(tmp_path):
    def written(excesses: list[Excess]) -> dict[str, str]:
        tables = [source_table("a_b", results, 1)]
        paths = write(tmp_path, {"model": {"loops": 4}}, results, excesses, tables)
        return {path.name: path.read_text() for path in paths}

    results = [result(difference=0.0), dataclasses.replace(result(loops=1), low=NAN)]
    files = written([EXCESS])
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
    assert files["ablations.md"].splitlines()[2:] == [
        "| intervention | loss | difference | 95 % interval |",
        "| --- | ---: | ---: | ---: |",
        "| learned | 2.0000 | +0.0000 | +0.2500 to +0.7500 |",
        "| K=1 (as trained) | 2.5000 | +0.5000 |  |",
    ]
    written([])
    assert not (tmp_path / "token_classes.csv").exists(), "that suite is no longer asked for"


def test_each_suite_has_its_columns():
    shorter = [result(), result(suite="halting", halting=0.1)]
    text = shown(source_table("title", shorter, 4))
    assert "│ +0.2500 to +0.7500 │  1.50 │ 2.00 │   2.25 │" in text
    text = shown(excess_table("title", [EXCESS]))
    assert (
        "│ arithmetic wide │     30 │ 30.0 % │ +0.5000 │ +0.1250 │ +0.3750 │ +0.2500 to +0.5000 │"
        "     +1.250 │ +0.875 to +1.500 │" in text
    )
    assert "75 % at the same position" in " ".join(text.split())
    rows = [result(difference=0.1, loops=1, layers=(0,)),
            result(difference=0.2, loops=1, layers=(10,)),
            result(difference=0.3, gates=DEEP, layers=(10,))]  # fmt: skip
    text = shown(layer_table("title", rows, last_is_dual=False))
    assert "│ K=1          │ +0.1000 │ +0.2000 │" in text
    assert "│ gates=1,0    │         │ +0.3000 │" in text
    assert "final RMSNorm" not in text
    assert "final RMSNorm" in shown(layer_table("title", rows, last_is_dual=True))


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
