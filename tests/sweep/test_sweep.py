"""`dualpath sweep` from its words to finished runs, with a stand-in for `fit`, and with itself."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from dualpath_cli.cli.main import main
from dualpath_cli.run.run_folder import AVERAGES
from dualpath_cli.sweep import runner
from dualpath_cli.sweep.request import LOCK
from dualpath_cli.sweep.runner import Board
from dualpath_cli.sweep.runs import Run
from dualpath_cli.sweep.tuning import SEED, Trial, grown
from dualpath_cli.system import FIT, alone, cores, read_csv
from tests.sweep.conftest import SWEEP, starts, write_recipe


def test_rates_are_tried_then_all_runs_are_trained_at_the_best(words, tmp_path):
    out = tmp_path / "sweep"
    assert main([*words, "--yes", "--tune", "1e-3,2e-3"]) == 0
    rows = read_csv(out / "tune" / "chosen.csv")
    tried = sorted({float(row["lr"]) for row in rows})
    assert tried == [1e-3, 2e-3, 4e-3, 8e-3], "grown past the best, which is 4e-3"
    assert len(rows) == 3 * len(tried), "as many trials for each family"
    assert {float(row["lr"]) for row in rows if row["chosen"] == "True"} == {4e-3}
    assert {name.split("seed_")[1] for name in starts(out / "tune")} == {str(SEED)}
    assert {row["tokens"] for row in rows} == {"320"}, "half of the tokens"
    assert len(starts(out / "runs")) == 3 * 2
    assert all(len(lines) == 1 for lines in starts(out).values())
    assert "lr: 0.004" in (out / "recipes" / "wide-seed_0.yaml").read_text()


def test_what_is_finished_is_left_alone_and_more_seeds_are_added(words, tmp_path, capsys):
    out = tmp_path / "sweep"
    assert main([*words, "--yes", "--tune", "off"]) == 0
    assert main([*words, "--yes", "--tune", "off", "--seeds", "3"]) == 0
    said = capsys.readouterr().out
    assert "3 configurations, 9 runs, 3 of them left" in said
    assert "6 of 9 are finished already" in said
    assert len(starts(out)) == 9
    assert all(len(lines) == 1 for lines in starts(out).values())
    runs = sorted((out / "runs").glob("*/*"))
    for run in runs:
        shutil.rmtree(run / "checkpoints")
    (runs[0] / "validation.csv").unlink()
    assert main([*words, "--yes", "--tune", "off", "--seeds", "3"]) == 0
    assert "8 of 9 are finished already" in capsys.readouterr().out, "validated is finished"


def test_a_run_that_fails_stops_no_other_one(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FAKE_FAILING", "loop_k2")
    assert main([*words, "--yes", "--tune", "off", "--jobs", "2"]) == 1
    said = capsys.readouterr().err
    assert "2 of 6 runs failed, the first one loop_k2-seed_0: dualpath fit: failed: broken" in said
    monkeypatch.delenv("FAKE_FAILING")
    (checkpoint,) = (tmp_path / "sweep/runs/wide/seed_0/checkpoints").glob("step-*")
    (checkpoint / "state.json").write_text("")  # damaged
    assert main([*words, "--yes", "--tune", "off"]) == 1
    said = capsys.readouterr().err
    assert "1 of 6 runs failed, the first one wide-seed_0: dualpath fit: no whole check" in said
    assert len(starts(tmp_path / "sweep")) == 6, "all others were trained"
    shutil.rmtree(checkpoint.parents[1])
    assert main([*words, "--yes", "--tune", "off"]) == 0


def test_a_trial_without_its_score_is_named(words, tmp_path, capsys):
    out = tmp_path / "sweep"
    words = [*words, "--yes", "--tune", "1e-3,2e-3,4e-3,8e-3", "--seeds", "1"]
    assert main(words) == 0
    shutil.rmtree(out / "runs")  # else their rate is kept, and no trial is read
    table = next((out / "tune").glob("**/validation.csv"))
    rows = table.read_text().splitlines()
    for spoiled in (f"{rows[-1].rpartition(',')[0]},", f"{rows[-1].rpartition(',')[0]},x"):
        table.write_text("\n".join([*rows[:-1], spoiled]) + "\n")
        assert main(words) == 2
        assert str(table) in capsys.readouterr().err


def test_branches_wait_for_their_trunk_and_fail_with_it(words, tmp_path, monkeypatch, capsys):
    write_recipe(tmp_path, optim={"schedule": "wsd"}, run={"save_every": 1})
    words = [*words, "--yes", "--tune", "off", "--seeds", "1", "--controls", "none", "--jobs", "2"]
    words += ["--set", "run.max_tokens=320,640"]
    monkeypatch.setenv("FAKE_FAILING", "a50_k2-max_tokens_640")
    assert main(words) == 1
    assert "2 of 2 runs failed" in capsys.readouterr().err
    monkeypatch.delenv("FAKE_FAILING")
    assert main(words) == 0
    begun = {name: float(s[0].split()[3]) for name, s in starts(tmp_path / "sweep").items()}
    assert begun["a50_k2-max_tokens_640-seed_0"] < begun["a50_k2-max_tokens_320-seed_0"]


def test_slots_get_a_gpu_each_and_share_where_there_are_more_runs(monkeypatch, words, tmp_path):
    monkeypatch.setattr(runner, "visible_gpus", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    write_recipe(tmp_path, trainer={"accelerator": "auto"})
    assert main([*words, "--yes", "--tune", "off", "--jobs", "3", "--seeds", "1"]) == 0
    gpus = [lines[0].split()[2] for lines in starts(tmp_path / "sweep").values()]
    assert sorted(gpus) == ["0", "0", "1"]


def test_a_rate_at_which_numbers_go_wrong_is_no_rate(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FAKE_DIVERGING", "wide-lr_0.008 loop_k2-lr_0.008 a50_k2-lr_0.008")
    assert main([*words, "--yes", "--tune", "2e-3,4e-3"]) == 0
    rows = read_csv(tmp_path / "sweep" / "tune" / "chosen.csv")
    assert {float(row["lr"]) for row in rows} == {2e-3, 4e-3, 8e-3}
    assert {row["bits_per_byte"] for row in rows if row["lr"] == "0.008"} == {"inf"}
    assert {float(row["lr"]) for row in rows if row["chosen"] == "True"} == {4e-3}
    assert main([*words, "--yes", "--tune", "2e-3,4e-3"]) == 0, "and is not tried again"
    capsys.readouterr()
    assert main([*words, "--yes", "--tune", "2e-3", "--out", str(tmp_path / "one")]) == 0
    monkeypatch.setenv("FAKE_DIVERGING", "wide-lr_0.001 wide-lr_0.002")
    other = [*words, "--yes", "--tune", "1e-3,2e-3", "--out", str(tmp_path / "other")]
    assert main(other) == 1
    said = capsys.readouterr().err
    assert "the numbers of all trials of wide at a budget of 100,000 went wrong, as " in said
    assert "runs/wide-lr_0.001/seed_100/went_wrong.txt says" in said


def test_a_trial_that_the_machine_lost_is_tried_again_and_nothing_chosen_without_it(
    words, tmp_path, monkeypatch, capsys
):
    words = [*words, "--yes", "--tune", "2e-3,4e-3,8e-3", "--controls", "wide", "--seeds", "1"]
    out = tmp_path / "sweep"
    monkeypatch.setenv("FAKE_FAILING", "wide-lr_0.004")
    assert main(words) == 1
    first, said = capsys.readouterr()
    assert "before them at least 6 trials of 3 learning rates, 0.002 to 0.008, of 320" in first
    assert "1 of 6 runs failed, the first one wide-lr_0.004-seed_100: " in said
    assert f"({out}/tune/logs/wide-lr_0.004-seed_100.log); the same command tries" in said
    assert not (out / "tune" / "chosen.csv").exists()
    assert not (out / "runs").exists()
    monkeypatch.delenv("FAKE_FAILING")
    assert main(words) == 0
    assert "at least 1 trial of 1 learning rate, 0.004, of 320" in capsys.readouterr().out
    rows = read_csv(out / "tune" / "chosen.csv")
    assert {row["lr"] for row in rows if row["chosen"] == "True"} == {"0.004"}
    assert all(len(lines) == 1 for lines in starts(out).values()), "the others stay"


def test_rates_that_are_known_are_taken(words, tmp_path):
    assert main([*words, "--yes", "--tune", "wide=0.004,loop=0.002,dual=0.003"]) == 0
    recipes = tmp_path / "sweep" / "recipes"
    rates = {"wide": 0.004, "loop_k2": 0.002, "a50_k2": 0.003}
    for name, rate in rates.items():
        assert f"  lr: {rate:g}\n" in (recipes / f"{name}-seed_1.yaml").read_text()
    assert not (tmp_path / "sweep" / "tune").exists()


def test_the_tokens_of_trials_are_at_least_a_step(words, tmp_path, capsys):
    tune = ["--tune", "2e-3,4e-3", "--tune-tokens"]
    assert main([*words, *tune, "64"]) == 2, "there is nobody to ask"
    assert "of 64 tokens each" in capsys.readouterr().out
    write_recipe(tmp_path, run={"max_tokens": 64})
    assert main([*words, *tune[:2], "--out", str(tmp_path / "short")]) == 2
    assert "of 64 tokens each" in capsys.readouterr().out, "half of a run would be half a step"


def test_a_family_whose_runs_are_begun_keeps_its_rate(words, tmp_path, capsys):
    words = [*words, "--yes", "--tune", "2e-3,3e-3", "--seeds", "1", "--controls", "none"]
    out = tmp_path / "sweep"
    assert main([*words, "--alphas", "30"]) == 0
    tried = len(starts(out / "tune"))
    assert main([*words, "--alphas", "30,50"]) == 0, "a50_k2 is nearer to the middle"
    said = capsys.readouterr().out
    assert "keeps the learning rate 0.0045, chosen by the trial a30_k2-lr_0.0045: its" in said
    assert len(starts(out / "tune")) == tried
    assert "lr: 0.0045" in (out / "recipes" / "a50_k2-seed_0.yaml").read_text()
    before = (out / "recipes" / "a50_k2-seed_0.yaml").read_text()
    assert main([*words, "--alphas", "30,50", "--controls", "wide"]) == 0
    assert (out / "recipes" / "a50_k2-seed_0.yaml").read_text() == before
    rows = read_csv(out / "tune" / "chosen.csv")
    rates = {family: [row["lr"] for row in rows if row["family"] == family]
             for family in ("dual", "wide")}  # fmt: skip
    assert rates["wide"] == rates["dual"], "as many trials for each"
    assert {row["configuration"].split("-")[0] for row in rows} == {"a30_k2", "wide"}


def test_runs_begun_at_a_rate_that_no_trial_chose_are_refused_before_any_trial(
    words, tmp_path, capsys
):
    words = [*words, "--yes", "--seeds", "1"]
    assert main([*words, "--tune", "off", "--controls", "none"]) == 0
    assert main([*words, "--tune", "2e-3,4e-3"]) == 2
    said = capsys.readouterr().err
    assert "a50_k2/seed_0 was begun with optim.lr=0.004, which no trial chose; give this" in said
    assert "or all rates (--tune dual=0.004,...)" in said
    assert starts(tmp_path / "sweep" / "tune") == {}


def test_a_second_sweep_in_the_same_folder_is_refused(words, tmp_path, capsys):
    with alone(tmp_path / "sweep" / LOCK, tmp_path / "sweep"):
        assert main([*words, "--yes", "--tune", "off", "--seeds", "1"]) == 2
    assert "is being written by another process" in capsys.readouterr().err


def test_a_run_that_another_process_writes_is_waited_for_and_named(
    words, tmp_path, monkeypatch, capsys
):
    run, begun, done = tmp_path / "sweep/runs/wide/seed_0", threading.Event(), threading.Event()

    def hold() -> None:
        with alone(run / FIT, run):
            begun.set()
            done.wait(60)

    say = Board.say

    def say_and_release(board: Board, text: str) -> None:
        say(board, text)
        if " waits: " in text:
            done.set()

    monkeypatch.setattr(Board, "say", say_and_release)
    assert main([*words, "--slurm", "--tune", "off", "--seeds", "1"]) == 0
    holder = threading.Thread(target=hold)
    holder.start()
    assert begun.wait(10)
    assert main([*words, "--yes", "--tune", "off", "--seeds", "1"]) == 0
    holder.join()
    said = capsys.readouterr().out
    assert said.count(f"wide-seed_0 waits: {run} is being written by another process\n") == 1
    assert len(starts(tmp_path / "sweep")) == 3


def test_nothing_runs_without_a_yes(words, tmp_path, monkeypatch, capsys):
    assert main(words) == 2
    assert "is planned; --yes starts it" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer in ("n", ""):
        monkeypatch.setattr("builtins.input", lambda *_, a=answer: a)
        assert main(words) == 0
    out, said = tmp_path / "sweep", capsys.readouterr().out
    assert "start? [y/N] " in said
    assert "nothing was started; the plan is in" in said
    assert starts(out) == {}
    assert len(read_csv(out / "plan.csv")) == 3
    assert not (out / "recipes").exists(), "their rates are not known yet"
    assert len(list((out / "tune" / "recipes").iterdir())) == 9


def begin(words: list[str], tmp_path: Path, seconds: float) -> "subprocess.Popen[str]":
    """Starts a sweep as a process of its own, and waits until its runs are at work."""
    command = [sys.executable, "-c", SWEEP, *words, "--yes"]
    process = subprocess.Popen(
        [*command, "--tune", "off", "--jobs", "2", "--seeds", "1"], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"FAKE_SECONDS": str(seconds)},
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while len(list((tmp_path / "sweep").glob("runs/*/*/metrics.csv"))) < 2:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return process


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
def test_a_signal_stops_all_runs_with_a_checkpoint_and_the_same_words_go_on(
    number, code, words, tmp_path
):
    process = begin(words, tmp_path, seconds=20)
    at_work = starts(tmp_path / "sweep").values()
    threads = {lines[0].split()[1] for lines in at_work}
    assert (len(at_work), threads) == (2, {str(max(1, cores() // 2))}), "shared cores"
    process.send_signal(number)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert "stopping 2 runs" in said
    assert "the same command continues" in said
    assert main([*words, "--yes", "--tune", "off", "--seeds", "1"]) == 0
    begun = starts(tmp_path / "sweep")
    again = [int(lines[1].split()[0]) for lines in begun.values() if len(lines) == 2]
    assert len(again) == 2
    assert all(step > 0 for step in again), "from where they were"


def test_a_killed_sweep_leaves_no_process_behind_and_goes_on(words, tmp_path):
    process = begin(words, tmp_path, seconds=20)
    process.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 30
    while str(tmp_path) in subprocess.run(["ps", "axww"], capture_output=True, text=True).stdout:
        assert time.monotonic() < deadline, "its runs went on without it"
        time.sleep(0.1)
    assert main([*words, "--yes", "--tune", "off", "--seeds", "1"]) == 0


@pytest.mark.parametrize(
    ("out", "said"),
    [
        *((out, "is the folder of a run") for out in ("run", "run/sweeps/first", "link/below")),
        ("notes", "holds 'thesis.txt'"),
        ("other", "holds 'agent.py'"),
    ],
)
def test_a_folder_of_something_else_is_refused_before_anything_is_written(
    out, said, words, tmp_path, capsys
):
    (tmp_path / "run/checkpoints/step-00000010").mkdir(parents=True)
    (tmp_path / "run/recipe.yaml").write_text("model: {}\n")
    (tmp_path / "run/sweep.yaml").write_text("cells: []\n")  # as an earlier version would have
    (tmp_path / "link").symlink_to("run")
    for folder in ("notes", "other"):
        (tmp_path / folder).mkdir()
    (tmp_path / "notes/thesis.txt").write_text("years of work")
    (tmp_path / "other/agent.py").write_text("")
    (tmp_path / "other/sweep.yaml").write_text("program: agent.py\nmethod: grid\n")
    before = sorted(tmp_path.rglob("*"))
    assert main([*words, "--yes", "--tune", "off", "--out", str(tmp_path / out)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("left", [[], ["sweep.lock", "sweep.yaml.partial"]])
def test_a_sweep_that_was_killed_as_it_began_goes_on_also_beside_the_recipe(left, words, tmp_path):
    (tmp_path / "recipe.yaml").write_text("model: {}\n")  # of the user's own, in no run
    (tmp_path / "sweep").mkdir()
    for name in left:
        (tmp_path / "sweep" / name).write_text("")
    for _ in range(2):
        assert main([*words, "--slurm", "--tune", "off"]) == 0


def trial(family: str, lr: float, chosen: bool) -> Trial:
    return Trial(1, family, family, 1, lr, 1.0, chosen)


def test_the_grid_grows_while_a_best_rate_is_at_its_end():
    inside = [trial("wide", 2e-3, True), trial("dual", 2e-3, True)]
    assert grown([1e-3, 2e-3, 4e-3], inside) == [1e-3, 2e-3, 4e-3]
    ends = [trial("wide", 1e-3, True), trial("dual", 4e-3, True)]
    assert grown([1e-3, 2e-3, 4e-3], ends) == [5e-4, 1e-3, 2e-3, 4e-3, 8e-3]
    seven = [2.0**n for n in range(7)]
    assert grown(seven, [trial("wide", 64.0, True)]) == seven, "there is an end"
    assert grown([1e-3], [trial("wide", 1e-3, True)]) == [1e-3]


def run_task(script: Path, task: int, tools: Path, srun: str) -> "subprocess.CompletedProcess[str]":
    """Runs a task of an array by bash, with stand-ins for srun and scontrol."""
    (tools / "bin").mkdir(parents=True, exist_ok=True)
    (tools / "bin" / "activate").write_text("")
    for name, body in (("srun", srun), ("scontrol", 'echo requeued "$@"')):
        (tools / name).write_text(f"#!/bin/bash\n{body}\n")
        (tools / name).chmod(0o755)
    environment = {**os.environ, "DUALPATH_VENV": str(tools), "SLURM_ARRAY_TASK_ID": str(task),
                   "SLURM_ARRAY_JOB_ID": "7", "PATH": f"{tools}:{os.environ['PATH']}"}  # fmt: skip
    return subprocess.run(["bash", str(script)], env=environment, capture_output=True, text=True)


def test_slurm_runs_a_task_for_each_run(words, tmp_path):
    assert main([*words, "--slurm", "--tune", "off"]) == 0
    script = tmp_path / "sweep" / "jobs.sbatch"
    text = script.read_text()
    assert "#SBATCH --array=0-5%1" in text
    assert "--gpus" not in text, "its trainer is a CPU's"
    said = []
    for task in range(6):
        done = run_task(script, task, tmp_path / "tools", srun='echo "$@"')
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.split()[-1])
    recipes = sorted((tmp_path / "sweep" / "recipes").iterdir())
    assert sorted(said) == [str(path) for path in recipes]


def test_an_array_is_named_after_its_folder_also_from_inside(words, tmp_path, monkeypatch):
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    assert main([*words, "--slurm", "--tune", "off", "--out", "."]) == 0
    assert "#SBATCH --job-name=inside\n" in (inside / "jobs.sbatch").read_text()


def test_a_trial_whose_time_is_up_is_queued_again_and_one_that_goes_wrong_is_not(
    words, tmp_path, capsys
):
    words, out = [*words, "--slurm", "--tune", "1e-3,2e-3"], tmp_path / "sweep"
    assert main(words) == 0
    script = out / "tune.sbatch"
    assert "#SBATCH --array=0-5%1" in script.read_text()
    done = run_task(script, 0, tmp_path / "tools", srun="exit 1")
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    warned = "trap 'exit 1' USR1; sleep 0.5; kill -USR1 $PPID; while :; do sleep 0.1; done"
    done = run_task(script, 2, tmp_path / "tools", srun=warned)
    assert (done.returncode, done.stdout) == (1, "requeued requeue 7_2\n")
    wrong = out / "tune" / "runs" / "loop_k2-lr_0.001" / "seed_100" / "went_wrong.txt"
    wrong.parent.mkdir(parents=True)
    wrong.write_text("steps 1 to 10 were skipped")
    assert main(words) == 0
    assert "5 runs: sbatch" in capsys.readouterr().out
    assert "#SBATCH --array=0-4%1" in script.read_text(), "the machine's failure is"
    assert "loop_k2-lr_0.001" not in script.read_text()


def test_slurm_tunes_first(words, tmp_path, capsys):
    out = tmp_path / "sweep"
    assert main([*words, "--slurm", "--jobs", "8"]) == 0
    assert "when they are finished, this command again" in capsys.readouterr().out
    assert "#SBATCH --array=0-8%8" in (out / "tune.sbatch").read_text()
    assert main([*words, "--yes"]) == 0
    assert main([*words, "--slurm"]) == 0
    assert "all runs are finished; next: dualpath compare" in capsys.readouterr().out


def test_averages_are_scored_once_all_runs_are_trained(words, tmp_path, capsys):
    out = tmp_path / "sweep"
    words = [*words, "--yes", "--tune", "off"]
    recipe = Path(words[2])
    recipe.write_text(recipe.read_text().replace("save_every: 5", "save_every: 1"))
    assert main(words) == 0  # the recipe keeps 3 by default
    assert main([*words, "--average", "5"]) == 0
    assert f"dualpath compare {out} --average 5" in capsys.readouterr().out
    assert "keep: 5" in (out / "recipes" / "wide-seed_0.yaml").read_text()
    assert all(len(lines) == 1 for lines in starts(out).values()), "nothing is trained again"
    assert main([*words, "--average", "5"]) == 0
    assert "averages: 6 of 6 are finished already" in capsys.readouterr().out
    for run in (out / "runs").glob("*/*"):
        assert [row["average"] for row in read_csv(run / AVERAGES)] == ["5"]
    assert main(["compare", str(out)]) == 0
    plain = read_csv(out / "comparison" / "table.csv")
    assert main(["compare", str(out), "--average", "5"]) == 0
    assert "average of 5 checkpoints" in capsys.readouterr().out
    for row, before in zip(read_csv(out / "comparison" / "table.csv"), plain, strict=True):
        assert "0.5" in row.values()
        assert "0.5" not in before.values()


def train_here(run: Run, slot: int, jobs: int) -> Any:
    run.log.parent.mkdir(parents=True, exist_ok=True)
    with run.log.open("w") as log, contextlib.redirect_stdout(log):
        code = main(["fit", "--config", str(run.path)])
    return SimpleNamespace(poll=lambda: code, returncode=code)


@pytest.mark.parametrize("where", ["here", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_sweep_plans_trains_and_ends(where, texts, tmp_path, output_of, monkeypatch):
    if where == "here":
        monkeypatch.setattr(runner, "start", train_here)
        monkeypatch.setattr("dualpath_cli.training.logs.curve.draw", lambda run: run)
    val = {"held_out": str(texts / "val.jsonl")}
    recipe = write_recipe(tmp_path, data={"path": str(texts / "train"), "val": val})
    out = tmp_path / "sweep"
    words = ["sweep", "--config", recipe, "--budget", "100K", "--alphas", "50", "--loops", "2",
             "--controls", "wide", "--tune", "off", "--yes", "--out", out]  # fmt: skip
    said = output_of(*words, "--seeds", "1")
    assert "hours are not known before a run of each family has begun" in " ".join(said.split())
    assert said.splitlines()[-1] == f"next: dualpath compare {out}"
    said = output_of(*words, "--seeds", "2", "--slurm")
    assert re.search(r"in all \d+\.\d min", " ".join(said.split()))
    plan = {row["configuration"]: row for row in read_csv(out / "plan.csv")}
    assert set(plan) == {"wide", "a50_k2"}
    for name, row in plan.items():
        folder = out / "runs" / name / "seed_0"
        ends = [r for r in read_csv(folder / "validation.csv") if int(r["step"]) == 10]
        assert [r["set"] for r in ends] == ["held_out"]
        speeds = [float(r["tokens_per_second"]) for r in read_csv(folder / "metrics.csv")]
        assert min(speeds) <= 640 / 3600 / float(row["hours"]) <= max(speeds)
        model = yaml.safe_load((folder / "recipe.yaml").read_text())["model"]
        assert (model["block"] == "wide") == (name == "wide")
        printed = (out / "logs" / f"{name}-seed_0.log").read_text()
        assert f"{float(row['linear_flops']) / 1e6:.2f}M linear" in printed
