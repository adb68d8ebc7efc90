"""Part `decode`: tokens/s of decoding in bf16, beside the memory's bandwidth and a Llama.

With random weights, which decode as fast as trained ones. All variants of a cell take turns; a
ratio is of one round.
"""

from functools import partial
from statistics import median

import torch

from benchmarks.baselines import Shape
from benchmarks.generate.decoding import Work, decoder_of, least_bytes, llama, ours
from benchmarks.gpu.parts import Bench, Cell, Part, number
from benchmarks.gpu.results import Row
from benchmarks.gpu.sizes import MAIN
from benchmarks.turns import in_turns
from dualpath_cli.flops.count import training_flops_per_token

HOW = ("eager", "compiled")
VARIANTS = (*HOW, *(f"Llama, {how}" for how in HOW))


def cells(bench: Bench) -> list[Cell]:
    """A cell for each context and batch."""
    sizes, found = bench.sizes, []
    for context in sizes.contexts:
        for batch in sizes.decoded_batches:
            title = f"context {context}, batch {batch}"
            work = Work(context, batch, sizes.decoded, torch.bfloat16)
            names = tuple(f"{title}: {name}" for name in VARIANTS)
            found.append(Cell(title, names, partial(rows, bench, title, work)))
    return found


def rows(bench: Bench, title: str, work: Work) -> dict[str, Row]:
    """Decodes with each of VARIANTS."""
    config, device = bench.sizes.model(MAIN), bench.device
    copies = bench.ceilings["copy_bytes"]
    shape = Shape(config.d_model, config.n_heads, config.max_seq_len, config.vocab_size)
    flops = training_flops_per_token(config)
    variants, bytes_ = {}, {}
    for how in HOW:
        decoder = decoder_of(config, device, work, how == "compiled")
        variants[how] = ours(decoder, config.vocab_size, work)
        bytes_[how] = least_bytes(decoder.model, work)
        other = llama(shape, config.n_layers, flops, device, work, how == "compiled")
        variants[f"Llama, {how}"], bytes_[f"Llama, {how}"] = other
    seconds = in_turns(variants, bench.sizes.rounds)
    return {
        f"{title}: {name}": {
            "tokens_per_second": work.batch * work.tokens / median(times),
            "beside_llama": median(
                b / a for a, b in zip(times, seconds[f"Llama, {name.split()[-1]}"], strict=True)
            ),
            "of_floor": bytes_[name] * work.tokens / copies / median(times),
            "seconds": times,
        }
        for name, times in seconds.items()
    }  # fmt: skip


PART = Part(
    "decode",
    MAIN,
    (
        number("tokens/s", "tokens_per_second"),
        number("Llama of equal FLOPs, run alike = 1", "beside_llama", ".2f"),
        number("of the bandwidth floor", "of_floor", ".2f"),
    ),
    cells,
)
