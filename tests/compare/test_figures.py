"""What the figures show, read back from their axes."""

import numpy as np
import pytest
from matplotlib.image import imread

from dualpath_cli.compare import figures
from dualpath_cli.compare.groups import Group, groups_of
from dualpath_cli.compare.runs import find_folders, read_run
from dualpath_cli.report.figures import FAMILY_COLORS, save
from tests.compare.run_folders import (
    BATCH,
    model_of,
    write_run,
    write_sweep,
)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Group:
    folder = tmp_path_factory.mktemp("made") / "sweep"
    write_sweep(folder, ["wide", "loop_k2", "loop_k4", "a50_k2", "a50_k4", "a25_k4"], range(2))
    (made,) = groups_of([read_run(path) for path in find_folders([str(folder)])])
    return made


def test_quality_has_a_point_a_configuration_and_a_line_an_alpha(swept):
    (ax,) = figures.quality([swept]).axes
    points = {
        (tuple(bars[0].get_xydata()[0])): (bars[0].get_color(), bars[0].get_marker())
        for bars in ax.containers
    }
    assert points == {
        (c.parameters, c.mean("aggregate")): (
            FAMILY_COLORS[c.family],
            figures.MARKERS[c.loops or 1],
        )
        for c in swept.configurations
    }
    bars = [line.get_segments()[0][:, 1] for bar in ax.containers for line in bar[2]]
    errors = [c.standard_error("aggregate") for c in swept.configurations]
    assert [high - low for low, high in bars] == pytest.approx([2 * error for error in errors])
    lines = [line.get_xydata() for line in ax.lines if line.get_linestyle() == "-"]
    assert sorted(len(line) for line in lines) == [1, 2]  # a25 has one K
    assert {text.get_text() for text in ax.texts} == {"α 25", "α 50"}
    assert [figures.COUNTS(value) for value in (719e6, 1.4e9, 0)] == ["719M", "1.4B", "0"]


def test_losses_are_compared_at_the_same_tokens_of_the_same_seeds(swept):
    wide_model, other = swept.configurations[0], swept.configurations[-1]
    theirs, ours = figures.shared_points([wide_model, other])
    assert np.array_equal(ours[..., figures.TOKENS], theirs[..., figures.TOKENS])
    both = [c.scores["aggregate"] for c in (other, wide_model)]
    gaps = [both[0][seed] - both[1][seed] for seed in (0, 1)]
    assert (ours - theirs)[..., figures.LOSS] == pytest.approx(np.array(gaps)[:, None].repeat(4, 1))
    losses, gains, times = figures.curves([swept]).axes
    assert len(losses.lines) == len(times.lines) == len(swept.configurations)
    assert gains.lines[-2].get_ydata() == pytest.approx([np.mean(gaps)] * 4)
    minutes = [run.curve[-1][figures.HOURS] * 60 for run in wide_model.runs]
    assert times.lines[0].get_xdata()[-1] == pytest.approx(np.mean(minutes))
    assert times.get_xlabel() == "measured minutes of training"


@pytest.mark.parametrize(("kept", "steps"), [((1, 3), (20, 40)), ((0, 2), (10, 30)), ((), ())])
def test_runs_that_logged_at_other_steps_share_some_or_have_no_line(tmp_path, kept, steps):
    scores = {"novels": 2.0, "peps": 2.0}
    folders = [write_run(tmp_path / f"{n}", model_of("wide"), scores, seed=n) for n in range(2)]
    head, *rows = (folders[1] / "metrics.csv").read_text().splitlines(keepends=True)
    left = [rows[n] for n in kept] or [rows[0].replace("10,40960", "15,61440")]
    (folders[1] / "metrics.csv").write_text("".join([head, *left]))
    (made,) = groups_of([read_run(folder) for folder in folders])
    (points,) = figures.shared_points(made.configurations)
    assert points.shape == (2, len(steps), 3)
    assert points[0, :, figures.TOKENS].tolist() == [step * BATCH for step in steps]
    figures.draw([made])


def test_figures_are_drawn(swept, tmp_path):
    written = save(tmp_path, figures.draw([swept]))
    assert [path.name for path in written] == [
        f"{name}.{suffix}" for name in ("quality", "curves") for suffix in ("png", "pdf")
    ]
    assert all(imread(path).std() > 0.01 for path in written if path.suffix == ".png")
