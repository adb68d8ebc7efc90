"""The `dualpath` command as a user sees it: help, mistakes, `--print_config`, and what it imports.

Every mistake is made in one process, which refuses to import what is slow to import: what a user
did wrong is found before that.
"""

import contextlib
import dataclasses
import gc
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from dualpath_cli import __version__, cli
from dualpath_cli.cli import main
from dualpath_cli.command.records import COMMANDS
from dualpath_cli.config import ModelConfig
from dualpath_cli.recipe import recipes
from dualpath_cli.recipe.settings import SECTIONS, TrainerSettings
from tests.manifests import write_data_folder
from tests.small_tokenizer import tokenizer_with

SLOW = ("torch", "lightning", "litdata", "torchmetrics", "rich", "tiktoken", "matplotlib")
"""Packages that take a second or more, or are needed only once a run has begun."""
NOT_IN_FLOPS = (*SLOW, "jsonargparse", "numpy", "yaml")
"""The 0.3 s of its process leave no room for these either."""

SCRIPT = """
import contextlib, io, json, sys, traceback

slow, lines = json.loads(sys.argv[1]), json.loads(sys.argv[2])


class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in slow:
            raise RuntimeError(f"imports {name}")


sys.meta_path.insert(0, Refuse())
from dualpath_cli.cli import main

for words in lines:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        with contextlib.redirect_stderr(io.StringIO()) as err:
            try:
                code = main(words)
            except SystemExit as stop:
                code = stop.code or 0
            except BaseException:
                traceback.print_exc(limit=-3)
                code = "a traceback"
    print(json.dumps({"code": code, "out": out.getvalue(), "err": err.getvalue()}))
"""


def run_without_slow_imports(
    lines: list[str], folder: Path, slow: tuple[str, ...] = SLOW
) -> list[dict[str, Any]]:
    """Runs command lines one after the other in a process of their own: code, out and err each."""
    arguments = [json.dumps(slow), json.dumps([shlex.split(line) for line in lines])]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


# What a user has at hand

TINY: dict[str, dict[str, Any]] = {
    "model": {"vocab_size": 257, "n_layers": 2, "d_model": 16, "n_heads": 2, "n_kv_heads": 2,
              "max_seq_len": 16, "d_ffn": 24, "d_ffn_wide": 48, "ffn_multiple_of": 8},
    "optim": {"warmup_steps": 15},  # of 16 steps
    "run": {"max_tokens": 1024, "batch_tokens": 64},
    "data": {"path": "data"},
    "trainer": {"accelerator": "cpu", "devices": 1},
}  # fmt: skip


def write_home(folder: Path) -> Path:
    """Fills the folder that commands are run in: recipes, data, and runs.

    runs/tiny/first has no checkpoint yet; runs/begun/default has one, of a model with two loops;
    that of runs/elsewhere/default was validated on a text that is not here.
    """
    for name in ("data", "cut"):
        write_data_folder(folder / name, [5] * 1024, tokenizer_with([]), chunk_tokens=1024)
    os.truncate(folder / "cut" / "chunk-0-0.bin", 1000)
    (folder / "empty").mkdir()
    (folder / "novels.doc").touch()
    (folder / "novels.jsonl").touch()
    (folder / "runs" / "tiny" / "first").mkdir(parents=True)
    (folder / "runs" / "tiny" / "first" / "recipe.yaml").write_text(yaml.safe_dump(TINY))
    two_loops = dataclasses.asdict(ModelConfig(**{**TINY["model"], "loops": 2}))
    gone = {"val": {"novels": "/gone/novels.jsonl"}}
    for name, data in (("begun", {}), ("elsewhere", gone)):
        checkpoints = folder / "runs" / name / "default" / "checkpoints"
        checkpoints.mkdir(parents=True)
        (checkpoints / "step-00000010").write_bytes(b"weights")
        (checkpoints / "last").symlink_to("step-00000010")
        (checkpoints.parent / "recipe.yaml").write_text(
            yaml.safe_dump({"model": two_loops, "data": data})
        )
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    (folder / "begun.yaml").write_text("base: tiny")
    return folder


# Mistakes: what is wrong, and words that its answer must hold

