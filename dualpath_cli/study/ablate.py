"""`dualpath ablate`: what interventions on one checkpoint cost, paired on identical windows.

1. every source is cut into windows once, by the data module that `validate` uses;
2. each source is scored under the learned router, then under each intervention of the suites
   (`suites.py`); what an earlier call finished is not scored again (`scoring.py`);
3. each intervention is compared with the learned router window by window, with a bootstrap
   interval over windows; tables and figures are written.
"""

import dataclasses
import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule, Trainer
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader

from dualpath_cli.launch import Launch
from dualpath_cli.study import ablation_figures
from dualpath_cli.study.ablation_table import (
    Excess,
    Result,
    excess_table,
    layer_table,
    source_table,
    write,
)
from dualpath_cli.study.comparison import compare, excess
from dualpath_cli.study.intervals import BOOTSTRAP_SEED, RESAMPLES, Counts
from dualpath_cli.study.parts_of_speech import Tagger
from dualpath_cli.study.progress import StudyProgress
from dualpath_cli.study.scoring import Masks, Pass, Scorer, Scores, ScoreStore
from dualpath_cli.study.suites import BASELINE, Row, applicable, rows
from dualpath_cli.study.token_classes import count, masks_of, tag
from dualpath_cli.text.documents import Source, source_files
from dualpath_cli.text.manifest import MANIFEST, Manifest
from dualpath_cli.text.storage import exists, local_copy
from dualpath_cli.training.data import DualPathDataModule
from dualpath_cli.training.run_folder import step_of
from dualpath_cli.windows import Tokens, Windows

SCORES = "scores"
"""Folder of the finished passes, inside that of the tables."""
LOG_WIDTH = 160
"""Columns of a table that goes to a file."""


def run(
    launch: Launch,
    trainer: Trainer,
    scorer: Scorer,
    datamodule: DualPathDataModule,
    console: Console,
) -> None:
    """Scores a run's checkpoint under the suites asked for; prints and writes tables and figures.

    Raises:
        UserError: if a source holds no text, or tags are wanted and cannot be had.
    """
    assert launch.ablate is not None
    found, skipped = applicable(rows(launch.ablate, launch.settings.model), launch.settings.model)
    for reason in dict.fromkeys(skipped.values()):
        names = ", ".join(name for name, why in skipped.items() if why == reason)
        console.print(f"left out {names}: {reason}", highlight=False, soft_wrap=True)
    classes = dict.fromkeys(row.of_class for row in found if row.of_class)
    tagger = Tagger(launch.ablate.tagger) if classes else None
    with StudyProgress(console) as progress:
        ablation = Ablation(launch, found, scorer, datamodule, console, progress, tagger)
        try:
            trainer.validate(scorer, datamodule=ablation, verbose=False)
        except SystemExit as end:
            # Lightning leaves by sys.exit(1) after Ctrl-C.
            if not trainer.interrupted:
                raise
            raise KeyboardInterrupt("the same command continues") from end
    if not trainer.is_global_zero:
        return
    report = {
        **ablation.facts,
        "suites": launch.ablate.suites,
        "sources": ablation.sources,
        "bootstrap": {"resamples": RESAMPLES, "seed": BOOTSTRAP_SEED},
        "tagger": tagger and tagger.facts,
        "classes": [dataclasses.asdict(each) for each in classes],
        "interventions": {
            row.intervention.name: {
                **dataclasses.asdict(row.intervention),
                "random_seed": row.random_seed,
            }
            for row in found
        },
        "skipped": skipped,
    }
    results = [result for name in ablation.sources for result in ablation.results[name]]
    excesses = [each for name in ablation.sources for each in ablation.excesses[name]]
    written = write(launch.ablate.out, report, results, excesses)
    written += ablation_figures.draw(launch.ablate.out, results, launch.settings.model.loops)
    console.print("\n".join(map(str, written)), highlight=False, soft_wrap=True)


