"""The tensor of all read-outs: its columns by name, and layers of different numbers of steps."""

import io

import torch

from dualpath_cli.model.routing import LayerTrace, RoutingTrace
from dualpath_cli.output.console import plain_console
from dualpath_cli.study.routing.readouts import READOUTS
from dualpath_cli.study.routing.terminal import show


def layer_of(loops: int, seed: int) -> LayerTrace:
    draw = torch.Generator().manual_seed(seed)
    layer = LayerTrace()
    for name in (*READOUTS, "step_weights", "step_sizes", "step_cosines"):
        if name not in ("deep_share", "expected_loops"):  # these follow from the others
            shape = (2, 5, loops) if name.startswith("step") else (2, 5)
            setattr(layer, name, torch.rand(shape, generator=draw))
    return layer


def test_the_terminal_shows_no_weight_of_a_step_that_a_layer_has_not():
    out = io.StringIO()
    trace = RoutingTrace([layer_of(2, 0), layer_of(3, 1)])
    show(plain_console(file=out), [b"a"] * 4, trace, None)
    rows = [line.split("│") for line in out.getvalue().splitlines() if line.startswith("│")]
    assert [[len(cell.split()) for cell in row[-4:-1]] for row in rows] == [[2] * 3, [3] * 3]
