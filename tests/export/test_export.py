"""`dualpath export`: what the file says, that it is whole or not there, mistakes in one line."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from dualpath_cli.cli import main
from dualpath_cli.export import weights as export_weights
from dualpath_cli.files import atomic
from dualpath_cli.run import run_file, run_folder
from dualpath_cli.run.checkpoint_files import describe, files_of, write_manifest
from tests.conftest import OutputOf
from tests.tiny_run import Fit, back_to_step, rows, weights
from tests.training.test_checkpoint_faults import flipped, sharded

Errors = pytest.CaptureFixture[str]


def words(run: Path, *more: object) -> list[str]:
    given = ["export", "--ckpt_path", str(run), "--format", "consolidated"]
    return [*given, *map(str, more)]


def exported(run: Path) -> Path:
    """The file that a run of the tiny recipe is exported to by default."""
    assert main(words(run)) == 0
    return run / "export" / "tiny-default-step-00000006.safetensors"


def one_line(given: list[str], capsys: Errors) -> str:
    """What is said of a mistake."""
    capsys.readouterr()
    assert main(given) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_the_file_says_what_it_is(trained: Fit) -> None:
    run = trained()
    out = exported(run)
    saved = weights(run)
    assert load_file(out).keys() == {name.removeprefix("model.") for name in saved}
    for name, weight in load_file(out).items():
        assert torch.equal(weight, saved[f"model.{name}"])
    with safe_open(out, framework="pt") as file:
        said = file.metadata()
    versions = json.loads((run / "versions.json").read_text())
    assert said["run"] == "tiny/default"
    assert (said["step"], said["tokens"]) == ("6", str(6 * 4 * 16))
    assert json.loads(said["versions"])["data_fingerprint"] == versions["data_fingerprint"]
    assert said["recipe"] == (run / "recipe.yaml").read_text()
    assert said["tokenizer"] == (run / "tokenizer.json").read_text()
    assert said["exported_with"] == versions["packages"]["dualpath"]


def test_a_checkpoint_inside_a_run_and_a_file_are_exported_too(
    trained: Fit, tmp_path: Path, output_of: OutputOf
) -> None:
    run = trained()
    first, again = tmp_path / "first.safetensors", tmp_path / "again.safetensors"
    output_of(*words(run / "checkpoints" / "step-00000002", "--out", first))
    assert "tiny/default, step 2: " in output_of(*words(first, "--out", again))
    assert first.read_bytes() == again.read_bytes()
    back_to_step(run, 2)
    for name, weight in load_file(again).items():
        assert torch.equal(weight, weights(run)[f"model.{name}"])


def test_shards_are_read_in_portions(
    trained: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained()
    expected = load_file(exported(run))
    sharded(run)
    portions = []
    read = export_weights.shards.read_weights
    monkeypatch.setattr(export_weights, "AT_ONCE", 4096)
    monkeypatch.setattr(
        export_weights.shards,
        "read_weights",
        lambda wanted, folder: portions.append(wanted) or read(wanted, folder),
    )
    out = tmp_path / "one.safetensors"
    assert main(words(run, "--out", out)) == 0
    assert len(portions) > 3
    for portion in portions:
        size = sum(4 * tensor.numel() for tensor in portion.values())
        assert size <= 4096 or len(portion) == 1
    assert {name: tensor.tolist() for name, tensor in load_file(out).items()} == {
        name: tensor.tolist() for name, tensor in expected.items()
    }


def test_studies_of_a_file_write_beside_it(
    trained: Fit, tmp_path: Path, output_of: OutputOf
) -> None:
    run = trained()
    out = shutil.move(exported(run), tmp_path / "model.safetensors")
    of_run = output_of("ablate", "--ckpt_path", run)
    shutil.rmtree(run)
    of_file = output_of("ablate", "--ckpt_path", out)
    assert [line for line in of_file.splitlines() if "│" in line] == [
        line for line in of_run.splitlines() if "│" in line
    ]
    assert (tmp_path / "model" / "ablations" / "step-00000006" / "ablations.csv").is_file()
    assert "deep share" in output_of("routing", "--ckpt_path", out, "--text", "hello")


def test_a_file_is_not_replaced_unless_asked(trained: Fit, capsys: Errors) -> None:
    run = trained()
    out = exported(run)
    whole = out.read_bytes()
    out.write_bytes(b"another's")
    assert "is there already; give another --out, or --overwrite" in one_line(words(run), capsys)
    assert out.read_bytes() == b"another's"
    assert main(words(run, "--overwrite")) == 0
    assert out.read_bytes() == whole


def test_what_is_cut_short_leaves_no_file_and_the_one_before(
    trained: Fit, monkeypatch: pytest.MonkeyPatch, capsys: Errors
) -> None:
    run = trained()
    out = exported(run)
    out.write_bytes(b"another's")
    read = export_weights.Weights.read

    def interrupted(self: export_weights.Weights):  # type: ignore[no-untyped-def]
        yield next(read(self))
        raise KeyboardInterrupt

    monkeypatch.setattr(export_weights.Weights, "read", interrupted)
    assert main(words(run, "--overwrite")) == 130
    assert out.read_bytes() == b"another's"
    assert main(words(run, "--out", out.with_name("new.safetensors"))) == 130
    assert [path.name for path in out.parent.iterdir()] == [out.name]


def test_the_file_has_its_name_only_when_it_is_whole(
    trained: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a kill would find it at the last moment before."""
    run = trained()
    with (run / "recipe.yaml").open("a") as recipe:
        recipe.write(f"# {run_file.NO_HASH}\n")
    found = []

    def look(path: Path) -> None:
        assert path.name.endswith(atomic.PARTIAL)
        found.append(path.with_name(path.name.removesuffix(atomic.PARTIAL)).exists())

    monkeypatch.setattr(atomic, "sync", look)
    out = exported(run)
    assert found == [False]
    assert not run_file.was_changed(out)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "export needs --ckpt_path RUN"),
        (["--ckpt_path", "RUN"], "export needs --format FORMAT: consolidated"),
        (["--ckpt_path", "RUN", "--format", "consolidate"], "; did you mean 'consolidated'?"),
        (["--ckpt_path", "RUN/nothing", "--format", "consolidated"], "no run or checkpoint at "),
        (["--ckpt_path", "RUN", "--out", "x.bin"], "--out 'x.bin' must end in .safetensors"),
        (["--ckpt_path", "RUN", "--out", "s3://b/x.safetensors"], "path on this machine"),
        (["--ckpt_path", "RUN", "--formatt", "x"], "unknown option '--formatt'; did you mean"),
    ],
)
def test_mistakes(more: list[str], message: str, trained: Fit, capsys: Errors) -> None:
    run = trained()
    given = [word.replace("RUN", str(run)) for word in more]
    if "--out" in more:
        given += ["--format", "consolidated"]
    assert message in one_line(["export", *given], capsys)
    assert not (run / "export").exists()