class Ablation(LightningDataModule):
    """One study: gives Lightning the passes that are not scored yet, and collects all of them."""

    def __init__(
        self,
        launch: Launch,
        found: list[Row],
        scorer: Scorer,
        datamodule: DualPathDataModule,
        console: Console,
        progress: StudyProgress,
        tagger: Tagger | None,
    ) -> None:
        """`found` are the rows to score, the learned router first; `tagger` is for its classes."""
        super().__init__()
        assert launch.ablate is not None
        self.results: dict[str, list[Result]] = {}
        self.excesses: dict[str, list[Excess]] = {}
        self.sources: dict[str, dict[str, Any]] = {}
        self._launch, self._options = launch, launch.ablate
        self._rows = found
        self._scorer = scorer
        self._datamodule = datamodule
        self._console = console
        self._progress = progress
        self._tagger = tagger
        self._scores: dict[tuple[str, int], Scores] = {}
        self._windows: dict[str, Windows] = {}
        self._masks: dict[tuple[str, int], Masks] = {}

    def val_dataloader(self) -> list[DataLoader[Tokens]]:
        """A loader for each pass that no earlier call finished.

        Here and not before, for the number of ranks is known only by now.
        """
        assert self.trainer is not None
        self._datamodule.trainer = self.trainer
        self._store = ScoreStore(self._options.out / SCORES, self._decisive)
        first = self.trainer.is_global_zero
        missing: list[tuple[str, int, Pass]] = []
        for name in self._launch.settings.data.val:
            for number, one in self._passes(name):
                # All ranks score what the first one misses: on other nodes are other files.
                scores = self._store.find(one) if first else None
                if self.trainer.strategy.broadcast(scores is None):
                    missing.append((name, number, one))
                elif scores is not None:
                    self._scores[name, number] = scores
        loaders = [self._datamodule.loader(one.windows) for _, _, one in missing]
        self._progress.begin(sum(len(loader) for loader in loaders))
        self._scorer.passes = [one for _, _, one in missing]
        self._scorer.on_batch = lambda one: self._progress.advance(
            f"{one.source}: {one.intervention.name}"
        )

        def scored(number: int, scores: Scores) -> None:
            name, row, one = missing[number]
            self._store.keep(one, scores)
            self._scores[name, row] = scores
            self._finish(name)

        self._scorer.on_scored = scored
        if first:
            for name in self._windows:
                self._finish(name)
        return loaders

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What all passes share, for the report."""
        assert self.trainer is not None
        assert self._launch.checkpoint is not None
        config, checkpoint = self._launch.settings.model, self._launch.checkpoint
        return {
            "checkpoint": {
                "path": str(checkpoint),
                "step": step_of(checkpoint),
                "sha256": checkpoint_digest(checkpoint),
            },
            "model": dataclasses.asdict(config),
            "precision": str(self.trainer.precision),
            "device": _device(self.trainer.strategy.root_device),
            "torch": torch.__version__,
            "devices": self.trainer.world_size,
            "micro_batch": self._launch.settings.run.micro_batch,
            "max_tokens": self._launch.settings.data.val_tokens,
        }

    @property
    def _decisive(self) -> dict[str, Any]:
        """What of the facts decides numbers to the last bit; not where files are."""
        names = ("model", "precision", "device", "torch", "devices", "micro_batch")
        strategy = type(self.trainer.strategy).__name__ if self.trainer else None
        return {name: self.facts[name] for name in names} | {
            "checkpoint": self.facts["checkpoint"]["sha256"],
            "strategy": strategy,
            "matmul": torch.get_float32_matmul_precision(),
        }

    def _passes(self, name: str) -> list[tuple[int, Pass]]:
        """Cuts a source into windows, tags them where a row needs it, and returns its passes."""
        windows = self._windows[name] = self._datamodule.windows(name)
        location = self._launch.settings.data.val[name]
        self.sources[name] = {
            "name": name,
            "path": location,
            "sha256": sha256(name, location),
            "tokenizer": self._datamodule.tokenizer.fingerprint,
            "tokens": windows.n_tokens,
            "sequences": windows.n_filled,
        }
        if self._tagger is not None:
            self._console.print(f"tagging {name}", highlight=False)
            tags = tag(windows, self._datamodule.tokenizer, self._tagger)
            for number, row in enumerate(self._rows):
                if row.of_class is not None:
                    masks = masks_of(tags, row.of_class, row.random_seed)
                    self._masks[name, number] = masks
        return [
            (number, Pass(name, windows, row.intervention, self._masks.get((name, number))))
            for number, row in enumerate(self._rows)
        ]

    def _finish(self, name: str) -> None:
        """Compares and prints a source's rows once all of them are there."""
        if any((name, number) not in self._scores for number in range(len(self._rows))):
            return
        scores = [self._scores[name, number] for number in range(len(self._rows))]
        tokens_W = np.array([len(w) - 1 for w in self._windows[name].windows], np.int64)
        tokens_W = tokens_W[: self._windows[name].n_filled]
        results = compare(name, self._rows, scores, tokens_W)
        excesses = self._excesses(name, scores, tokens_W)
        self.results[name] = results
        self.excesses[name] = excesses
        size = f"{tokens_W.sum():,} tokens in {len(tokens_W):,} sequences"
        title = f"{name}: nats per token over {size}"
        loops, paper = self._launch.settings.model.loops, self._options.compare_paper
        for suite in self._options.suites:
            own = [r for r in results if r.suite in (suite, BASELINE)]
            if suite in ("paper", "halting"):
                self._show(source_table(title, own, loops, paper))
            elif suite == "layers" and len(own) > 1:
                self._show(layer_table(title, own[1:]))
            elif suite == "token-classes" and excesses:
                self._show(excess_table(title, excesses, paper))

    def _show(self, table: Table) -> None:
        # What is no terminal counts as 80 columns wide, and numbers would be cut off.
        wide = self._console.is_terminal or self._console.width > LOG_WIDTH
        width = self._console.width if wide else LOG_WIDTH
        self._console.print(table, width=width, crop=False)

    def _excesses(self, name: str, scores: list[Scores], tokens_W: Counts) -> list[Excess]:
        found = []
        for number, row in enumerate(self._rows):
            if row.of_class is None or row.random_seed is not None:
                continue
            random = [
                scores[n].nats
                for n, other in enumerate(self._rows)
                if other.of_class == row.of_class and other.random_seed is not None
            ]
            chosen = count(self._masks[name, number])
            found.append(
                excess(name, row, chosen, scores[0].nats, scores[number].nats, random, tokens_W)
            )
        return found


def checkpoint_digest(checkpoint: Path) -> str:
    """Hash of a checkpoint's file, or of all files of a folder of shards."""
    digest = hashlib.sha256()
    files = sorted(checkpoint.rglob("*")) if checkpoint.is_dir() else [checkpoint]
    for file in files:
        if file.is_file():
            _hash(file, digest)
    return digest.hexdigest()


def sha256(name: str, location: str) -> str:
    """Hash of a source's file, of its files one after the other; or a data folder's fingerprint."""
    if exists(f"{location}/{MANIFEST}"):
        return Manifest.read(location).fingerprint
    digest = hashlib.sha256()
    for file in source_files(Source(name, local_copy(location))):
        _hash(file, digest)
    return digest.hexdigest()


def _device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _hash(file: Path, digest: Any) -> None:
    with file.open("rb") as content:
        while block := content.read(2**20):
            digest.update(block)
