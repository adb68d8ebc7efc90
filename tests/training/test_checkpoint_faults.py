"""Damaged, incomplete and hostile checkpoints: one line, nothing run, the newest whole one."""

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from dualpath_cli.cli.main import main
from dualpath_cli.errors import UserError
from dualpath_cli.run.checkpoint_files import files_of, manifest_of
from dualpath_cli.run.run_folder import newest_checkpoint
from dualpath_cli.training.state.loading import load_shards
from tests.tiny_run import back_to_step, rows

NAME = "embed.weight"
LAST, BEFORE = "step-00000006", "step-00000004"
Damage = Callable[[Path], None]


class Touch:
    """A pickle that makes a file where it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def rewritten(change: Callable[[dict[str, Any]], Any]) -> Damage:
    """Changes what a checkpoint holds, as something else than a bad disk would: hashes and all."""

    def damage(checkpoint: Path) -> None:
        torch.save(change(torch.load(checkpoint, weights_only=True)), checkpoint)
        manifest_of(checkpoint).unlink()

    return damage


def with_weight(value: Any, name: str = NAME) -> Damage:
    """Puts another value in the place of a weight; None takes the weight out."""

    def change(saved: dict[str, Any]) -> dict[str, Any]:
        saved["state_dict"][f"model.{name}"] = value
        if value is None:
            del saved["state_dict"][f"model.{name}"]
        return saved

    return rewritten(change)


def flip(path: Path, part: float) -> None:
    """Flips the lowest bit of the byte that stands after this part of a file."""
    content = bytearray(path.read_bytes())
    content[int(part * (len(content) - 1))] ^= 1
    path.write_bytes(content)


def cut(checkpoint: Path) -> None:
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])


def manifest(text: str) -> Damage:
    return lambda checkpoint: manifest_of(checkpoint).write_text(text)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


NONE = f"{LAST}' is no checkpoint of dualpath"
FOUND_WHEN_LOADED: dict[str, tuple[Damage, str]] = {
    "a flipped byte": (
        lambda path: flip(path, 0.5),
        f"{LAST}' is damaged: it was changed since it was written",
    ),
    "no weights": (rewritten(lambda saved: {"epoch": 1}), NONE),
    "a weight missing": (with_weight(None), f"{LAST}' is incomplete: it lacks {NAME}"),
    "a weight of another shape": (with_weight(torch.zeros(3)), f"{LAST}': {NAME} is (3,), not ("),
    "one too many": (with_weight("x", "other"), f"{LAST}' is of another model: it has other"),
}
PASSED_OVER: dict[str, tuple[Damage, str]] = {
    "cut off": (cut, "bytes instead of"),
    "a manifest that is no JSON": (manifest("{"), f"{LAST}.json cannot be read"),
    "a pipe": (pipe, "it is a pipe or a device, no file"),
    "a manifest of files elsewhere": (
        manifest('{"files": {"../x": {"bytes": 1, "sha256": ""}}}'), "it names '../x'",
    ),
    "a file that is missing": (
        manifest('{"files": {"x": {"bytes": 1, "sha256": ""}}}'), "x is missing",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FOUND_WHEN_LOADED)
def test_a_checkpoint_that_is_not_whole_is_neither_scored_nor_continued(
    fault, trained, tmp_path, said
):
    run = trained()
    damage, message = FOUND_WHEN_LOADED[fault]
    damage(run / "checkpoints" / LAST)
    fit = ["fit", "--config", tmp_path / "recipe.yaml", "--run.name", "x"]
    for words in (["validate"], fit):
        error = said(*words, "--ckpt_path", run)
        assert message in error
    if fault == "a flipped byte":
        assert f"; give --ckpt-path {run.resolve()}/checkpoints/{BEFORE}" in error


@pytest.mark.parametrize("strategy", ["single", "fsdp"])
def test_an_interrupted_run_is_not_continued_from_a_checkpoint_with_a_flipped_bit(
    strategy, fit, refused
):
    run = fit(trainer={"strategy": strategy})
    back_to_step(run, 4)
    files = files_of(run / "checkpoints" / BEFORE)
    assert (len(files) > 1) is (strategy == "fsdp")
    for path in files:
        for part in (0.0, 0.5, 0.9, 1.0):
            flip(path, part)
            said = refused(trainer={"strategy": strategy})
            assert f"{BEFORE}' is damaged: " in said
            assert said.endswith(f"(sha256); give --ckpt-path {run}/checkpoints/step-00000002\n")
            flip(path, part)
    assert not (run / "checkpoints" / LAST).exists()
    fit(trainer={"strategy": strategy})  # as it was


def test_no_branch_begins_at_a_checkpoint_with_a_flipped_bit(fit, refused):
    wsd = {"optim": {"schedule": "wsd", "cooldown": 0.5}}
    trunk = fit(**wsd, run={"name": "trunk", "save_every": 1})
    branch = wsd | {"run": {"name": "branch", "branch_from": str(trunk)}}
    flip(trunk / "checkpoints" / "step-00000003", 0.5)
    said = refused(**branch)
    assert "step-00000003' is damaged: it was changed since it was written (sha256)" in said
    assert "remove it: the branch then begins at an earlier checkpoint" in said
    (trunk / "checkpoints" / "step-00000003").unlink()
    fit(**branch)


@pytest.mark.parametrize("fault", PASSED_OVER)
def test_the_newest_whole_checkpoint_is_found(fault, trained, capsys):
    run = trained()
    damage, message = PASSED_OVER[fault]
    damage(run / "checkpoints" / LAST)
    capsys.readouterr()
    assert newest_checkpoint(run) == (run / "checkpoints" / BEFORE).resolve()
    said = capsys.readouterr().err
    assert said.startswith("passed over ")
    assert message in said


def test_a_run_without_a_whole_checkpoint_is_refused(trained, said):
    run = trained()
    for name in (LAST, BEFORE, "step-00000002"):
        (run / "checkpoints" / name).write_bytes(b"")
    error = said("validate", "--ckpt_path", run)
    assert "has no whole checkpoint: " in error
    assert "or remove the folder and train the run again" in error


def test_a_run_whose_newest_checkpoint_is_damaged_goes_on_from_the_one_before(fit, capsys):
    run = fit()
    whole = rows(run / "metrics.csv")
    cut(run / "checkpoints" / LAST)
    fit()
    assert "passed over " in capsys.readouterr().err
    assert rows(run / "metrics.csv") == whole


def sharded(run: Path) -> Path:
    """The run's newest checkpoint as shards, written by one process."""
    checkpoint = run / "checkpoints" / LAST
    state = {"state_dict": torch.load(checkpoint, weights_only=True)["state_dict"]}
    checkpoint.unlink()
    manifest_of(checkpoint).unlink()
    dcp.save({**state, "note": {"text": "plain"}}, checkpoint_id=checkpoint)
    return checkpoint


