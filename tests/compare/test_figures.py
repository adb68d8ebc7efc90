"""What the figures show, read back from their axes."""

import numpy as np
import pytest
from matplotlib.image import imread

from dualpath_cli.compare import figures
from dualpath_cli.compare.groups import Group, groups_of
from dualpath_cli.compare.runs import find_folders, read_run
from dualpath_cli.compare.tables import differences_of
from dualpath_cli.report.figures import FAMILY_COLORS, save
from tests.compare.run_folders import (
    BATCH,
    configuration,
    group,
    model_of,
    wide,
    write_run,
    write_sweep,
)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Group:
    folder = tmp_path_factory.mktemp("made") / "sweep"
    write_sweep(folder, ["wide", "loop_k2", "loop_k4", "a50_k2", "a50_k4", "a25_k4"], range(2))
    (made,) = groups_of([read_run(path) for path in find_folders([str(folder)])])
    return made


def test_quality_has_a_point_a_configuration_a_line_an_alpha_and_a_curve(swept):
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
    # Three controls have one quadratic.
    (curve,) = (line.get_xydata() for line in ax.lines if line.get_linestyle() == "--")
    controls = [c for c in swept.configurations if c.family in ("wide", "loop")]
    ends = sorted((c.parameters, c.mean("aggregate")) for c in controls)[::2]
    assert curve[[0, -1]] == pytest.approx(np.array(ends), rel=1e-9)
    # a25 has one K.
    assert sorted(len(line) for line in lines) == [1, 2]
    assert {text.get_text() for text in ax.texts} == {"α 25", "α 50"}
    assert [figures.COUNTS(value) for value in (719e6, 1.4e9, 0)] == ["719M", "1.4B", "0"]


def test_variants_of_one_alpha_are_told_apart_by_their_names():
    made = group(
        wide({0: 2.0}), configuration("a50_k4", {0: 1.9}, loops=4),
        configuration("a50_k4-gate_convex", {0: 1.95}, loops=4),
    )  # fmt: skip
    (ax,) = figures.quality([made]).axes
    assert [text.get_text() for text in ax.texts] == ["a50_k4", "a50_k4-gate_convex"]
    assert ax.get_title().endswith(", single runs")


def test_the_gain_of_a_place_stands_over_its_layer_with_its_interval_a_line_a_setting():
    swept = [
        configuration(f"a50_k4_layer{n}{setting}", {0: 1.9 + n / 10, 1: 1.9 + n / 9}, place=n)
        for n in (0, 1, 12) for setting in ("", "-decay_0.1")
    ]  # fmt: skip
    made = group(wide({0: 2.0, 1: 2.03}), configuration("a50_k4", {0: 1.8, 1: 1.81}), *swept)
    rows = differences_of([made])
    (ax,) = figures.places([made], rows).axes
    by_name = {row.configuration: row for row in rows if row.measure == "aggregate"}
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "a50_k4", "a50_k4-decay_0.1",
    ]  # fmt: skip
    for bars, setting in zip(ax.containers, ("", "-decay_0.1"), strict=True):
        expected = [by_name[f"a50_k4_layer{n}{setting}"] for n in (0, 1, 12)]
        points = np.array(bars[0].get_xydata())
        assert points[:, 0].round().tolist() == [0, 1, 12]
        assert points[:, 1].tolist() == [row.difference for row in expected]
        ends = [segment[:, 1].tolist() for segment in bars[2][0].get_segments()]
        assert ends == [pytest.approx([row.low, row.high]) for row in expected]
    assert figures.places([group(wide({0: 2.0, 1: 2.0}), swept[0])], rows) is None


def test_losses_are_compared_at_the_same_tokens_of_the_same_seeds(swept):
    wide_model, other = swept.configurations[0], swept.configurations[-1]
    theirs, ours = figures.shared_points([wide_model, other])
    assert np.array_equal(ours[..., figures.TOKENS], theirs[..., figures.TOKENS])
    both = [c.scores["aggregate"] for c in (other, wide_model)]
    gaps = [both[0][seed] - both[1][seed] for seed in (0, 1)]
    assert (ours - theirs)[..., figures.LOSS] == pytest.approx(np.array(gaps)[:, None].repeat(4, 1))


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
    figures.draw([made], [])


def test_figures_are_drawn_and_none_stays_of_an_earlier_comparison(swept, tmp_path):
    written = save(tmp_path, figures.draw([swept], []))
    assert [path.name for path in written] == [
        f"{name}.{suffix}" for name in ("quality", "curves") for suffix in ("png", "pdf")
    ]
    assert all(imread(path).std() > 0.01 for path in written if path.suffix == ".png")
    save(tmp_path, {"quality": figures.quality([swept]), "curves": None})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["quality.pdf", "quality.png"]
