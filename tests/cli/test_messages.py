"""The one line with which each command refuses each kind of mistake, before a slow
import.

`messages.txt` is the table: the words after `dualpath`, then the line without its
prefix, so that a change of wording is a diff to be read. Rewrite it with `python -m
tests.cli.test_messages`.
"""

import re
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dualpath_cli.base.errors import LONGEST
from dualpath_cli.cli.commands import COMMANDS, split_command
from tests.cli.test_cli import SLOW, run_without_slow_imports
from tests.compare.run_folders import write_sweep
from tests.compare.sweep.conftest import write_recipe
from tests.data.faulty_data import flip
from tests.training.tiny_run import RUN, write_home

MESSAGES = Path(__file__).with_name("messages.txt")
ROWS = dict(row.split("\n") for row in MESSAGES.read_text().strip()[2:].split("\n\n$ "))
"""The line that is said to the words of each row."""
PREFIX = re.compile(rf"dualpath ?({'|'.join(COMMANDS)})?: error: ")
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{below}: &{below} [{','.join(9 * [f'*{above}'])}]\n"
    for above, below in zip("abcdefgh", "bcdefghi", strict=True)
)
"""Nine lines that stand for 9 to the 9 values."""
FILES = {
    "section.yaml": "modle: {loops: 3}",
    "key.yaml": "model: {n_layer: 2}",
    "dotted.yaml": "optim.lr: 1e-3",
    "dots.yaml": "data: {val.novels: few.txt}",
    "other.yaml": "learning: {rate: 1}",
    "baseless.yaml": "base: missing.yaml",
    "null.yaml": "model: {n_layers: null}",
    "list.yaml": "optim: {decay: [matrices, norm]}",
    "twice.yaml": "{model: {loops: 2}, model: {loops: 3}}",
    "tag.yaml": "model: !!binary aGVsbG8=",
    "bomb.yaml": BOMB,
    "circle.yaml": "trainer: {callbacks: &a [*a]}",
    "heads.yaml": "model: {d_ffn: 64, d_ffn_wide: 64, n_heads: 5}",
    "no_model.yaml": "run: {max_tokens: 5}",
    "softmax.yaml": "model: {gate: softmax}",
    "sources.yaml": "sources: [{name: a}]",
    "typo.yaml": "sources: [{path: val.jsonl, wieght: 1}]",
    "few.txt": "few",
    "empty.txt": "",
    "latin.txt": "caf\udce9",  # not UTF-8
    "cut.parquet": "PAR1",
    "notes.doc": "a",
    "bad.jsonl": "{",
    "there.jsonl": "",
    "nothing/a.rst": "",
    "exported/config.json": '{"model_type": "dualpath"}',
    "exported/recipe.yaml": "model: {}",
    "runs/tiny/first/recipe.yaml": "model: {}",
}


def write_place(folder: Path) -> None:
    """Fills the folder that the rows are run in: they read it, and change nothing."""
    write_home(folder)
    write_sweep(folder / "sweep", ["wide"], [0])
    write_recipe(folder).rename(folder / "sweep.yaml")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, errors="surrogateescape")
    shutil.copytree(folder / "texts" / "train", folder / "flipped")
    flip(folder / "flipped" / "chunk-0-0.bin")
    (folder / "RUN").symlink_to(RUN)
    (folder / "TOKENIZER").symlink_to("texts/train-tokenizer")


def answers_in(place: Path) -> dict[str, dict[str, Any]]:
    """The answer to the words of each row, all of them given in one process."""
    write_place(place)
    before = sorted(place.rglob("*"))
    slow = (*SLOW, "scipy", "transformers", "datasets")
    answers = run_without_slow_imports(list(ROWS), place, tuple({*slow} - {"rich"}))
    assert sorted(place.rglob("*")) == before, "a mistake leaves nothing behind"
    for answer in answers:
        answer["err"] = answer["err"].replace(f"{place}/", "").replace(str(place), ".")
    return dict(zip(ROWS, answers, strict=True))


Answers = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return answers_in(tmp_path_factory.mktemp("place"))


@pytest.mark.parametrize("words", ROWS)
def test_a_mistake_is_one_line_with_a_way_out(words, answers):
    if words.startswith("evaluate") and find_spec("lm_eval") is None:
        pytest.skip("needs the extra `eval`")
    answer = answers[words]
    assert (answer["code"], answer["out"]) == (2, ""), answer["err"]
    assert answer["err"] == f"{PREFIX.match(answer['err'])[0]}{ROWS[words]}\n"
    assert len(ROWS[words]) <= LONGEST


def test_every_command_has_its_mistakes():
    assert {split_command(words.split())[0] for words in ROWS} >= COMMANDS.keys()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        said = {
            words: answer["err"]
            for words, answer in answers_in(Path(temporary)).items()
        }
    MESSAGES.write_text(
        "\n".join(f"$ {words}\n{PREFIX.sub('', said[words])}" for words in said)
    )
