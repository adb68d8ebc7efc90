"""`dualpath fit` and `validate` on a tiny recipe: what is written, shown, continued and
refused."""

import hashlib
import json
import re
import shutil
import signal
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import Callback

from dualpath_cli.base.errors import UserError
from dualpath_cli.cli.main import main
from dualpath_cli.compare.runs import AGGREGATE, TrainedRun, read_trained_run
from dualpath_cli.data.manifest import Manifest
from dualpath_cli.recipe.recipes import merge
from dualpath_cli.recipe.settings import RunSettings
from dualpath_cli.report.console import plain_console
from dualpath_cli.run.checkpoint_files import (
    describe,
    facts_of,
    files_of,
    write_manifest,
)
from dualpath_cli.run.run_folder import (
    check_free,
    complete_checkpoints,
    newest_checkpoint,
    step_of,
)
from dualpath_cli.run.trained import find_run
from dualpath_cli.spec.config import GROUP_OF
from dualpath_cli.training import curve, session
from dualpath_cli.training.checkpoints import Checkpoints
from dualpath_cli.training.tables import CsvTable, peak_tflops
from tests.conftest import Lazy
from tests.training.tiny_run import (
    SEQ_LEN,
    back_to_step,
    losses_in,
    prepare,
    rows,
    tables,
    tiny_recipe,
    weights,
    write_blocks,
)


def test_a_run_folder_holds_what_the_run_was(trained, texts):
    run = trained()
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    assert recipe["model"]["loops"] == 2
    assert recipe["model"]["rope_base"] == 500000.0, "defaults are written out"
    versions = json.loads((run / "versions.json").read_text())
    manifest = json.loads((texts / "train" / "manifest.json").read_text())
    assert datetime.fromisoformat(versions["started"]) <= datetime.now(UTC)
    assert versions["data_fingerprint"] == manifest["fingerprint"]
    assert versions["packages"]["torch"] == torch.__version__.split("+")[0]
    assert versions["device"] == f"cpu ({torch.backends.cpu.get_cpu_capability()})"
    tokenizers = (texts / "train" / "tokenizer.json", run / "tokenizer.json")
    assert tokenizers[0].read_bytes() == tokenizers[1].read_bytes()
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == [
        "last",
        "manifests",
        "step-00000002",
        "step-00000004",
        "step-00000006",
    ]
    assert find_run(str(run)).step == 6
    logged = [
        (int(row["step"]), int(row["tokens"])) for row in rows(run / "metrics.csv")
    ]
    assert logged == [(step, 4 * SEQ_LEN * step) for step in range(1, 7)]


def test_the_rate_of_each_kind_is_logged(fit):
    run = fit(
        optim={"lr_scale": {"gate": 3, "gains": 0}, "base_width": 8},
        model={"d_ffn": 40},
    )
    scales = {"hidden": 0.5, "head": 0.5, "router": 0.5, "gate": 1.5, "gains": 0.0}
    for row in rows(run / "metrics.csv"):
        rates = {
            name[3:]: float(value)
            for name, value in row.items()
            if name.startswith("lr_")
        }
        assert rates.keys() == GROUP_OF.keys() - {"conditioning"}
        for kind, rate in rates.items():
            assert rate == pytest.approx(
                scales.get(kind, 1.0) * float(row["lr"]), rel=1e-5
            )


def test_losses_of_a_bfloat16_model_are_logged_with_more_than_its_8_bits(fit):
    run = fit(trainer={"precision": "bf16-true"})
    for table in ("metrics.csv", "validation.csv"):
        losses = torch.tensor([float(row["loss"]) for row in rows(run / table)])
        assert (losses.bfloat16() != losses).all()


def test_validation_and_routing_are_logged_when_due(fit):
    run = fit(run={"validate_every": 4}, model={"block": ["dual", "wide"]})
    assert [(row["step"], row["set"]) for row in rows(run / "validation.csv")] == [
        ("0", "held_out"),
        ("4", "held_out"),
        ("6", "held_out"),
    ]
    first, second = rows(run / "routing.csv")[:2]
    assert (first["step"], first["layer"]) == ("3", "0")
    assert 0 < float(first["gate_deep"]) < 1
    assert 1 < float(first["expected_loops"]) < 2
    # softplus(-1)
    assert float(first["gain_deep_2"]) == pytest.approx(0.3133, abs=0.05)
    assert (
        second["gate_deep"] == second["expected_loops"] == second["gain_deep_1"] == ""
    )
    assert second["gain_wide"] != ""


