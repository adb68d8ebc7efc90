"""The tensor of all read-outs: its columns by name, and layers of different numbers of steps."""

import io

import torch

from dualpath_cli.model.routing import LayerTrace, RoutingTrace
from dualpath_cli.output.console import plain_console
from dualpath_cli.study.routing.readouts import READOUTS, by_name, dual_layers, two_digits
from dualpath_cli.study.routing.terminal import show


def layer_of(loops: int, seed: int) -> LayerTrace:
    draw = torch.Generator().manual_seed(seed)
    layer = LayerTrace()
    for name in (*READOUTS, "step_weights", "step_sizes", "step_cosines"):
        if name not in ("deep_share", "expected_loops"):  # these follow from the others
            shape = (2, 5, loops) if name.startswith("step") else (2, 5)
            setattr(layer, name, torch.rand(shape, generator=draw))
    return layer


def test_a_layer_of_fewer_steps_has_blanks_for_the_others():
    layers = [layer_of(2, 0), LayerTrace(), layer_of(3, 1)]  # one without gates
    values = by_name(dual_layers(RoutingTrace(layers)))
    for place, layer in enumerate((layers[0], layers[2])):
        loops = layer.step_weights.shape[-1]
        for name in READOUTS:
            assert torch.equal(values[name][..., place], getattr(layer, name)), name
        for name in ("step_weights", "step_sizes", "step_cosines"):
            assert torch.equal(values[name][..., place, :loops], getattr(layer, name)), name
    assert (values["step_weights"][..., 0, 2] == 0).all(), "no step, no weight"
    assert values["step_sizes"][..., 0, 2].isnan().all()
    assert values["step_cosines"][..., 0, 2].isnan().all()


def test_the_terminal_shows_no_weight_of_a_step_that_a_layer_has_not():
    out = io.StringIO()
    trace = RoutingTrace([layer_of(2, 0), layer_of(3, 1)])
    show(plain_console(file=out), [b"a"] * 4, trace, None)
    rows = [line.split("│") for line in out.getvalue().splitlines() if line.startswith("│")]
    assert [[len(cell.split()) for cell in row[-4:-1]] for row in rows] == [[2] * 3, [3] * 3]


def test_sizes_are_written_with_two_digits():
    written = [two_digits(size) for size in (0.000395, 0.2, 0.996, 12.0, 9.1e-5)]
    assert written == ["0.00040", "0.20", "1.0", "12", "9.1e-05"]
