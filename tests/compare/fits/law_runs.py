"""Run folders whose scores follow a law of looped models: nothing is trained."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from dualpath_cli.compare.fits.families import applied_parameters
from dualpath_cli.compare.fits.law import NAMES
from dualpath_cli.spec.config import ModelConfig
from tests.compare.run_folders import BATCH, model_of, write_run

LAW = dict(zip(NAMES, (0.9, 0.5, 0.05, 0.35, 0.40, 0.46), strict=True))
BUDGETS = (150_000, 300_000, 600_000)
STEPS = (20, 40, 80)
NOISE = 0.002  # of the log of a score
KINDS: dict[str, dict[str, Any]] = {
    "wide": {"block": "wide"},
    "core_r4": {"block": "wide"},
    "loop_k2": {"block": "loop", "loops": 2},
    "a50_k2": {"block": "dual", "loops": 2},
}


def write_law_runs(
    folder: Path,
    kinds: Iterable[str] = ("wide", "core_r4"),
    *,
    budgets: Iterable[int] = BUDGETS,
    steps: Iterable[int] = STEPS,
    seeds: int = 2,
    noise: float = NOISE,
    **changes: Any,
) -> Path:
    """Each kind at each budget with each number of steps."""
    rng = np.random.default_rng(0)
    for kind in kinds:
        for budget in budgets:
            model = model_of(**KINDS[kind], budget=budget)
            if kind.startswith("core"):
                model |= {"core": [1, 2], "core_loops": 4}
            for n in steps:
                loss = law_loss(model, n * BATCH)
                name = f"f{budget // 1000}k_{kind}-{n}"
                for seed in range(seeds):
                    write_run(
                        folder / "runs" / name / f"seed_{seed}",
                        model,
                        {"novels": loss * np.exp(noise * rng.normal())},
                        cell=name,
                        seed=seed,
                        steps=n,
                        **changes,
                        run={"budget": budget, "max_tokens": n * BATCH},
                    )
    return folder


def law_loss(model: dict[str, Any], tokens: int) -> float:
    by_times = applied_parameters(ModelConfig(**model), "non_embedding")
    worth = sum(n / 1e6 * times ** LAW["phi"] for times, n in by_times.items())
    of_size = LAW["A"] / worth ** LAW["a"]
    return LAW["E"] + of_size + LAW["B"] / (tokens / 1e9) ** LAW["b"]
