"""Read-outs of tokens: their sums against loops, and the means of these."""

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.pytorch.strategies import SingleDeviceStrategy

from dualpath_cli.report.bootstrap import resample_weights
from dualpath_cli.report.figures import INK, layer_ticks, panels
from dualpath_cli.study.parts_of_speech import CLASSES, UPOS
from dualpath_cli.study.routing import readouts
from dualpath_cli.study.routing.figures import (
    density_by_layer_figure,
    depth_figure,
    part_of_speech_figure,
)
from dualpath_cli.study.routing.readouts import (
    READOUTS,
    TAG_READOUTS,
    RoutingSums,
    columns,
)
from dualpath_cli.study.routing.summary import Summary

LAYERS, LOOPS, EXPERTS, TAKEN = 2, 3, 5, 2
BINS = readouts.GATE_BINS
COLUMN = {name: number for number, name in enumerate(columns(LOOPS))}


def batch(seed: int, sequences: int, length: int) -> dict[str, torch.Tensor]:
    """Random read-outs of sequences, some of whose positions are not text."""
    draw = np.random.default_rng(seed)
    values = draw.random((sequences, length, LAYERS, len(READOUTS) + 3 * LOOPS))
    values[..., 2:4] *= 20
    text = draw.random((sequences, length)) < 0.8
    values[~text] = math.nan  # what is no text must not count, whatever it holds
    chosen = draw.random((sequences, length, LAYERS, EXPERTS)).argsort(-1)[..., :TAKEN]
    return {
        "values": torch.from_numpy(values),
        "chosen": torch.from_numpy(chosen.copy()),
        "text": torch.from_numpy(text),
        "weights": torch.from_numpy(
            np.stack([resample_weights("a", n) for n in range(sequences)])
        ),
        "tags": torch.from_numpy(draw.integers(-1, len(UPOS), (sequences, length))),
    }


def sums_of(*batches: dict[str, torch.Tensor]) -> readouts.Sums:
    metric = RoutingSums(LAYERS, LOOPS, EXPERTS, torch.device("cpu"))
    for one in batches:
        metric.update(**one)
    return metric.compute(SingleDeviceStrategy())


def rows_of(whole: dict[str, torch.Tensor], rows: slice) -> dict[str, torch.Tensor]:
    return {name: tensor[rows] for name, tensor in whole.items()}


def test_every_sum_is_that_of_a_loop_over_tokens_and_layers():
    data = batch(0, sequences=5, length=70)
    actual = sums_of(data)
    expected = {name: np.zeros_like(array) for name, array in actual.items()}
    for s in range(5):
        weight = data["weights"][s].numpy()
        for t in range(70):
            if not data["text"][s, t]:
                continue
            expected["tokens"] += weight
            tag = int(data["tags"][s, t])
            if tag >= 0:
                expected["tag_tokens"][:, tag] += weight
            for layer in range(LAYERS):
                read = data["values"][s, t, layer].tolist()
                g_d, g_w, norm_d, norm_w = read[:4]
                for name, value in {
                    **dict(zip(READOUTS, read, strict=False)),
                    **{
                        f"{name}_{k + 1}": read[len(READOUTS) + place * LOOPS + k]
                        for place, name in enumerate(
                            ("step", "step_size", "step_cosine")
                        )
                        for k in range(LOOPS)
                    },
                }.items():
                    expected["sums"][:, layer, COLUMN[name]] += weight * value
                expected["gate_density"][layer, int(g_d * BINS), int(g_w * BINS)] += 1
                deep, wide = (
                    int(math.log1p(g * norm) * readouts.CONTRIBUTION_BINS / 8.0)
                    for g, norm in ((g_d, norm_d), (g_w, norm_w))
                )
                expected["contribution_density"][layer, deep, wide] += 1
                if tag >= 0:
                    for place, name in enumerate(TAG_READOUTS):
                        value = read[READOUTS.index(name)]
                        expected["tag_sums"][:, tag, layer, place] += weight * value
                for expert in data["chosen"][s, t, layer].tolist():
                    expected["expert_tokens"][:, layer, expert] += weight
    for name, array in expected.items():
        assert array.any(), name
        np.testing.assert_allclose(
            actual[name], array, rtol=1e-12, atol=1e-12, err_msg=name
        )


def test_the_cores_means_are_those_of_a_loop_over_tokens():
    data = batch(0, sequences=3, length=9)
    draw = np.random.default_rng(1)
    core = draw.random((3, 9, 3, 4))  # weights, sizes, cosines of four repetitions
    core[:, :, 2, 0] = math.nan  # the first has no cosine
    core[~data["text"].numpy()] = math.nan
    metric = RoutingSums(LAYERS, LOOPS, EXPERTS, torch.device("cpu"), repetitions=4)
    metric.update(**data, core=torch.from_numpy(core))
    sums = metric.compute(SingleDeviceStrategy())
    counts = {"clusters": np.array(3), "experts": np.array([EXPERTS] * LAYERS)}
    labels = ("1, r 1", "1, r 2")
    summary = Summary.from_sums(sums | counts, labels, LOOPS)

    text = data["text"].numpy()
    plain = [core[s, t] for s in range(3) for t in range(9) if text[s, t]]
    for name, mean in zip(summary.core, np.mean(plain, 0), strict=True):
        np.testing.assert_allclose(summary.core[name][0], mean)
    report = summary.report()["core"]
    expected = sum(r * weight for r, weight in enumerate(np.mean(plain, 0)[0], 1))
    assert report["expected_core_loops"]["mean"] == pytest.approx(expected)
    assert report["core_cosines"]["mean"][0] is None
    assert summary.layers_text([0, 1]) == "layers 1, r 1 to 1, r 2"