RECIPES = {
    # keys
    "modle: {loops: 3}": "unknown key 'modle' in the recipe; did you mean 'model'?",
    "model: {3: dual}": "unknown key 'model.3'",
    "3: {loops: 3}": "unknown key '3'",
    "model: 3": "'model' in the recipe must be a mapping, not 3",
    "base: quikstart": "did you mean 'quickstart'?",
    # values
    "model: {gate: two_gate}": "model: gate must be one of two_gates, convex, softmax, fixed "
    "or the path of a class such as my.module.Gate, not 'two_gate'; did you mean 'two_gates'?",
    "model: {block: [dual, wid]}": "not 'wid'; did you mean 'wide'?",
    "optim: {decay: [matrix]}": "not 'matrix'; did you mean 'matrices'?",
    "optim: {decay: matrices}": "norms, gains, biases), not 'matrices'\n",
    "trainer: {strategy: fsd}": "'fsd'; did you mean 'fsdp'?",
    "seed_everything: lucky": "seed_everything must be a whole number, not 'lucky'",
    "optim: {lr: 0}": "optim: lr must be above 0, not 0",
    "optim: {betas: [1.5, 0.9]}": "optim: betas must be from 0 to below 1, not [1.5, 0.9]",
    "run: {micro_batch: 0}": "run: micro_batch must be at least 1, not 0",
    # values that contradict each other
    "run: {save_every: 5, log_every: 2}": "save_every=5 must be a multiple of log_every=2",
    "model: {n_heads: 3}": "d_model=16 with n_heads=3 must give an even whole head size",
    "model: {n_kv_heads: 3}": "n_kv_heads=3 must divide n_heads=2",
    "model: {block: [dual, dual, wide]}": "block lists 3 kinds for n_layers=2 layers",
    "model: {d_ffn: null}": "block 'dual' needs d_ffn and has none",
    "{optim: {warmup_steps: 15}, run: {max_tokens: 1000}}": "optim.warmup_steps=15 must be less "
    "than the run's 15 optimizer steps",
    # data
    "model: {vocab_size: 16}": "data.path 'data' uses a tokenizer of 257 entries, more than "
    "model.vocab_size=16; raise it to 257",
    "model: {document_start: 7}": "model.document_start=7 does not begin documents in data.path "
    "'data'; its end-of-text token is 256",
    "run: {max_tokens: 4096}": "run.max_tokens=4096 is 4.00 epochs of the 1024 tokens in 'data'; "
    "raise data.max_epochs to allow it",
    "data: {path: nowhere}": "data folder 'nowhere' does not exist; make it with `python -m "
    "data_prep",
    "data: {path: empty}": "data folder 'empty' has no manifest.json",
    "data: {path: cut}": "1000 bytes instead of 2060",
    "data: {val: {novels: nowhere.jsonl}}": "data.val.novels: 'nowhere.jsonl' does not exist",
    "data: {val: {novels: novels.doc}}": "'novels.doc': its format is not known by its name",
}
"""Changes of tiny.yaml."""