def test_a_run_continued_without_read_outs_keeps_none_of_the_part_it_left(fit):
    run = fit()
    back_to_step(run, 4)
    fit(run={"gates_every": 0})
    assert [row["step"] for row in rows(run / "routing.csv")] == ["3", "3"]


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_continued_run_equals_an_uninterrupted_one_also_across_epochs(
    fit, texts, tmp_path, workers
):
    # 11 blocks an epoch: 10 fill five micro-batches, of which four fill two steps.
    data = prepare(
        tmp_path / "short", texts / "train.jsonl", "--tokens", str(11 * (SEQ_LEN + 1))
    )
    changes: dict[str, Any] = {
        "data": {"path": str(data), "max_epochs": 99, "workers": workers},
        "run": {"max_tokens": 14 * 4 * SEQ_LEN, "save_every": 1},
    }
    run = fit(**changes)
    whole, last_weights = tables(run), weights(run)
    for step in (3, 4, 5):
        back_to_step(run, step)
        fit(**changes)
        assert tables(run) == whole
        torch.testing.assert_close(weights(run), last_weights, rtol=0, atol=0)


@pytest.mark.parametrize(
    "changes",
    [
        {
            "optim": {"name": "muon"},
            "model": {"n_experts": 3, "step_conditioning": "film"},
            "run": {"loop_schedule": [[0, 1], [0.5, 2]]},
        },
        {"trainer": {"precision": "bf16-true"}},
    ],
    ids=["Muon, experts, a schedule of loops", "bfloat16"],
)
def test_a_continued_run_of_muon_or_in_bfloat16_equals_an_uninterrupted_one(
    changes, fit
):
    run = fit(**changes)
    whole, last_weights = tables(run), weights(run)
    back_to_step(run, 2)
    fit(**changes)
    assert tables(run) == whole
    torch.testing.assert_close(weights(run), last_weights, rtol=0, atol=0)


def test_a_checkpoint_that_counts_micro_batches_is_continued(fit):
    """As those of 0.1.0 did: here two a step, with no step of Lightning's manual
    optimization."""
    run = fit(run={"save_every": 4})
    whole, last_weights = tables(run), weights(run)
    back_to_step(run, 4)
    checkpoint = run / "checkpoints/step-00000004"
    path = checkpoint / "state.json"
    state = json.loads(path.read_text())
    progress = state["loops"]["fit_loop"]
    for counts in progress["epoch_loop.batch_progress"].values():
        if isinstance(counts, dict):
            counts |= {"ready": 8, "started": 8, "processed": 8, "completed": 7}
    for counts in progress[
        "epoch_loop.manual_optimization.optim_step_progress"
    ].values():
        counts |= {"ready": 0, "completed": 0}
    path.write_text(json.dumps(state))
    write_manifest(
        checkpoint, describe(checkpoint, files_of(checkpoint)), facts_of(checkpoint)
    )

    fit(run={"save_every": 4})
    assert tables(run) == whole
    torch.testing.assert_close(weights(run), last_weights, rtol=0, atol=0)


def test_a_finished_run_is_left_alone(fit, trained, capsys):
    before = (trained() / "metrics.csv").read_bytes()
    run = fit()
    assert "is finished: nothing to do" in capsys.readouterr().out
    assert (run / "metrics.csv").read_bytes() == before


@pytest.mark.parametrize("removed", ["checkpoints", "checkpoints/step-*"])
def test_no_run_begins_over_the_tables_of_one_whose_checkpoints_were_removed(
    removed, trained, refused
):
    run = trained()
    before = tables(run)
    for path in run.glob(removed):
        shutil.rmtree(path)
    for steps in (6, 12):
        said = refused(run={"max_tokens": steps * 4 * SEQ_LEN})
        assert f"{run} holds the tables of a run whose checkpoints are gone" in said
    assert tables(run) == before