def test_the_damaged_shard_is_named(trained: Fit, tmp_path: Path, capsys: Errors) -> None:
    run = trained()
    checkpoint = sharded(run)
    write_manifest(checkpoint, describe(checkpoint, files_of(checkpoint)), {})
    shard = checkpoint / "__0_0.distcp"
    whole = shard.read_bytes()
    flipped(shard)
    given = words(checkpoint, "--out", tmp_path / "x.safetensors")
    assert "is damaged: __0_0.distcp was changed since it was written" in one_line(given, capsys)
    shard.write_bytes(whole[:-10])
    assert "is damaged: __0_0.distcp has " in one_line(given, capsys)
    shard.unlink()
    assert "is damaged: __0_0.distcp is missing" in one_line(given, capsys)
    shutil.rmtree(run / "checkpoints" / "manifests")  # as of an earlier version
    assert "cannot be read: __0_0.distcp: No such file" in one_line(given, capsys)
    assert not list(tmp_path.glob("x.*"))


def test_a_damaged_file_is_refused(trained: Fit, capsys: Errors) -> None:
    run = trained()
    out = exported(run)
    whole = out.read_bytes()
    given = ["validate", "--ckpt_path", str(out)]
    for damage, message in (
        (whole[:-1], "bytes instead of"),
        (whole[:4], "is no file of safetensors"),
        (b"\xff" * 64, "is no file of safetensors"),
        (whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:], "changed since it was exported"),
        (whole.replace(b"lr: 0.003", b"lr: 0.004"), "changed since it was exported"),
    ):
        assert damage != whole
        out.write_bytes(damage)
        assert message in one_line(given, capsys)


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        ('{"a": {"dtype": "F32"}}', "it lacks 'data_offsets'"),
        ('{"a": null}', "a value in it is of another kind than it must be"),
        ('{"__metadata__": null}', "a value in it is of another kind than it must be"),
        ("[]", "a value in it is of another kind than it must be"),
        ('{"__metadata__": {"run": 3}}', "its facts on the run are no text"),
        ("[[[[", "it is no JSON: Expecting value: line 1 column 5"),
        ("[" * 100_000, "it is nested too deeply"),
        ("\udcff", "it is no UTF-8 at byte 0"),
    ],
)
def test_what_is_wrong_with_a_header_is_said_in_words(
    header: str, fault: str, tmp_path: Path, capsys: Errors
) -> None:
    out, content = tmp_path / "model.safetensors", header.encode(errors="surrogateescape")
    out.write_bytes(len(content).to_bytes(8, "little") + content)
    said = one_line(["validate", "--ckpt_path", str(out)], capsys)
    assert f"'{out}' is no file of safetensors (its header: {fault}" in said