LINES = {
    # the command
    "fitt": "no command 'fitt'; did you mean 'fit'?",
    "qqqq": "no command 'qqqq'; choose from fit, validate, flops",
    # the recipe's file
    "fit": "--config",
    "fit --config": "--config/-c: expected one argument",
    "fit --config f80m_a50_k5": "no recipe 'f80m_a50_k5': neither a file nor a packaged name; "
    "did you mean 'f80m_a50_k4'?",
    "fit --config recipes/qqqq.yaml": "no recipe 'recipes/qqqq.yaml'",
    "fit --config empty": "no recipe 'empty'",
    # words
    "fit --config tiny.yaml --qqqq 5": "unknown option '--qqqq'; --help lists what there is",
    "fit --config tiny.yaml stray": "unexpected argument 'stray'",
    "fit tiny.yaml": "--config",
    "fit --config tiny.yaml --trainer.precision 16-mixed": "did you mean 'bf16-mixed'?",
    "fit --config tiny.yaml --run.batch_tokens 4096": "is less than one batch",
    "fit --config tiny.yaml --trainer.max_steps 5": "trainer.max_steps is not used; "
    "set run.max_tokens instead",
    "fit --config tiny.yaml --trainer.strategy single --trainer.devices 2": "choose ddp, "
    "fsdp or hsdp",
    "fit --config tiny.yaml --run.max_tokens": "--run.max_tokens needs a value",
    "fit --config tiny.yaml --model.loops --run.name x": "--model.loops needs a value",
    "fit --config tiny.yaml --run.loops 3": "did you mean '--model.loops'?",
    "fit --config tiny.yaml --ckpt_pth x": "did you mean '--ckpt_path'?",
    "fit --config tiny.yaml --model 3": "model must be a mapping",
    "fit --config quickstart": "data folder 'data/sample' does not exist; make it with `python -m "
    "data_prep",
    "fit --config tiny.yaml --data.workers 100000": "workers must be from 0 to 64, not 100000",
    "fit --config tiny.yaml --data.verify frist": "data.verify must be one of never, first, "
    "always, not 'frist'; did you mean 'first'?",
    # runs
    "fit --config tiny.yaml --ckpt_path runs/tiny/frist": "no run or checkpoint at "
    "'runs/tiny/frist'; did you mean 'first'?",
    "fit --config tiny.yaml --ckpt_path runs/tiny/first": "has no complete checkpoint yet",
    "fit --config tiny.yaml --ckpt_path data": "'data' is neither a run folder",
    "fit --config begun.yaml": "runs/begun/default holds a run with model.loops=2, this one has 4; "
    "give this one a name (--run.name NAME)",
    "validate": "validate needs --ckpt_path RUN",
    "validate --ckpt_path": "--ckpt_path: expected at least one argument",
    "validate --config tiny.yaml": "validate needs --ckpt_path RUN",
    "validate --ckpt_path nowhere": "no run or checkpoint at 'nowhere'",
    "validate --ckpt_path runs/begun/default/checkpoints/step-00000020": "no run or checkpoint",
    "validate --ckpt_path runs/begun/default --data.val.novels novel.jsonl": "data.val.novels: "
    "'novel.jsonl' does not exist; --data.val '{NAME: PATH}' takes the place of all the run's sets",
    "validate --ckpt_path runs/elsewhere/default --data.val.mine novels.jsonl": "data.val.novels: "
    "'/gone/novels.jsonl' does not exist; --data.val '{NAME: PATH}' takes the place of all",
    "ablate --ckpt_path runs/elsewhere/default": "--sources NAME=PATH takes their place",
    "validate --ckpt_path runs/begun --data.val.novels novels.jsonl": "is neither a run folder",
    "validate --ckpt_path runs/tiny/first": "run 'runs/tiny/first' has no complete checkpoint yet",
    # flops has a file of tests for its mistakes
    "flops --budget 80X": "--budget must be a whole number",
}

