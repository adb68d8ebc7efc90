"""`dualpath export`: whole or not there, nothing damaged, and a RUN of every
command."""

import csv
import html
import json
import os
import shlex
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import save_file

from dualpath_cli.cli.main import main
from dualpath_cli.export.hf import folder as hf
from dualpath_cli.model import DualPathLM
from dualpath_cli.run.run_folder import RECIPE, newest_checkpoint, read_recipe
from dualpath_cli.spec.config import ModelConfig
from tests.cli.processes import run_on_ranks, start
from tests.conftest import Share, contents
from tests.data.faulty_data import flip
from tests.export.conftest import export, model_of, words
from tests.study.conftest import USERS_OF_FIGURES
from tests.training.tiny_run import Fit, rows, saved, tiny_recipe

rare = pytest.mark.slow


def test_an_export_is_whole_or_not_there_and_replaced_on_request_alone(
    trained, tmp_path, monkeypatch, said
):
    run, out = trained(), tmp_path / "exports" / "model"
    given = words(run, out)

    def interrupt(*more: str) -> None:
        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(hf, "save_file", interrupted)
            assert main([*given, *more]) == 130

    interrupt()
    assert list(out.parent.iterdir()) == []
    export(run, out)
    whole = contents(out)
    (out / RECIPE).unlink()
    before = contents(out)
    assert "exists already; give another --out, or --overwrite" in said(*given)
    interrupt("--overwrite")
    assert contents(out) == before
    export(run, out, "--overwrite")
    assert contents(out) == whole
    assert list(out.parent.iterdir()) == [out]


def write_without_end() -> None:
    def wait(*_: object) -> None:
        time.sleep(600)

    hf.save_file = wait


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=rare)]
)
def test_an_export_holds_its_unfinished_folder_and_removes_it_unless_it_is_killed(
    number, trained, tmp_path, said
):
    run, out = trained(), tmp_path / "exports" / "hf"
    process = start(words(run, out), tmp_path / "log", write_without_end)
    while not (unfinished := list(out.parent.glob("*.partial/new/config.json"))):
        assert process.is_alive(), (tmp_path / "log").read_text()
        time.sleep(0.01)
    assert f"'{out}' is being written by another process; wait" in said(
        *words(run, out)
    )
    assert unfinished[0].exists()
    os.kill(process.pid or 0, number)
    process.join()
    assert unfinished[0].exists() == (number == signal.SIGKILL)
    assert process.exitcode == (-number if number == signal.SIGKILL else 128 + number)
    export(run, out)
    assert list(out.parent.iterdir()) == [out]


def test_large_models_are_several_files(trained, tmp_path, monkeypatch, output_of):
    run = trained()
    whole = export(run, tmp_path / "whole")
    monkeypatch.setattr(hf, "MOST_BYTES", 4096)
    out = tmp_path / "several parts"
    printed = output_of(*words(run, out)).splitlines()
    places = json.loads((out / "model.safetensors.index.json").read_text())[
        "weight_map"
    ]
    assert len(set(places.values())) > 3
    for name, tensor in saved(whole).items():
        assert torch.equal(saved(out)[name], tensor)
        with safe_open(out / places[name], "pt") as file:
            assert name in file.keys()  # noqa: SIM118
    (line,) = (line for line in printed if line.startswith("next: dualpath "))
    *validate, given = shlex.split(line)[2:]
    assert (
        output_of(*validate, given)
        == output_of(*validate, whole)
        == output_of(*validate, run)
    )


def test_an_exported_folder_is_exported_alike(trained, tmp_path):
    first = export(trained() / "checkpoints" / "step-00000002", tmp_path / "first")
    assert contents(export(first, tmp_path / "again")) == contents(first)
    assert [row["step"] for row in rows(first / "metrics.csv")] == ["1", "2"]


def test_an_exported_folder_is_studied_and_compared_as_its_run(
    trained, tmp_path, output_of, monkeypatch
):
    monkeypatch.setattr(USERS_OF_FIGURES[0], lambda folder, figures: [])
    run = trained()
    compare = ("compare", "--out", tmp_path / "comparison")
    compared = output_of(*compare, run).replace(str(run), "RUN")
    out = export(run, tmp_path / "a" / "b")
    assert output_of(*compare, out).replace(str(out), "RUN") == compared
    of_run = output_of("ablate", "--loops", "1", "--ckpt_path", run)
    shutil.rmtree(run)
    of_folder = output_of("ablate", "--loops", "1", "--ckpt_path", out)
    shown = [
        [line for line in said.splitlines() if "│" in line]
        for said in (of_run, of_folder)
    ]
    assert shown[0] == shown[1] != []
    assert (out / "ablations" / "step-00000006" / "ablations.csv").is_file()


RUNS = [
    (2, True),
    *(pytest.param(*run, marks=rare) for run in ((2, False), (4, True), (4, False))),
]
VOCABULARY = 275  # neither two nor four ranks divide it


