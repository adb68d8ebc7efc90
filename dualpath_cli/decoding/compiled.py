"""Compiles a model for decoding, where small batches wait for kernel launches."""

import torch

from dualpath_cli.intervention import Intervention
from dualpath_cli.model import DualPathLM
from dualpath_cli.model.sublayer import Sublayer

GRAPHS = 64
"""Graphs that one module may need: one for each length of a pass, draft or not, and batch."""


def compile_for_decoding(model: DualPathLM, intervention: Intervention | None) -> None:
    """Compiles a model's parts in place, for passes of static shapes.

    Whole blocks if every token takes the same steps and paths; otherwise sublayers, as Python
    decides token by token which of them run. On a GPU they become CUDA graphs, so that each pass
    must begin with `torch.compiler.cudagraph_mark_step_begin`.
    """
    config = torch.compiler.config
    config.recompile_limit = max(config.recompile_limit, GRAPHS)
    mode = "reduce-overhead" if model.embed.weight.device.type == "cuda" else None
    tokens_differ = intervention is not None and (
        intervention.halting is not None or intervention.skip is not None
    )
    if not tokens_differ:
        for block in model.blocks:
            block.compile(fullgraph=True, dynamic=False, mode=mode)
        return
    for module in model.modules():
        if isinstance(module, Sublayer):
            module.compile(fullgraph=True, mode=mode)
