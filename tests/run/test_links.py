"""Results are written below a run's own folder, never through a link that leads out of
it."""

import shutil
from pathlib import Path

import pytest

from dualpath_cli.base.folders import OURS, claimed_folder
from dualpath_cli.cli.main import main
from dualpath_cli.run.run_folder import check_links
from dualpath_cli.run.trained import find_run
from dualpath_cli.study.ablation.options import Ablate
from tests.cli.test_messages import write_place
from tests.conftest import contents
from tests.training.tiny_run import RUN, back_to_step, tables

FIT = "fit --config tiny.yaml"
SWEEP = (
    "sweep --config sweep.yaml --budget 100K --alphas 50 --loops 2 --controls wide "
    "--out swept"
)
EVALUATE = f"evaluate --ckpt_path {RUN} --tasks piqa --data ."
MODEL = "tiny-default-step-00000002"  # as evaluate and export call the model


@pytest.fixture
def place(share, tmp_path, monkeypatch) -> Path:
    """A folder with a run, a finished sweep, a sweep that is planned, and the folder
    `others`."""
    shutil.copytree(
        share("place", write_place), tmp_path, symlinks=True, dirs_exist_ok=True
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "swept").mkdir()
    (tmp_path / "swept/sweep.yaml").write_text("cells: []\n")
    others = tmp_path / "others"
    (others / "step-00000002").mkdir(parents=True)
    for name in (
        OURS,
        f"step-00000002/{OURS}",
        "ablations.md",
        "step-00000002/index.html",
    ):
        (others / name).write_text("the work of others")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "link"),
    [
        *(
            (FIT, f"{RUN}/{name}")
            for name in (
                "checkpoints",
                "checkpoints/manifests",
                "classes",
                "tensorboard",
                "wandb",
            )
        ),
        *(
            (f"ablate --ckpt_path {RUN}", f"{RUN}/ablations{below}")
            for below in ("", "/step-00000002", "/step-00000002/passes")
        ),
        *(
            (f"routing --ckpt_path {RUN} --tagger none", f"{RUN}/routing{below}")
            for below in ("", "/step-00000002", "/step-00000002/page")
        ),
        (f"ablate --ckpt_path {RUN} --out mine", "mine/passes"),
        *(
            (EVALUATE, f"{RUN}/evaluations{below}")
            for below in ("", f"/{MODEL}", f"/{MODEL}/samples")
        ),
        (f"{EVALUATE} --out mine", f"mine/{MODEL}"),
        ("evaluate --requests --out mine", "mine/requests"),
        *(
            (f"export --ckpt_path {RUN}", f"{RUN}/export{below}")
            for below in ("", f"/{MODEL}")
        ),
        *(("compare sweep", f"sweep/comparison{below}") for below in ("", "/figures")),
        *(
            (SWEEP, f"swept/{name}")
            for name in ("recipes", "logs", "runs", "runs/wide", "runs/wide/seed_0")
        ),
    ],
)
def test_a_command_refuses_a_link_out_of_the_folder_it_writes_to(
    words, link, place, said
):
    if words.startswith("evaluate"):
        pytest.importorskip("lm_eval")
    path, others = place / link, place / "others"
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / OURS).touch()  # which allows a command to replace the files there
    if path.exists():  # moved to where there is room, as a user would
        shutil.copytree(path, others, dirs_exist_ok=True)
        shutil.rmtree(path)
    path.symlink_to(others)
    before = contents(others)

    error = said(*words.split())

    assert f"{link}' is a link to '{others}', outside of '" in error
    assert "; remove the link" in error or "; move that folder here" in error
    assert contents(others) == before


def test_a_run_folder_may_itself_be_a_link_and_hold_links_that_stay_inside(place):
    (place / RUN).rename(place / "moved")
    (place / RUN).symlink_to(place / "moved")
    (place / "moved/store").mkdir()
    for name in ("ablations", "tensorboard"):
        (place / "moved" / name).symlink_to("store")
    run = find_run(RUN)

    check_links(run.folder)
    out = Ablate(ckpt_path=RUN).with_run(run).folder

    assert out == Path(RUN, "ablations/step-00000002")
    with claimed_folder(out):
        assert (place / "moved/store/step-00000002" / OURS).exists()


def test_of_a_checkpoint_that_is_a_link_only_the_link_is_dropped(trained, tmp_path):
    run, others = trained(), tmp_path / "others" / "step-00000002"
    back_to_step(run, 4)
    own = run / "checkpoints/step-00000002"
    shutil.move(own, others)
    own.symlink_to(others)
    before = contents(others)

    words = ["--config", str(tmp_path / "recipe.yaml"), "--run.keep", "1"]
    assert main(["fit", *words]) == 0

    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert names == {"step-00000006", "last", "manifests"}
    assert contents(others) == before


def test_a_checkpoint_on_another_disk_is_scored_and_continued_through_its_link(
    trained, output_of, tmp_path
):
    run = trained()
    expected = tables(run)
    back_to_step(run, 2)
    own = run / "checkpoints/step-00000002"
    losses = output_of("validate", "--ckpt-path", own)
    shutil.move(own, tmp_path / "others" / own.name)
    own.symlink_to(tmp_path / "others" / own.name)

    for path in (own, own.with_name("last")):
        assert output_of("validate", "--ckpt-path", path) == losses
    assert main(["fit", "--config", str(tmp_path / "recipe.yaml")]) == 0
    assert tables(run) == expected


def test_a_copy_of_a_run_without_links_is_continued(trained, fit):
    run = trained()
    expected = tables(run)
    back_to_step(run, 2)
    checkpoints = run / "checkpoints"
    (checkpoints / "last").unlink()
    shutil.copytree(checkpoints / "step-00000002", checkpoints / "last")

    assert tables(fit()) == expected
    assert (checkpoints / "last").readlink() == Path("step-00000006")
