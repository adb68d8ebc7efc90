"""`dualpath routing --text`: the routing of one text in the terminal.

Shapes: N tokens, L layers with gates, K loops.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import to_hex
from rich.console import Console
from rich.text import Text

from dualpath_cli.report import table
from dualpath_cli.report.figures import INK, share_colormap
from dualpath_cli.report.table import Column, Table
from dualpath_cli.study.routing.tokens import Example, Floats

COLUMNS = {
    "deep share": "deep_share", "g_d": "gate_deep", "g_w": "gate_wide", "‖Δ_d‖": "update_deep",
    "‖Δ_w‖": "update_wide", "cosine": "cosine", "loops": "expected_loops",
}  # fmt: skip
CAPTION = (
    "deep share = g_d ‖Δ_d‖ / (g_d ‖Δ_d‖ + g_w ‖Δ_w‖) of a token, then averaged; of each step its "
    "weight, its size = ‖h_k - h_{k-1}‖ / ‖h_{k-1}‖ with h_0 = x, and the cosine of "
    "h_k - h_{k-1} and h_{k-1} - h_{k-2}"
)
STEPS = {"weights": "step_weights", "sizes": "step_sizes", "cosines": "step_cosines"}


def show(console: Console, text: Sequence[Example], layers: Sequence[int]) -> None:
    """Prints a text coloured by deep share, a table of its tokens, and a table of the layers.

    `text` are all sequences of the text; its colours are the mean over layers.
    """
    texts = [token for part in text for token in part.tokens]
    shares_NL = _of(text, "deep_share")
    legend = Text("deep share, mean over layers")
    if console.color_system is not None:
        legend.append(": wide ")
        for share in np.linspace(0, 1, 21):
            legend.append(" ", _style(share))
        legend.append(" deep")
    console.print(legend)
    console.print(Text.assemble(*zip(texts, map(_style, shares_NL.mean(1)), strict=True)))
    names = map(_visible, texts)
    rows = [[name, own.mean(), *own] for name, own in zip(names, shares_NL, strict=True)]
    shown = [Column(name, " {:.2f} ".format, style=_style) for name in ("mean", *map(str, layers))]
    tokens = Table([Column("token"), *shown], rows, "deep share by token and layer")
    table.show(console, tokens, box=False)
    table.show(console, _layers(text, layers))


def _layers(text: Sequence[Example], layers: Sequence[int]) -> Table:
    """A row a layer: every read-out, averaged over the tokens."""
    means_L = [_of(text, name).mean(0) for name in COLUMNS.values()]
    means_LK = {name: _of(text, name).mean(0) for name in STEPS.values()}
    formats = ("{:.2f}".format, _two_digits, "{:.2f}".format)
    columns = [
        Column("layer", "d"), *(Column(heading, ".3f") for heading in COLUMNS),
        *(Column(heading, "") for heading in STEPS),
    ]  # fmt: skip
    rows = []
    for place, layer in enumerate(layers):
        exist_K = ~np.isnan(means_LK["step_sizes"][place])  # a layer may have fewer than K steps
        of_steps = (
            " ".join(form(mean) for mean in means[place][exist_K] if not np.isnan(mean))
            for form, means in zip(formats, means_LK.values(), strict=True)
        )
        rows.append([layer, *(means[place] for means in means_L), *of_steps])
    return Table(columns, rows, "means over tokens", CAPTION)


def _of(text: Sequence[Example], name: str) -> Floats:
    """A read-out of all tokens, (N, L) or (N, L, K)."""
    return np.concatenate([part.values[name] for part in text], dtype=np.float64)


def _two_digits(size: float) -> str:
    """Such as 0.30 or 0.00091."""
    return f"{size:#.2g}".rstrip(".")


def _visible(text: str) -> str:
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text.replace("\n", "↵"))
    return shown or "∅"  # a part of a character that a later token completes


def _style(share: float) -> str:
    return f"{INK} on {to_hex(share_colormap()(float(share)))}"
