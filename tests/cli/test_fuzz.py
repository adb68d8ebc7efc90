"""Random recipes, words and damaged files: no command ends in a traceback.

Everyday fifty cases of each; thousands by `--hypothesis-profile torture`, as in `make
torture`. Each command runs to its end, in this process; only models are neither loaded
nor trained.
"""

import contextlib
import copy
import importlib
import io
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep.engine import Engine
from dualpath_cli.base.errors import LONGEST, UserError
from dualpath_cli.cli.main import main
from dualpath_cli.recipe.settings import settings_from
from dualpath_cli.run.checkpoint_files import (
    describe,
    facts_of,
    files_of,
    write_manifest,
)
from dualpath_cli.run.exported_folder import WEIGHTS
from tests.cli.test_messages import BOMB, PREFIX
from tests.cli.test_settings import FIELDS, OPTIONS
from tests.compare.run_folders import write_sweep
from tests.conftest import Share
from tests.training.tiny_run import RUN, recipe_of_home, write_home

SECONDS = 10
"""Of the processor's time; a recipe of 50,000 characters takes two to read."""
NOTES = (
    "note: ",
    "dualpath flops: note: ",
    "passed over ",
    "warning: ",
    "decontaminate: ",
    "the mix ends with ",
    "removing the unfinished work ",
    "left out",  # of a folder, or where nobody may read
    "words of more than ",
)
"""Beginnings of the lines on stderr that are no error."""
CHECKPOINT = f"{RUN}/checkpoints/step-00000002"
TOKENIZER = "texts/train-tokenizer"
LINES = [
    "fit --config case.yaml",
    "fit --config tiny.yaml --run.name new --data.val.mine val.jsonl "
    "--trainer.devices=1",
    f"validate --config case.yaml --ckpt_path {RUN} --data.val_tokens 20K",
    f"ablate --ckpt_path {RUN} --data.val.mine val.jsonl --suite paper layers --loops "
    "1-4 --out x",
    f"ablate --ckpt_path {RUN} --suite token-classes --classes n=NUM,SYM:wide "
    "--data.val_tokens 1K --seeds 2",
    f"routing --ckpt_path {RUN} --tagger none --sequences 3",
    f"generate --ckpt_path {RUN} --prompt hello --top_k 5 --stop a --intervention "
    "gates=1,0",
    "flops --config case.yaml --tokens 1B --gpus 8 --tflops 100",
    "flops --budget 80M --alpha 50 --k 4 --block dual --layers 8 --dim 512",
    "sweep --config case.yaml --budget 100K --alphas 50 --loops 2,3 --controls wide "
    "--seeds 1 --out x --yes",
    f"compare {RUN} --baseline tiny --any-length --out x",
    "compare sweep --baseline wide --margin 0.01 --out x",
    f"export --ckpt-path {RUN} --license mit --out x",
    f"prepare --source mine=val.jsonl --tokenizer {TOKENIZER} --val-fraction 0.3 "
    "--min-chars 9 --out x",
    "prepare inspect texts/train --samples 2 --seed 1",
    "tokenizer --source mine=val.jsonl --vocab-size 260 --out x",
]
NASTY = [
    "",
    " ",
    "-",
    "--",
    "..",
    "../../x",
    "~",
    "a\\b",
    "x" * 300,
    "x" * 5000,
    "é" * 120,
    "\u202e",
    "a\nb",
    "\x1b[31m",
    "a\udcffb",
    "[/x]",
    "{0}",
    "%s",
    "null",
    "nan",
    "1e400",
    "0x_",
    "'",
    '"',
    "a=b",
    "*",
    "[",
    "[" * 3000,
    "**/*",
    "007",
    "!!binary aGVsbG8=",
    "&a [*a]",
    "<<",
    "base",
    "٣",
]
PIECES = [
    BOMB,
    BOMB.replace("[x,x,x,x,x,x,x,x,x]", "{x: 1}")
    .replace("[*", "{<<: [*")
    .replace("]", "]}"),
    "trainer:\n",
    "- " * 3000,
    "? " * 500,
    "a: " + "{a: " * 3000,
    "trainer: {callbacks: &a [*a]}",
    "<<: 3",
    "base: case.yaml",
    "base: [tiny, nowhere]",
    "%YAML 9.9",
    "\t",
    "\x00",
    "\x85",
    "|",
    "seed_everything: " + "9" * 5000,
    "seed_everything: 1:1:1",
    "date: 2020-01-01",
    "? [a]\n: b",
    "x: " + "y" * 60000,
    "model: !!python/object/apply:os.system [true]",
    "model: {n_layers: 1e9}",
]
"""Lines of YAML that mean something else than they seem to, or too much."""

texts = st.sampled_from(NASTY) | st.text(st.characters(), max_size=9).map(
    lambda t: t.lstrip("/")
)
numbers = (
    st.integers() | st.floats() | st.sampled_from([0, 1, 2, 16, 2**31, 10**9, 10**99])
)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(texts | numbers, inner, max_size=2)
    ),
    max_leaves=4,
)
options = st.sampled_from(
    [
        f"--{name.split('--')[1]}"
        for name in OPTIONS.read_text().split("\n")
        if " --" in name
    ]
)


