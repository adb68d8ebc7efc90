"""Damaged, incomplete and hostile checkpoints: one line, nothing run, the newest whole
one."""

import copy
import errno
import json
import os
import shutil
from collections.abc import Callable
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from lightning.pytorch import Callback
from safetensors.torch import save_file

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import remove
from dualpath_cli.cli.main import main
from dualpath_cli.run.checkpoint_files import (
    describe,
    facts_of,
    files_of,
    manifest_of,
    write_manifest,
)
from dualpath_cli.run.checkpoint_folder import read_checkpoint, write_checkpoint
from dualpath_cli.run.run_folder import newest_checkpoint, way_on
from dualpath_cli.run.weights import tensors_in
from dualpath_cli.training import checkpoints
from tests.data.faulty_data import flip
from tests.training.tiny_run import back_to_step, rows, saved

NAME = "embed.weight"
LAST, BEFORE = "step-00000006", "step-00000004"
Damage = Callable[[Path], None]


def rewritten(change: Callable[[dict[str, torch.Tensor]], None]) -> Damage:
    """Changes what a checkpoint holds, as something else than a bad disk would: hashes
    and all."""

    def damage(checkpoint: Path) -> None:
        tensors = saved(checkpoint)
        change(tensors)
        for path in checkpoint.glob("*.safetensors"):
            path.unlink()
        save_file(tensors, checkpoint / "model.safetensors")
        write_manifest(
            checkpoint, describe(checkpoint, files_of(checkpoint)), facts_of(checkpoint)
        )

    return damage