def test_a_file_of_others_is_refused(tmp_path: Path, capsys: Errors) -> None:
    out = tmp_path / "model.safetensors"
    metadata = {"dualpath": "1", "run": "a/../x", "step": "1", "sha256": "0", "recipe": "",
                "versions": "", "tokenizer": ""}  # fmt: skip
    for said, message in (
        ({"format": "pt"}, "was not written by this version's dualpath export"),
        (metadata | {"dualpath": "2"}, "its layout is another"),
        (metadata, "the run's name in its header must be a plain name"),
        (metadata | {"run": "a/b", "step": "x"}, "is no run of dualpath"),
        (metadata | {"run": "a/b", "step": "-1"}, "the step in its header must be at least 0"),
        (metadata | {"run": "a/b"}, "must be a mapping of sections"),
    ):
        save_file({"x": torch.zeros(2)}, out, said)
        assert message in one_line(["validate", "--ckpt_path", str(out)], capsys)


def test_weights_of_a_file_are_started_from(trained: Fit, tmp_path: Path, capsys: Errors) -> None:
    run = trained()
    out = exported(run)
    of_run = [*words(run)[1:3]]
    recipe = ["fit", "--config", str(tmp_path / "recipe.yaml")]
    assert main([*recipe, "--run.name", "a", *of_run]) == 0
    assert main([*recipe, "--run.name", "b", "--ckpt_path", str(out)]) == 0
    assert rows(run.with_name("a") / "metrics.csv") == rows(run.with_name("b") / "metrics.csv")
    assert rows(run.with_name("a") / "metrics.csv") != rows(run / "metrics.csv")
    other = [*recipe, "--run.name", "c", "--model.loops", "3", "--ckpt_path", str(out)]
    assert "model.loops" in one_line(other, capsys)


def test_a_run_that_is_not_whole_is_not_exported(trained: Fit, capsys: Errors) -> None:
    run = trained()
    for name in (run_folder.TOKENIZER, run_folder.VERSIONS, run_folder.RECIPE):
        kept = (run / name).rename(run.with_name(name))
        assert name in one_line(words(run), capsys)
        kept.rename(run / name)
    assert not list(run.glob("export/*"))
