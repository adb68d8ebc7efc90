"""The page of a comparison in Chromium; its figures, read back from their axes."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from dualpath_cli.cli.main import main
from dualpath_cli.compare import figures, routing_figure
from dualpath_cli.compare.baselines import groups_of
from dualpath_cli.compare.configurations import Group
from dualpath_cli.compare.differences import AFTER, differences_of
from dualpath_cli.compare.runs import find_folders, read_trained_run
from dualpath_cli.report.figures import FAMILY_COLORS, MUTED, WIDE, panels
from dualpath_cli.report.page import page, pictures, tables, terms
from dualpath_cli.report.table import Column, Table
from tests.compare.run_folders import BATCH, model_of, write_run, write_sweep

NAMES = ("a_k10", "a_k2", "<b>&amp;</b>", "none")
NUMBERS = (-1.5, 2.0, -20.0, math.nan)


def table() -> Table:
    rows = list(zip(NAMES, NUMBERS, strict=True))
    columns = [Column("name"), Column("score", "{:+.1f} ±".format, marks_lowest=True)]
    wide = [Column("n" * 60, "") for _ in range(4)]
    return Table([*columns, *wide], rows, "budget <i>1M</i>", "a caption")


def figure() -> Figure:
    drawn, axes = panels(8, 2)
    axes[0, 0].plot([0, 1], [1, 0], color=WIDE)
    axes[0, 0].annotate("a <b>", (0.5, 0.5), color=MUTED)
    return drawn


@pytest.fixture
def tab(chromium, tmp_path: Path):
    """The page, which asks for nothing and meets no error."""
    met: list[str] = []
    path = tmp_path / "index.html"
    drawn = pictures(
        {"quality": figure(), "curves": None}, {"quality": "a figure", "curves": ""}
    )
    path.write_text(page("runs", [terms([("runs", "<4>")]), tables([table()]), drawn]))
    context = chromium.new_context(offline=True)
    opened = context.new_page()
    opened.on("console", lambda message: met.append(message.text))
    opened.on("pageerror", lambda error: met.append(str(error)))
    opened.on("request", lambda asked: met.append(asked.url[:30]))
    opened.goto(path.as_uri())
    yield opened
    context.close()
    assert {line for line in met if not line.startswith("data:")} == {
        path.as_uri()[:30]
    }


def column(tab) -> list[str]:
    return tab.eval_on_selector_all(
        "tbody td:first-child", "list => list.map(e => e.textContent)"
    )


def test_names_stand_literally_and_headings_sort_both_ways(tab):
    assert column(tab) == list(NAMES)
    assert tab.inner_text("h2") == "budget <i>1M</i>"
    assert tab.inner_text("dd") == "<4>"
    assert tab.inner_text("strong") == "-20.0 ±"
    score, name = tab.locator("th button").nth(1), tab.locator("th button").nth(0)
    score.click()
    # What is no number stays last, either way.
    assert column(tab) == ["<b>&amp;</b>", "a_k10", "a_k2", "none"]
    assert tab.get_attribute("th:nth-child(2)", "aria-sort") == "ascending"
    score.click()
    assert column(tab) == ["a_k2", "a_k10", "<b>&amp;</b>", "none"]
    name.click()
    assert column(tab) == ["<b>&amp;</b>", "a_k2", "a_k10", "none"]
    assert tab.get_attribute("th:nth-child(2)", "aria-sort") is None


def test_a_multiplier_without_bound_sorts_as_the_largest_number():
    table = Table([Column("multiplier", "g")], [(1.5,), (math.inf,)])
    orders = re.findall('data-order="(.*?)"', tables([table]))
    assert orders == ["1.5", "Infinity"]  # as Number() of JavaScript takes them


INKS = """svg => [
  svg.getAttribute("aria-label"),
  ...["fill", "background-color", "width"].map(name => getComputedStyle(svg)[name]),
  getComputedStyle(document.body).color,
  ...[...svg.querySelectorAll("path[clip-path]")].map(
    path => getComputedStyle(path).stroke
  ),
]"""


def test_figures_take_the_ink_of_the_page_light_or_dark(tab):
    label, ink, ground, _, text_ink, *lines = tab.eval_on_selector("svg", INKS)
    assert label == "a figure"
    assert (ink, ground, lines[-1]) == (
        text_ink,
        "rgba(0, 0, 0, 0)",
        "rgb(76, 140, 184)",
    )
    tab.emulate_media(color_scheme="dark")
    _, dark_ink, _, _, text_ink, *lines = tab.eval_on_selector("svg", INKS)
    assert ink != dark_ink == text_ink
    assert lines[-1] != "rgb(76, 140, 184)"


def test_a_wide_figure_keeps_its_size_and_scrolls_except_on_paper(chromium, tmp_path):
    wide, _ = panels(20, 2)
    path = tmp_path / "wide.html"
    path.write_text(page("runs", [pictures({"wide": wide}, {"wide": "a figure"})]))
    opened = chromium.new_page()
    opened.set_viewport_size({"width": 800, "height": 800})
    opened.goto(path.as_uri())
    inches = "svg => svg.getBoundingClientRect().width / 96"
    assert opened.eval_on_selector("svg", inches) == pytest.approx(20, rel=0.01)
    assert opened.evaluate("document.documentElement.scrollWidth") == 800
    opened.eval_on_selector("figure", "box => { box.scrollLeft = 300; }")
    assert opened.locator("figure").evaluate("box => box.scrollLeft") == 300
    opened.emulate_media(media="print")
    assert opened.eval_on_selector("svg", inches) < 8.4
    opened.close()


@pytest.mark.parametrize("width", [1400, 800, 390])
def test_a_wide_table_scrolls_in_its_box_beside_its_first_column(tab, width):
    tab.set_viewport_size({"width": width, "height": 800})
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    tab.eval_on_selector(".scroll", "box => { box.scrollLeft = 300; }")
    assert tab.locator(".scroll").evaluate("box => box.scrollLeft") == 300
    box, cell = (tab.locator(place).first.bounding_box() for place in (".scroll", "td"))
    assert cell["x"] == pytest.approx(box["x"], abs=2)


def test_results_are_beside_the_names_on_a_phone_and_figures_in_two_columns(
    chromium, tmp_path
):
    sweep = write_sweep(tmp_path / "sweep", ["wide", "loop_k2", "a50_k2"], range(2))
    assert main(["compare", str(sweep)]) == 0
    opened = chromium.new_page()
    opened.goto((sweep / "comparison/index.html").as_uri())
    for width, columns in ((390, 1), (800, 1), (1400, 2)):
        opened.set_viewport_size({"width": width, "height": 900})
        for table in opened.locator("table").all():
            result = table.locator("tbody tr").first.locator("td").nth(1).bounding_box()
            assert result["x"] + result["width"] < width
        places = {round(f.bounding_box()["x"]) for f in opened.locator("figure").all()}
        assert len(places) == columns
    assert opened.locator("th").nth(1).inner_text() == "aggregate"
    opened.close()


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Group:
    folder = tmp_path_factory.mktemp("made") / "sweep"
    write_sweep(
        folder, ["wide", "loop_k2", "loop_k4", "a50_k2", "a50_k4", "a25_k4"], range(2)
    )
    (made,) = groups_of(
        [read_trained_run(path) for path in find_folders([str(folder)])]
    )
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
    assert [high - low for low, high in bars] == pytest.approx(
        [2 * error for error in errors]
    )
    lines = [line.get_xydata() for line in ax.lines if line.get_linestyle() == "-"]
    assert sorted(len(line) for line in lines) == [1, 2]  # a25 has one K
    assert {text.get_text() for text in ax.texts} == {"α 25", "α 50"}
    assert [figures.COUNTS(value) for value in (719e6, 1.4e9, 0)] == [
        "719M",
        "1.4B",
        "0",
    ]


def evaluated(group: Group) -> list[dict[str, Any]]:
    """The mean of the paper's benchmarks of each configuration, by seed."""
    facts = {"metric": "bits per byte", "documents": 17, "window": 64}
    return [
        {
            "group": group.name,
            "configuration": c.name,
            "seed": seed,
            "benchmark": "mean BPB of 17",
            "precision": "float32",
            "score": 1.2 + 0.1 * place + 0.02 * seed,
            **facts,
        }
        for place, c in enumerate(group.configurations)
        for seed in c.seeds
    ]


