"""The exported folder as files: overwriting, damage, the card."""

import csv
import hashlib
import html
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dualpath_cli.cli.main import main
from tests.export.conftest import contents, export, model_of, words
from tests.training.tiny_run import Fit


@pytest.fixture
def folder(trained: Fit, tmp_path: Path) -> Path:
    """An exported folder, to be changed."""
    return export(trained(), tmp_path / "hf")


def test_a_folder_with_anything_that_no_export_wrote_is_not_replaced(folder, tmp_path, said):
    run = tmp_path / "runs" / "tiny" / "default"
    for name in (".git/HEAD", "thesis.txt", "sub/config.json", "own_notes.py", "README.md"):
        path = folder / name
        whole = path.read_bytes() if path.exists() else None
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
        before = contents(folder)
        error = said(*words(run, folder, "--overwrite"))
        assert f"holds '{name.split('/')[0]}', which" in error
        assert contents(folder) == before
        path.unlink()
        if path.parent != folder:
            path.parent.rmdir()
        if whole is not None:
            path.write_bytes(whole)
    (folder / "SHA256SUMS").unlink()
    assert "holds 'README.md', which" in said(*words(run, folder, "--overwrite"))
    for other, why in ((run, "is the folder that is read"), (tmp_path, "of something else")):
        assert why in said(*words(run, other, "--overwrite"))


def test_what_comes_into_a_folder_while_its_successor_is_written_stays(
    folder, tmp_path, said, monkeypatch
):
    def read_back(written: Path) -> None:
        (folder / "thesis.txt").write_text("mine")

    monkeypatch.setattr("dualpath_cli.export.hf.folder.read_folder", read_back)
    run = tmp_path / "runs" / "tiny" / "default"
    assert f"'{folder}' holds 'thesis.txt'" in said(*words(run, folder, "--overwrite"))
    assert (folder / "thesis.txt").read_text() == "mine"
    assert list(tmp_path.glob("hf*")) == [folder]


def test_the_list_has_the_hash_of_every_other_file(folder):
    files = contents(folder)
    listed = dict(line.split("  ")[::-1] for line in files.pop("SHA256SUMS").decode().splitlines())
    assert listed == {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def test_a_changed_byte_in_any_file_is_refused(folder, said):
    for name, content in contents(folder).items():
        if name not in ("SHA256SUMS", "README.md"):
            end = content.rindex(b"0") if b"0" in content else len(content) - 3
            (folder / name).write_bytes(content[:end] + b"1" + content[end + 1 :])
            assert name in said("validate", "--ckpt_path", folder)
            (folder / name).write_bytes(content)
    (folder / "more.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    assert "more.safetensors is not in SHA256SUMS" in said("validate", "--ckpt_path", folder)
    (folder / "more.safetensors").unlink()
    (folder / "generation_config.json").unlink()
    assert "generation_config.json is not as it was" in said("validate", "--ckpt_path", folder)
    sums = (folder / "SHA256SUMS").read_text()
    (folder / "SHA256SUMS").write_text("".join(sums.splitlines(keepends=True)[:3]))
    assert "is not in SHA256SUMS" in said("validate", "--ckpt_path", folder)
    (folder / "SHA256SUMS").write_text(f"{'0' * 64}  ../../secret\n")
    assert "SHA256SUMS line 1 was not written" in said("validate", "--ckpt_path", folder)
    (folder / "SHA256SUMS").unlink()
    (folder / "README.md").write_text("a card of the reader's own")
    assert main(["validate", "--ckpt_path", str(folder)]) == 0
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    assert "it is a pipe or a device, no file" in said("validate", "--ckpt_path", folder)


def other_ids(tokenizer: dict[str, Any]) -> None:
    ids = tokenizer["model"]["vocab"]
    ids["a"], ids["b"] = ids["b"], ids["a"]


DAMAGES: list[tuple[str, Callable[[dict[str, Any]], None], str]] = [
    ("config.json", lambda config: config.update(norm_eps=0.1),
     "with model.norm_eps=1e-05, this one has 0.1; put config.json back"),
    ("tokenizer.json", other_ids, "tokenizer.json has the fingerprint"),
]  # fmt: skip


def test_a_folder_whose_files_are_of_two_models_is_no_run(folder, said):
    (folder / "SHA256SUMS").unlink()  # which would name the file alone
    for name, damage, message in DAMAGES:
        whole = (folder / name).read_text()
        content = json.loads(whole)
        damage(content)
        (folder / name).write_text(json.dumps(content))
        assert message in said("validate", "--ckpt_path", folder)
        (folder / name).write_text(whole)


def test_the_card_says_what_the_run_says(folder, tmp_path):
    run = tmp_path / "runs" / "tiny" / "default"
    _, front, text = (folder / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(front)["library_name"] == "transformers"
    assert "# tiny/default, step 6" in text
    parameters = sum(parameter.numel() for parameter in model_of(run).parameters())
    assert f"| parameters | {parameters:,} |" in text
    assert json.loads((run / "versions.json").read_text())["data_fingerprint"] in text
    with (run / "validation.csv").open() as file:
        (row,) = [row for row in csv.DictReader(file) if row["step"] == "6"]
    assert f"| held_out | {row['loss']} | {row['bits_per_byte']} |" in text
    assert text.count("| held_out |") == 1


def test_the_card_names_the_licence_and_the_data_sets_as_the_hub_reads_them(trained, tmp_path):
    cards = pytest.importorskip("huggingface_hub")
    run = trained()
    plain = cards.ModelCard.load(export(run, tmp_path / "plain") / "README.md").data
    assert plain.license is plain.datasets is plain.language is None
    sources = ["hf:owner/corpus:en", "novels", "hf:owner/corpus:de"]
    for path in (run / "checkpoints" / "manifests").iterdir():
        content = json.loads(path.read_text())
        content["run"]["data_sources"] = sources
        path.write_text(json.dumps(content))
    card = cards.ModelCard.load(
        export(run, tmp_path / "hf", "--license", "cc-by-4.0") / "README.md"
    )
    assert (card.data.license, card.data.datasets) == ("cc-by-4.0", ["owner/corpus"])
    assert f"| data | {', '.join(sources)} |" in html.unescape(card.text)


def test_the_card_shows_names_and_values_as_they_are(trained, tmp_path):
    name, mark = "<b>_x_[a](b) www.a.b `c`", "|<script>|\n\ud800\\"
    run = trained(run={"name": name})
    table = (run / "validation.csv").read_text()
    (run / "validation.csv").write_text(table.replace("held_out", "<img src=x onerror=y>"))
    for path in (run / "checkpoints" / "manifests").iterdir():
        content = json.loads(path.read_text())
        content["run"]["precision"] = mark
        path.write_text(json.dumps(content))
    card = (export(run, tmp_path / "hf") / "README.md").read_text()
    text = card.split("---\n", 2)[2].split("## Use")[0]
    text = "\n".join(line for line in text.splitlines() if line.startswith(("#", "|")))
    assert not set("<>[]`\\") & set(text)
    assert {line.count("|") for line in text.splitlines() if "|" in line} == {3, 4}
    shown = html.unescape(text)
    assert f"# tiny/{name}, step 6\n" in shown
    assert "| <img src=x onerror=y> | " in shown
    assert "| precision | |<script>|  \\ |" in shown
    assert " www.a" not in text
    assert "_x_" not in text