def test_nor_over_those_of_a_run_that_no_validation_says_is_finished(
    trained, tmp_path, said
):
    run = trained().with_name("unscored")
    words = ["fit", "--config", str(tmp_path / "recipe.yaml")]
    words += ["--run.name", "unscored", "--data.val", "{}"]
    assert main(words) == 0
    before = tables(run)
    for path in run.glob("checkpoints/step-*"):
        shutil.rmtree(path)
    assert f"{run} holds the tables of a run whose checkpoints are gone" in said(*words)
    assert tables(run) == before


def test_a_run_keeps_its_precision_by_whatever_name(trained, fit, refused):
    run = trained()
    back_to_step(run, 4)
    said = refused(trainer={"precision": "bf16"})
    assert f"{run} was begun with precision 32-true, now it is bf16-mixed" in said
    fit(trainer={"precision": 32})


def test_a_run_is_not_continued_with_another_seed_or_rate_or_on_other_data(
    fit, refused, texts, tmp_path
):
    data = prepare(tmp_path / "data", texts / "train.jsonl")
    fit(data={"path": str(data)})
    assert "optim.lr=0.003" in refused(data={"path": str(data)}, optim={"lr": 1e-2})
    assert "seed_everything=1" in refused(data={"path": str(data)}, seed_everything=2)
    shutil.rmtree(data)
    prepare(data, texts / "val.jsonl")
    error = refused(data={"path": str(data), "max_epochs": 9})
    assert "was trained on data with the fingerprint" in error
    assert "--new-data" in error


def test_a_run_goes_on_with_other_data_from_their_beginning_where_it_is_told_to(
    fit, refused, texts, tmp_path, capsys
):
    first = prepare(tmp_path / "first", texts / "train.jsonl")
    other = prepare(tmp_path / "other", write_blocks(tmp_path / "blocks.jsonl", 40))
    run = fit(data={"path": str(first)})
    before = rows(run / "metrics.csv")
    back_to_step(run, 4)
    command = [
        "fit",
        "--config",
        str(tmp_path / "recipe.yaml"),
        "--data.path",
        str(other),
    ]
    assert main(command) == 2
    capsys.readouterr()

    assert main([*command, "--new-data"]) == 0
    assert "epochs from step 4 on" in capsys.readouterr().out
    after = rows(run / "metrics.csv")
    assert after[:4] == before[:4]
    assert [row["loss"] for row in after[4:]] != [row["loss"] for row in before[4:]]
    facts = json.loads((run / "versions-00000004.json").read_text())
    assert (facts["data_since"], facts["data_fingerprint"]) == (
        4,
        Manifest.read(other).fingerprint,
    )

    # Continued within the other data, the run needs no word, and is the same; but not
    # from before.
    back_to_step(run, 4)
    assert main([*command, "--new-data", "--run.save_every", "1"]) == 0
    back_to_step(run, 5)
    assert main(command) == 0
    assert rows(run / "metrics.csv") == after
    back_to_step(run, 2)
    assert "was trained on data" in refused(data={"path": str(other)})
    assert fit(data={"path": str(first)}) == run
    assert rows(run / "metrics.csv") == before


def test_new_data_of_another_tokenizer_are_refused(fit, texts, tmp_path, said):
    other = prepare(tmp_path / "other", texts / "train.jsonl", merges=["t h", "e l"])
    run = fit()
    back_to_step(run, 2)
    error = said(
        "fit", "--config", tmp_path / "recipe.yaml", "--new-data", "--data.path", other
    )
    assert "was trained with another tokenizer" in error


def test_a_run_goes_back_to_an_older_checkpoint_once_by_the_same_words(
    fit, tmp_path, capsys
):
    run = fit(run={"keep": 3, "save_every": 1})
    whole, checkpoints = rows(run / "metrics.csv"), run / "checkpoints"
    kept = [f"step-{step:08d}" for step in (4, 5, 6)]
    assert sorted(path.name for path in checkpoints.iterdir()) == [
        "last",
        "manifests",
        *kept,
    ]
    assert sorted(path.stem for path in (checkpoints / "manifests").iterdir()) == kept
    command = ["fit", "--config", str(tmp_path / "recipe.yaml")]
    command += ["--ckpt_path", str(checkpoints / kept[0])]
    for begun in (4, 5):
        assert main(command) == 0
        out = capsys.readouterr().out
        assert f"continued from step {begun}" in out
        assert ("checkpoints of later steps, 5 to 6, are removed" in out) is (
            begun == 4
        )
        assert ("to go back there again, remove the" in out) is (begun == 5)
        assert rows(run / "metrics.csv") == whole
        assert (checkpoints / "last").resolve().name == kept[-1]
        back_to_step(run, 5)  # as if interrupted there
    assert (run / "recipe-00000004.yaml").is_file(), (
        "what a part was run with is kept apart"
    )


