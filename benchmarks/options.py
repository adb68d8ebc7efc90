"""How long a training step takes with each option of the model or the optimizer, on a CPU.

python -m benchmarks.options

Dual K = 4 of `benchmarks.train_step`, in one process by turns; all is the same but the option. A
ratio is the CPU time of the option's step over that of the plain one in the same round. Predicted
is the ratio of the FLOPs that are counted.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch

from benchmarks.results import given_options, show, spread, write
from benchmarks.train_step import our_config, training_step
from benchmarks.turns import Timed, in_turns, ratios, timed
from dualpath_cli.config import ModelConfig
from dualpath_cli.flops.count import newton_schulz_flops, training_flops_per_token
from dualpath_cli.flops.memory import Optimizer
from dualpath_cli.intervention import Intervention
from dualpath_cli.recipe.optimizer import OptimSettings
from dualpath_cli.sizes import parse_size
from dualpath_cli.training.optim import build_optimizer
from dualpath_cli.training.parallel import build_model


@dataclass(frozen=True)
class Option:
    """What is other than in the plain step."""

    model: dict[str, Any] = field(default_factory=dict)
    optimizer: Optimizer = "adamw"
    loops: int | None = None
    """The number that the step is forced to."""
    products: torch.dtype | None = torch.bfloat16
    """The type of matrix products, by autocast; None for that of the weights, float32."""


PLAIN = "none"
OPTIONS = {
    PLAIN: Option(),
    "model.loops: [2, 6, 2, 6]": Option(model={"loops": [2, 6, 2, 6]}),
    "model.step_conditioning: film": Option(model={"step_conditioning": "film"}),
    "optim.name: muon": Option(optimizer="muon"),
    "run.loop_schedule, at K = 1": Option(loops=1),
    "trainer.precision: 32-true": Option(products=None),
}


def step_with(option: Option, plain: ModelConfig, batch: int) -> Timed:
    """A step of training, in bf16 autocast but for one option, as `dualpath fit` makes it."""
    config = replace(plain, **option.model)
    model = build_model(config, seed=0, compile_blocks=True, checkpointing="selective")
    settings = OptimSettings(name=option.optimizer, lr=1e-4)
    optimizer = build_optimizer(
        model.named_parameters(), settings, total_steps=1, products=option.products
    )
    forced = None if option.loops is None else Intervention(loops=option.loops)
    step = training_step(
        model, config, batch, optimizer=optimizer, forced=forced, products=option.products
    )
    return timed(step)


def flops(option: Option, plain: ModelConfig, tokens: int) -> float:
    """Those of a step of so many tokens."""
    loops = {} if option.loops is None else {"loops": option.loops}
    counted = tokens * training_flops_per_token(replace(plain, **option.model, **loops))
    return counted + newton_schulz_flops(plain) * (option.optimizer == "muon")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="9M", help="Linear FLOPs per token and layer.")
    parser.add_argument("--batch", type=int, default=4, help="Sequences of 512 tokens.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", help="JSON file for all timings.")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 64  # all models share their code
    shape = ModelConfig(
        vocab_size=8192, n_layers=4, d_model=256, n_heads=4, n_kv_heads=4, max_seq_len=512,
        d_ffn=64, d_ffn_wide=64, ffn_multiple_of=64,
    )  # fmt: skip
    plain = our_config("dual K4", shape, parse_size(given.budget, "--budget"))
    steps = {name: step_with(option, plain, given.batch) for name, option in OPTIONS.items()}
    took = in_turns(steps, given.rounds, warm_up=2)
    tokens = given.batch * shape.max_seq_len
    rows = [
        [name, f"{1000 * median(took[name]):.0f}", spread(ratios(took[name], took[PLAIN])),
         f"{flops(option, plain, tokens) / flops(OPTIONS[PLAIN], plain, tokens):.2f}"]
        for name, option in OPTIONS.items()
    ]  # fmt: skip
    show(["option", "step, ms", "ratio", "predicted"], rows)
    write(given.out, {"options": given_options(given), "cpu_seconds": took})


if __name__ == "__main__":
    main()
