"""`dualpath routing --text`: the routing of one text in the terminal."""

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.colors import to_hex
from rich.console import Console
from rich.text import Text

from dualpath_cli.command.launch import Launch
from dualpath_cli.errors import UserError
from dualpath_cli.model import RoutingTrace
from dualpath_cli.output import table
from dualpath_cli.output.colors import INK, share_colormap
from dualpath_cli.output.console import plain_console
from dualpath_cli.output.table import Column, Table
from dualpath_cli.run.run_folder import TOKENIZER
from dualpath_cli.study.routing.page import of_text
from dualpath_cli.study.routing.readouts import (
    DEFINITION,
    READOUTS,
    STEP_DEFINITION,
    by_name,
    dual_layers,
    two_digits,
)
from dualpath_cli.study.routing.tokens import token_texts
from dualpath_cli.text.tokenizer import Tokenizer
from dualpath_cli.training.parallel import build_model
from dualpath_cli.training.state.weights import load_weights


def run(launch: Launch) -> int:
    """Prints a text coloured by deep share, then a table of its tokens, and one of the layers.

    Without a text, starts the study of whole sources.

    Colours are the mean over layers, or those of `--layer`. On the CPU, in float32. With `--out`
    the text also has a page. Returns 0. Raises UserError where the text is longer than the model.
    """
    config, options = launch.settings.model, launch.options
    if options.text is None:
        from dualpath_cli.session import lightning_cli

        return lightning_cli.run(launch)
    assert launch.checkpoint is not None
    tokenizer = Tokenizer.load(launch.run_folder / TOKENIZER)
    ids = tokenizer.encode(options.text)
    if len(ids) >= config.max_seq_len:
        raise UserError(
            f"--text has {len(ids):,} tokens, the model takes {config.max_seq_len - 1:,}; "
            "put it into a file: --sources NAME=FILE.txt"
        )
    model = build_model(config)
    load_weights(model, launch.checkpoint)
    trace = RoutingTrace()
    with torch.inference_mode():
        model(torch.tensor([[tokenizer.eot_id, *ids]]), trace=trace)
    values_of = tokenizer.token_values()
    written = of_text.write(launch, options.text, model, tokenizer) if options.text_page else []
    console = plain_console()
    show(console, [values_of[id] for id in ids], trace, options.layer)
    for name, path in zip(("tokens", "page"), written, strict=False):
        place = path.resolve().as_uri() if name == "page" else path
        console.print(f"{name:9}{place}", highlight=False, soft_wrap=True)
    return 0


def show(console: Console, tokens: Sequence[bytes], trace: RoutingTrace, layer: int | None) -> None:
    """Prints what a trace of end-of-text and these tokens says."""
    layers = [n for n, layer_trace in enumerate(trace.layers) if layer_trace.gate_deep is not None]
    values = dual_layers(trace)[0, 1:].double().numpy()
    shares = values[..., READOUTS.index("deep_share")]
    chosen = shares.mean(1) if layer is None else shares[:, layers.index(layer)]
    what = "mean over layers" if layer is None else f"layer {layer}"
    legend = Text(f"deep share, {what}")
    if console.color_system is not None:
        legend.append(": ").append_text(_legend())
    console.print(legend)
    texts = token_texts(tokens)
    coloured = Text()
    for text, share in zip(texts, chosen, strict=True):
        coloured.append(text, _style(share))
    console.print(coloured)
    # Of a character that a later token completes, the bytes are shown.
    names = [_visible(text or repr(value)[2:-1]) for text, value in zip(texts, tokens, strict=True)]
    table.show(console, _tokens(names, shares, layers), box=False)
    table.show(console, _layers(values, layers))


def _tokens(names: list[str], shares: np.ndarray, layers: list[int]) -> Table:
    """A row a token: deep share of each layer and their mean."""
    headings = ("token", "mean", *map(str, layers))
    shown = [Column(heading, " {:.2f} ".format, style=_style) for heading in headings[1:]]
    rows = [
        [name, by_layer.mean(), *by_layer] for name, by_layer in zip(names, shares, strict=True)
    ]
    return Table([Column(headings[0]), *shown], rows, "deep share by token and layer")


def _layers(values: np.ndarray, layers: list[int]) -> Table:
    """A row a layer: every read-out, averaged over the tokens."""
    names = {"deep_share": "deep share", "gate_deep": "g_d", "gate_wide": "g_w",
             "update_deep": "‖Δ_d‖", "update_wide": "‖Δ_w‖", "cosine": "cosine",
             "expected_loops": "loops"}  # fmt: skip
    columns = [
        Column("layer", "d"), *(Column(heading, ".3f") for heading in names.values()),
        *(Column(name, "") for name in ("weights", "sizes", "cosines")),
    ]  # fmt: skip
    rows = []
    for layer, means in zip(layers, values.mean(0), strict=True):
        read = by_name(means)
        steps = {"step_weights": "{:.2f}".format, "step_sizes": two_digits,
                 "step_cosines": "{:.2f}".format}  # fmt: skip
        there = ~np.isnan(read["step_sizes"])  # a layer may have fewer steps than another
        of_steps = (
            " ".join(text(value) for value in read[name][there] if value == value)
            for name, text in steps.items()
        )
        rows.append([layer, *(read[name] for name in names), *of_steps])
    note = f"{DEFINITION}; of each step its weight, and what it does: {STEP_DEFINITION}"
    return Table(columns, rows, "means over tokens", note)


def _visible(text: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text.replace("\n", "↵"))


def _legend() -> Text:
    legend = Text("wide ")
    for share in np.linspace(0, 1, 21):
        legend.append(" ", _style(share))
    return legend.append(" deep")


def _style(share: float) -> str:
    return f"{INK} on {to_hex(share_colormap()(float(share)))}"
