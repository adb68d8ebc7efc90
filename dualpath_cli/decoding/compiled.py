"""Compiles the parts of a model that decoding runs: launches then bind no small batch."""

import torch

from dualpath_cli.intervention import Intervention
from dualpath_cli.model import DualPathLM
from dualpath_cli.model.sublayer import Sublayer

GRAPHS = 64
"""Graphs that the code of one module may need: by pass, draft and batch."""


def compile_for_decoding(model: DualPathLM, intervention: Intervention | None) -> None:
    """Compiles a model's parts in place, for passes of static shapes.

    Blocks as a whole where every token takes the same way. Where tokens leave out steps and paths,
    who goes on is known only as they come: then sublayers, and the way through them is Python's. On
    a GPU they are meant to become CUDA graphs; that was not run.
    """
    config = torch.compiler.config
    config.recompile_limit = max(config.recompile_limit, GRAPHS)
    mode = "reduce-overhead" if model.embed.weight.device.type == "cuda" else None
    own_ways = intervention is not None and (
        intervention.halting is not None or intervention.skip is not None
    )
    if not own_ways:
        for block in model.blocks:
            block.compile(fullgraph=True, dynamic=False, mode=mode)
        return
    for module in model.modules():
        if isinstance(module, Sublayer):
            module.compile(fullgraph=True, mode=mode)
