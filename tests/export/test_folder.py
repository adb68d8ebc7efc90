"""The exported folder as files: what it replaces, what was left of it, what is wrong in it."""

import fcntl
import hashlib
import importlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dualpath_cli.cli import main
from dualpath_cli.export.hf import folder as hf
from tests.processes import start
from tests.tiny_run import Fit
from tests.training.test_checkpoint_faults import flipped

Refused = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """`refused(*words)`: what is said of a mistake, in one line."""

    def run(*words: object) -> str:
        capsys.readouterr()
        assert main([str(word) for word in words]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said

    return run


def words(run: Path, out: Path, *more: str) -> list[str]:
    return ["export", "--ckpt_path", str(run), "--format", "hf", "--out", str(out), *more]


def export(run: Path, out: Path, *more: str) -> Path:
    assert main(words(run, out, *more)) == 0
    return out


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(
    "name", [".git/HEAD", "thesis.txt", "sub/config.json", "own_notes.py", "README.md"]
)
def test_a_folder_with_anything_that_no_export_wrote_is_not_replaced(
    name: str, trained: Fit, tmp_path: Path, refused: Refused
) -> None:
    run = trained()
    out = export(run, tmp_path / "hf")
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text("mine")
    before = contents(out)
    assert f"holds '{name.split('/')[0]}', which" in refused(*words(run, out, "--overwrite"))
    assert contents(out) == before


def test_a_folder_without_a_list_is_nobodys_to_replace(
    trained: Fit, tmp_path: Path, refused: Refused
) -> None:
    run = trained()
    out = export(run, tmp_path / "hf")
    (out / "SHA256SUMS").unlink()
    assert "holds 'README.md', which" in refused(*words(run, out, "--overwrite"))
    assert (out / "README.md").exists()


def test_what_comes_into_a_folder_while_its_successor_is_written_stays(
    trained: Fit, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained()
    out = export(run, tmp_path / "hf")

    def read_back(folder: Path) -> None:
        (out / "thesis.txt").write_text("mine")

    monkeypatch.setattr("dualpath_cli.export.hf.folder.read_folder", read_back)
    assert f"'{out}' holds 'thesis.txt'" in refused(*words(run, out, "--overwrite"))
    assert (out / "thesis.txt").read_text() == "mine"
    assert list(tmp_path.glob("hf*")) == [out]


def test_a_folder_whose_files_are_of_two_models_is_not_imported(
    trained: Fit, tmp_path: Path, refused: Refused
) -> None:
    folder = export(trained(), tmp_path / "hf")
    (folder / "SHA256SUMS").unlink()
    for name, said in (
        ("config.json", "with model.norm_eps=1e-05, this one has 0.1; put config.json back"),
        ("tokenizer.json", "tokenizer.json has the fingerprint"),
    ):
        before = (folder / name).read_text()
        content = json.loads(before)
        if name == "config.json":
            content["norm_eps"] = 0.1
        else:
            ids = content["model"]["vocab"]
            ids["a"], ids["b"] = ids["b"], ids["a"]
        (folder / name).write_text(json.dumps(content))
        assert said in refused("import", "--hf", folder)
        (folder / name).write_text(before)
    (folder / "README.md").write_text("a card of one's own")
    assert main(["import", "--hf", str(folder)]) == 0


def test_what_a_killed_export_left_goes_with_the_next_and_what_a_living_one_holds_stays(
    trained: Fit, tmp_path: Path
) -> None:
    run, out = trained(), tmp_path / "exports" / "hf"
    dead, replaced, held, other = (
        out.with_name(name)
        for name in (f"hf.{'0' * 32}.partial", f"hf.{'1' * 32}.replaced.partial",
                     f"hf.{'2' * 32}.partial", "hf.mine.partial")
    )  # fmt: skip
    for folder in (dead, replaced, held, other):
        (folder / "own").mkdir(parents=True)
    descriptor = os.open(held, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    export(run, out)
    assert sorted(out.parent.iterdir()) == sorted([out, held, other])
    os.close(descriptor)
    export(run, out, "--overwrite")
    assert sorted(out.parent.iterdir()) == sorted([out, other])


def write_without_end() -> None:
    def wait(*_: object) -> None:
        time.sleep(60)

    hf.write_weights = wait  # type: ignore[assignment]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_export_holds_its_unfinished_folder_and_removes_it_unless_it_is_killed(
    number: signal.Signals, trained: Fit, tmp_path: Path
) -> None:
    run, out = trained(), tmp_path / "exports" / "hf"
    process = start(words(run, out), tmp_path / "log", write_without_end)
    while not (unfinished := list(out.parent.glob("*.partial/model.safetensors"))):
        assert process.is_alive(), (tmp_path / "log").read_text()
        time.sleep(0.01)
    export(run, out)
    assert unfinished[0].exists()
    os.kill(process.pid or 0, number)
    process.join()
    assert unfinished[0].exists() == (number == signal.SIGKILL)
    assert process.exitcode == (-number if number == signal.SIGKILL else 128 + number)
    export(run, out, "--overwrite")
    assert list(out.parent.iterdir()) == [out]


def test_the_list_has_the_hash_of_every_other_file(trained: Fit, tmp_path: Path) -> None:
    files = contents(export(trained(), tmp_path / "hf"))
    listed = dict(line.split("  ")[::-1] for line in files.pop("SHA256SUMS").decode().splitlines())
    assert listed == {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def test_a_changed_byte_in_any_file_is_refused_by_import(
    trained: Fit, tmp_path: Path, refused: Refused
) -> None:
    folder = export(trained(), tmp_path / "hf")
    for name, content in contents(folder).items():
        if name not in ("SHA256SUMS", "README.md"):
            end = content.rindex(b"0") if b"0" in content else len(content) - 3
            (folder / name).write_bytes(content[:end] + b"1" + content[end + 1 :])
            assert name in refused("import", "--hf", folder)
            (folder / name).write_bytes(content)
    (folder / "generation_config.json").unlink()
    assert "generation_config.json is not as it was" in refused("import", "--hf", folder)
    (folder / "SHA256SUMS").write_text(f"{'0' * 64}  ../../secret\n")
    assert "line 1 is none of dualpath export" in refused("import", "--hf", folder)
    (folder / "SHA256SUMS").unlink()
    assert main(["import", "--hf", str(folder)]) == 0


@pytest.fixture(params=["export hf", "export consolidated", "import"])
def handed_on(
    request: pytest.FixtureRequest, trained: Fit, tmp_path: Path, refused: Refused
) -> Refused:
    """`handed_on(name, text)`: what is said of a run or a folder with such a file in it."""

    def hand_on(name: str, text: str) -> str:
        out, source = tmp_path / "out.safetensors", trained()
        given = [*words(source, out)[:-3], request.param.split()[-1], "--out", out]
        if request.param == "import":
            source = export(source, tmp_path / "hf")
            (source / "SHA256SUMS").unlink()
            given = ["import", "--hf", source, "--out", out]
        else:
            for path in (source / "checkpoints" / "manifests").iterdir():  # of an earlier version
                path.unlink()
        (source / name).write_text(text, errors="surrogateescape")
        said = refused(*given)
        assert str(source / name) in said
        assert not out.exists()
        return said

    return hand_on


@pytest.mark.parametrize(
    "text",
    [
        "<html>", "{}", "[[[[", "[" * 100_000, '{"model": null}',
        '{"model": {"type": "BPE"}, "pre_tokenizer": {"type": "ByteLevel"}}',
        '{"model": {"type": "BPE", "vocab": null}, "pre_tokenizer": {"type": "ByteLevel"}}',
    ],
)  # fmt: skip
def test_a_tokenizer_that_nothing_can_read_is_not_handed_on(text: str, handed_on: Refused) -> None:
    said = handed_on("tokenizer.json", text)
    assert "Error" not in said
    assert "NoneType" not in said


@pytest.mark.parametrize("text", ["<html>", "[[[[", "[]", "\udcff"])
def test_versions_that_nothing_can_read_are_not_handed_on(text: str, handed_on: Refused) -> None:
    handed_on("versions.json", text)


@pytest.mark.parametrize("content", [b"\xff\xfe\n\x00", b"<html>\n1\n", b'step,set\n"1,a\n'])
def test_a_validation_that_is_no_table_is_named(
    content: bytes, trained: Fit, tmp_path: Path, refused: Refused
) -> None:
    run = trained()
    (run / "validation.csv").write_bytes(content)
    assert f"{run / 'validation.csv'} " in refused(*words(run, tmp_path / "hf"))


@pytest.mark.parametrize(
    ("format_", "place"),
    [("hf", "dualpath_cli.export.hf.folder.changed"),
     ("consolidated", "dualpath_cli.run.run_file.was_changed")],
)  # fmt: skip
def test_what_the_disk_gives_back_otherwise_gets_no_name(
    format_: str,
    place: str,
    trained: Fit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, out = trained(), tmp_path / "out.safetensors"
    module, _, name = place.rpartition(".")
    compare = getattr(importlib.import_module(module), name)

    def lose_a_bit(written: Path, *given: object) -> object:
        flipped(written / "model.safetensors" if written.is_dir() else written)
        return compare(written, *given)

    monkeypatch.setattr(place, lose_a_bit)
    capsys.readouterr()
    assert main([*words(run, out)[:-3], format_, "--out", str(out)]) == 1
    assert "not read back as it was written" in capsys.readouterr().err
    assert not list(tmp_path.glob("out*"))


def test_import_stays_in_its_folder(trained: Fit, tmp_path: Path, refused: Refused) -> None:
    folder = export(trained(), tmp_path / "hf")
    index = folder / "model.safetensors.index.json"
    (folder / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    (folder / "SHA256SUMS").unlink()
    for name in ("../elsewhere.safetensors", str(tmp_path / "elsewhere.safetensors"), ".."):
        index.write_text(json.dumps({"weight_map": {"model.embed.weight": name}}))
        said = refused("import", "--hf", folder)
        assert f"'{index}' cannot be used: a file of weights must be a plain name" in said
    for text in ("{}", "[]", "<", '{"weight_map": null}', '{"weight_map": {"a": 3}}'):
        index.write_text(text)
        assert str(index) in (said := refused("import", "--hf", folder))
        assert "Error" not in said
        assert "NoneType" not in said
