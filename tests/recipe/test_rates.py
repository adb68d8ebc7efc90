"""Rates and initial values by kind of parameter."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.recipe.schedule import rate_factor, std_factors
from dualpath_cli.recipe.settings import OptimSettings
from dualpath_cli.spec.config import GROUP_OF
from dualpath_cli.training.muon import shape_factor

WIDTHS = st.sampled_from([16, 32, 96, 128, 768, 1000])
FACTORS = st.dictionaries(st.sampled_from(list(GROUP_OF)), st.floats(0, 1000))
OUTPUTS = ("head", "router", "gate")


@given(kind=st.sampled_from(list(GROUP_OF)), scale=FACTORS, base=WIDTHS, width=WIDTHS)
def test_factors_are_those_of_table_3_times_the_scale_of_the_kind(kind, scale, base, width):
    """Hidden: Adam's rate 1 / fan_in, variance 1 / fan_in; output: 1 / fan_in, 1 / fan_in^2."""
    settings = OptimSettings(lr_scale=scale, base_width=base)
    fan_in = width / base
    matrix = kind == "hidden" or kind in OUTPUTS
    variance = {"hidden": 1 / fan_in, **dict.fromkeys(OUTPUTS, 1 / fan_in**2)}.get(kind, 1)
    wanted = scale.get(kind, 1) * (1 / fan_in if matrix else 1)
    assert rate_factor(kind, settings, width) == pytest.approx(wanted)
    assert std_factors(settings, width)[kind] == pytest.approx(math.sqrt(variance))


@given(kind=st.sampled_from(list(GROUP_OF)), scale=FACTORS, width=WIDTHS)
def test_at_the_base_width_nothing_is_scaled_to_the_bit(kind, scale, width):
    for base in (None, width):
        settings = OptimSettings(lr_scale=scale, base_width=base)
        assert rate_factor(kind, settings, width) == scale.get(kind, 1)
        assert std_factors(settings, width)[kind] == 1


@given(width=WIDTHS, base=WIDTHS, adjust=st.sampled_from(["match_rms_adamw", "original"]))
def test_muons_updates_have_one_spectral_norm_at_all_widths(width, base, adjust):
    """Of an orthogonal matrix it is 1, times the factor of the shape and that of the rate."""
    settings = OptimSettings(name="muon", muon_adjust=adjust, muon_lr=0.02, base_width=base)
    for rows, columns in ((1, 1), (4, 1), (1, 4)):
        norms = [
            rate_factor("hidden", settings, d)
            * shape_factor(torch.Size((rows * d, columns * d)), adjust)
            for d in (base, width)
        ]
        assert norms[1] == pytest.approx(norms[0])
        assert rate_factor("hidden", settings, base) == pytest.approx(0.02 / settings.lr)
    assert rate_factor("head", settings, width) == pytest.approx(base / width)
    assert std_factors(settings, width)["hidden"] == pytest.approx((base / width) ** 0.5)