Answers = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What each mistake is answered with."""
    home = write_home(tmp_path_factory.mktemp("home"))
    for number, text in enumerate(RECIPES):
        (home / f"{number}.yaml").write_text(text)
    lines = [f"fit --config tiny.yaml --config {number}.yaml" for number in range(len(RECIPES))]
    results = run_without_slow_imports([*lines, *LINES], home)
    return dict(zip([*RECIPES, *LINES], results, strict=True))


@pytest.mark.parametrize(("mistake", "words"), [*RECIPES.items(), *LINES.items()])
def test_a_mistake_is_one_line_with_a_way_out_and_exit_code_2(
    mistake: str, words: str, answers: Answers
) -> None:
    answer = answers[mistake]
    command = "fit" if mistake in RECIPES else mistake.split()[0]
    assert answer["code"] == 2, answer["err"]
    assert answer["out"] == ""
    assert answer["err"].startswith(("dualpath: error: ", f"dualpath {command}: error: "))
    assert answer["err"].endswith("\n")
    assert answer["err"].count("\n") == 1
    assert words in answer["err"]


def test_mistakes_leave_nothing_behind(tmp_path: Path) -> None:
    home = write_home(tmp_path)
    before = sorted(home.rglob("*"))
    lines = ("--model.vocab_size 16", "--model.loop 3")
    run_without_slow_imports([f"fit --config tiny.yaml {line}" for line in lines], home)
    assert sorted(home.rglob("*")) == before


FLOPS = "flops --budget 80M"


@pytest.mark.parametrize(
    ("slow", "lines"),
    [
        (SLOW, ["", "--help", "--version", "fit --help", "validate --help",
                "fit --config quickstart --print_config"]),
        (NOT_IN_FLOPS, [FLOPS, f"{FLOPS} --table", f"{FLOPS} --format yaml", "flops --help"]),
    ],
    ids=["all", "flops"],
)  # fmt: skip
def test_answers_that_need_no_model_import_nothing_slow(
    slow: tuple[str, ...], lines: list[str], tmp_path: Path
) -> None:
    for line, answer in zip(lines, run_without_slow_imports(lines, tmp_path, slow), strict=True):
        assert (answer["code"], answer["err"]) == (0, ""), line
        assert answer["out"], line


def test_a_whole_recipe_passes_all_checks_before_anything_slow_is_imported(tmp_path: Path) -> None:
    line = "fit --config tiny.yaml --data.verify never"  # whose progress is drawn by rich
    (answer,) = run_without_slow_imports([line], write_home(tmp_path))
    assert answer["code"] == "a traceback"
    assert "RuntimeError: imports torchmetrics" in answer["err"]


def test_the_collector_rests_while_a_command_is_imported_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collecting = []

    def run(launch: Any) -> int:
        collecting.append(gc.isenabled())
        return 0

    def resolve(name: str) -> Callable[[Any], int]:
        collecting.append(gc.isenabled())
        return run

    monkeypatch.setattr(cli, "resolve", resolve)
    checked = SimpleNamespace(settings=SimpleNamespace(trainer=TrainerSettings()))
    monkeypatch.setattr("dualpath_cli.command.launch.prepare", lambda command, line: checked)
    assert main(["validate", "--ckpt_path", "run"]) == 0
    assert collecting == [False, True]


# Help and the recipe that is printed

Command = Callable[..., str]


@pytest.fixture
def dualpath(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Runs a command in an empty folder; it must end well, and returns what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> str:
        code: Any = 0
        with contextlib.suppress(SystemExit):
            code = main(list(words))
        captured = capsys.readouterr()
        assert (code, captured.err) == (0, "")
        return captured.out

    return run


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]], ids=["nothing", "--help", "-h"])
def test_help_lists_every_command_with_what_it_does(words: list[str], dualpath: Command) -> None:
    shown = [line.split(maxsplit=1) for line in dualpath(*words).splitlines()]
    for name, command in COMMANDS.items():
        assert [name, command.purpose] in shown


def test_the_version_is_one_line(dualpath: Command) -> None:
    assert dualpath("--version") == f"dualpath {__version__}\n"


@pytest.mark.parametrize("command", ["fit", "validate"])
def test_help_has_a_sentence_for_every_field(command: str, dualpath: Command) -> None:
    text = " ".join(dualpath(command, "--help").split())
    for section, settings in SECTIONS.items():
        for field in dataclasses.fields(settings):
            option = re.escape(f" --{section}.{field.name} VALUE ")
            (described,) = re.findall(
                rf"{option}(.*?) \([^()]*(?:\([^()]*\))?[^()]*; default: ", text
            )
            assert described.endswith("."), f"{option}: {described}"
            assert len(described.split()) > 2, f"{option}: {described}"


def test_help_wins_over_everything_else_on_the_line(dualpath: Command) -> None:
    assert dualpath("fit", "--config", "quickstart", "--help") == dualpath("fit", "--help")


@pytest.mark.parametrize("name", ["quickstart", "f80m_a50_k4", "f160m_wide"])
def test_a_printed_recipe_is_the_same_recipe(name: str, dualpath: Command) -> None:
    printed = dualpath("fit", "--config", name, "--print_config")
    Path("printed.yaml").write_text(printed)
    assert dualpath("fit", "--config", "printed.yaml", "--print_config") == printed


def test_a_printed_recipe_holds_the_recipe_the_words_and_all_defaults(dualpath: Command) -> None:
    words = ["--run.max_tokens", "1000", "--trainer.devices=2", "--data.val.mine", "mine.txt"]
    printed = yaml.safe_load(dualpath("fit", "--config", "quickstart", *words, "--print_config"))
    for section, settings in SECTIONS.items():
        assert set(printed[section]) == {field.name for field in dataclasses.fields(settings)}
    quickstart = recipes.load("quickstart")
    quickstart["run"]["max_tokens"] = 1000
    quickstart["data"]["val"]["mine"] = "mine.txt"
    assert recipes.merge(printed, quickstart | {"trainer": {}}) == printed
    assert printed["trainer"]["devices"] == 2
    assert printed["run"]["recipe"] == "quickstart"


def test_python_m_is_the_same_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dualpath_cli", "fitt"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "dualpath: error: no command 'fitt'; did you mean 'fit'?\n"
