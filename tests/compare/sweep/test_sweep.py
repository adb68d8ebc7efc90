"""`dualpath sweep` from its words to finished runs, with a stand-in for `fit`, and with
itself."""

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

from dualpath_cli.base.locks import FIT, exclusive
from dualpath_cli.base.processes import cores
from dualpath_cli.cli.main import main
from dualpath_cli.compare.sweep import command, runner
from dualpath_cli.compare.sweep.request import LOCK
from dualpath_cli.compare.sweep.runs import PlannedRun, planned_in
from dualpath_cli.run.tables import read_csv
from tests.cli.test_faults import closed_terminal
from tests.compare.sweep.conftest import SMALL, SWEEP, starts, write_recipe
from tests.recipe.test_recipes import stub


def test_rates_are_an_axis_and_a_run_whose_numbers_go_wrong_is_an_answer(
    words, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("FAKE_DIVERGING", "wide-lr_0.008")
    words = [*words, "--yes", "--seeds", "1", "--set", "optim.lr=4e-3,8e-3,2e-3"]
    assert main(words) == 0
    said = capsys.readouterr().out
    lines = [line for line in said.splitlines() if re.search(r", after .* min", line)]
    cells = ("wide", "loop_k2", "a50_k2")
    names = [f"{cell}-lr_{lr}-seed_0" for cell in cells for lr in (0.004, 0.008, 0.002)]
    ends = [
        "went wrong" if name == "wide-lr_0.008-seed_0" else "finished" for name in names
    ]
    assert [line.partition(", after")[0] for line in lines] == [
        f"{end} {name}, {n} of 9"
        for n, (end, name) in enumerate(zip(ends, names, strict=True), 1)
    ]
    assert lines[1].endswith("min: dualpath fit: failed: steps 1 to 10 were skipped")
    # all score alike
    edges = [line for line in said.splitlines() if "best at 0.002" in line]
    assert [line.split()[1] for line in edges] == list(cells)
    assert said.endswith(f"next: dualpath compare {tmp_path / 'sweep'} --best lr\n")
    assert main(words) == 0, "and is not tried again"
    assert "9 of 9 are finished already" in capsys.readouterr().out
    assert all(len(lines) == 1 for lines in starts(tmp_path / "sweep").values())
    # The best rate is no answer where its ends vary, too.
    words = [word for word in words if word != "--yes"]
    assert main([*words, "--set", "optim.lr_end=1e-5,1e-4", "--slurm"]) == 0
    assert capsys.readouterr().out.endswith(f"dualpath compare {tmp_path / 'sweep'}\n")


def test_a_best_rate_beside_one_that_went_wrong_asks_for_a_rate_between(
    words, monkeypatch, capsys
):
    monkeypatch.setenv("FAKE_DIVERGING", "wide-lr_0.002")
    words = [*words, "--yes", "--seeds", "1", "--controls", "wide"]
    assert main([*words, "--set", "optim.lr=4e-3,8e-3,2e-3"]) == 0
    said = capsys.readouterr().out
    # all score alike
    assert (
        "note: wide is best at 0.004; runs at 0.002 went wrong; train it at a rate "
        "between them\n"
    ) in said
    assert "note: a50_k2 is best at 0.002, its lowest learning rate" in said


def test_a_best_rate_is_that_of_all_seeds_in_the_folder(words, tmp_path, capsys):
    """Also of those that another command trained; one only planned is passed over."""
    words = [*words, "--controls", "wide", "--set", "optim.lr=2e-3,4e-3,8e-3"]
    assert main([*words, "--slurm", "--seeds", "2-2"]) == 0
    assert main([*words, "--yes", "--seeds", "1"]) == 0
    table = tmp_path / "sweep/runs/wide-lr_0.004/seed_0/validation.csv"
    text = table.read_text()
    assert text.endswith(",2.0,1.0\n")
    table.write_text(text.removesuffix("2.0,1.0\n") + "1.0,0.5\n")

    capsys.readouterr()
    assert main([*words, "--yes", "--seeds", "1-1"]) == 0
    said = capsys.readouterr().out
    # seed 1 scores alike at all rates
    assert "note: wide is best" not in said
    assert "note: a50_k2 is best at 0.002, its lowest learning rate" in said


def test_what_is_finished_is_left_alone_and_more_seeds_are_added(
    words, tmp_path, capsys
):
    out = tmp_path / "sweep"
    assert main([*words, "--yes"]) == 0
    assert main([*words, "--yes", "--seeds", "3"]) == 0
    said = capsys.readouterr().out
    assert "3 configurations, 9 runs, 3 of them left" in said
    assert "6 of 9 are finished already" in said
    assert len(starts(out)) == 9
    assert all(len(lines) == 1 for lines in starts(out).values())
    runs = sorted((out / "runs").glob("*/*"))
    for run in runs:
        shutil.rmtree(run / "checkpoints")
    (runs[0] / "validation.csv").unlink()
    assert main([*words, "--yes", "--seeds", "3"]) == 0
    assert "8 of 9 are finished already" in capsys.readouterr().out, (
        "validated is finished"
    )


def test_a_run_that_fails_stops_no_other_one(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FAKE_FAILING", "loop_k2")
    assert main([*words, "--yes", "--jobs", "2"]) == 1
    said = capsys.readouterr().err
    assert (
        "2 of 6 runs failed, the first one loop_k2-seed_0: dualpath fit: failed: broken"
        in said
    )
    monkeypatch.delenv("FAKE_FAILING")
    (checkpoint,) = (tmp_path / "sweep/runs/wide/seed_0/checkpoints").glob("step-*")
    (checkpoint / "state.json").write_text("")  # damaged
    assert main([*words, "--yes"]) == 1
    said = capsys.readouterr().err
    assert (
        "1 of 6 runs failed, the first one wide-seed_0: dualpath fit: no whole check"
        in said
    )
    assert len(starts(tmp_path / "sweep")) == 6, "all others were trained"
    shutil.rmtree(checkpoint.parents[1])
    assert main([*words, "--yes"]) == 0


def test_slots_get_a_gpu_each_and_share_where_there_are_more_runs(
    monkeypatch, words, tmp_path
):
    monkeypatch.setattr(runner, "visible_gpus", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    write_recipe(tmp_path, trainer={"accelerator": "auto"})
    assert main([*words, "--yes", "--jobs", "3", "--seeds", "1"]) == 0
    gpus = [lines[0].split()[2] for lines in starts(tmp_path / "sweep").values()]
    assert sorted(gpus) == ["0", "0", "1"]


def test_a_second_sweep_in_the_same_folder_is_refused(words, tmp_path, capsys):
    with exclusive(tmp_path / "sweep" / LOCK, tmp_path / "sweep"):
        assert main([*words, "--yes", "--seeds", "1"]) == 2
    assert "is being written by another process" in capsys.readouterr().err


def test_a_run_that_another_process_writes_is_waited_for_and_named(
    words, tmp_path, monkeypatch, capsys
):
    run, begun, done = (
        tmp_path / "sweep/runs/wide/seed_0",
        threading.Event(),
        threading.Event(),
    )

    def hold() -> None:
        with exclusive(run / FIT, run):
            begun.set()
            done.wait(300)

    print_line = runner.print_line

    def print_and_release(console: Any, text: str) -> None:
        print_line(console, text)
        if " waits: " in text:
            done.set()

    monkeypatch.setattr(runner, "print_line", print_and_release)
    assert main([*words, "--slurm", "--seeds", "1"]) == 0
    holder = threading.Thread(target=hold)
    holder.start()
    assert begun.wait(200)
    assert main([*words, "--yes", "--seeds", "1"]) == 0
    holder.join()
    said = capsys.readouterr().out
    assert (
        said.count(f"wide-seed_0 waits: {run} is being written by another process\n")
        == 1
    )
    assert len(starts(tmp_path / "sweep")) == 3


def test_a_plan_notes_rows_of_the_embedding_that_no_token_uses(
    words, monkeypatch, capsys
):
    launch = SimpleNamespace(manifest=SimpleNamespace(vocab_size=200))
    monkeypatch.setattr(command, "to_train", lambda _: launch)
    assert main(words) == 0
    note = (
        "note: model.vocab_size=272 has rows for no token: the tokenizer has 200 "
        "entries"
    )
    assert capsys.readouterr().out.count(note) == 1, "for all configurations"


def test_nothing_runs_without_a_yes_and_experts_off_the_budget_are_named(
    words, tmp_path, capsys
):
    """The multiple of 8 of an expert's width is coarse in a small model."""
    assert main([*words, "--set", "model.n_experts=0,8", "--set", "model.top_k=7"]) == 0
    said, named = capsys.readouterr().out, []
    assert said.endswith(f"{tmp_path / 'sweep'} is planned; --yes starts it\n")
    assert starts(tmp_path / "sweep") == {}
    for row in read_csv(tmp_path / "sweep" / "plan.csv"):
        spent, name = float(row["spent"]), row["configuration"]
        if f"note: {name} spends {spent:.4f} of the budget" in said.replace("\n", " "):
            named.append(name)
            assert abs(spent - 1) > 0.01
        else:
            assert abs(spent - 1) <= 0.01
    assert any("n_experts_8" in name for name in named)


def begin(words: list[str], tmp_path: Path) -> "subprocess.Popen[str]":
    """Starts a sweep as a process of its own, and waits until its runs are at work."""
    command = [sys.executable, "-c", SWEEP, *words, "--yes"]
    process = subprocess.Popen(
        [*command, "--jobs", "2", "--seeds", "1"],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"FAKE_SECONDS": "900"},
    )
    deadline = time.monotonic() + 200
    while len(list((tmp_path / "sweep").glob("runs/*/*/metrics.csv"))) < 2:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return process


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        (signal.SIGUSR1, 143),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
    ],
)
def test_a_signal_stops_all_runs_with_a_checkpoint_and_the_same_words_go_on(
    number, code, words, tmp_path
):
    process = begin(words, tmp_path)
    at_work = starts(tmp_path / "sweep").values()
    threads = {lines[0].split()[1] for lines in at_work}
    assert (len(at_work), threads) == (2, {str(max(1, cores() // 2))}), "shared cores"
    process.send_signal(number)
    said, errors = process.communicate(timeout=200)
    assert process.returncode == code, errors
    assert "stopping 2 runs" in said
    assert "the same command continues" in said
    assert main([*words, "--yes", "--seeds", "1"]) == 0
    begun = starts(tmp_path / "sweep")
    again = [int(lines[1].split()[0]) for lines in begun.values() if len(lines) == 2]
    assert len(again) == 2
    assert all(step > 0 for step in again), "from where they were"


def test_a_sweep_goes_on_to_its_end_where_its_terminal_is_closed(words, tmp_path):
    with closed_terminal() as terminal, contextlib.redirect_stdout(terminal):
        assert main([*words, "--yes", "--seeds", "1"]) == 0
    assert len(starts(tmp_path / "sweep")) == 3


def test_a_killed_sweep_leaves_no_process_behind_and_goes_on(words, tmp_path):
    process = begin(words, tmp_path)
    process.kill()
    process.communicate(timeout=200)
    deadline = time.monotonic() + 200
    while (
        str(tmp_path)
        in subprocess.run(["ps", "axww"], capture_output=True, text=True).stdout
    ):
        assert time.monotonic() < deadline, "its runs went on without it"
        time.sleep(0.1)
    assert main([*words, "--yes", "--seeds", "1"]) == 0


@pytest.mark.parametrize(
    ("out", "said"),
    [
        *(
            (out, "is the folder of a run")
            for out in ("run", "run/sweeps/first", "link/below")
        ),
        ("notes", "holds 'thesis.txt'"),
        ("other", "holds 'agent.py'"),
    ],
)
def test_a_folder_of_something_else_is_refused_before_anything_is_written(
    out, said, words, tmp_path, capsys
):
    (tmp_path / "run/checkpoints/step-00000010").mkdir(parents=True)
    (tmp_path / "run/recipe.yaml").write_text("model: {}\n")
    # as an earlier version would have
    (tmp_path / "run/sweep.yaml").write_text("cells: []\n")
    (tmp_path / "link").symlink_to("run")
    for folder in ("notes", "other"):
        (tmp_path / folder).mkdir()
    (tmp_path / "notes/thesis.txt").write_text("years of work")
    (tmp_path / "other/agent.py").write_text("")
    (tmp_path / "other/sweep.yaml").write_text("program: agent.py\nmethod: grid\n")
    before = sorted(tmp_path.rglob("*"))
    assert main([*words, "--yes", "--out", str(tmp_path / out)]) == 2
    note, error = capsys.readouterr().err.splitlines()
    assert note.startswith("note: --out is given twice")
    assert said in error
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("left", [[], ["sweep.lock", f"sweep.yaml.{'0' * 16}.partial"]])
def test_a_sweep_that_was_killed_as_it_began_goes_on_also_beside_the_recipe(
    left, words, tmp_path
):
    (tmp_path / "recipe.yaml").write_text("model: {}\n")  # of the user's own, in no run
    (tmp_path / "sweep").mkdir()
    for name in left:
        (tmp_path / "sweep" / name).write_text("")
    for _ in range(2):
        assert main([*words, "--slurm"]) == 0


def run_task(
    script: Path, task: int, tools: Path, srun: str, preempted: bool = False
) -> "subprocess.CompletedProcess[str]":
    """Runs a task of an array by bash, with stand-ins for srun and scontrol."""
    since = "2026-03-01T12:00:00" if preempted else "None"
    scontrol = (
        f'if [ "$*" = "show job 7_{task}" ]; then echo "PreemptTime={since}"\n'
        'else echo requeued "$@"; fi'
    )
    stub(tools / "srun", srun)
    stub(tools / "scontrol", scontrol)
    stub(tools / "bin" / "activate", "")
    environment = {
        **os.environ,
        "DUALPATH_VENV": str(tools),
        "SLURM_ARRAY_TASK_ID": str(task),
        "SLURM_ARRAY_JOB_ID": "7",
        "PATH": f"{tools}:{os.environ['PATH']}",
    }
    return subprocess.run(
        ["bash", str(script)], env=environment, capture_output=True, text=True
    )


def test_slurm_runs_a_task_for_each_run(words, tmp_path):
    assert main([*words, "--slurm", "--jobs", "4"]) == 0
    script = tmp_path / "sweep" / "jobs.sbatch"
    text = script.read_text()
    assert "#SBATCH --array=0-5%4\n" in text
    assert "sbatch --array=0-999%4)" in text, "a part, as many at a time"
    assert "--gpus" not in text, "its trainer is a CPU's"
    planned = {str(files.recipe): files for files in planned_in(tmp_path / "sweep")}
    for task in range(6):
        done = run_task(script, task, tmp_path / "tools", srun='printf "%s\\n" "$@"')
        assert done.returncode == 0, done.stderr
        *said, recipe = done.stdout.splitlines()
        assert said == [
            "--cpus-per-task=1",  # srun takes no job's own
            f"--output={planned.pop(recipe).log}",
            "--open-mode=append",
            *("dualpath", "fit", "--config"),
        ]
    assert not planned


FAILING = """
for word in "$@"; do
    case "$word" in --output=*) log="${word#--output=}" ;; esac
done
echo "dualpath fit: failed: the disk is full" >> "$log"
echo "srun: error: task 0: Exited with exit code 1" >&2
exit 1
"""
"""In place of srun: a run that fails, and what SLURM says of it."""


def test_the_log_of_a_run_that_fails_under_slurm_ends_with_the_failure(words, tmp_path):
    out = tmp_path / "my sweep"
    assert main([*words, "--slurm", "--out", str(out)]) == 0
    for _ in range(2):
        done = run_task(out / "jobs.sbatch", 0, tmp_path / "tools", srun=FAILING)
        assert (done.returncode, done.stdout) == (1, ""), done.stderr
    (log,) = [files.log for files in planned_in(out) if files.log.exists()]
    assert runner.last_words(log) == "dualpath fit: failed: the disk is full"
    assert len(log.read_text().splitlines()) == 2, "that of both attempts"


def test_an_array_gives_each_run_one_device_and_no_more(words, tmp_path, capsys):
    script = tmp_path / "sweep" / "jobs.sbatch"
    for more in ({"devices": 2}, {"devices": [0, 1]}, {"num_nodes": 2}):
        write_recipe(tmp_path, trainer=more)
        assert main([*words, "--slurm"]) == 2
        said = capsys.readouterr().err
        assert "--slurm gives each run one device, but trainer.devices=" in said
        assert not script.exists()
    for one in ("auto", -1, [0], 1):
        write_recipe(tmp_path, trainer={"devices": one})
        assert main([*words, "--slurm"]) == 0
        script.unlink()


def test_commands_to_give_next_quote_a_folder_with_a_space(words, tmp_path, capsys):
    out = tmp_path / "my sweep"
    assert main([*words, "--slurm", "--out", str(out)]) == 0
    script = f"'{out}/jobs.sbatch'"
    said = capsys.readouterr().out
    assert said.endswith(
        f"sbatch {script}; when they are finished, dualpath compare '{out}'\n"
    )
    text = (out / "jobs.sbatch").read_text()
    assert f"#   sbatch --partition=gpu {script}\n" in text


def test_a_task_whose_time_is_up_is_queued_again_and_a_run_that_went_wrong_is_not(
    words, tmp_path, capsys
):
    words, script = [*words, "--slurm"], tmp_path / "sweep" / "jobs.sbatch"
    assert main(words) == 0
    done = run_task(script, 0, tmp_path / "tools", srun="exit 1")
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    warned = (
        "trap 'exit 1' USR1; sleep 0.5; kill -USR1 $PPID; while :; do sleep 0.1; done"
    )
    done = run_task(script, 2, tmp_path / "tools", srun=warned)
    assert (done.returncode, done.stdout) == (1, "requeued requeue 7_2\n")
    wrong = tmp_path / "sweep/runs/loop_k2/seed_0/went_wrong.txt"
    wrong.parent.mkdir(parents=True)
    wrong.write_text("steps 1 to 10 were skipped")
    assert main(words) == 0
    assert "5 runs: sbatch" in capsys.readouterr().out
    assert "loop_k2-seed_0" not in script.read_text()


def test_a_task_that_is_preempted_is_queued_again_unless_it_is_done(words, tmp_path):
    assert main([*words, "--slurm"]) == 0
    script, tools = tmp_path / "sweep" / "jobs.sbatch", tmp_path / "tools"
    for code, said in ((143, "requeued requeue 7_1\n"), (0, "")):
        done = run_task(script, 1, tools, srun=f"exit {code}", preempted=True)
        assert (done.returncode, done.stdout) == (code, said), done.stderr


def train_here(run: PlannedRun, slot: int, jobs: int) -> Any:
    run.log.parent.mkdir(parents=True, exist_ok=True)
    with run.log.open("w") as log, contextlib.redirect_stdout(log):
        code = main(["fit", "--config", str(run.path)])
    return SimpleNamespace(poll=lambda: code, returncode=code)


@pytest.mark.parametrize(
    "where", ["here", pytest.param("processes", marks=pytest.mark.slow)]
)
def test_a_sweep_plans_trains_and_ends(where, texts, tmp_path, output_of, monkeypatch):
    if where == "here":
        monkeypatch.setattr(runner, "start", train_here)
        monkeypatch.setattr("dualpath_cli.training.curve.draw", lambda run: run)
    val = {"held_out": str(texts / "val.jsonl")}
    recipe = write_recipe(tmp_path, data={"path": str(texts / "train"), "val": val})
    out = tmp_path / "sweep"
    options = f"--config {recipe} {SMALL} --controls wide --yes --out {out}"
    words = ["sweep", *options.split()]
    said = output_of(*words, "--seeds", "1")
    assert "--tflops" in said
    assert said.splitlines()[-1] == f"next: dualpath compare {out}"
    words.remove("--yes")
    said = output_of(*words, "--seeds", "2", "--slurm")
    assert re.search(r"in all \d+\.\d min", " ".join(said.split()))
    plan = {row["configuration"]: row for row in read_csv(out / "plan.csv")}
    assert set(plan) == {"wide", "a50_k2"}
    for name, row in plan.items():
        folder = out / "runs" / name / "seed_0"
        ends = [r for r in read_csv(folder / "validation.csv") if int(r["step"]) == 10]
        assert [r["set"] for r in ends] == ["held_out"]
        speeds = [
            float(r["tokens_per_second"]) for r in read_csv(folder / "metrics.csv")
        ]
        assert min(speeds) <= 640 / 3600 / float(row["hours"]) <= max(speeds)
        model = yaml.safe_load((folder / "recipe.yaml").read_text())["model"]
        assert (model["block"] == "wide") == (name == "wide")
        printed = (out / "logs" / f"{name}-seed_0.log").read_text()
        assert f"{float(row['linear_flops']) / 1e6:.2f}M linear" in printed
