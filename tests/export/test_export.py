"""`dualpath export` in any format: whole or not there, nothing damaged."""

import importlib
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from dualpath_cli.cli.main import main
from dualpath_cli.export.command import FORMATS
from dualpath_cli.export.hf import folder as hf
from dualpath_cli.export.weights import Weights
from dualpath_cli.run.checkpoint_files import describe, files_of, write_manifest
from dualpath_cli.run.run_folder import RECIPE, TOKENIZER, VERSIONS
from tests.export.conftest import contents, export, words
from tests.processes import start
from tests.training.test_checkpoint_faults import flip, sharded

forms = pytest.mark.parametrize("form", FORMATS)


@forms
def test_an_export_is_whole_or_not_there_and_replaced_on_request_alone(
    form, trained, tmp_path, monkeypatch, said
):
    run, out = trained(), tmp_path / "exports" / f"model{FORMATS[form]}"
    given = words(run, out, form=form)
    read = Weights.read

    def interrupted(self: Weights):  # type: ignore[no-untyped-def]
        yield next(read(self))
        raise KeyboardInterrupt

    def interrupt(*more: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Weights, "read", interrupted)
            assert main([*given, *more]) == 130

    interrupt()
    assert list(out.parent.iterdir()) == []
    export(run, out, form=form)
    whole = contents(out)
    if out.is_file():
        out.write_bytes(b"another's")
    else:
        (out / RECIPE).unlink()
    before = contents(out)
    assert "is there already; give another --out, or --overwrite" in said(*given)
    interrupt("--overwrite")
    assert contents(out) == before
    export(run, out, "--overwrite", form=form)
    assert contents(out) == whole
    assert list(out.parent.iterdir()) == [out]


def write_without_end() -> None:
    def wait(*_: object) -> None:
        time.sleep(60)

    hf.write_weights = wait  # type: ignore[assignment]


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_an_export_holds_its_unfinished_folder_and_removes_it_unless_it_is_killed(
    number, trained, tmp_path, said
):
    run, out = trained(), tmp_path / "exports" / "hf"
    process = start(words(run, out), tmp_path / "log", write_without_end)
    while not (unfinished := list(out.parent.glob("*.partial/model.safetensors"))):
        assert process.is_alive(), (tmp_path / "log").read_text()
        time.sleep(0.01)
    assert f"'{out}' is being written by another process; wait" in said(*words(run, out))
    assert unfinished[0].exists()
    os.kill(process.pid or 0, number)
    process.join()
    assert unfinished[0].exists() == (number == signal.SIGKILL)
    assert process.exitcode == (-number if number == signal.SIGKILL else 128 + number)
    export(run, out)
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize(
    ("form", "place"),
    [("hf", "dualpath_cli.export.hf.folder.changed"),
     ("consolidated", "dualpath_cli.run.run_file.was_changed")],
)  # fmt: skip
def test_what_the_disk_gives_back_otherwise_gets_no_name(
    form, place, trained, tmp_path, monkeypatch, capsys
):
    run, out = trained(), tmp_path / "out.safetensors"
    module, _, name = place.rpartition(".")
    compare = getattr(importlib.import_module(module), name)

    def lose_a_bit(written: Path, *given: object) -> object:
        flip(written / "model.safetensors" if written.is_dir() else written, 0.5)
        return compare(written, *given)

    monkeypatch.setattr(place, lose_a_bit)
    assert main(words(run, out, form=form)) == 1
    assert "not read back as it was written" in capsys.readouterr().err
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("to", [*FORMATS, "import"])
def test_what_cannot_be_read_is_not_handed_on(to, trained, tmp_path, said):
    source, out = trained(), tmp_path / "out.safetensors"
    given: list[object] = [*words(source, out, form=to)]
    if to == "import":
        source = export(source, tmp_path / "hf")
        (source / "SHA256SUMS").unlink()
        given = ["import", "--hf", source, "--out", out]
    else:
        for path in (source / "checkpoints" / "manifests").iterdir():  # of an earlier version
            path.unlink()
    for name in (TOKENIZER, VERSIONS, RECIPE):
        whole = (source / name).read_text()
        for text in (None,) if name == RECIPE else (None, "<html>", "[]", "\udcff"):
            (source / name).unlink()
            if text is not None:
                (source / name).write_text(text, errors="surrogateescape")
            assert (name if text is None else str(source / name)) in said(*given)
            assert not list(tmp_path.glob("out*"))
            (source / name).write_text(whole)


def test_the_damaged_shard_is_named(trained, tmp_path, said):
    run = trained()
    checkpoint = sharded(run)
    write_manifest(checkpoint, describe(checkpoint, files_of(checkpoint)), {})
    shard = checkpoint / "__0_0.distcp"
    given = words(checkpoint, tmp_path / "x.safetensors", form="consolidated")
    flip(shard, 0.5)
    assert "is damaged: __0_0.distcp was changed since it was written" in said(*given)
    shard.unlink()
    shutil.rmtree(run / "checkpoints" / "manifests")  # as of an earlier version
    assert "cannot be read: __0_0.distcp: No such file" in said(*given)
    assert not list(tmp_path.glob("x.*"))
