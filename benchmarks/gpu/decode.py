"""Part `decode`: tokens/s of decoding in bf16, beside the memory's bandwidth and a Llama.

With random weights, which decode as fast as trained ones.
"""

from functools import partial
from statistics import median

import torch

from benchmarks.generate.decoding import Work, beside_llama
from benchmarks.gpu.parts import Bench, Cell, Part, Row, number
from benchmarks.gpu.sizes import MAIN
from benchmarks.turns import ratios


def rows(bench: Bench, title: str, work: Work) -> dict[str, Row]:
    """Decodes with the model and with a Llama, eagerly and compiled."""
    copies = bench.ceilings["copy_bytes"]
    decoded = beside_llama(bench.sizes.model(MAIN), bench.device, work, bench.sizes.rounds)
    return {
        f"{title}: {one.name}": {
            "tokens_per_second": work.batch * work.tokens / median(one.seconds),
            "beside_llama": median(ratios(one.llama_seconds, one.seconds)),
            "of_floor": one.bytes * work.tokens / copies / median(one.seconds),
            "seconds": one.seconds,
        }
        for one in decoded
    }


def cells(bench: Bench) -> dict[str, Cell]:
    """A cell for each context and batch."""
    sizes, found = bench.sizes, {}
    for context in sizes.contexts:
        for batch in sizes.decoded_batches:
            title = f"context {context}, batch {batch}"
            work = Work(context, batch, sizes.decoded, torch.bfloat16)
            found[title] = partial(rows, bench, title, work)
    return found


PART = Part(
    "decode",
    MAIN,
    [
        number("tokens/s", "tokens_per_second"),
        number("Llama of equal FLOPs, run alike = 1", "beside_llama", ".2f"),
        number("of the bandwidth floor", "of_floor", ".2f"),
    ],
    cells,
)
