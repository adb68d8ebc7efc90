"""`dualpath routing --text`: the routing of one text in the terminal."""

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dualpath_cli.colors import share_colormap
from dualpath_cli.errors import UserError
from dualpath_cli.model import RoutingTrace
from dualpath_cli.study.routing.statistics import READOUTS, dual_layers
from dualpath_cli.study.routing.tokens import pieces
from dualpath_cli.study.tables import print_table
from dualpath_cli.text.tokenizer import Tokenizer
from dualpath_cli.training.module import DualPathModule


def show_text(
    text: str, layer: int | None, module: DualPathModule, tokenizer: Tokenizer, console: Console
) -> None:
    """Prints a text coloured by deep share, then a table of its tokens and layers.

    Colours are the mean over layers, or those of `layer`. Raises UserError where the text is longer
    than the model, or the layer has no gates.
    """
    config = module.config
    layers = [n for n, kind in enumerate(config.block_kinds) if kind == "dual"]
    if layer is not None and layer not in layers:
        raise UserError(f"--layer {layer} has no gates; layers {', '.join(map(str, layers))} have")
    ids = tokenizer.encode(text)
    if len(ids) >= config.max_seq_len:
        raise UserError(
            f"--text has {len(ids):,} tokens, the model takes {config.max_seq_len - 1:,}; "
            "put it into a file: --sources NAME=FILE.txt"
        )
    module.configure_model()
    assert module.model is not None
    trace = RoutingTrace()
    with torch.inference_mode():
        module.model.eval()
        module.model(torch.tensor([[tokenizer.eot_id, *ids]]), trace=trace)
    values = dual_layers(trace)[0, 1:].double().numpy()
    shares = values[..., READOUTS.index("deep_share")]
    chosen = shares.mean(1) if layer is None else shares[:, layers.index(layer)]
    what = "mean over layers" if layer is None else f"layer {layer}"
    console.print(Text("deep share, ").append(f"{what}: ").append_text(_legend()))
    values_of = tokenizer.token_values()
    texts = pieces(values_of[id] for id in ids)
    coloured = Text()
    for piece, share in zip(texts, chosen, strict=True):
        coloured.append(piece, _style(share))
    console.print(coloured)
    print_table(console, _tokens(texts, shares, layers))
    print_table(console, _layers(values, layers))


def _tokens(texts: list[str], shares: np.ndarray, layers: list[int]) -> Table:
    """A row a token: deep share of each layer and their mean."""
    table = Table(title="deep share by token and layer", title_justify="left", box=None)
    table.add_column("token", no_wrap=True)
    for name in ["mean", *map(str, layers)]:
        table.add_column(name, justify="right", no_wrap=True)
    for piece, own in zip(texts, shares, strict=True):
        cells = [Text(f" {share:.2f} ", _style(share)) for share in (own.mean(), *own)]
        table.add_row(Text(repr(piece)[1:-1]), *cells)
    return table


def _layers(values: np.ndarray, layers: list[int]) -> Table:
    """A row a layer: every read-out, averaged over the tokens."""
    table = Table(title="means over tokens", title_justify="left")
    names = ("layer", "deep share", "g_d", "g_w", "‖Δ_d‖", "‖Δ_w‖", "cosine", "loops", "steps")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    order = ("deep_share", "gate_deep", "gate_wide", "update_deep", "update_wide", "cosine",
             "expected_loops")  # fmt: skip
    for place, layer in enumerate(layers):
        means = values[:, place].mean(0)
        steps = " ".join(f"{weight:.2f}" for weight in means[len(READOUTS) :])
        table.add_row(
            str(layer), *(f"{means[READOUTS.index(name)]:.3f}" for name in order), steps
        )  # fmt: skip
    return table


def _legend() -> Text:
    legend = Text("wide ")
    for share in np.linspace(0, 1, 21):
        legend.append(" ", _style(share))
    return legend.append(" deep")


def _style(share: float) -> str:
    red, green, blue, _ = share_colormap()(float(share))
    color = "#" + "".join(f"{round(255 * part):02x}" for part in (red, green, blue))
    return f"#1f2a44 on {color}"
