"""What users give and should not: each mistake is one line that names it, before a slow import.

docs/reliability.md lists the faults. Those here were found by hand and by `tests/fuzz`.
"""

import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from dualpath_cli import machine
from dualpath_cli.cli import checks
from dualpath_cli.config import GATE_OUTPUTS
from dualpath_cli.errors import LONGEST, UserError, one_line
from dualpath_cli.recipe.settings import TrainerSettings, settings_from
from tests.command.test_cli import TINY, run_without_slow_imports, write_home
from tests.fuzz.nasty import BOMB, MERGES

LONG = "x" * 300

RECIPES = {
    # keys and sections
    "modle: {loops: 3}": "unknown key 'modle' in the recipe; did you mean 'model'?",
    "model: {3: dual}": "unknown key 'model.3'",
    "trainer:": "'trainer' in the recipe must be a mapping, not null",
    "": ".yaml must be a mapping of sections, not None",
    # YAML that means something else, or too much
    "model: !!binary aGVsbG8=": ".yaml line 1 cannot be read: a tag, as ! begins one; put text",
    "a: " + "[" * 3000: "it is nested more than 50 levels deep",
    "- " * 60: "it is nested more than 50 levels deep",
    BOMB: "it stands for more than 10,000 values",
    MERGES: "it stands for more than 10,000 values",
    "trainer: {callbacks: &a [*a]}": "a value holds itself",
    "x: " + "y" * 60_000: ".yaml has more than 50,000 characters",
    "seed_everything: " + "9" * 5000: "a number of more than 100 digits",
    "seed_everything: 0x_": "it holds a number without digits",
    "seed_everything: 2020-01-01": "must be a whole number, not '2020-01-01'",
    "\0": ".yaml cannot be read: special characters are not allowed",
    'run: {dir: "\\ud800"}': "a text is no valid Unicode; give names and paths in UTF-8",
    "{model: {loops: 2}, model: {loops: 3}}": "the key 'model' appears twice",
    # values
    "seed_everything: -1": "seed_everything must be at least 0, not -1",
    "model: {gate: two_gate}": f"model: gate must be one of {', '.join(GATE_OUTPUTS)} "
    "or the path of a class such as my.module.Gate, not 'two_gate'; did you mean 'two_gates'?",
    "optim: {decay: matrices}": "norms, gains, biases, conditioning), not 'matrices'\n",
    "optim: {lr: 0}": "optim: lr must be above 0, not 0",
    "optim: {betas: [1.5, 0.9]}": "optim: betas must be from 0 to below 1, not [1.5, 0.9]",
    "run: {train_loops: [2, 2]}": "one to 8 different numbers from 1 on, not '[2, 2]'",
    # values that contradict each other
    "run: {save_every: 5, log_every: 2}": "save_every=5 must be a multiple of log_every=2",
    "model: {n_heads: 3}": "d_model=16 with n_heads=3 must give an even whole head size",
    "model: {n_kv_heads: 3}": "n_kv_heads=3 must divide n_heads=2",
    "model: {block: [dual, dual, wide]}": "block lists 3 kinds for n_layers=2 layers",
    "model: {d_ffn: null}": "block 'dual' needs d_ffn and has none",
    "{optim: {warmup_steps: 15}, run: {max_tokens: 1000}}": "optim.warmup_steps=15 must be less "
    "than the run's 15 optimizer steps",
    "{model: {loops: 1}, run: {train_loops: [1, 2]}}": "run.train_loops has 2: the model was "
    "trained with one loop",
    # a model that no machine here can hold
    "model: {vocab_size: 100000000, d_model: 768000}": "parameters, 652,150 GB, and this machine",
    # devices
    "trainer: {devices: 0}": "devices must be auto, -1, a number from 1 to 999 or a list",
    "trainer: {devices: [1, 1]}": "a list of different devices, not '[1, 1]'",
    "trainer: {strategy: single, devices: 2}": "choose ddp, fsdp or hsdp",
    "trainer: {strategy: single, num_nodes: 2}": "choose ddp, fsdp or hsdp",
    "trainer: {max_time: soon}": "trainer: max_time must be days:hours:minutes:seconds",
    "trainer: {callbacks: [{class_path: qqqq.Callback}]}": "trainer.callbacks: 'qqqq.Callback' "
    "cannot be imported: there is no module 'qqqq'",
    "trainer: {profiler: simpel}": "profiler must be",
    # names and places
    "run: {name: ../../x}": "run: name must be a plain name, without '/', '\\', '$' and control "
    "characters, not '../../x'; --run.name NAME gives another",
    "run: {name: ..}": "name must be a plain name",
    'run: {name: "a\\nb"}': "control characters, not 'a\\nb'",
    "run: {recipe: a/b}": "recipe must be a plain name",
    f"run: {{name: {LONG}}}": "run: name must have at most 100 bytes, not 'xxxxx",
    "run: {dir: s3://bucket/runs}": "run: dir must be a path on this machine, not 's3://bucket/r",
    "data: {path: gs://bucket/x}": "path must be a path on this machine or s3://, not 'gs://",
    "data: {val: {../x: tiny.yaml}}": "data: the name of a validation set in val must be a plain",
    f"data: {{path: {LONG}}}": "File name too long; give a shorter name",
    # data
    "model: {vocab_size: 16}": "data.path 'data' uses a tokenizer of 257 entries, more than "
    "model.vocab_size=16; raise it to 257",
    "model: {max_seq_len: 2048}": "data.path 'data' has no 2049 tokens in a chunk",
    "model: {document_start: 7}": "model.document_start=7 does not begin documents in data.path "
    "'data'; its end-of-text token is 256",
    "run: {max_tokens: 4096}": "run.max_tokens=4096 is 4.27 epochs of the 60 sequences of 16 "
    "tokens in 'data'; raise data.max_epochs=1 to 4.27 to allow it",
    "optim: {learning_rate: 1}": "unknown key 'optim.learning_rate'; did you mean 'optim.lr'?",
    "data: {path: nowhere}": "data folder 'nowhere' does not exist; make it with `dualpath prepare "
    "--source NAME=FILES --tokenizer TOKENIZER --out nowhere`",
    "data: {path: empty}": "data folder 'empty' has no manifest.json",
    "data: {path: cut}": "1000 bytes instead of 2060",
    "data: {val: {novels: nowhere.jsonl}}": "data.val.novels: 'nowhere.jsonl' does not exist",
    "data: {val: {novels: novels.doc}}": "'novels.doc': its format is not known by its name",
}
"""Changes of tiny.yaml."""

