"""Run folders as fit leaves them, and groups, of numbers that a test gives: nothing is
trained."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from dualpath_cli.compare.configurations import Configuration, Group
from dualpath_cli.compare.differences import BLOCKS, Difference
from dualpath_cli.compare.runs import AGGREGATE
from dualpath_cli.flops.widths import Target, solve_widths
from dualpath_cli.recipe.recipes import merge
from dualpath_cli.recipe.settings import settings_from
from dualpath_cli.report.table import format_csv

BUDGET = 600_000
BATCH, STEPS, LOG_EVERY = 4096, 40, 10
SETS = {"novels": "texts/novels.jsonl", "peps": "texts/peps.jsonl"}
CELLS: dict[str, dict[str, Any]] = {
    "wide": {"block": "wide"},
    **{f"loop_k{k}": {"block": "loop", "loops": k} for k in (2, 3, 4)},
    **{
        f"a{a}_k{k}": {"block": "dual", "alpha": a, "loops": k}
        for a in (25, 50, 75)
        for k in (2, 3, 4)
    },
}
"""Of a sweep, by name."""


def model_of(
    block: str, loops: int = 1, alpha: int = 50, budget: int = BUDGET
) -> dict[str, Any]:
    """A recipe's section: a model of four layers whose blocks spend the budget."""
    widths = solve_widths(
        Target(
            budget,
            block,
            alpha,
            loops,
            d_model=64,
            n_heads=2,
            n_kv_heads=2,
            seq_len=256,
            multiple_of=4,
        )
    )
    return {
        "vocab_size": 4096,
        "n_layers": 4,
        "d_model": 64,
        "n_heads": 2,
        "n_kv_heads": 2,
        "max_seq_len": 256,
        "ffn_multiple_of": 4,
        "block": block,
        "loops": loops,
        "d_ffn": widths.d_ffn,
        "d_ffn_wide": widths.d_ffn_wide,
    }


def write_run(
    folder: Path,
    model: Mapping[str, Any],
    scores: Mapping[str, float],
    /,
    *,
    cell: str = "wide",
    seed: int = 0,
    speed: float = 4000.0,
    steps: int = STEPS,
    fingerprint: str | None = "f00d",
    tokenizer: str | None = "{}",
    nats_per_bit: float = 2.0,
    expected_loops: tuple[float | str, ...] = (),
    **changes: Any,
) -> Path:
    """A run that has made `steps` of its 40 steps, with these scores at the last
    one."""
    recipe = {
        "seed_everything": seed,
        "model": dict(model),
        "run": {
            "recipe": cell,
            "name": f"seed_{seed}",
            "budget": BUDGET,
            "batch_tokens": BATCH,
            "max_tokens": STEPS * BATCH + 7,
            "log_every": LOG_EVERY,
            "save_every": LOG_EVERY,
            "validate_every": 0,
            "gates_every": LOG_EVERY if expected_loops else 0,
        },
        "data": {"val": {name: SETS.get(name, f"texts/{name}.txt") for name in scores}},
    }
    recipe = settings_from(merge(recipe, changes)).as_recipe()
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    facts = {} if fingerprint is None else {"data_fingerprint": fingerprint}
    (folder / "versions.json").write_text(json.dumps(facts))
    if tokenizer is not None:
        (folder / "tokenizer.json").write_text(tokenizer)
    mean = float(np.mean(list(scores.values())))
    logged = range(LOG_EVERY, steps + 1, LOG_EVERY)
    metrics = [
        {
            "step": step,
            "tokens": step * BATCH,
            "loss": 8 * step**-0.3 + mean,
            "tokens_per_second": speed,
            "seconds": step * BATCH / speed,
        }
        for step in logged
    ]
    columns = ["step", "tokens", "loss", "tokens_per_second", "seconds"]
    (folder / "metrics.csv").write_text(format_csv(metrics, columns))
    validation = [
        {
            "step": step,
            "tokens": step * BATCH,
            "set": name,
            "loss": nats_per_bit * score,
            "bits_per_byte": score + (4.0 if step == 0 else 0.0),
        }
        for step in sorted({0, steps})
        for name, score in scores.items()
    ]
    (folder / "validation.csv").write_text(format_csv(validation))
    if expected_loops:  # by layer
        routing = [
            {
                "step": step,
                "layer": layer,
                "expected_loops": loops and float(loops) * step / steps,
            }
            for step in logged
            for layer, loops in enumerate(expected_loops)
        ]
        (folder / "routing.csv").write_text(format_csv(routing))
    return folder


def write_sweep(
    folder: Path,
    cells: Iterable[str],
    seeds: Iterable[int] = range(3),
    *,
    effects: Mapping[str, float] | None = None,
    spread: float = 0.002,
    draw: int = 0,
) -> Path:
    """A sweep of these cells: 2 + effect + that of the seed + noise on two validation
    sets."""
    rng = np.random.default_rng(draw)
    of_seed = {seed: rng.normal(0, 0.02) for seed in seeds}
    (folder / "recipes").mkdir(parents=True)
    for cell in cells:
        model = model_of(**CELLS[cell])
        effect = (effects or {}).get(cell, 0.0)
        for seed, shift in of_seed.items():
            mean = 2 + effect + shift
            scores = {
                name: mean + n / 4 + rng.normal(0, spread)
                for n, name in enumerate(SETS)
            }
            path = folder / "runs" / cell / f"seed_{seed}"
            write_run(
                path,
                model,
                scores,
                cell=cell,
                seed=seed,
                speed=4000 / model["loops"] ** 0.2,
            )
    return folder


def configuration(
    name: str, scores: Mapping[int, float], **changes: Any
) -> Configuration:
    """One with these scores by seed, on the aggregate and on the set `text`."""
    fields: dict[str, Any] = {
        "family": "dual",
        "alpha": 50.0,
        "configured_alpha": 50.0,
        "loops": 2,
        "layers": 4,
        "tokens": 1000,
        "parameters": 1_000_000,
        "flops_linear": 600e3,
        "flops_total": 700e3,
        "flops_trained": 700e3,
        "kv_bytes": 4096,
        "active": 1_000_000,
        "seconds_per_token": 1e-4,
        "scores": {AGGREGATE: scores, "text": scores},
    }
    return Configuration(name=name, **(fields | changes))


def wide(scores: Mapping[int, float], **changes: Any) -> Configuration:
    """The PureWide."""
    return configuration(
        "wide",
        scores,
        family="wide",
        alpha=None,
        configured_alpha=None,
        loops=None,
        **{"parameters": 2_000_000, "active": 2_000_000, **changes},
    )


def group(*configurations: Configuration, **changes: Any) -> Group:
    """A group with its first configuration as baseline."""
    fields: dict[str, Any] = {
        "name": "budget 600K, 1,000 tokens",
        "measures": (AGGREGATE, "text"),
        "configurations": configurations,
        "wide": configurations[0],
        "baselines": configurations[:1],
    }
    return Group(**(fields | changes))


def difference(**changes: Any) -> Difference:
    """One of `a` and `wide` that is better."""
    fields: dict[str, Any] = {
        "group": "",
        "measure": "text",
        "configuration": "a",
        "baseline": "wide",
        "seeds": 3,
        "difference": -0.1,
        "low": -0.2,
        "high": -0.05,
        "low_90": -0.19,
        "high_90": -0.06,
        "test": BLOCKS,
        "configurations": 3,
        "df": 4,
        "detectable": 0.1,
        "p": 0.01,
        "p_holm": 0.04,
    }
    return Difference(**(fields | changes))