def test_the_words_that_took_a_run_back_are_good_after_that_checkpoint_is_dropped(
    fit, tmp_path, capsys
):
    run = fit(run={"keep": 3, "save_every": 1})
    checkpoints = run / "checkpoints"
    command = ["fit", "--config", str(tmp_path / "recipe.yaml"), "--run.keep", "1"]
    command += ["--ckpt-path", str(checkpoints / "step-00000004")]
    assert main(command) == 0
    assert [path.name for path in checkpoints.glob("step-*")] == ["step-00000006"]
    capsys.readouterr()
    assert main(command) == 0
    assert "is finished: nothing to do" in capsys.readouterr().out


def test_an_unfinished_file_does_not_keep_a_folder_from_a_run_and_anothers_file_does(
    tmp_path,
):
    (tmp_path / f"versions.json.{16 * '0'}.partial").touch()
    check_free(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match=r"holds 'notes.txt'"):
        check_free(tmp_path)


def test_a_run_may_begin_with_another_runs_weights(trained, texts, tmp_path, said):
    whole = trained()
    words = [
        "fit",
        "--config",
        str(tmp_path / "recipe.yaml"),
        "--run.init_from",
        str(whole),
    ]
    assert main([*words, "--run.name", "fork", "--seed_everything", "5"]) == 0
    fork = whole.with_name("fork")
    checkpoint = (whole / "checkpoints" / "last").resolve()
    manifest = checkpoint.parent / "manifests" / f"{checkpoint.name}.json"
    sha256 = hashlib.sha256(manifest.read_bytes()).hexdigest()
    back_to_step(fork, 4)
    assert main([*words, "--run.name", "fork", "--seed_everything", "5"]) == 0
    for name in ("versions.json", "versions-00000004.json"):
        begun = json.loads((fork / name).read_text())["init_from"]
        assert (begun["run"], begun["step"], begun["sha256"]) == (str(whole), 6, sha256)
    assert [row["step"] for row in rows(fork / "metrics.csv")] == list("123456")
    first, last = rows(fork / "validation.csv")[0], rows(whole / "validation.csv")[-1]
    assert (first["step"], first["loss"]) == ("0", last["loss"])
    error = said(*words, "--run.name", "other", "--model.loops", "3")
    assert "model.loops=2, this one has 3" in error
    other = prepare(tmp_path / "other", texts / "train.jsonl", merges=["t h", "e l"])
    error = said(*words, "--run.name", "other", "--data.path", other)
    assert "has another tokenizer than the data" in error


def test_the_newest_and_every_fourth_are_kept_and_none_of_a_part_that_was_left(
    tmp_path,
):
    keeper = Checkpoints(tmp_path, RunSettings(save_every=10, keep=2, keep_every=4))
    keeper.folder.mkdir()
    files = {"state.json": {"bytes": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}}

    def saved(step: int) -> list[int]:
        partial = keeper.folder / f"step-{step:08d}.partial"
        partial.mkdir()
        (partial / "state.json").write_text("{}")
        keeper._publish(partial, keeper.folder / f"step-{step:08d}", files)
        keeper.saved_step = step
        return sorted(map(step_of, complete_checkpoints(tmp_path)))

    assert [saved(step) for step in (3, 4, 5, 6, 7)][-1] == [4, 6, 7]
    last = keeper.folder / "last"
    last.unlink()
    assert newest_checkpoint(tmp_path) == keeper.folder / "step-00000007", (
        "a copy without links"
    )
    last.symlink_to("step-00000006")
    assert newest_checkpoint(tmp_path) == keeper.folder / "step-00000007", (
        "killed before `last` was moved"
    )
    keeper.saved_step = 4  # taken back
    assert saved(6) == [4, 6], "nothing of the part that the run has left"
    assert newest_checkpoint(tmp_path) == (keeper.folder / "step-00000006").resolve()
    assert saved(8) == [4, 6, 8]