def test_shards_hold_the_same_weights(trained, output_of):
    run = trained()
    losses = output_of("validate", "--ckpt_path", run)
    sharded(run)
    assert output_of("validate", "--ckpt_path", run) == losses


@pytest.mark.parametrize("fault", ["runs a command", "names a file elsewhere", *range(3)])
def test_damaged_or_hostile_metadata_is_refused(fault, trained, tmp_path, said):
    run = trained()
    checkpoint = sharded(run)
    path, error = checkpoint / ".metadata", ".metadata cannot be read"
    if fault == "runs a command":
        path.write_bytes(pickle.dumps(Touch(tmp_path / "ran")))
        error += ": UnpicklingError: it names posix.system"
    elif fault == "names a file elsewhere":
        metadata = pickle.loads(path.read_bytes())
        shutil.move(checkpoint / "__0_0.distcp", tmp_path / "elsewhere")
        for info in metadata.storage_data.values():
            object.__setattr__(info, "relative_path", str(tmp_path / "elsewhere"))
        path.write_bytes(pickle.dumps(metadata))
        error = "a file outside of it"
    else:
        path.write_bytes([b"\x80", b"cos\nsystem\n(S'true'\ntR.", pickle.dumps(3)][fault])
    commands = [["validate"]]
    if fault == "runs a command":
        commands += [["ablate"], ["routing", "--tagger", "none"]]
    for words in commands:
        assert error in said(*words, "--ckpt_path", run)
    assert not (tmp_path / "ran").exists()


def test_a_value_in_shards_that_would_run_a_command_is_refused(tmp_path):
    """Such as the learning rate in the optimizer's state, which PyTorch unpickles."""
    folder = tmp_path / "shards"
    dcp.save({"rate": 0.5}, checkpoint_id=folder)
    state: dict[str, Any] = {"rate": 0.0}
    load_shards(state, folder)
    assert state == {"rate": 0.5}
    dcp.save({"rate": Touch(tmp_path / "ran")}, checkpoint_id=folder)
    with pytest.raises(UserError, match=r"shards' cannot be read: UnpicklingError: "):
        load_shards(state, folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("failures", "code"), [(1, 0), (2, 1)])
def test_a_checkpoint_that_cannot_be_written_is_tried_once_more(
    failures, code, fit, trained, tmp_path, monkeypatch, capsys
):
    whole = trained()
    save, left = torch.save, [0, failures]

    def full(content: Any, path: Any, *arguments: Any) -> None:
        left[0] += 1
        if "step-00000004" in str(path) and left[1]:
            left[1] -= 1
            Path(path).write_bytes(b"half")
            raise OSError(28, "No space left on device")
        save(content, path, *arguments)

    monkeypatch.setattr(torch, "save", full)
    monkeypatch.setattr("dualpath_cli.training.state.checkpoint.RETRY", 0.0)
    words = ["fit", "--config", str(tmp_path / "recipe.yaml"), "--run.name", "full"]
    capsys.readouterr()
    assert main(words) == code
    run = whole.with_name("full")
    assert not list((run / "checkpoints").glob("*.partial"))
    assert not (run / "went_wrong.txt").exists(), "the disk was full, the numbers are good"
    if code:
        error = capsys.readouterr().err
        assert error.startswith("dualpath fit: failed: checkpoint '")
        assert "No space left on device" in error
        assert error.endswith("; the same command continues from step 2\n")
    monkeypatch.undo()
    assert rows(fit(run={"name": "full"}) / "metrics.csv") == rows(whole / "metrics.csv")