def trained_by(share: Share, texts: Path, ranks: int, tied: bool) -> Path:
    """The run of two steps that so many ranks made by FSDP."""

    def fill(folder: Path) -> None:
        recipe = tiny_recipe(texts, folder)
        recipe["model"] |= {"vocab_size": VOCABULARY, "tie_embeddings": tied}
        tokens = recipe["run"]["batch_tokens"]
        recipe["run"] |= {"micro_batch": 1, "max_tokens": 3 * tokens, "save_every": 3}
        recipe["trainer"]["strategy"] = "fsdp"
        (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        run_on_ranks(ranks, ["fit", "--config", str(folder / "recipe.yaml")], folder)

    return share(f"sharded-by-{ranks}-{tied}", fill) / "tiny" / "default"


def put_together(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint: the shards of each one below the other, by their
    offsets."""
    parts: dict[str, list[tuple[int, torch.Tensor]]] = {}
    for path in checkpoint.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            places = json.loads(file.metadata()["DCP_SHARDING_INFO"])
            for name in file.keys():  # noqa: SIM118
                first = (places[name]["saved_offsets"] or [0])[0]
                parts.setdefault(name, []).append((first, file.get_tensor(name)))
    ordered = {
        k: [t for _, t in sorted(v, key=lambda p: p[0])] for k, v in parts.items()
    }
    return {k: torch.cat(v) if v[0].ndim else v[0] for k, v in ordered.items()}


@pytest.mark.parametrize(("ranks", "tied"), RUNS)
def test_shards_of_all_ranks_are_exported_bit_for_bit(
    ranks, tied, share, texts, tmp_path
):
    run = trained_by(share, texts, ranks, tied)
    checkpoint = newest_checkpoint(run)
    assert len({path.name[:11] for path in checkpoint.glob("shard-*")}) == ranks
    found = saved(export(run, tmp_path / "out"))
    wanted = put_together(checkpoint)
    model = DualPathLM(ModelConfig(**read_recipe(run)["model"]))
    assert found.keys() == {f"model.{name}" for name, _ in model.named_parameters()}
    assert ("model.head.weight" in found) != tied
    for name, weight in found.items():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, wanted[name]), name


# The folder as files: overwriting, damage, the card


@pytest.fixture
def folder(trained: Fit, tmp_path: Path) -> Path:
    """An exported folder, to be changed."""
    return export(trained(), tmp_path / "hf")


def test_a_folder_with_anything_that_no_export_wrote_is_not_replaced(
    folder, tmp_path, said
):
    run = tmp_path / "runs" / "tiny" / "default"
    for name in (
        ".git/HEAD",
        "thesis.txt",
        "sub/config.json",
        "own_notes.py",
        "README.md",
    ):
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
    for other, why in (
        (run, "is also the folder to read"),
        (tmp_path, "files that no export wrote"),
    ):
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


@pytest.mark.parametrize("position", [0, 500, -1])  # length, header, a weight
def test_weights_that_come_back_otherwise_leave_the_folder_before(
    position, folder, tmp_path, said, monkeypatch
):
    """Of a disk that gives other bytes back than were written to it."""

    def save(weights: dict[str, torch.Tensor], path: Path, *more: object) -> None:
        save_file(weights, path, *more)
        flip(path, position)

    before = contents(folder)
    run = tmp_path / "runs" / "tiny" / "default"
    monkeypatch.setattr(hf, "save_file", save)
    error = said(*words(run, folder, "--overwrite"), code=1)
    assert "model.safetensors comes back from the disk with other weights" in error
    assert contents(folder) == before
    assert list(tmp_path.glob("hf*")) == [folder]


def test_a_changed_byte_in_any_file_is_refused(folder, said):
    for name, content in contents(folder).items():
        if name not in ("SHA256SUMS", "README.md"):
            end = content.rindex(b"0") if b"0" in content else len(content) - 3
            (folder / name).write_bytes(content[:end] + b"1" + content[end + 1 :])
            assert name in said("validate", "--ckpt_path", folder)
            (folder / name).write_bytes(content)
    (folder / "more.safetensors").write_bytes(
        (folder / "model.safetensors").read_bytes()
    )
    assert "more.safetensors is not in SHA256SUMS" in said(
        "validate", "--ckpt_path", folder
    )
    (folder / "more.safetensors").unlink()
    (folder / "generation_config.json").unlink()
    assert "generation_config.json is not as it was" in said(
        "validate", "--ckpt_path", folder
    )
    sums = (folder / "SHA256SUMS").read_text()
    (folder / "SHA256SUMS").write_text("".join(sums.splitlines(keepends=True)[:3]))
    assert "is not in SHA256SUMS" in said("validate", "--ckpt_path", folder)
    (folder / "SHA256SUMS").write_text(f"{'0' * 64}  ../../secret\n")
    assert "SHA256SUMS line 1 was not written" in said(
        "validate", "--ckpt_path", folder
    )
    (folder / "SHA256SUMS").unlink()
    (folder / "README.md").write_text("a card of the reader's own")
    assert main(["validate", "--ckpt_path", str(folder)]) == 0
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    assert "it is a pipe or a device, not a file" in said(
        "validate", "--ckpt_path", folder
    )


def test_a_folder_whose_files_are_of_two_models_is_no_run(folder, said):
    (folder / "SHA256SUMS").unlink()  # which would name the file alone
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"norm_eps": 0.1}))
    error = said("validate", "--ckpt_path", folder)
    assert "with model.norm_eps=1e-05, this one has 0.1; put config.json back" in error


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


def test_the_card_names_the_licence_and_the_data_sets_as_the_hub_reads_them(
    trained, tmp_path
):
    cards = pytest.importorskip("huggingface_hub")
    run = trained()
    plain = cards.ModelCard.load(export(run, tmp_path / "plain") / "README.md").data
    assert plain.license is plain.datasets is plain.language is None
    sources = ["hf:owner/corpus/en/*.parquet", "novels", "hf:owner/corpus:de"]
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
    (run / "validation.csv").write_text(
        table.replace("held_out", "<img src=x onerror=y>")
    )
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