def test_a_validation_folder_of_another_tokenizer_is_refused(refused, texts, tmp_path):
    val = prepare(tmp_path / "val", texts / "val.jsonl", merges=["a b"])
    assert "another tokenizer than the run's" in refused(
        data={"val": {"other": str(val)}}
    )


def test_validate_gives_the_numbers_of_the_runs_end(trained, output_of):
    run = trained()
    checkpoints = run / "checkpoints"
    last = rows(run / "validation.csv")[-1]
    for path in (run, checkpoints / "step-00000006", checkpoints / "last"):
        output = output_of("validate", "--ckpt_path", path)
        # rounded twice
        loss = pytest.approx(float(last["loss"]), abs=6e-5)
        assert losses_in(output) == {"held_out": loss}
        assert f"{float(last['bits_per_byte']):.4f}" in output
    older = output_of("validate", "--ckpt_path", checkpoints / "step-00000002")
    assert f"{float(last['loss']):.4f}" not in older


def test_a_finished_run_is_scored_on_a_set_that_it_gets_later(trained, texts, tmp_path):
    """As `compare` reads it: the sets are those of the newest part."""
    run = trained().with_name("unscored")
    words = ["fit", "--config", str(tmp_path / "recipe.yaml")]
    words += ["--run.name", "unscored", "--data.val"]
    assert main([*words, "{}"]) == 0
    with pytest.raises(UserError, match="has no validation set to compare"):
        read_trained_run(run)
    assert main([*words, f"{{later: {texts / 'val.jsonl'}}}"]) == 0
    # Without sets the command has nothing to do, and takes none away.
    assert main([*words, "{}"]) == 0
    scored = read_trained_run(run)
    assert isinstance(scored, TrainedRun)
    assert scored.scores.keys() == {AGGREGATE, "later"}


def test_a_finished_run_is_scored_again_on_another_number_of_tokens(
    trained, tmp_path, capsys
):
    run = trained()
    before = rows(run / "validation.csv")
    words = ["fit", "--config", str(tmp_path / "recipe.yaml"), "--data.val_tokens=30"]
    assert main(words) == 0
    after = rows(run / "validation.csv")
    assert after[:-1] == before[:-1]
    assert after[-1]["loss"] != before[-1]["loss"]
    capsys.readouterr()
    assert main(words) == 0
    assert "is finished: nothing to do" in capsys.readouterr().out
    scored = read_trained_run(run)
    assert isinstance(scored, TrainedRun)
    assert scored.data["data.val_tokens"] == "30"


def test_the_text_of_a_validation_set_may_be_in_another_field(
    fit, refused, said, output_of, texts, tmp_path
):
    plain = texts / "val.jsonl"
    both = tmp_path / "both.jsonl"
    both.write_text(
        "".join(
            json.dumps({"text": "hello", "content": json.loads(line)["text"]}) + "\n"
            for line in plain.read_text().splitlines()
        )
    )
    sets = {
        "held_out": str(plain),
        "content": {"path": str(both), "field": "content"},
        "text": {"path": str(both), "field": "text"},
    }

    run = fit(data={"val": sets})
    assert yaml.safe_load((run / "recipe.yaml").read_text())["data"]["val"] == sets
    last = {row["set"]: row["loss"] for row in rows(run / "validation.csv")}
    assert last["content"] == last["held_out"] != last["text"]

    output = output_of("validate", "--ckpt_path", run, "--data.val", json.dumps(sets))
    losses = losses_in(output)
    assert losses["content"] == losses["held_out"] != losses["text"]

    nowhere = {"path": str(both), "field": "body"}
    message = "both.jsonl line 1: no field 'body' (fields: text, content)"
    assert message in refused(data={"val": {"a": nowhere}})
    assert message in said(
        "validate", "--ckpt_path", run, "--data.val.a", json.dumps(nowhere)
    )
    packed = prepare(tmp_path / "packed", plain)
    folder = {"path": str(packed), "field": "content"}
    assert "whose tokens have no field 'content'" in refused(
        data={"val": {"a": folder}}
    )