@settings(max_examples=20)
@given(st.integers(0, 1000), st.lists(st.integers(0, 6), max_size=3), st.randoms())
def test_batches_and_their_order_do_not_matter(seed, cuts, random):
    data = batch(seed, sequences=6, length=9)
    ends = sorted({0, 6, *cuts})
    batches = [rows_of(data, slice(a, b)) for a, b in pairwise(ends)]
    random.shuffle(batches)
    whole, split = sums_of(data), sums_of(*batches)
    for name, array in whole.items():
        np.testing.assert_allclose(
            split[name], array, rtol=1e-12, atol=1e-12, err_msg=name
        )


def test_nan_and_infinity_are_in_the_bins_of_the_ends():
    values = torch.tensor([math.nan, -1.0, 0.0, 0.5, 1.0, 2.0, math.inf])
    assert readouts._bin(values, 10, 1.0).tolist() == [0, 0, 0, 5, 9, 9, 9]


RESAMPLED = 11


def summary_of(layers: int = 6) -> Summary:
    """A summary without spread: every resample is the same."""
    columns = {"cosine": np.full((RESAMPLED, layers), 0.3)}
    nothing = {
        name: np.full((RESAMPLED, len(UPOS), layers), np.nan) for name in TAG_READOUTS
    }
    return Summary(
        tuple(range(layers)),
        columns,
        nothing,
        {name: np.full((RESAMPLED, layers), np.nan) for name in CLASSES},
        clusters=100,
    )


def with_shares(summary: Summary) -> Summary:
    cosines = summary.means["cosine"]
    return dataclasses.replace(
        summary, means={"deep_share": cosines, "cosine": cosines}
    )


def from_batch(data: dict[str, torch.Tensor]) -> Summary:
    counts = {
        "clusters": np.array(len(data["text"])),
        "experts": np.array([EXPERTS] * LAYERS),
    }
    sums = sums_of(data) | counts
    return Summary.from_sums(sums, range(LAYERS), LOOPS)


# Means and differences


def test_a_rare_part_of_speech_is_left_out_and_a_frequent_one_is_a_mean():
    data = batch(0, sequences=4, length=30)
    data["text"][:] = True
    data["values"] = data["values"].nan_to_num(0.5)
    data["tags"][:] = UPOS.index("NOUN")
    data["tags"].view(-1)[:9] = UPOS.index("NUM")
    data["tags"].view(-1)[9:19] = UPOS.index("SYM")
    summary = from_batch(data)
    # NUM has nine
    assert {UPOS[place] for place in summary.known_tags} == {"NOUN", "SYM"}
    shares_PL = summary.tag_means["deep_share"][0]
    means = [shares_PL[place].mean() for place in summary.known_tags]
    assert means == sorted(means)
    report = summary.report()["upos"]
    share = data["values"][..., 5].reshape(-1, LAYERS).numpy()
    assert report["SYM"]["layers"]["mean"] == pytest.approx(share[9:19].mean(0))
    assert report["SYM"]["deep_share"]["mean"] == pytest.approx(share[9:19].mean())


def test_sources_weigh_the_same_however_long_they_are():
    short = from_batch(batch(0, 2, 10))
    long = from_batch(batch(1, 20, 30))
    both = Summary.average([short, long])
    for name in short.means:
        np.testing.assert_allclose(
            both.means[name], (short.means[name] + long.means[name]) / 2
        )
    # What one source does not have, the other one decides.
    noun = UPOS.index("NOUN")
    for name in TAG_READOUTS:
        assert np.isnan(short.tag_means[name][0, noun]).all()
        np.testing.assert_array_equal(
            both.tag_means[name][:, noun], long.tag_means[name][:, noun]
        )


def test_a_source_that_knows_no_part_of_speech_leaves_the_colours_to_the_others():
    noun = UPOS.index("NOUN")
    long = summary_of()
    long.tag_means["deep_share"][:, noun] = 0.3
    sources = {"short": summary_of(), "long": long}
    figure = part_of_speech_figure(sources, Summary.average(list(sources.values())))
    assert figure is not None
    ranges = {image.get_clim() for ax in figure.axes for image in ax.images}
    assert ranges == {(0.3, 0.7)}