@st.composite
def recipes(draw: st.DrawFn) -> bytes:
    """The recipe of tiny.yaml with other values, other keys, and perhaps a line of
    YAML."""
    recipe: dict[Any, Any] = copy.deepcopy(recipe_of_home())
    for _ in range(draw(st.integers(0, 3))):
        section, key = draw(st.sampled_from(sorted(FIELDS))).split(".")
        recipe[section][draw(st.just(key) | texts)] = draw(values)
    text = yaml.safe_dump(recipe | draw(st.dictionaries(texts, values, max_size=1)))
    lines = [*text.splitlines(), *draw(st.lists(st.sampled_from(PIECES), max_size=1))]
    return "\n".join(lines).encode(errors="surrogatepass")


@st.composite
def words(draw: st.DrawFn) -> list[str]:
    """A command, of whose words some are others, or more."""
    line = draw(st.sampled_from(LINES)).split()
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(1, len(line)))
        more = draw(st.lists(options | values.map(str) | numbers.map(str), max_size=2))
        line[place : place + draw(st.integers(0, 1))] = more
    return [word.replace("\0", "") for word in line]


@st.composite
def damages(draw: st.DrawFn) -> tuple[str, Callable[[bytes], bytes]]:
    """A file of the run or of the data, and what becomes of its bytes."""
    records = ["recipe.yaml", "versions.json", "metrics.csv", "validation.csv"]
    of_run = [*records, "tokenizer.json", "checkpoints/manifests/step-00000002.json"]
    of_data = ["manifest.json", "index.json", "chunk-0-0.bin"]
    names = [
        *(f"{RUN}/{name}" for name in of_run),
        *(f"sweep/runs/wide/seed_0/{name}" for name in records),
        *(f"texts/train/{name}" for name in of_data),
        f"{TOKENIZER}/tokenizer.json",
        "val.jsonl",
    ]
    at, end = sorted(draw(st.tuples(*[st.floats(0, 1)] * 2)))
    other = draw(
        st.binary(max_size=9) | values.map(lambda v: str(v).encode(errors="replace"))
    )
    return draw(st.sampled_from(names)), lambda content: b"".join(
        [content[: int(at * len(content))], other, content[int(end * len(content)) :]]
    )


def write_case(folder: Path) -> None:
    """Fills a folder: the home of mistakes, weights of its run, and a finished
    sweep."""
    from safetensors.torch import save_file

    from dualpath_cli.model import DualPathLM

    write_home(folder)
    write_sweep(folder / "sweep", ["wide", "a50_k2"], [0, 1])

    checkpoint = folder / CHECKPOINT
    model = DualPathLM(settings_from(recipe_of_home()).model)
    weights = {
        f"model.{name}": each.detach() for name, each in model.named_parameters()
    }
    save_file(weights, checkpoint / WEIGHTS)
    files = describe(checkpoint, files_of(checkpoint))
    write_manifest(checkpoint, files, facts_of(checkpoint))
    # which the card of an exported folder quotes
    scores = "step,tokens,set,loss,bits_per_byte\n2,128,held_out,5.5,2.5\n"
    (folder / RUN / "validation.csv").write_text(scores)


@pytest.fixture
def home(share: Share, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What each case begins with.

    A command ends where it would load or train a model, draws nothing and starts no
    processes: these take seconds.
    """

    def refuse(*_: object) -> None:
        raise UserError("nothing is loaded or trained here")

    folder = share("home of a fuzz", write_case)
    # Each name is set where its command looks it up. This also imports what remembers
    # the home folder, which cases replace: matplotlib, and the hub for `export`.
    monkeypatch.setattr("dualpath_cli.cli.lightning.run_task", lambda *_: None)
    monkeypatch.setattr("dualpath_cli.run.weights.load_model", refuse)
    monkeypatch.setattr("dualpath_cli.compare.sweep.command.run_all", refuse)
    monkeypatch.setattr("dualpath_cli.compare.figures.draw", lambda *_: {})
    monkeypatch.setattr(
        "data_prep.engine.local_engine",
        lambda workers: contextlib.nullcontext(Engine()),
    )
    importlib.import_module("dualpath_cli.export.hf.folder")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    return folder


def check(home: Path, line: list[str], recipe: bytes, damage: Any = None) -> None:
    """The command ends in time, and with one line of an error unless it ends well."""
    with TemporaryDirectory() as box:
        case = shutil.copytree(home, Path(box, "a", "b", "case"), symlinks=True)
        (case / "case.yaml").write_bytes(recipe)
        if damage is not None:
            (case / damage[0]).write_bytes(damage[1]((case / damage[0]).read_bytes()))
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.chdir(case),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()) as err,
        ):
            patch.setenv("HOME", str(Path(box, "home")))  # a path may be ~
            began = time.process_time()
            code = main(line)
    assert time.process_time() - began < SECONDS
    said = [
        text for text in err.getvalue().split("\n")[:-1] if not text.startswith(NOTES)
    ]
    assert code in (0, 1, 2, 130)
    assert len(said) == (code != 0), said
    for text in said:
        assert PREFIX.match(text)
        assert text.isprintable()
        assert len(PREFIX.sub("", text)) <= LONGEST + 10
        assert "out of memory" not in text


case = settings(suppress_health_check=[*HealthCheck])


@case
@given(words(), recipes())
def test_no_words_and_no_recipe_end_in_a_traceback(home, line, recipe):
    check(home, line, recipe)


@case
@given(st.sampled_from(LINES), damages())
def test_no_damaged_file_ends_in_a_traceback(home, line, damage):
    check(home, line.split(), yaml.safe_dump(recipe_of_home()).encode(), damage)
