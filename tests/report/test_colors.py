"""The colours against a model of how people see, colour-blind ones too."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from dualpath_cli.report import figures
from dualpath_cli.report.figures import DEEP, EVEN, FAMILY_COLORS, INK, SOURCES, WIDE

colorspacious = pytest.importorskip("colorspacious")


BLIND = ["deuteranomaly", "protanomaly", "tritanomaly"]


def seen(deficiency: str | None = None, rgb: np.ndarray | None = None) -> np.ndarray:
    """Colours, or those of the map, in CAM02-UCS, where distances are how different they look."""
    rgb = figures.share_colormap()(np.linspace(0, 1, 256))[:, :3] if rgb is None else rgb
    space = {"name": "sRGB1"}
    if deficiency is not None:
        space = {"name": "sRGB1+CVD", "cvd_type": deficiency, "severity": 100}
    return colorspacious.cspace_convert(np.clip(rgb, 0, 1), space, "CAM02-UCS")


def least_difference(colors: Sequence[str], others: Sequence[str], deficiency: str | None) -> float:
    one, other = (seen(deficiency, np.array([*map(to_rgb, c)])) for c in (colors, others))
    return np.linalg.norm(one[:, None] - other, axis=-1).min()


def test_the_map_runs_from_wide_over_even_to_deep_in_steps_that_look_equally_large():
    colors, lightness = figures.share_colormap(), seen()[:, 0]
    for place, name in ((0.0, WIDE), (0.5, EVEN), (1.0, DEEP)):
        assert colors(place)[:3] == pytest.approx(to_rgb(name), abs=1 / 255)
    assert lightness[0] == pytest.approx(lightness[-1], abs=5)
    steps = np.linalg.norm(np.diff(seen(), axis=0), axis=1)
    for half in (steps[:127], steps[128:]):
        assert half.max() < 1.6 * half.min()
    assert steps[:127].sum() == pytest.approx(steps[128:].sum(), rel=0.35)


@pytest.mark.parametrize("deficiency", [None, *BLIND])
def test_everybody_tells_families_in_their_shades_and_six_sources_apart(deficiency):
    counts = {"wide": 1, "expanded": 1, "loop": 3, "dual": 9}  # as the study has them
    families = [figures.shades(FAMILY_COLORS[family], count) for family, count in counts.items()]
    sources = [[color] for color in (INK, *SOURCES[:6])]
    for colors, least in ((families, 10), (sources, 18)):
        for one, other in combinations(colors, 2):
            assert least_difference(one, other, deficiency) > least, (one, other)
    assert least_difference([DEEP, WIDE, FAMILY_COLORS["dual"]], SOURCES, None) > 15
    assert families[0] == [WIDE.lower()]
    assert all(len(set(colors)) == len(colors) for colors in families)
