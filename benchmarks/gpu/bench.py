"""What the cells of the GPU programme share: the device, sizes, and the wait for their
turn."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from benchmarks.results import Rows
from dualpath_cli.recipe.recipes import load_recipe
from dualpath_cli.recipe.settings import settings_from
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.training.parallel import BY_RULE

MAIN = "f80m_a50_k4"
"""The configuration that most is measured with."""


class Sizes:
    """Shapes and repetitions as meant for a GPU."""

    seq_len, micro_batch = 4096, 4
    repeats, kernel_repeats, warm_up, rounds = 10, 50, 3, 7
    matmul, copy_bytes = 8192, 2**32
    """Rows and columns of the matrices whose product is the measured peak; bytes
    copied."""
    check_len, check_width = 256, 256
    """Tokens and width of the models that results are compared on."""
    context, decoded = 512, 32
    compiler: ClassVar[Mapping[str, Any]] = {"options": BY_RULE}
    """Words of torch.compile."""
    run = ""
    """Words of `dualpath fit`."""

    @classmethod
    def model(cls, recipe: str) -> ModelConfig:
        """One of the paper's 26 configurations, as trained, by its recipe's name."""
        return settings_from(load_recipe(recipe)).model


class Rehearsal(Sizes):
    """Everything once or twice, as small as it can be, for a CPU."""

    seq_len, micro_batch = 128, 2
    repeats, kernel_repeats, warm_up, rounds = 2, 2, 1, 2
    matmul, copy_bytes = 128, 2**20
    check_len, check_width = 16, 32
    context, decoded = 16, 2
    compiler: ClassVar = {"backend": "aot_eager"}
    run = """--trainer.accelerator cpu --run.compile false --model.vocab_size 2048
        --model.n_layers 2 --model.d_model 32 --model.n_heads 2 --model.n_kv_heads 2
        --model.max_seq_len 128 --model.d_ffn 24 --model.d_ffn_wide 96
        --model.ffn_multiple_of 8"""

    @classmethod
    def model(cls, recipe: str) -> ModelConfig:
        """A model of a thousandth."""
        config = super().model(recipe)
        narrow = {name: 8 for name in ("d_ffn", "d_ffn_wide") if getattr(config, name)}
        return dataclasses.replace(
            config,
            vocab_size=128,
            n_layers=2,
            d_model=32,
            n_heads=2,
            n_kv_heads=2,
            max_seq_len=cls.seq_len,
            loops=min(2, config.loops),
            ffn_multiple_of=8,
            **narrow,
        )


@dataclass(frozen=True)
class Bench:
    """Where and how large everything is run."""

    device: torch.device
    sizes: type[Sizes] = Sizes
    alone: Callable[[], object] = lambda: None
    """Waits until nothing else runs on the device; before it a cell builds and
    compiles."""


Cell = Callable[[Bench], Rows]
