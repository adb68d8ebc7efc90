"""`dualpath ablate`: what interventions on one checkpoint cost, paired on identical windows.

1. every source is cut into windows once, by the data module that `validate` uses;
2. each batch of windows is scored under all interventions before the next one;
3. each intervention is compared with the learned router window by window, with a bootstrap
   interval over windows.

Shapes: W windows (sequences), R interventions (rows of the table).
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch import Trainer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dualpath_cli.launch import Launch
from dualpath_cli.model import DualPathLM, Intervention
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.study.ablation_table import Row, source_table, write
from dualpath_cli.text.documents import Source, source_files
from dualpath_cli.text.manifest import MANIFEST, Manifest
from dualpath_cli.text.storage import exists, local_copy
from dualpath_cli.training.data import DualPathDataModule
from dualpath_cli.training.module import Batch, DualPathModule
from dualpath_cli.training.run_folder import step_of

PAPER_ROWS = (
    Intervention(),
    *(Intervention(loops=loops) for loops in range(1, 11)),
    Intervention(gates=(1.0, 0.0)),
    Intervention(gates=(0.0, 1.0)),
    Intervention(gates=(0.5, 0.5)),
    Intervention(gates=(1.0, 1.0)),
    Intervention(gates="shuffled"),
)
"""The 16 rows of the paper's table `ablations`; the first is the baseline of the others."""

RESAMPLES = 1000
BOOTSTRAP_SEED = 0

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


def run(
    launch: Launch,
    trainer: Trainer,
    module: DualPathModule,
    datamodule: DualPathDataModule,
    console: Console,
) -> None:
    """Scores a run's checkpoint under the paper's interventions; prints, writes the tables.

    Raises:
        UserError: if a source holds no text.
    """
    assert launch.checkpoint is not None
    assert launch.out is not None
    config, data = launch.settings.model, launch.settings.data
    module.configure_model()
    trainer.precision_plugin.convert_module(module)
    module.to(trainer.strategy.root_device)
    assert module.model is not None
    datamodule.trainer = trainer
    loaders = dict(zip(data.val, datamodule.val_dataloader(), strict=True))
    interventions, skipped = applicable(PAPER_ROWS, module.model)
    for reason in dict.fromkeys(skipped.values()):
        names = ", ".join(name for name, why in skipped.items() if why == reason)
        console.print(f"left out {names}: {reason}", highlight=False, soft_wrap=True)

    rows: list[Row] = []
    sources: dict[str, dict[str, Any]] = {}
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("forward passes"),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
        disable=not console.is_terminal,
    )
    with progress:
        passes = len(interventions) * sum(len(loader) for loader in loaders.values())
        task = progress.add_task("", total=passes)
        for name, loader in loaders.items():
            progress.update(task, description=name)
            nats_WR, tokens_W = score(
                module.model,
                loader,
                interventions,
                context=trainer.precision_plugin.forward_context,
                after_pass=lambda: progress.advance(task),
            )
            found = compare(name, interventions, nats_WR, tokens_W)
            rows += found
            size = f"{tokens_W.sum():,} tokens in {len(tokens_W):,} sequences"
            title = f"{name}: nats per token over {size}"
            console.print(source_table(title, found, config.loops))
            sources[name] = {
                "path": data.val[name],
                "sha256": sha256(name, data.val[name]),
                "tokens": int(tokens_W.sum()),
                "sequences": len(tokens_W),
            }
    report = {
        "checkpoint": {"path": str(launch.checkpoint), "step": step_of(launch.checkpoint)},
        "model": dataclasses.asdict(config),
        "precision": str(trainer.precision),
        "device": str(trainer.strategy.root_device),
        "max_tokens": data.val_tokens,
        "sources": sources,
        "bootstrap": {"resamples": RESAMPLES, "seed": BOOTSTRAP_SEED},
        "interventions": {i.name: dataclasses.asdict(i) for i in interventions},
        "skipped": skipped,
    }
    written = write(launch.out, report, rows)
    console.print("\n".join(map(str, written)), highlight=False, soft_wrap=True)


