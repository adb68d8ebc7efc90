"""The page of one text: what `routing --text` prints, with all that the page adds to it."""

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import torch

from dualpath_cli.command.launch import Launch
from dualpath_cli.model import DualPathLM, RoutingTrace
from dualpath_cli.study.facts import checkpoint_facts
from dualpath_cli.study.routing import report
from dualpath_cli.study.routing.page import details
from dualpath_cli.study.routing.page.passes import page_passes
from dualpath_cli.study.routing.readouts import dual_layers, experts_of, most_steps
from dualpath_cli.study.routing.tokens import TOKENS, token_table
from dualpath_cli.text.tokenizer import Tokenizer
from dualpath_cli.training.data.windows import Windows, collate, document_windows
from dualpath_cli.training.module import DualPathModule

SOURCE = "text"
"""Its name on the page and in the files."""


def write(launch: Launch, text: str, model: DualPathLM, tokenizer: Tokenizer) -> list[Path]:
    """Writes the rows of a text's tokens, and its page; returns their paths.

    One process runs the passes that the page of a source has, on the CPU.
    """
    options, settings = launch.options, launch.settings
    config, out = settings.model, options.out
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
    ids, layers = windows[0][1:], report.gated_layers(config)
    read = (dual_layers(trace), *experts_of(trace))
    values = [array[0, 1 : 1 + len(ids)].numpy() for array in read]
    out.mkdir(parents=True, exist_ok=True)
    chosen, token_values = values[-1].shape[-1], tokenizer.token_values()
    with token_table(out / TOKENS, token_values, len(layers), most_steps(config), chosen) as table:
        table.add(SOURCE, 0, ids, None, nats[: len(ids)], *values)
    details.write(out, SOURCE, [0], passes)
    facts = {
        "checkpoint": checkpoint_facts(launch), "model": asdict(config), "tagger": None,
        "torch": torch.__version__, "device": "cpu", "precision": "32-true", "sources": {},
    }  # fmt: skip
    terms = [*report.page_facts(facts), (SOURCE, f"{len(ids):,} tokens, of --text")]
    return [out / TOKENS, report.write_page(launch, [SOURCE], terms)]
