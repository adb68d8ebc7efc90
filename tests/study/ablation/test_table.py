"""Tables of an ablation on the screen and in files."""

import csv
import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from dualpath_cli.errors import UserError
from dualpath_cli.flops.paper import inference_ablation, token_class_excess
from dualpath_cli.study.ablation.figures import draw
from dualpath_cli.study.ablation.runs import combine, excess_over_runs
from dualpath_cli.study.ablation.table import (
    Excess,
    Result,
    excess_table,
    layer_table,
    source_table,
    write,
)

NAN = float("nan")


def result(name: str, source: str = "text", suite: str = "paper", difference: float = 0.5):
    suite = "baseline" if name == "learned" else suite
    return Result(suite, name, source, 2 + difference, difference, 0.25, 0.75, 1.5, 2.0)


EXCESS = Excess("arithmetic", "NUM,SYM", "wide", "gsm8k", 30, 0.3, 0.5, 0.125, 0.375, 0.25, 0.5)


def shown(table) -> str:
    console = Console(width=120, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


def written(folder: Path, results: list[Result], excesses: list[Excess]) -> dict[str, str]:
    paths = write(folder, {"model": {"loops": 4}}, results, excesses)
    return {path.name: path.read_text() for path in paths}


def test_files_hold_all_numbers(tmp_path: Path):
    results = [result("learned", difference=0.0), dataclasses.replace(result("K=1"), low=NAN)]
    files = written(tmp_path, results, [EXCESS])
    report = json.loads(files["ablations.json"])
    assert report["model"] == {"loops": 4}
    assert report["rows"][0] == dataclasses.asdict(results[0])
    assert report["rows"][1]["low"] is None
    assert report["excess"] == [dataclasses.asdict(EXCESS)]
    rows = list(csv.DictReader(io.StringIO(files["ablations.csv"])))
    assert [row["intervention"] for row in rows] == ["learned", "K=1"]
    assert (rows[0]["low"], rows[1]["low"]) == ("0.25", "")
    (row,) = csv.DictReader(io.StringIO(files["token_classes.csv"]))
    assert (row["token_class"], row["excess"]) == ("arithmetic", "0.375")


def test_markdown_and_latex_have_a_column_a_source(tmp_path: Path):
    results = [result(name, source) for source in ("a_b", "c") for name in ("learned", "K=4")]
    results.append(result("gates=1,0", "c", difference=-0.25))
    files = written(tmp_path, results, [])
    assert files["ablations.md"].splitlines()[2:] == [
        "| intervention | a_b | c |",
        "| --- | ---: | ---: |",
        "| learned | 2.5000 (+0.5000) | 2.5000 (+0.5000) |",
        "| K=4 (as trained) | 2.5000 (+0.5000) | 2.5000 (+0.5000) |",
        "| gates=1,0 (deep only) |  | 1.7500 (-0.2500) |",
    ]
    lines = files["ablations.tex"].splitlines()
    assert lines[1] == r"\begin{tabular}{lrr}"
    assert lines[3] == r"intervention & a\_b & c \\"
    assert lines[-3] == r"gates=1,0 (deep only) &  & 1.7500 (-0.2500) \\"
    assert "token_classes.csv" not in files


def test_each_suite_is_a_table_of_its_own(tmp_path: Path):
    results = [result("learned"), result("halting=0.1", suite="halting")]
    text = written(tmp_path, results, [EXCESS])["ablations.md"]
    assert "| halting=0.1 | 2.5000 (+0.5000, 1.50 loops) |" in text
    assert (
        "| arithmetic wide | gsm8k | 30 | +0.5000 | +0.1250 | +0.3750 | +0.2500 to +0.5000 |"
        in text
    )
    assert text.count("| learned | 2.5000 (+0.5000) |") == 1
    assert text.count("| --- |") == 2


def test_a_layer_is_a_column():
    rows = [result("K=1 layers=0", difference=0.1), result("K=1 layers=10", difference=0.2),
            result("gates=1,0 layers=10", difference=0.3)]  # fmt: skip
    text = shown(layer_table("title", rows))
    assert "│ K=1          │ +0.1000 │ +0.2000 │" in text
    assert "│ gates=1,0    │         │ +0.3000 │" in text


def test_the_papers_numbers_are_those_of_its_table():
    assert inference_ablation("learned", "gsm8k") == 2.148
    assert inference_ablation("K=10", "wikitext-103") == 3.160
    assert inference_ablation("gates=0,1", "TriviaQA") == 7.747
    assert inference_ablation("K=11", "gsm8k") is None
    assert inference_ablation("K=1", "novels") is None
    assert token_class_excess("arithmetic wide", "gsm8k") == 0.37
    assert token_class_excess("function deep", "wikitext_103") == 0.14
    assert token_class_excess("function wide", "gsm8k") is None


def test_every_row_of_the_papers_table_is_a_row_of_ours(shared_data: Path):
    tables = json.loads((shared_data.parent / "paper" / "tables.json").read_text())
    theirs = tables["inference_ablations"]["rows"]
    names = ["learned", *(f"K={n}" for n in range(1, 11)), "gates=1,0", "gates=0,1",
             "gates=0.5,0.5", "gates=1,1", "shuffled"]  # fmt: skip
    for name, (_, losses) in zip(names, theirs.items(), strict=True):
        for source, loss in losses.items():
            assert inference_ablation(name, source) == loss


def test_papers_losses_and_differences_stand_beside_ours():
    text = shown(source_table("title", [result("K=1", "gsm8k")], 4, paper=True))
    assert "│ 3.592 │" in " ".join(text.split())
    assert "│ +1.444 │" in " ".join(text.split())
    text = shown(excess_table("title", [EXCESS], paper=True))
    assert "│ +0.37 │" in " ".join(text.split())
    other = dataclasses.replace(EXCESS, upos="NUM")  # not the class of that name
    assert "+0.37 " not in shown(excess_table("title", [other], paper=True))


# Several runs


def reports(tmp_path: Path, excesses: list[float]) -> list[Path]:
    folders = []
    for number, value in enumerate(excesses):
        folder = tmp_path / str(number)
        row = dataclasses.asdict(dataclasses.replace(EXCESS, excess=value))
        folder.mkdir()
        rows = [dataclasses.asdict(result("K=1", difference=value))]
        content = {"checkpoint": {"step": number}, "excess": [row], "rows": rows}
        (folder / "ablations.json").write_text(json.dumps(content))
        folders.append(folder)
    return folders


def test_runs_are_set_side_by_side(tmp_path: Path):
    folders = reports(tmp_path, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    console = Console(width=120, file=io.StringIO())
    paths = combine(folders, tmp_path, console)
    assert [path.name for path in paths] == ["runs.json", "runs.csv", "runs_token_classes.csv"]
    content = json.loads((tmp_path / "runs.json").read_text())
    (row,) = content["rows"]
    assert (row["intervention"], row["runs"]) == ("K=1", 6)
    assert row["difference"] == pytest.approx(0.35)
    assert row["difference_sd"] == pytest.approx(0.035**0.5)
    (row,) = content["token_classes"]
    assert row.pop("mean") == pytest.approx(0.35)
    assert row == {
        "forced": "arithmetic wide", "source": "gsm8k", "runs": 6, "least": 0.1, "most": 0.6,
        "above": 6, "p": 2 / 64,
    }  # fmt: skip
    assert [run["step"] for run in content["runs"]] == list(range(6))
    assert "fewer than six" not in console.file.getvalue()


def test_too_few_runs_are_said_to_be_too_few(tmp_path: Path):
    console = Console(width=120, file=io.StringIO())
    combine(reports(tmp_path, [0.1, -0.2]), tmp_path, console)
    assert "fewer than six runs" in console.file.getvalue()
    assert "1 of 2" in console.file.getvalue()


def test_a_class_that_not_all_runs_have_is_left_out():
    row = dataclasses.asdict(EXCESS)
    assert excess_over_runs([[row], []]) == []
    assert excess_over_runs([[row], [{**row, "excess": None}]]) == []


def test_a_run_without_numbers_is_named(tmp_path: Path):
    folders = reports(tmp_path, [0.1, 0.2])
    path = folders[1] / "ablations.json"
    content = json.loads(path.read_text())
    content["rows"][0]["loss"] = None
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"the losses in '.*1' are no numbers"):
        combine(folders, tmp_path, Console(file=io.StringIO()))


def test_runs_on_different_sources_have_nothing_in_common(tmp_path: Path):
    folders = reports(tmp_path, [0.1, 0.2])
    path = folders[1] / "ablations.json"
    path.write_text(path.read_text().replace('"text"', '"other"'))
    with pytest.raises(UserError, match="no row in common"):
        combine(folders, tmp_path, Console(file=io.StringIO()))


def test_losses_that_are_no_numbers_do_not_stop_the_figures(tmp_path: Path):
    names = ("learned", "K=1", "K=2", "K=1 layers=0", "K=1 layers=1", "halting=0.5")
    suites = ("baseline", "paper", "paper", "layers", "layers", "halting")
    rows = [dataclasses.replace(result(name, suite=suite), difference=NAN, low=NAN, high=NAN)
            for name, suite in zip(names, suites, strict=True)]  # fmt: skip
    assert len(draw(tmp_path, rows, 2)) == 6


def test_figures_of_suites_that_are_no_longer_asked_for_go(tmp_path: Path):
    rows = [result("K=1 layers=0", suite="layers"), result("K=1"), result("K=2")]
    draw(tmp_path, rows, 2)
    assert {path.stem for path in tmp_path.iterdir()} == {"layers", "forced_loops"}
    draw(tmp_path, rows[1:], 2)
    assert {path.stem for path in tmp_path.iterdir()} == {"forced_loops"}


def test_tables_of_suites_that_are_no_longer_asked_for_go(tmp_path: Path):
    written(tmp_path, [result("learned")], [EXCESS])
    assert (tmp_path / "token_classes.csv").exists()
    written(tmp_path, [result("learned")], [])
    assert not (tmp_path / "token_classes.csv").exists()
