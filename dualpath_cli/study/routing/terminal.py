"""`dualpath routing --text`: the routing of one text in the terminal, and its page."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from matplotlib.colors import to_hex
from rich.console import Console
from rich.text import Text

from dualpath_cli.base.errors import UserError
from dualpath_cli.data.documents import clean
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.data.windows import Windows, collate, document_windows
from dualpath_cli.model import DualPathLM, RoutingTrace
from dualpath_cli.report import table
from dualpath_cli.report.console import plain_console
from dualpath_cli.report.figures import INK, share_colormap
from dualpath_cli.report.table import Column, Table
from dualpath_cli.run.run_folder import TOKENIZER
from dualpath_cli.run.weights import load_weights
from dualpath_cli.study.passes import checkpoint_facts
from dualpath_cli.study.routing import report
from dualpath_cli.study.routing.page.passes import page_passes, write_details
from dualpath_cli.study.routing.readouts import (
    DEFINITION,
    READOUTS,
    STEP_DEFINITION,
    by_name,
    dual_layers,
    experts_of,
    gated_layers,
    most_steps,
    two_digits,
)
from dualpath_cli.study.routing.tokens import TOKENS, token_table, token_texts
from dualpath_cli.training.launch import StudyLaunch
from dualpath_cli.training.module import DualPathModule
from dualpath_cli.training.parallel import build_model

SOURCE = "text"  # the name of the text on its page and in the files


def run(launch: StudyLaunch) -> bool:
    """Prints a text coloured by deep share, then a table of its tokens, and one of the layers.

    Colours are the mean over layers, or those of `--layer`. On the CPU, in float32. With `--out`
    the text also has a page. Returns whether there is a text.
    """
    config, options = launch.settings.model, launch.options
    if options.text is None:
        return False
    tokenizer = Tokenizer.load(launch.folder / TOKENIZER)
    text = clean(options.text)  # as texts in files
    ids = tokenizer.encode(text)
    if len(ids) >= config.max_seq_len:
        raise UserError(
            f"--text has {len(ids):,} tokens, the model takes {config.max_seq_len - 1:,}; "
            "put it into a file: --sources NAME=FILE.txt"
        )
    model = build_model(config)
    load_weights(model, launch.run.checkpoint)
    trace = RoutingTrace()
    with torch.inference_mode():
        model(torch.tensor([[tokenizer.eot_id, *ids]]), trace=trace)
    values_of = tokenizer.token_values()
    written = write_page(launch, text, model, tokenizer) if options.out is not None else []
    console = plain_console()
    show(console, [values_of[id] for id in ids], trace, options.layer)
    for name, path in zip(("tokens", "page"), written, strict=False):
        place = path.resolve().as_uri() if name == "page" else path
        console.print(f"{name:9}{place}", highlight=False, soft_wrap=True)
    return True


def show(console: Console, tokens: Sequence[bytes], trace: RoutingTrace, layer: int | None) -> None:
    """Prints what a trace of end-of-text and these tokens says."""
    layers = [n for n, layer_trace in enumerate(trace.layers) if layer_trace.gate_deep is not None]
    values = dual_layers(trace)[0, 1:].double().numpy()
    shares = values[..., READOUTS.index("deep_share")]
    chosen = shares.mean(1) if layer is None else shares[:, layers.index(layer)]
    what = "mean over layers" if layer is None else f"layer {layer}"
    legend = Text(f"deep share, {what}")
    if console.color_system is not None:
        legend.append(": wide ")
        for share in np.linspace(0, 1, 21):
            legend.append(" ", _style(share))
        legend.append(" deep")
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


def write_page(
    launch: StudyLaunch, text: str, model: DualPathLM, tokenizer: Tokenizer
) -> list[Path]:
    """Writes the rows of a text's tokens, and its page; returns their paths.

    One process runs the passes that the page of a source has, on the CPU.
    """
    options, settings = launch.options, launch.settings
    config, out = settings.model, options.folder
    windows = Windows(document_windows([text], tokenizer, config.max_seq_len)[0])
    tokens, targets = collate(list(windows.windows), last_is_input=True)
    module = DualPathModule(
        config, settings.optim, tokenizer.token_bytes(), [], seed=None, compile_blocks=False
    )
    module.model = model
    passes = page_passes(SOURCE, windows, [0], 1, config, options, tokenizer.vocab_size)
    trace = RoutingTrace()
    with torch.inference_mode(), ExitStack() as files:
        nats = model(tokens, targets, trace=trace)[0].numpy()
        for pass_ in passes:
            pass_.begin(module, files)
            pass_.step(tokens, targets, [0])
            pass_.arrays = pass_.end()
    ids, layers = windows[0][1:], gated_layers(config)
    read = (dual_layers(trace), *experts_of(trace))
    values = [array[0, 1 : 1 + len(ids)].numpy() for array in read]
    out.mkdir(parents=True, exist_ok=True)
    chosen, token_values = values[-1].shape[-1], tokenizer.token_values()
    with token_table(out / TOKENS, token_values, len(layers), most_steps(config), chosen) as table:
        table.add(SOURCE, 0, ids, None, nats[: len(ids)], *values)
    write_details(out, SOURCE, [0], passes)
    facts = {
        "checkpoint": checkpoint_facts(launch), "model": asdict(config), "tagger": None,
        "torch": torch.__version__, "device": "cpu", "precision": "32-true", "sources": {},
    }  # fmt: skip
    terms = [*report.page_facts(facts), (SOURCE, f"{len(ids):,} tokens, of --text")]
    return [out / TOKENS, report.write_page(launch, [SOURCE], terms)]


def _tokens(names: list[str], shares: np.ndarray, layers: list[int]) -> Table:
    """A row a token: deep share of each layer and their mean."""
    shown = [Column(name, " {:.2f} ".format, style=_style) for name in ("mean", *map(str, layers))]
    rows = [[name, own.mean(), *own] for name, own in zip(names, shares, strict=True)]
    return Table([Column("token"), *shown], rows, "deep share by token and layer")


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


def _style(share: float) -> str:
    return f"{INK} on {to_hex(share_colormap()(float(share)))}"