LINES = {
    # commands, recipes, words
    "qqqq": "prepare, prepare inspect, fit, validate, flops, ",
    "fit": "--config",
    "fit --config f80m_a50_k5": "no recipe 'f80m_a50_k5': neither a file nor a packaged name; "
    "did you mean 'f80m_a50_k4'?",
    "fit --config quickstart": "data folder 'data/sample' does not exist; make it with `dualpath "
    "prepare --source sample --out data/sample`",
    "fit --config small_text": "make it with `dualpath prepare --source NAME=FILES --tokenizer "
    "gpt2 --out data/text`",
    "fit --config f160m_a25_k4": "make it with `dualpath prepare --config paper --out "
    "data/nemotron-cc`",
    "fit --config qqqq": "no recipe 'qqqq': neither a file nor a packaged name; the packaged ones",
    "fit --config as_written": "has none; set it, or give an overlay after the --config of",
    "fit --config tiny.yaml stray": "unexpected argument 'stray'",
    "fit --config tiny.yaml --out=--": "--out needs a value",
    "fit --config tiny.yaml --model.loops --run.name x": "--model.loops needs a value",
    "fit --config tiny.yaml --run.loops 3": "did you mean '--model.loops'?",
    "fit --config tiny.yaml --ckpt_pth x": "did you mean '--ckpt-path'?",
    "fit --config tiny.yaml --optim.learning_rate 1": "did you mean '--optim.lr'?",
    "fit --config tiny.yaml --optim.qqqq 1": "'--optim.qqqq'; --help-recipe lists what there is",
    "ablate --ckpt-path runs/begun/default --max-tokns 3": "did you mean '--max-tokens'?",
    "prepare quickstart": "every value follows its option",
    "fit --config": "--config needs RECIPE; see --help",
    "fit tiny.yaml": "unexpected argument 'tiny.yaml'; did you mean '--config tiny.yaml'?",
    "validate runs/begun/default": "did you mean '--ckpt-path runs/begun/default'?",
    "fit --config tiny.yaml --run.batch_tokens 40": "is no whole number of sequences of 16 tokens",
    "fit --config tiny.yaml --trainer.devices 500": "would be 500 processes on",
    "fit --config tiny.yaml --trainer.devices 3": "to 3 devices, but to 2",
    "ablate --ckpt-path runs/begun/default --sources a=novels.jsonl --suite token-classes "
    "--tagger qqqq": "spaCy",
    "fit --config tiny.yaml --model 3": "model must be a mapping",
    f"fit --config tiny.yaml --model.loops {'[' * 3000}": "model.loops must be a whole number",
    "fit --config tiny.yaml --run.batch_tokens 4096": "is less than one batch",
    "fit --config tiny.yaml --trainer.max_steps 5": "trainer.max_steps is not used; "
    "set run.max_tokens instead",
    # runs
    "fit --config tiny.yaml --ckpt_path runs/tiny/frist": "no run or checkpoint at "
    "'runs/tiny/frist'; did you mean 'first'?",
    "fit --config tiny.yaml --ckpt_path runs/tiny/first": "run 'runs/tiny/first' has no complete "
    "checkpoint yet",
    "fit --config tiny.yaml --ckpt_path data": "'data' is neither a run folder",
    "fit --config tiny.yaml --ckpt_path a b": "fit takes one RUN; give the command for each",
    "fit --config begun.yaml": "runs/begun/default holds a run with model.loops=2, this one has 4; "
    "give this one a name (--run.name NAME)",
    "validate --ckpt_path": "--ckpt-path needs RUN; see --help",
    "validate --config tiny.yaml": "validate needs --ckpt-path RUN",
    "validate --ckpt_path nowhere": "no run or checkpoint at 'nowhere'",
    f"validate --ckpt_path {LONG}": "File name too long; give a shorter name",
    "validate --ckpt_path 'a\nb\x1b[31m'": "no run or checkpoint at 'a\\nb\\x1b[31m'; runs are",
    "validate --ckpt_path runs/begun/default --data.val.novels novel.jsonl": "data.val.novels: "
    "'novel.jsonl' does not exist; --data.val '{NAME: PATH}' takes the place of all the run's sets",
    "validate --ckpt_path runs/elsewhere/default --data.val.mine novels.jsonl": "data.val.novels: "
    "'/gone/novels.jsonl' does not exist; --data.val '{NAME: PATH}' takes the place of all",
    "validate --ckpt_path runs/begun/default --data.val 3": "data.val must be a mapping of names",
    "ablate --ckpt_path runs/elsewhere/default": "--sources NAME=PATH takes their place",
    "ablate --ckpt_path runs/begun/default --sources a=novels.jsonl --out s3://b/x": "--out must "
    "be a path on this machine, not 's3://b/x'",
    "routing --ckpt_path runs/begun/default --sources ..=novels.jsonl": "must be a plain name",
    # flops
    "flops --k=--": "--k needs a value",
    f"flops --budget {'9' * 300}": "--budget must be a whole number above 0",
    "flops --budget 1e18": "a budget of 1000000000000000000 is too large: d_ffn must be from 1 to",
    f"flops --budget 80M --layers {'9' * 5000}": "--layers must be one whole number, not '9999",
    "flops --config run3.yaml": "recipe 'run3.yaml': 'run' must be a mapping",
}