def test_the_mean_of_the_papers_benchmarks_has_a_panel_with_the_parabola_of_controls(
    swept,
):
    above, below = figures.quality([swept], evaluated(swept)).axes
    assert "aggregate" in above.get_ylabel()
    assert not [line for line in above.lines if line.get_linestyle() == "--"]
    assert "17 benchmarks" in below.get_ylabel()
    points = [tuple(bars[0].get_xydata()[0]) for bars in below.containers]
    means = {c: 1.21 + 0.1 * n for n, c in enumerate(swept.configurations)}
    assert points == [(c.parameters, pytest.approx(means[c])) for c in means]

    assert len([line for line in below.lines if line.get_linestyle() == "--"]) == 1


def test_four_controls_have_the_parabola_with_the_least_squares(swept):
    wide_model, *loops = [c for c in swept.configurations if c.family != "dual"]
    sizes = np.array([1.0, 2.0, 4.0, 7.0])
    controls = [wide_model, *loops, loops[0]]
    four = [
        replace(c, name=f"{n}", parameters=int(1e6 * size))
        for n, (c, size) in enumerate(zip(controls, sizes, strict=True))
    ]
    group = replace(swept, configurations=tuple(four))
    *_, below = figures.quality([group], evaluated(group)).axes
    (parabola,) = [line for line in below.lines if line.get_linestyle() == "--"]

    powers = np.stack([sizes**0, sizes, sizes**2], 1)
    scores = np.array([1.21, 1.31, 1.41, 1.51])
    first, second, third = np.linalg.solve(powers.T @ powers, powers.T @ scores)
    x = parabola.get_xdata() / 1e6
    assert (x[0], x[-1]) == pytest.approx((sizes.min(), sizes.max()))
    assert parabola.get_ydata() == pytest.approx(first + second * x + third * x**2)