def applicable(
    interventions: Iterable[Intervention], model: DualPathLM
) -> tuple[list[Intervention], dict[str, str]]:
    """Splits into those that make sense for the model, and the names and reasons of the others."""
    chosen, skipped = [], {}
    for intervention in interventions:
        problem = intervention.problem(model.config)
        if problem is None:
            chosen.append(intervention)
        else:
            skipped[intervention.name] = problem
    return chosen, skipped


@torch.inference_mode()
def score(
    model: DualPathLM,
    batches: Iterable[Batch],
    interventions: Sequence[Intervention],
    *,
    context: Callable[[], AbstractContextManager[Any]],
    after_pass: Callable[[], object] = lambda: None,
) -> tuple[Floats, Counts]:
    """Returns the nats (W, R) of each window under each intervention, and its tokens (W,).

    Batches are input tokens and targets, (B, T) each, as `windows.collate` makes them. Windows
    without a scored token, which fill up the last batch, are dropped. `context` is entered around
    each forward pass (autocast), `after_pass` is called after it.
    """
    device = model.embed.weight.device
    model.eval()
    nats, counts = [], []
    for tokens, targets in batches:
        filled = (targets != IGNORE).any(1)
        tokens, targets = tokens[filled].to(device), targets[filled].to(device)
        scored = targets != IGNORE
        columns = []
        for intervention in interventions:
            with context():
                nll = model(tokens, targets, intervention=intervention, token_mask=scored)
            columns.append(nll.double().sum(1))
            after_pass()
        nats.append(torch.stack(columns, dim=1).cpu().numpy())
        counts.append(scored.sum(1).cpu().numpy())
    return np.concatenate(nats), np.concatenate(counts)


def compare(
    source: str, interventions: Sequence[Intervention], nats_WR: Floats, tokens_W: Counts
) -> list[Row]:
    """Returns a row per intervention: its loss, and the difference to the first one's."""
    differences_WR = nats_WR - nats_WR[:, :1]
    low_R, high_R = bootstrap_interval(differences_WR, tokens_W)
    n_tokens = tokens_W.sum()
    return [
        Row(
            intervention=intervention.name,
            source=source,
            loss=float(nats_WR[:, r].sum() / n_tokens),
            difference=float(differences_WR[:, r].sum() / n_tokens),
            low=float(low_R[r]),
            high=float(high_R[r]),
        )
        for r, intervention in enumerate(interventions)
    ]


def bootstrap_interval(
    nats_WR: Floats, tokens_W: Counts, resamples: int = RESAMPLES, seed: int = BOOTSTRAP_SEED
) -> tuple[Floats, Floats]:
    """Returns the 95 % interval of each column's mean per token: its ends, low (R,) and high (R,).

    Percentiles over resamples: whole windows are drawn with replacement, the same ones for all
    columns, and the nats of a draw are divided by its tokens. Windows of one document count as
    independent. One window alone says nothing about others: both ends are nan.
    """
    count = len(tokens_W)
    if count < 2:
        nan = np.full(nats_WR.shape[1], np.nan)
        return nan, nan
    draw = np.random.default_rng(seed)
    means = np.empty((resamples, nats_WR.shape[1]))
    for mean_R in means:
        times_W = np.bincount(draw.integers(count, size=count), minlength=count)
        mean_R[:] = times_W @ nats_WR / (times_W @ tokens_W)
    low_R, high_R = np.percentile(means, [2.5, 97.5], axis=0)
    return low_R, high_R


def sha256(name: str, location: str) -> str:
    """Hash of a source's file, of its files one after the other; or a data folder's fingerprint."""
    if exists(f"{location}/{MANIFEST}"):
        return Manifest.read(location).fingerprint
    digest = hashlib.sha256()
    for file in source_files(Source(name, local_copy(location))):
        with file.open("rb") as content:
            while block := content.read(2**20):
                digest.update(block)
    return digest.hexdigest()