def test_rows_of_a_step_replace_those_of_this_and_later_steps(tmp_path):
    table = CsvTable(tmp_path / "validation.csv", ["step", "set"])
    for step in (0, 2, 4, 2):
        table.put(step, [{"step": step, "set": name} for name in ("a", "b")])
    assert table.path.read_text() == "step,set\n0,a\n0,b\n2,a\n2,b\n"


def test_a_decay_that_another_one_replaces_is_named(fit, capsys):
    fit(optim={"decay_sum": 0.1, "weight_decay": 0.2})
    said = capsys.readouterr().out
    assert (
        "optim.weight_decay=0.2 has no effect: optim.decay_sum takes its place" in said
    )


def test_a_key_that_changes_nothing_in_the_model_is_named(texts, tmp_path, output_of):
    wide = {"model": {"block": "wide", "gate": "convex"}}
    recipe = merge(tiny_recipe(texts, tmp_path / "runs"), wide)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    said = output_of("fit", "--config", tmp_path / "recipe.yaml", "--dry-run")
    assert "        model.gate has no effect on this model\n" in said


def test_the_plan_of_a_new_run_says_that_its_precision_rounds_weights(
    fit, tmp_path, output_of, capsys
):
    """In bf16 the neighbours of a gain at -7 are 0.03 away, and updates are smaller."""
    note = "trainer.precision=bf16-true rounds all weights and the residual stream"
    gain = torch.tensor(-7.0, dtype=torch.bfloat16)
    assert gain + 0.015 == gain != gain + 0.02

    changes = {"trainer": {"precision": "bf16-true"}}
    run = fit(**changes)
    assert note in capsys.readouterr().out
    back_to_step(run, 4)
    fit(**changes)
    assert "rounds all weights" not in capsys.readouterr().out

    words = ["--config", tmp_path / "recipe.yaml", "--run.name", "mixed", "--dry-run"]
    said = output_of("fit", *words, "--trainer.precision", "bf16-mixed")
    assert "rounds all weights" not in said


EARLY_STOPPING = "lightning.pytorch.callbacks.EarlyStopping"
SUMMARY = "lightning.pytorch.callbacks.ModelSummary"
HALF = "lightning.pytorch.plugins.precision.HalfPrecision"
MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"trainer": {"plugins": [{"class_path": HALF}]}}, "precision=32-true"),
    ({"trainer": {"devices": [0, 1]}}, "devices"),
    (
        {
            "run": {"shard_size": 3, "micro_batch": 1},
            "trainer": {"strategy": "hsdp", "devices": 4},
        },
        "run.shard_size=3",
    ),
    ({"run": {"train_loops": [2]}, "model": {"block": "wide"}}, "run.train_loops"),
]


@pytest.mark.parametrize(("changes", "said"), MISTAKES)
def test_a_recipe_that_cannot_be_trained_is_refused_in_one_line(
    changes, said, refused, tmp_path
):
    assert said in refused(**changes)
    assert not (tmp_path / "runs").exists()


class EndsAtOnce(Callback):
    """Ends training after its first step."""

    def on_train_batch_end(self, trainer: Any, *ignored: Any) -> None:
        trainer.should_stop |= trainer.global_step > 0


def early_stopping(**arguments: Any) -> dict[str, Any]:
    return {"class_path": EARLY_STOPPING, "init_args": arguments}


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"monitor": "val/held_out/los"}, "did you mean 'val/held_out/loss'?"),
        ({"patience": 3}, "monitor"),
    ],
)
def test_a_callback_that_cannot_work_is_named_before_training(
    arguments, hint, refused, tmp_path
):
    said = refused(trainer={"callbacks": [early_stopping(**arguments)]})
    assert "EarlyStopping" in said
    assert hint in said
    assert not (tmp_path / "runs").exists()


def test_a_callback_that_refuses_as_training_begins_is_one_line(refused):
    callbacks = [
        early_stopping(monitor="nope"),
        {"class_path": f"{__name__}.EndsAtOnce"},
    ]
    assert "`nope`" in refused(trainer={"callbacks": callbacks})
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, (
        "Ctrl-C ends it again"
    )