def test_two_controls_have_no_parabola_and_no_caption_of_one(swept):
    kept = [c for c in swept.configurations if c.name != "loop_k4"]
    two = replace(swept, configurations=tuple(kept))
    rows = evaluated(two)
    *_, below = figures.quality([two], rows).axes
    assert not [line for line in below.lines if line.get_linestyle() == "--"]
    caption = figures.captions([two], rows)["quality"]
    assert caption.endswith("Below, the mean of the paper's 17 benchmarks.")


@pytest.mark.parametrize("change", [{"configuration": "others"}, {"documents": 9}])
def test_a_mean_that_a_configuration_lacks_is_not_drawn(swept, change):
    rows = evaluated(swept)
    rows[-2:] = [row | change for row in rows[-2:]]
    assert len(figures.quality([swept], rows).axes) == 1
    for evaluations, said in ((evaluated(swept), True), (rows, False)):
        caption = figures.captions([swept], evaluations)["quality"]
        assert ("parabola through PureWide and PureLoop" in caption) == said


def test_no_two_numbers_of_loops_share_a_marker():
    named = set(figures.MARKERS.values())
    assert len(named) == len(figures.MARKERS)
    assert "X" not in named  # of all other numbers


def test_differences_have_their_intervals_and_an_open_mark_without_a_test(swept):
    group = replace(swept, baselines=swept.configurations[:1])
    first, second, *others = differences_of([group], aggregate_only=True, margin=0.02)
    ends = dict.fromkeys(("low", "high", "low_90", "high_90"), math.nan)
    one_seed = replace(first, p=math.nan, test="one seed, no test", **ends)
    too_late = replace(second, p=math.nan, test=AFTER)  # has intervals
    rows = [one_seed, too_late, *others]
    (ax,) = figures.differences([group], rows).axes

    names = [text.get_text() for text in ax.get_yticklabels()]
    assert names == [row.configuration for row in rows]
    assert ax.get_xlabel() == "bits per byte minus those of wide, aggregate"
    colors = {c.name: FAMILY_COLORS[c.family] for c in swept.configurations}
    for place, row in enumerate(rows):
        *bars, mark = [line for line in ax.lines if set(line.get_ydata()) == {place}]
        assert mark.get_xdata() == [row.difference]
        assert mark.get_color() == colors[row.configuration]
        assert (mark.get_markerfacecolor() == "white") == (row in rows[:2])
        drawn = [end for bar in bars for end in bar.get_xdata()]
        its_ends = [row.low, row.high, row.low_90, row.high_90]
        np.testing.assert_array_equal(drawn, its_ends)
        assert {bar.get_solid_capstyle() for bar in bars} == {"butt"}
    (margin,) = ax.patches
    assert margin.get_x() == -0.02
    assert margin.get_width() == 0.04


def test_a_pair_stands_on_two_lines(swept):
    wide, *others = swept.configurations
    group = replace(swept, pairs=tuple((other, wide) for other in others))
    (ax,) = figures.differences([group], differences_of([group])).axes
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert names == [f"{other.name}\nminus wide" for other in others]


def test_without_a_baseline_there_is_no_figure_of_differences(swept):
    assert figures.differences([swept], []) is None