def test_a_box_has_a_tags_means_of_all_layers_and_sources_and_stands_by_their_median():
    noun, verb = UPOS.index("NOUN"), UPOS.index("VERB")
    first, second = summary_of(), summary_of()
    first.tag_means["deep_share"][:, noun] = (0.2, 0.2, 0.2, 0.2, 0.3, 1.0)
    second.tag_means["deep_share"][:, noun] = (0.1, 0.1, 0.2, 0.2, 0.3, 1.0)
    first.tag_means["deep_share"][:, verb] = 0.25  # of which the second has too few
    sources = {"first": first, "second": second}
    figure = part_of_speech_figure(sources, Summary.average([first, second]))
    assert figure is not None
    maps = [ax for ax in figure.axes if ax.images]
    assert len(maps) == 3
    tags_of_maps = [label.get_text() for label in maps[0].get_yticklabels()]
    assert tags_of_maps == ["VERB", "NOUN"]  # by the mean

    (boxes,) = [ax for ax in figure.axes if ax.get_title() == "all layers and sources"]
    tags_of_boxes = [label.get_text() for label in boxes.get_yticklabels()]
    assert tags_of_boxes == ["NOUN", "VERB"]
    assert boxes.yaxis_inverted()  # the deepest at the bottom
    medians = [line for line in boxes.lines if line.get_color() == INK]
    assert [line.get_xdata()[0] for line in medians] == [0.2, 0.25]
    assert boxes.dataLim.x1 == pytest.approx(1.0)  # the farthest one is drawn, too


def test_every_layer_of_every_source_has_a_panel_of_its_gates_in_the_same_colours():
    sums = {"a": sums_of(batch(0, 3, 20)), "b": sums_of(batch(1, 2, 30))}
    figure = density_by_layer_figure(sums, summary_of(LAYERS))
    drawn = [ax for ax in figure.axes if ax.images]
    panels = [(source, layer) for source in sums for layer in range(LAYERS)]
    for ax, (source, layer) in zip(drawn, panels, strict=True):
        counts = sums[source]["gate_density"][layer]  # (deep, wide)
        shown = ax.images[0].get_array()
        np.testing.assert_allclose(shown, counts / counts.sum())

    assert len({ax.images[0].get_clim() for ax in drawn}) == 1
    assert [ax.get_title() for ax in drawn] == ["layer 0", "layer 1", "", ""]
    assert [ax.get_xlabel() for ax in drawn] == ["", "", "$g_w$", "$g_w$"]
    assert [ax.get_ylabel() for ax in drawn] == ["a\n$g_d$", "", "b\n$g_d$", ""]


@pytest.mark.parametrize("layers", [1, 16])
def test_panels_of_one_layer_and_of_sixteen_are_square_and_large_enough(layers):
    density = sums_of(batch(0, 2, 20))["gate_density"][:1].repeat(layers, 0)
    sums = {name: {"gate_density": density} for name in ("a", "b", "c")}
    figure = density_by_layer_figure(sums, summary_of(layers))
    figure.draw_without_rendering()
    boxes = [ax.get_window_extent() for ax in figure.axes if ax.images]
    assert len(boxes) == 3 * layers
    for box in boxes:
        assert box.width == pytest.approx(box.height, rel=1e-3)
        assert 0.7 < box.width / figure.dpi < 2.4  # inches


@pytest.mark.parametrize("layers", [1, 8, 9, 16, 48, 64])
def test_axes_label_eight_layers_or_fewer(layers):
    summary = with_shares(summary_of(layers))
    _, axes = panels(2, 2)
    layer_ticks(axes[0, 0].xaxis, range(layers))
    for ax in (*depth_figure({"text": summary}, summary).axes, axes[0, 0]):
        assert min(layers, 3) <= len(ax.get_xticks()) <= 8


def test_no_two_of_many_sources_look_the_same():
    summary = with_shares(summary_of())
    sources = {f"text {n}": summary for n in range(15)}
    ax = depth_figure(sources, summary).axes[0]
    drawn = [line for line in ax.get_lines() if line.get_label() in sources]
    looks = {(line.get_color(), line.get_linestyle()) for line in drawn}
    marks = {(line.get_color(), line.get_marker()) for line in drawn}
    assert len(drawn) == len(looks) == len(marks) == len(sources)


def test_a_source_whose_name_begins_with_underscores_is_in_the_legend():
    summary = with_shares(summary_of())
    (legend,) = depth_figure({"__text": summary}, summary).legends
    assert [text.get_text() for text in legend.get_texts()] == ["text"]


def test_an_average_knows_no_more_than_its_shortest_source():
    few, many = (dataclasses.replace(summary_of(), clusters=n) for n in (9, 1000))
    both = Summary.average([many, few])
    assert both.estimate(both.means["cosine"])["low"] == [None] * 6
    assert many.estimate(many.means["cosine"])["low"] == [0.3] * 6


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (16, {"early": (0, 4), "middle": (5, 9), "late": (10, 15)}),  # the paper's
        (4, {"early": (0, 0), "middle": (1, 1), "late": (2, 3)}),
        (2, {"early": (0, 0), "late": (1, 1)}),
        (1, {"late": (0, 0)}),
    ],
)
def test_bands_are_thirds_of_the_layers(layers, expected):
    bands = summary_of(layers).bands
    assert {name: (own[0], own[-1]) for name, own in bands.items()} == expected
