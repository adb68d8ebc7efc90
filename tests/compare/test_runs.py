"""What is read of run folders, and which of them can be compared."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from dualpath_cli.base.errors import UserError
from dualpath_cli.compare import runs
from dualpath_cli.compare.runs import AGGREGATE, TrainedRun, check_same_data, find_folders, read_run
from tests.compare.run_folders import BATCH, STEPS, model_of, write_run

WIDE = model_of("wide")
SCORES = {"novels": 2.0, "peps": 2.5}


def written(folder: Path, **changes) -> TrainedRun:
    run = read_run(write_run(folder, WIDE, SCORES, **changes))
    assert isinstance(run, TrainedRun)
    return run


def test_scores_are_those_of_the_last_step_and_no_pause_moves_the_speed(tmp_path):
    folder = write_run(tmp_path / "run", WIDE, SCORES, seed=3)
    text = (folder / "metrics.csv").read_text().replace("4000.0", "3.0", 1)
    (folder / "metrics.csv").write_text(text)
    run = read_run(folder)
    assert run.scores == {AGGREGATE: 2.25, "novels": 2.0, "peps": 2.5}
    assert (run.seed, run.tokens_per_second) == (3, 4000)
    assert run.curve[-1] == (STEPS * BATCH, 8 * STEPS**-0.3 + 2.25, STEPS * BATCH / 4000 / 3600)


def test_a_run_that_is_not_at_its_end_says_how_far_it_is(tmp_path):
    assert read_run(write_run(tmp_path / "a", WIDE, SCORES, steps=20)) == "step 20 of 40"
    assert read_run(write_run(tmp_path / "b", WIDE, SCORES, steps=0)) == "step 0 of 40"
    # Trained to its end, and not yet scored on all sets.
    folder = write_run(tmp_path / "c", WIDE, SCORES)
    lines = (folder / "validation.csv").read_text().splitlines(keepends=True)
    kept = [line for line in lines if f"{STEPS * BATCH},p" not in line]
    (folder / "validation.csv").write_text("".join(kept))
    assert read_run(folder) == "step 40 of 40"


def test_a_long_curve_becomes_means_of_as_many_rows(tmp_path):
    folder = write_run(tmp_path / "run", WIDE, SCORES)
    rows = 10 * runs.MOST_POINTS + 3
    text = "".join(f"{n},{n},{n % 2},1,{3600 * n}\n" for n in range(1, rows + 1))
    (folder / "metrics.csv").write_text(f"step,tokens,loss,tokens_per_second,seconds\n{text}")
    run = read_run(folder)
    assert isinstance(run, TrainedRun)
    assert len(run.curve) == 183  # of 11 rows
    assert run.curve[0] == (11.0, 6 / 11, 11.0)
    assert run.curve[-1][0] == rows


def test_intervals_that_training_left_out_are_no_points_of_the_curve(tmp_path):
    folder = write_run(tmp_path / "run", model_of("wide"), {"novels": 2.0})
    metrics = folder / "metrics.csv"
    lines = metrics.read_text().splitlines()
    column = lines[0].split(",").index("loss")
    for left_out in (1, len(lines) - 1):  # one, then all
        for n in range(1, 1 + left_out):
            cells = lines[n].split(",")
            lines[n] = ",".join([*cells[:column], "nan", *cells[column + 1 :]])
        metrics.write_text("\n".join(lines) + "\n")
        assert len(read_run(folder).curve) == len(lines) - 1 - left_out


def test_runs_are_found_alone_in_a_sweep_and_as_fit_lays_them_out(tmp_path):
    paths = [tmp_path / "sweep/runs/a50_k4/seed_0", tmp_path / "sweep/runs/wide/seed_0"]
    other = tmp_path / "all/tiny/default"
    for path in (*paths, other):
        write_run(path, WIDE, SCORES)
    (tmp_path / "sweep/recipes").mkdir()
    assert find_folders([str(tmp_path / "sweep")]) == paths
    assert find_folders([str(tmp_path / "all")]) == [other]
    assert find_folders([str(paths[1]), str(tmp_path / "sweep")]) == [paths[1], paths[0]]


def test_names_places_and_ways_of_running_make_no_other_configuration(tmp_path):
    one = written(tmp_path / "a")
    same = written(
        tmp_path / "b", cell="other", seed=9, run={"dir": "elsewhere", "log_every": 5,
        "save_every": 5, "compile": False, "micro_batch": 1}, data={"workers": 0},
    )  # fmt: skip
    assert one.keys == same.keys
    others: dict[str, dict[str, Any]] = {
        "c": {"optim": {"lr": 0.01}},
        "d": {"model": {"gain_init": -2.0}},
        "e": {"trainer": {"precision": "bf16-mixed"}},
        "f": {"run": {"batch_tokens": 2 * BATCH, "max_tokens": 2 * STEPS * BATCH}},
    }
    for name, changes in others.items():
        assert written(tmp_path / name, **changes).keys != one.keys
    facts = {"data_fingerprint": "f00d", "classes": {"my.Gate": "its source"}}
    (tmp_path / "b/versions.json").write_text(json.dumps(facts))
    own_class = read_run(tmp_path / "b")
    assert isinstance(own_class, TrainedRun)
    assert own_class.keys != one.keys


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": {"val": {"novels": "other/corpus.jsonl"}}}, "validation sets"),
        ({"data": {"val_tokens": 1000}}, "data.val_tokens None there, 1000 here"),
        ({"data": {"val_seed": 5}}, "data.val_seed 0 there, 5 here"),
        ({"fingerprint": "beef"}, "training data f00d there, beef here"),
        ({"tokenizer": "{ }"}, "tokenizer 44136fa355b3 there, 257c1be96ae6 here"),
    ],
)
def test_runs_that_read_other_data_are_refused_and_both_named(tmp_path, changes, said):
    one, other = written(tmp_path / "one"), written(tmp_path / "other", **changes)
    moved = {name: f"/elsewhere/{name}.jsonl" for name in SCORES}
    same = written(tmp_path / "moved", data={"val": moved})
    with pytest.raises(UserError, match=said) as refusal:
        check_same_data([one, same, other])
    assert str(tmp_path / "one") in str(refusal.value)
    assert str(tmp_path / "other") in str(refusal.value)


@pytest.mark.parametrize(("longer", "refused"), [(3e-4, True), (3e-5, False)])
def test_texts_of_other_bytes_a_token_are_other_texts_and_digits_are_not(tmp_path, longer, refused):
    one, other = written(tmp_path / "a"), written(tmp_path / "b", nats_per_bit=2 * (1 + longer))
    said = r"bytes a token of novels 2\.8854 there, 2\.8863 here"
    with pytest.raises(UserError, match=said) if refused else nullcontext():
        check_same_data([one, other])


def test_numbers_that_are_none_are_named(tmp_path):
    folder = write_run(tmp_path / "run", WIDE, SCORES)
    table = folder / "validation.csv"
    table.write_text(table.read_text().replace(",5.0,2.5", ",5.0,nan"))
    with pytest.raises(UserError, match=r"validation.csv step 40: peps has nan bits per byte"):
        read_run(folder)


def test_facts_that_are_missing_are_not_those_that_are_there(tmp_path):
    one, other = written(tmp_path / "one"), tmp_path / "other"
    write_run(other, WIDE, SCORES)
    (other / "versions.json").write_text(json.dumps({}))
    run = read_run(other)
    assert isinstance(run, TrainedRun)
    with pytest.raises(UserError, match="training data f00d there, not known here"):
        check_same_data([one, run])
    (other / "versions.json").write_text("{")
    with pytest.raises(UserError, match=r"other/versions\.json"):
        read_run(other)