def test_a_run_that_a_callback_ends_before_its_first_row_has_a_curve(
    fit, capsys, caplog
):
    callbacks = [{"class_path": f"{__name__}.EndsAtOnce"}, {"class_path": SUMMARY}]
    changes = {"log_every": 2, "name": "of one step"}
    run = fit(run=changes, trainer={"callbacks": callbacks})
    said = capsys.readouterr().out
    assert "ended at step 1 by a callback\n" in said
    assert f"next: dualpath validate --ckpt-path '{run}'" in said
    assert curve.draw(run).exists()
    assert find_run(str(run)).step == 1
    assert "DualPathLM" in caplog.text, "a summary that was asked for is printed"


def test_a_dry_run_prints_recipe_and_plan_and_writes_nothing(
    texts, tmp_path, output_of
):
    recipe = merge(
        tiny_recipe(texts, tmp_path / "runs"), {"model": {"vocab_size": 400}}
    )
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    words = ("--config", tmp_path / "recipe.yaml", "--data.val", "{}", "--dry-run")
    resolved, _, plan = output_of("fit", *words).partition("\n\n")
    assert yaml.safe_load(resolved)["model"]["vocab_size"] == 400
    assert "model.vocab_size=400" in plan
    assert "--data.val.NAME" in plan
    assert not (tmp_path / "runs").exists()


def test_a_run_that_early_stopping_ends_goes_on_without(fit, capsys):
    patience = {"monitor": "val/held_out/loss", "patience": 1, "min_delta": 9.0}
    stopping = {"callbacks": {"class_path": EARLY_STOPPING, "init_args": patience}}
    run = fit(run={"validate_every": 2}, trainer=stopping)
    assert (
        "ended at step 4 by EarlyStopping: Monitored metric val/"
        in capsys.readouterr().out
    )
    assert find_run(str(run)).step == 4
    fit(run={"validate_every": 2})
    assert find_run(str(run)).step == 6


@pytest.fixture
def drawings(monkeypatch) -> list:
    """The curves that are drawn, each a figure and its axes."""
    found, panels_of = [], curve.panels
    monkeypatch.setattr(
        curve,
        "panels",
        lambda *a, **k: found.append(panels_of(*a, **k)) or found[-1],
    )
    return found


def test_a_panel_shows_what_the_blocks_have(trained, drawings):
    """Each dual layer has a line of expected loops, and one of both gates."""
    run = trained()
    assert curve.draw(run).read_bytes()[:4] == b"\x89PNG"
    ((figure, _),) = drawings
    shown = {ax.get_title(): len(ax.lines) for ax in figure.axes}
    assert shown == {"bits per byte": 2, "gate": 4, "expected loops": 2}
    assert [len(line.get_xdata()) for line in figure.axes[0].lines] == [6, 3]


def test_a_curve_names_each_set_also_without_a_glyph_for_it(trained, drawings):
    run = trained()
    table = run / "validation.csv"
    table.write_text(table.read_text().replace("held_out", "_句"))
    with warnings.catch_warnings(action="error", category=UserWarning):
        curve.draw(run)
    ((figure, _),) = drawings
    names = figure.axes[0].get_legend().get_texts()
    assert [name.get_text() for name in names] == ["training", "句"]


# What watches a run: TensorBoard, W&B, the progress, a profiler, MFU's peak


wandb = Lazy("wandb")
event_accumulator = Lazy("tensorboard.backend.event_processing.event_accumulator")