Answers = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """The answer to each mistake, all of them made in one process."""
    home = write_home(tmp_path_factory.mktemp("home"))
    (home / "run3.yaml").write_text("run: 3\nmodel: {d_ffn: 64, d_ffn_wide: 64}")
    for number, text in enumerate(RECIPES):
        (home / f"{number}.yaml").write_text(text)
    before = sorted(home.rglob("*"))
    lines = [f"fit --config tiny.yaml --config {number}.yaml" for number in range(len(RECIPES))]
    results = run_without_slow_imports([*lines, *LINES], home)
    assert sorted(home.rglob("*")) == before, "a mistake leaves nothing behind"
    return dict(zip([*RECIPES, *LINES], results, strict=True))


@pytest.mark.parametrize(
    ("mistake", "words"), [*RECIPES.items(), *LINES.items()], ids=lambda text: text[:40]
)
def test_a_mistake_is_one_line_with_a_way_out_in_two_seconds(mistake, words, answers):
    answer = answers[mistake]
    command = "fit" if mistake in RECIPES else mistake.split()[0]
    assert (answer["code"], answer["out"]) == (2, ""), answer["err"]
    assert answer["seconds"] < 2
    assert answer["err"].startswith(("dualpath: error: ", f"dualpath {command}: error: "))
    assert answer["err"].count("\n") == answer["err"].endswith("\n") == 1
    assert len(answer["err"]) < LONGEST + 100
    assert words in answer["err"]


