"""A case: what is done to a copy of the home folder, and the words that are then given."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dualpath_cli.recipe.settings import SECTIONS
from tests.fuzz import nasty
from tests.command.home import RUN, recipe_of_home

FIT = ["fit", "--config", "tiny.yaml"]
OF_RUN = ["--ckpt_path", RUN]
SOURCES = ["--sources", "mine=val.jsonl"]
LINES = [
    FIT,
    [*FIT, "--run.name", "other", "--model.loops", "3", "--data.val.mine", "val.jsonl"],
    [*FIT, "--ckpt_path", RUN, "--run.name", "new", "--trainer.devices=1"],
    [*FIT, "--print_config", "--optim.lr", "1e-3"],
    ["validate", *OF_RUN, "--data.val.mine", "val.jsonl"],
    ["validate", *OF_RUN, "--data.val_tokens", "20K", "--trainer.precision", "32-true"],
    ["ablate", *OF_RUN, *SOURCES, "--suite", "paper", "layers", "--loops", "1-4", "--seeds", "2"],
    ["ablate", *OF_RUN, "--max_tokens", "1K", "--out", "here", "--classes", "n=NUM,SYM:wide"],
    ["ablate", *OF_RUN, f"{RUN}/checkpoints/step-00000002", "--out", "both"],
    ["routing", *OF_RUN, "--tagger", "none", "--sequences", "3", "--anchor", "Answer"],
    ["routing", *OF_RUN, *SOURCES, "--tagger", "none", "--examples", "mine:0", "--out", "there"],
    ["routing", *OF_RUN, "--text", "hello", "--layer", "1"],
    ["flops", "--budget", "80M", "--alpha", "50", "--k", "4"],
    ["flops", "--budget", "80M", "--table", "--match", "total", "--format", "json"],
    ["flops", "--config", "tiny.yaml", "--tokens", "1B", "--gpus", "8", "--tflops", "100"],
    ["flops", "--budget", "1.28G", "--block", "loop", "--layers", "8", "--dim", "512",
     "--heads", "8", "--kv-heads", "4", "--vocab", "1000", "--seq-len", "512",
     "--width-multiple", "32", "--reading", "as_written", "--decode", "2x64@1GB/s"],
    ["sweep", "--config", "tiny.yaml", "--budget", "100K", "--alphas", "50", "--loops", "2,3",
     "--controls", "wide,loop,min-deep", "--match", "linear,total", "--set", "model.gate=fixed",
     "--seeds", "2", "--tune", "1e-3,2e-3", "--tune-tokens", "256", "--jobs", "2",
     "--tflops", "1", "--out", "swept", "--yes"],
    ["compare", RUN, "--out", "compared"],
    ["compare", "runs", "--paper", "--baseline", "tiny", "--any-length"],
    ["compare", "runs", "--baseline", "tiny", "--aggregate-only"],
]  # fmt: skip
"""Commands that mean something, each option in one of them."""

RUN_FILES = (
    "recipe.yaml", "versions.json", "tokenizer.json", "metrics.csv", "validation.csv",
    "routing.csv", "checkpoints/last", "checkpoints/step-00000002",
    "checkpoints/manifests/step-00000002.json", "checkpoints", ".",
)  # fmt: skip
DATA_FILES = ("manifest.json", "index.json", "tokenizer.json", "chunk-0-0.bin", ".")


def of_recipes(draw: random.Random) -> list[str]:
    """A recipe with mistakes, beside whole ones."""
    Path("case.yaml").write_bytes(nasty.mutated(draw, recipe_of_home()))
    case = ["--config", "case.yaml"]
    return draw.choice(
        [["fit", *case], [*FIT, *case], ["validate", *OF_RUN, *case], ["flops", *case]]
    )


def of_words(draw: random.Random) -> list[str]:
    """A command whose words are wrong, missing, doubled or in another order."""
    words = list(draw.choice(LINES))
    for _ in range(draw.choice([1, 1, 2, 3])):
        place = draw.randrange(len(words))
        way = draw.choice([0, 1, 2, 3, 4, 4, 4, 5, 5, 6, 7, 7])
        if way == 0:
            del words[place]
        elif way == 1:
            words.insert(place, nasty.word(draw))
        elif way == 2:
            words[place:place] = draw.choice(LINES)[1:]
        elif way == 3:
            words[place] = words[place] + "=" + nasty.word(draw)
        elif way == 4:
            section = draw.choice([*SECTIONS, "seed_everything", "x"])
            field = draw.choice([*getattr(SECTIONS.get(section), "__annotations__", {}), "x"])
            words += [f"--{section}.{field}", nasty.word(draw)]
        elif way == 5 and words[place].startswith("--"):
            words[place] = f"{words[place]}={draw.choice(['', '--', nasty.word(draw)])}"
        elif way == 6:
            draw.shuffle(words)
        else:
            words[place] = nasty.word(draw)
        words = words or ["fit"]
    return [word.replace("\x00", "") for word in words]


def of_run_folders(draw: random.Random) -> list[str]:
    """A file of a run folder that is damaged, and what continues or reads the run."""
    _damage(draw, Path(RUN, draw.choice(RUN_FILES)))
    study = ["--sources", "mine=val.jsonl"]
    return draw.choice(
        [FIT, FIT, [*FIT, *OF_RUN, "--run.name", "new"], ["validate", *OF_RUN],
         ["ablate", *OF_RUN, *study], ["routing", *OF_RUN, *study, "--tagger", "none"],
         ["routing", *OF_RUN, "--text", "hello"], ["compare", RUN, "--out", "compared"]]
    )  # fmt: skip


def of_data_folders(draw: random.Random) -> list[str]:
    """A file of a data folder that is damaged, and what trains or scores on it."""
    _damage(draw, Path("texts/train", draw.choice(DATA_FILES)))
    return draw.choice(
        [FIT, [*FIT, "--run.name", "new"], ["validate", *OF_RUN, "--data.val.t", "texts/train"]]
    )


KINDS: dict[str, Callable[[random.Random], list[str]]] = {
    "recipes": of_recipes,
    "words": of_words,
    "run folders": of_run_folders,
    "data folders": of_data_folders,
}
"""Each changes the current folder and returns the words."""


def _damage(draw: random.Random, path: Path) -> None:
    """Does to a file what can happen to one."""
    way = draw.randrange(6)
    if path.is_dir() or path.is_symlink():
        target = draw.choice(["nowhere", ".", path.name, "step-x", "step-00000002"])
        if path.name and way < 5:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if path.name and way in (1, 2):
            path.symlink_to(target)
        if path.name and way == 3:
            path.write_bytes(b"")
    elif way == 0:
        path.unlink()
    elif way == 1:
        path.unlink()
        path.mkdir()
    elif way == 2 and path.suffix == ".json":
        path.write_text(json.dumps(_other(draw, json.loads(path.read_text()))))
    elif way == 3 and path.suffix == ".csv":
        path.write_text(_other_cells(draw, path.read_text()))
    else:
        path.write_bytes(nasty.damaged(draw, path.read_bytes()))


def _other(draw: random.Random, content: Any) -> Any:
    """JSON with another value somewhere."""
    if isinstance(content, dict | list) and content and draw.random() < 0.8:
        key = draw.choice(list(content) if isinstance(content, dict) else range(len(content)))
        content[key] = _other(draw, content[key])
        return content
    return nasty.value(draw)


def _other_cells(draw: random.Random, text: str) -> str:
    """A table with a cell, a column or rows that are not the run's."""
    rows = [line.split(",") for line in text.splitlines()]
    way = draw.randrange(3)
    if way == 0:
        row = draw.choice(rows)
        row[draw.randrange(len(row))] = nasty.word(draw)
    elif way == 1:
        rows = [[*row, nasty.word(draw)] for row in rows]
    else:
        rows[1:] = rows[:0:-1]
    return "".join(",".join(row) + "\n" for row in rows)
