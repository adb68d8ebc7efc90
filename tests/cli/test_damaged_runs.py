"""Damaged files of a run: continuing it and studying it end in one line, or mend what can be.

Half a last row, which a kill while a table grows leaves, is dropped and the run goes on.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dualpath_cli.base.system import read_csv
from dualpath_cli.cli.main import main
from tests.cli.home import RUN, write_home
from tests.conftest import Share
from tests.training.tiny_run import back_to_step, tables

FIT = "fit --config tiny.yaml"
OTHERS = [
    f"{command} --ckpt_path {RUN}" for command in ("validate", "ablate", "routing --tagger none")
]
FILES = ("recipe.yaml", "versions.json", "metrics.csv", "validation.csv", "routing.csv")
Damage = Callable[[Path], object]


def pipe(path: Path) -> None:
    """Puts a pipe in the place, into which nobody writes."""
    path.unlink()
    os.mkfifo(path)


def no_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\n\x00")


@pytest.fixture
def home(share: Share, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run, in which commands end where Lightning would begin."""
    shutil.copytree(share("home", write_home), tmp_path / "home", symlinks=True)
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setattr("dualpath_cli.cli.lightning.run", lambda *_: True)
    return tmp_path / "home"


@pytest.mark.parametrize("damage", [no_text, pipe])
@pytest.mark.parametrize("name", FILES[:2])
def test_a_file_that_is_no_text_is_named(name, damage, home, said):
    assert main(FIT.split()) == 0
    damage(home / RUN / name)
    assert name in said(*FIT.split())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("recipe.yaml", text) for text in ("", "model: {n_layers: 2, n_", "data:")),
        *(("versions.json", text) for text in ("", "[]", "{}")),
    ],
)
def test_a_file_of_other_content_is_named(name, text, home, said):
    (home / RUN / name).write_text(text)
    assert f"{RUN}/{name}" in said(*FIT.split())


@pytest.mark.parametrize("place", ["**/*.jsonl", "s3://bucket/val.jsonl", "texts"])
def test_places_that_a_runs_recipe_alone_names_are_not_searched(place, home, said):
    recipe = home / RUN / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("val.jsonl", f"'{place}'"))
    assert f"held_out: {place}\n" in recipe.read_text().replace("'", "")
    for line in OTHERS[:3]:
        error = said(*line.split())
        assert f"data.val.held_out: '{place}' of {RUN}/recipe.yaml is a glob, a folder" in error
        assert f"unless given: --data.val.held_out '{place}'" in error
    if place != "s3://bucket/val.jsonl":
        (home / "texts" / "a.jsonl").write_text((home / "val.jsonl").read_text())
        for line in OTHERS[:2]:
            assert main([*line.split(), "--data.val.held_out", place]) == 0


@pytest.mark.parametrize("line", [FIT, OTHERS[0]])
def test_files_of_a_run_may_be_links(line, home):
    for name in (*FILES, "tokenizer.json"):
        path = home / RUN / name
        path.rename(home / name)
        path.symlink_to(home / name)
    assert main(line.split()) == 0


def test_nothing_is_quoted_of_what_a_recipe_links_to(home, said):
    (home / "private").write_text("my-password: 1\n")
    (home / RUN / "recipe.yaml").unlink()
    (home / RUN / "recipe.yaml").symlink_to(home / "private")
    assert "my-password" not in said(*FIT.split())


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_tables_without_rows_are_begun_again(damage, home):
    for name in FILES[2:]:
        damage(home / RUN / name)
    assert main(FIT.split()) == 0


def continued(run: Path) -> None:
    assert main(["fit", "--config", str(run.parents[2] / "recipe.yaml")]) == 0


def test_a_run_killed_within_a_row_goes_on_without_that_row(trained):
    """And leaves columns out that the run does not write."""
    run = trained()
    whole = tables(run)
    back_to_step(run, 2)
    for name in ("metrics.csv", "validation.csv"):
        text = (run / name).read_text()
        # The kill may cut anywhere, also behind the last comma, where the row looks whole.
        for cut_off in (text[: text.rindex(",") + 2], text[: text.rindex("\n")]):
            (run / name).write_text(cut_off)
            assert len(read_csv(run / name)) == text.count("\n") - 2
    lines = (run / "routing.csv").read_text().splitlines()
    more = [f"{line},{'mine' if number == 0 else number}" for number, line in enumerate(lines)]
    (run / "routing.csv").write_text("\n".join(more) + "\n")
    continued(run)
    assert tables(run) == whole
