"""The colours against a model of how people see, colour-blind ones too."""

import numpy as np
import pytest

from dualpath_cli.output.colors import DEEP, EVEN, WIDE, share_colormap

colorspacious = pytest.importorskip("colorspacious")


def seen(deficiency: str | None = None) -> np.ndarray:
    """The colour map in CAM02-UCS, where distances are how different colours look."""
    rgb = share_colormap()(np.linspace(0, 1, 256))[:, :3]
    space = {"name": "sRGB1"}
    if deficiency is not None:
        space = {"name": "sRGB1+CVD", "cvd_type": deficiency, "severity": 100}
    return colorspacious.cspace_convert(np.clip(rgb, 0, 1), space, "CAM02-UCS")


def test_the_map_runs_from_wide_over_even_to_deep():
    from matplotlib.colors import to_rgb

    colors = share_colormap()
    for place, name in ((0.0, WIDE), (0.5, EVEN), (1.0, DEEP)):
        assert colors(place)[:3] == pytest.approx(to_rgb(name), abs=1 / 255)


def test_equal_steps_look_equally_large():
    steps = np.linalg.norm(np.diff(seen(), axis=0), axis=1)
    for half in (steps[:127], steps[128:]):
        assert half.max() < 1.6 * half.min()
    assert steps[:127].sum() == pytest.approx(steps[128:].sum(), rel=0.35)


def test_both_ends_are_about_equally_dark():
    lightness = seen()[:, 0]
    assert lightness[0] == pytest.approx(lightness[-1], abs=5)
    assert (np.diff(lightness[:128]) > 0).all()
    assert (np.diff(lightness[128:]) < 0).all()


@pytest.mark.parametrize("deficiency", ["deuteranomaly", "protanomaly", "tritanomaly"])
def test_the_colour_blind_tell_wide_from_deep(deficiency):
    colors = seen(deficiency)
    assert np.linalg.norm(colors[0] - colors[-1]) > 20
    for share in (0.1, 0.25, 0.4):  # also where neither path has all
        low, high = colors[int(255 * share)], colors[255 - int(255 * share)]
        assert np.linalg.norm(low - high) > 50 * (0.5 - share) * 0.8