def test_routing_has_a_line_a_model_over_the_sources_that_all_models_have(swept):
    shares = {"a50_k2": 0.2, "a50_k4": 0.6}
    rows = [
        {
            "group": swept.name,
            "configuration": name,
            "source": source,
            "layer": layer,
            "repetition": repetition,
            "runs": 1,
            "deep_share": share + more + layer / 10 + repetition / 100,
            "cosine": share - layer / 10,
        }
        for name, share in shares.items()
        for source, more in (("gsm8k", 0.0), ("novels", 0.1), ("peps", 9.0))
        if (name, source) != ("a50_k2", "peps")
        for layer in (1, 3)
        for repetition in (1, 2)
    ]
    other = replace(swept, name="no routing")
    share_ax, cosine_ax = routing_figure.draw([other, swept], rows).axes
    for ax, even in ((share_ax, 0.5), (cosine_ax, 0.0)):
        *lines, level = ax.lines
        assert list(level.get_ydata()) == [even, even]
        assert [line.get_label() for line in lines] == list(shares)
        assert all(list(line.get_xdata()) == [1, 3] for line in lines)
        colors = {line.get_color() for line in lines}
        assert len(colors) == 2
    for line, share in zip(share_ax.lines, shares.values(), strict=False):
        between = share + 0.05 + 0.015
        assert line.get_ydata() == pytest.approx([between + 0.1, between + 0.3])
    for line, share in zip(cosine_ax.lines, shares.values(), strict=False):
        assert line.get_ydata() == pytest.approx([share - 0.1, share - 0.3])
    assert share_ax.get_title() == swept.name


def test_without_routings_of_a_common_source_there_is_no_figure_of_them(swept):
    assert routing_figure.draw([swept], []) is None
    place = {"group": swept.name, "layer": 0, "deep_share": 0.5, "cosine": 0.1}
    rows = [
        place | {"configuration": name, "source": source}
        for name, source in (("a50_k2", "gsm8k"), ("a50_k4", "novels"))
    ]
    assert routing_figure.draw([swept], rows) is None


def test_losses_are_compared_at_the_same_tokens_of_the_same_seeds(swept):
    wide_model, other = swept.configurations[0], swept.configurations[-1]
    theirs, ours = figures.shared_points([wide_model, other])
    assert np.array_equal(ours[..., figures.TOKENS], theirs[..., figures.TOKENS])
    both = [c.scores["aggregate"] for c in (other, wide_model)]
    gaps = [both[0][seed] - both[1][seed] for seed in (0, 1)]
    assert (ours - theirs)[..., figures.LOSS] == pytest.approx(
        np.array(gaps)[:, None].repeat(4, 1)
    )
    losses, gains, times = figures.curves([swept]).axes
    assert len(losses.lines) == len(times.lines) == len(swept.configurations)
    assert gains.lines[-2].get_ydata() == pytest.approx([np.mean(gaps)] * 4)
    minutes = [run.curve[-1][figures.HOURS] * 60 for run in wide_model.runs]
    assert times.lines[0].get_xdata()[-1] == pytest.approx(np.mean(minutes))
    assert times.get_xlabel() == "measured minutes of training"


def test_the_caption_of_curves_says_which_of_several_rates_they_are_of(swept):
    chosen = tuple(replace(c, best_rate=2e-3) for c in swept.configurations)
    at_best = replace(swept, configurations=chosen)
    for group, said in ((swept, False), (at_best, True)):
        assert ("nearest to the best" in figures.captions([group])["curves"]) == said


@pytest.mark.parametrize(
    ("kept", "steps"), [((1, 3), (20, 40)), ((0, 2), (10, 30)), ((), ())]
)
def test_runs_that_logged_at_other_steps_share_some_or_have_no_line(
    tmp_path, kept, steps
):
    scores = {"novels": 2.0, "peps": 2.0}
    folders = [
        write_run(tmp_path / f"{n}", model_of("wide"), scores, seed=n) for n in range(2)
    ]
    head, *rows = (folders[1] / "metrics.csv").read_text().splitlines(keepends=True)
    left = [rows[n] for n in kept] or [rows[0].replace("10,40960", "15,61440")]
    (folders[1] / "metrics.csv").write_text("".join([head, *left]))
    (made,) = groups_of([read_trained_run(folder) for folder in folders])
    (points,) = figures.shared_points(made.configurations)
    assert points.shape == (2, len(steps), 3)
    assert points[0, :, figures.TOKENS].tolist() == [step * BATCH for step in steps]
    figures.curves([made])