def points(run: Path, purge: bool) -> dict[str, list[int]]:
    """The steps of each tag in TensorBoard, as it shows them or with all that was ever
    written."""
    events = event_accumulator.EventAccumulator(
        str(run / "tensorboard"), purge_orphaned_data=purge
    )
    events.Reload()
    return {
        tag: [point.step for point in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


@pytest.mark.parametrize("step", [2, None])
def test_tensorboard_shows_each_step_once_after_a_continuation(step, fit):
    """Also of a run that ended before its first checkpoint."""
    run = fit(run={"tensorboard": True})
    before = points(run, purge=True)
    assert before["loss"] == [1, 2, 3, 4, 5, 6]
    assert before["val/held_out/loss"] == [0, 3, 6]
    back_to_step(run, step or 0)
    if step is None:
        table = run / "validation.csv"
        table.write_text(table.read_text().partition("\n6,")[0] + "\n")
    fit(run={"tensorboard": True})
    steps = [*range(1, 7), *range((step or 0) + 1, 7)]
    assert points(run, purge=False)["loss"] == steps
    assert points(run, purge=True) == before


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """W&B writes to the run folder alone; returns all rows that it gets."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / "wandb-home"))
    sent: list[dict[str, Any]] = []
    log = wandb.sdk.wandb_run.Run.log

    def watched(run: Any, row: dict[str, Any], *more: Any, **named: Any) -> None:
        sent.append({"id": run.id, **row})
        log(run, row, *more, **named)

    monkeypatch.setattr(wandb.sdk.wandb_run.Run, "log", watched)
    return sent


def test_a_continued_run_is_one_run_of_wandb(fit, offline):
    run = fit(run={"wandb": "project"})
    wandb.finish()  # as the end of the process does
    whole = list(offline)
    back_to_step(run, 4)
    moved = run.rename(run.with_name("moved"))
    fit(run={"wandb": "project", "name": "moved"})
    wandb.finish()
    kept = (moved / "wandb_id").read_text().strip()
    assert {row["id"] for row in offline} == {kept}
    assert len(list(moved.glob(f"wandb/offline-run-*-{kept}/*.wandb"))) == 2
    assert {row["trainer/global_step"] for row in offline[len(whole) :]} == {5, 6}
    losses = {
        row["trainer/global_step"]: row["loss"] for row in offline if "loss" in row
    }
    for row in rows(moved / "metrics.csv"):
        assert losses[int(row["step"])] == pytest.approx(float(row["loss"]), rel=1e-5)
    assert any("val/held_out/loss" in row for row in whole)
    assert any("routing/layer_01/gate_deep" in row for row in whole)


def test_where_wandb_cannot_be_reached_one_line_names_the_way_out(refused, monkeypatch):
    def unreachable(**_: Any) -> Any:
        raise wandb.errors.CommError("no route to\nhost")

    monkeypatch.setattr("wandb.init", unreachable)
    assert "run.wandb=project: CommError: no route to host" in refused(
        run={"wandb": "project"}
    )


def test_a_terminal_shows_steps_time_left_and_loss_and_nothing_is_drawn_without(
    fit, monkeypatch, capsys
):
    fit(run={"name": "no-terminal"})
    said = capsys.readouterr().out
    assert re.search(
        r"^training: 6 of 6 steps, loss \d\.\d{3}, .* tokens/s, 0\.0 min left$",
        said,
        re.MULTILINE,
    )
    assert "\x1b" not in said

    for name, value in {"TERM": "xterm", "COLUMNS": "120", "FORCE_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        session,
        "plain_console",
        lambda **named: plain_console(force_terminal=True, **named),
    )
    fit(run={"name": "terminal"})
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out)
    assert re.search(
        r"training .* 6 of 6 steps, loss \d\.\d{3}, .* tokens/s \d:\d\d:\d\d", shown
    )
    assert "min left" not in shown


def test_a_profiler_reports_to_the_user_or_into_the_run_folder(fit, capfd, caplog):
    fit(run={"name": "profiled"}, trainer={"profiler": "simple"})
    assert "FIT Profiler Report" in capfd.readouterr().err + caplog.text
    run = fit(run={"name": "traced"}, trainer={"profiler": "pytorch"})
    assert list(run.glob("*.pt.trace.json"))


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        # NVIDIA's datasheets print the sparse peak, twice the dense one, beside it or
        # alone.
        ("NVIDIA H200", 989.4),
        ("NVIDIA GH200 480GB", 989.4),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L4", 121),
        *(
            (f"NVIDIA {name}", None)
            for name in ("H100 NVL", "L40S", "H20", "A100-SXM4 MIG 1g.5gb")
        ),
    ],
)
def test_mfu_is_measured_against_the_dense_peak_of_the_very_chip_or_not_at_all(
    name, peak, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak_tflops(torch.device("cuda", 0)) == peak
    assert peak_tflops(torch.device("cpu")) is None