def with_weight(value: torch.Tensor | None, name: str = NAME) -> Damage:
    """Puts another value in the place of a weight; None takes the weight out."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors.pop(f"model.{name}", None)
        if value is not None:
            tensors[f"model.{name}"] = value

    return rewritten(change)


def cut(checkpoint: Path) -> None:
    path = max(checkpoint.glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-100])


def manifest(text: str) -> Damage:
    return lambda checkpoint: manifest_of(checkpoint).write_text(text)


def pipe(checkpoint: Path) -> None:
    os.mkfifo(checkpoint / "pipe")


FOUND_WHEN_LOADED: dict[str, tuple[Damage, str]] = {
    "a flipped byte": (
        lambda path: flip(max(path.glob("*.safetensors")), -1),
        ".safetensors was changed since it was written",
    ),
    "a weight missing": (with_weight(None), f"{LAST}' is incomplete: it lacks {NAME}"),
    "a weight of another shape": (
        with_weight(torch.zeros(3)),
        f"{LAST}': {NAME} is (3,), not (",
    ),
    "a weight of whole numbers": (
        with_weight(torch.zeros(272, 16, dtype=torch.int64)),
        f"{LAST}': {NAME} is of int64",
    ),
    "a weight that is no number": (
        with_weight(torch.full((272, 16), float("nan"))),
        f"{LAST}': {NAME} is not finite",
    ),
    "one too many": (with_weight(torch.zeros(3), "other"), "it has other"),
}
PASSED_OVER: dict[str, tuple[Damage, str]] = {
    "cut off": (cut, "bytes instead of"),
    "a manifest that is no JSON": (manifest("{"), f"{LAST}.json cannot be read"),
    "a pipe": (pipe, "pipe is a pipe or a device, not a file"),
    "a manifest of files elsewhere": (
        manifest('{"files": {"../x": {"bytes": 1, "sha256": ""}}}'),
        "it names '../x'",
    ),
    "a file that is missing": (
        manifest('{"files": {"x": {"bytes": 1, "sha256": ""}}}'),
        "x is missing",
    ),
}


@pytest.mark.parametrize("fault", FOUND_WHEN_LOADED)
def test_a_checkpoint_that_is_not_whole_is_neither_scored_nor_continued(
    fault, trained, tmp_path, said
):
    run = trained()
    damage, message = FOUND_WHEN_LOADED[fault]
    damage(run / "checkpoints" / LAST)
    fit = [
        "fit",
        "--config",
        tmp_path / "recipe.yaml",
        "--run.name",
        "x",
        "--run.init_from",
    ]
    for words in (["validate", "--ckpt-path"], fit):
        error = said(*words, run)
        assert message in error
        if fault == "a flipped byte":
            assert f"; give {words[-1]} {run.resolve()}/checkpoints/{BEFORE}" in error


@pytest.mark.parametrize(
    "path",
    [
        "global_step",
        "groups 0 0 params",
        "groups 0 0 betas",
        "guard",
        "loops fit_loop epoch_loop.batch_progress total ready",
    ],
)
def test_a_state_of_another_shape_is_one_line_though_its_hash_fits(
    path, trained, refused
):
    run = trained()
    back_to_step(run, 4)
    checkpoint = run / "checkpoints" / BEFORE
    state = json.loads((checkpoint / "state.json").read_text())
    *keys, last = (int(key) if key.isdigit() else key for key in path.split())
    part = reduce(getitem, keys, state)
    part[last] = "x"
    (checkpoint / "state.json").write_text(json.dumps(state))
    write_manifest(
        checkpoint, describe(checkpoint, files_of(checkpoint)), facts_of(checkpoint)
    )
    said = refused()
    assert f"cannot continue from checkpoint '{checkpoint}': state.json" in said


class LosesState(Callback):
    """Takes a moment away after step 3."""

    def on_train_batch_end(self, trainer: Any, *ignored: Any) -> None:
        if trainer.global_step == 3:
            del next(iter(trainer.optimizers[0].state.values()))["exp_avg"]


def test_an_error_of_a_later_step_is_not_one_of_the_checkpoint(trained, fit):
    back_to_step(trained(), 2)
    with pytest.raises(KeyError, match="exp_avg"):
        fit(trainer={"callbacks": {"class_path": f"{__name__}.LosesState"}})


@pytest.mark.parametrize("strategy", ["single", "fsdp"])
def test_an_interrupted_run_is_not_continued_from_a_checkpoint_with_a_flipped_bit(
    strategy, fit, refused
):
    run = fit(trainer={"strategy": strategy})
    back_to_step(run, 4)
    for path in files_of(run / "checkpoints" / BEFORE):
        for position in (0, path.stat().st_size // 2, -1):
            flip(path, position)
            said = refused(trainer={"strategy": strategy})
            assert f"{BEFORE}' is damaged: " in said
            assert said.endswith(
                f"(sha256); give --ckpt-path {run}/checkpoints/step-00000002\n"
            )
            flip(path, position)
    assert not (run / "checkpoints" / LAST).exists()
    fit(trainer={"strategy": strategy})  # as it was


def test_no_branch_begins_at_a_checkpoint_with_a_flipped_bit(fit, refused):
    wsd = {"optim": {"schedule": "wsd", "cooldown": 0.5}}
    trunk = fit(**wsd, run={"name": "trunk", "save_every": 1})
    branch = wsd | {"run": {"name": "branch", "branch_from": str(trunk)}}
    checkpoint = trunk / "checkpoints" / "step-00000003"
    flip(checkpoint / "state.json")
    assert "step-00000003' is damaged: state.json was changed" in refused(**branch)
    shutil.rmtree(checkpoint)
    fit(**branch)


@pytest.mark.parametrize("fault", PASSED_OVER)
def test_the_newest_whole_checkpoint_is_found(fault, trained, capsys):
    run = trained()
    damage, message = PASSED_OVER[fault]
    damage(run / "checkpoints" / LAST)
    capsys.readouterr()
    assert newest_checkpoint(run) == (run / "checkpoints" / BEFORE).resolve()
    assert message in capsys.readouterr().err


def test_a_run_without_a_whole_checkpoint_is_refused(trained, said):
    run = trained()
    for name in (LAST, BEFORE, "step-00000002"):
        (run / "checkpoints" / name / "state.json").unlink()
    assert "has no whole checkpoint: " in said("validate", "--ckpt_path", run)
    # In the message of a run that fails, in place of the command that continues it.
    assert "has no whole checkpoint: " in way_on(run)


@pytest.mark.parametrize("first", [1, 10**12])
def test_a_tensor_that_lacks_a_part_is_refused_before_memory_is_taken(first, tmp_path):
    places = {"DCP_SHARDING_INFO": json.dumps({"x": {"saved_offsets": [first]}})}
    save_file({"x": torch.ones(1)}, tmp_path / "a.safetensors", places)
    with pytest.raises(UserError, match="x is incomplete, or there twice"):
        tensors_in(tmp_path)


def test_what_callbacks_keep_comes_back_as_it_was(tmp_path):
    kept = {
        "callbacks": {
            "A": {"best": torch.tensor(1.5), 3: (None, True, [1.25, "x"]), "!": {}}
        },
        "tensors": {"model.x": torch.arange(3)},
        "groups": [],
    }
    write_checkpoint(copy.deepcopy(kept), tmp_path / "x", alone=True)
    found = read_checkpoint(tmp_path / "x")
    assert found.pop("folder") == str(tmp_path / "x")
    assert found.pop("groups") == []
    assert found == {"callbacks": kept["callbacks"]}
    kept["callbacks"] = {"A": {"best": np.float32(1.5)}}
    with pytest.raises(
        UserError, match=r"^callbacks\.A\.best in .* would be <class 'numpy\.float32'>"
    ):
        write_checkpoint(kept, tmp_path / "y", alone=True)


@pytest.mark.parametrize(("failures", "code"), [(1, 0), (2, 1)])
def test_a_checkpoint_that_cannot_be_written_is_tried_once_more(
    failures, code, fit, trained, tmp_path, monkeypatch, capsys
):
    whole = trained()
    save, left = dcp.save, [failures]

    def full(tensors: Any, storage_writer: Any, no_dist: bool) -> None:
        if "step-00000004" in str(storage_writer.path) and left[0]:
            left[0] -= 1
            Path(storage_writer.path, "x.safetensors").write_bytes(b"half")
            said = OSError(28, "No space left on device"), None
            raise dcp.api.CheckpointException("write", {0: said})  # type: ignore[dict-item]
        save(tensors, storage_writer=storage_writer, no_dist=no_dist)

    monkeypatch.setattr(dcp, "save", full)
    monkeypatch.setattr("dualpath_cli.run.checkpoint_folder.RETRY", 0.0)
    words = ["fit", "--config", str(tmp_path / "recipe.yaml"), "--run.name", "full"]
    capsys.readouterr()
    assert main(words) == code
    run = whole.with_name("full")
    assert not list((run / "checkpoints").glob("*.partial"))
    assert not (run / "went_wrong.txt").exists(), (
        "the disk was full, the numbers are good"
    )
    if code:
        assert capsys.readouterr().err.endswith(
            "; the same command continues from step 2\n"
        )
    monkeypatch.undo()
    assert rows(fit(run={"name": "full"}) / "metrics.csv") == rows(
        whole / "metrics.csv"
    )


def test_a_checkpoint_that_cannot_be_removed_now_goes_with_the_next_one(
    fit, monkeypatch
):
    """As on NFS, while another process reads it."""
    failed: list[Path] = []

    def busy(path: Path) -> None:
        if path.name.startswith("dropped-") and not failed:
            failed.append(path)
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
        remove(path)

    monkeypatch.setattr(checkpoints, "remove", busy)
    run = fit(run={"keep": 1})
    assert failed
    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert names == {LAST, "last", "manifests"}