@pytest.mark.parametrize(
    ("trainer", "gpus", "message"),
    [
        ({"accelerator": "gpu"}, 0, "trainer.accelerator is gpu, but no GPU is to be seen here"),
        ({"accelerator": "cuda", "devices": 8}, 4, "trainer.devices=8, but 4 GPUs are to be seen"),
        ({"accelerator": "cuda", "devices": 4}, 4, None),
        ({"accelerator": "cuda", "devices": "auto"}, 4, None),
        ({"accelerator": "cuda", "devices": 8}, None, None),
        ({"accelerator": "auto", "devices": 8}, 0, None),
        ({"accelerator": "cpu"}, 0, None),
    ],
)
def test_gpus_that_are_not_there_are_missed_at_once(trainer, gpus, message, monkeypatch):
    monkeypatch.setattr(checks, "visible_gpus", lambda: gpus)
    with pytest.raises(UserError, match=message) if message else nullcontext():
        checks.check_devices(TrainerSettings(**trainer))


def test_as_many_gpus_are_seen_as_torch_sees():
    import torch

    assert checks.visible_gpus() in (None, torch.cuda.device_count())


@pytest.mark.parametrize(
    ("section", "given", "message"),
    [
        ("optim", {"muon_lr": 0.01}, "optim.muon_lr=0.01 has no effect under optim.name=adamw"),
        ("optim", {"muon_momentum": 0.9}, "choose optim.name=muon"),
        ("optim", {"muon_adjust": "original"}, "optim.muon_adjust=original has no effect"),
        ("optim", {"cooldown": 0.1}, "optim.cooldown=0.1 has no effect under optim.schedule=cos"),
        ("optim", {"cooldown": 0.1, "schedule": "wsd"}, None),
        ("optim", {"muon_lr": 0.01, "name": "muon"}, None),
        ("run", {"shard_size": 2}, "run.shard_size=2 has no effect under trainer.strategy=auto"),
        ("optim", {}, None),
    ],
)
def test_a_setting_that_another_one_leaves_without_effect_is_refused(section, given, message):
    settings = settings_from({**TINY, section: given})
    with pytest.raises(UserError, match=message) if message else nullcontext():
        checks.check_effect(settings)


def test_cores_are_those_that_the_process_may_use(monkeypatch):
    """As SLURM sets them; the machine may have many more."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 7, 9}, raising=False)
    assert machine.cores() == 4
    with pytest.raises(UserError, match="100 processes on 4 cores; use at most 32"):
        checks.check_devices(TrainerSettings(accelerator="cpu", devices=100))
    given = re.compile(r"os\.(process_)?cpu_count|multiprocessing\.cpu_count")
    package = Path(machine.__file__).parent
    users = {path.name for path in package.rglob("*.py") if given.search(path.read_text())}
    assert users == {"machine.py"}


def test_a_model_that_just_fits_is_let_through(monkeypatch):
    settings = settings_from(TINY)
    needed = 4 * checks.parameters(settings.model)
    monkeypatch.setattr(os, "sysconf", lambda name: needed if name == "SC_PHYS_PAGES" else 1)
    checks.check_size(settings)
    monkeypatch.setattr(os, "sysconf", lambda name: needed - 1 if name == "SC_PHYS_PAGES" else 1)
    with pytest.raises(UserError, match="lower model"):
        checks.check_size(settings)


def test_a_message_is_one_printable_line_that_keeps_both_ends():
    message = one_line("begin\n\x1b[31m \udcff " + "é " * 2000 + "the way out")
    assert message.startswith("begin\\n\\x1b[31m \\udcff ")
    assert message.endswith("the way out")
    assert message.isprintable()
    assert len(message) <= LONGEST + 10
    assert one_line("'" + "x" * 5000 + "' is wrong").endswith("xxx' is wrong")


def run(words: str, **streams: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "dualpath_cli", *words.split()]
    return subprocess.run(command, stderr=subprocess.PIPE, **streams)


def test_a_reader_that_leaves_early_ends_the_command_quietly():
    reading, writing = os.pipe()
    os.close(reading)
    done = run("flops --budget 80M --table", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("words", ["flops --budget 80M --table", "--help"])
def test_an_answer_that_cannot_be_written_is_one_line_and_exit_code_1(words):
    with open("/dev/full", "w") as full:
        done = run(words, stdout=full)
    assert done.returncode == 1
    assert b"error: No space left on device; free some space" in done.stderr
    assert done.stderr.count(b"\n") == 1
