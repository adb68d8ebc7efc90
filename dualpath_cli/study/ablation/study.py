"""`dualpath ablate`: what interventions on one checkpoint cost, paired on identical windows.

1. every source is cut into windows once, by the data module that `validate` uses;
2. each source is scored under the learned router, then under each intervention of the suites
   (`suites.py`); what an earlier call finished is not scored again (`scoring.py`);
3. each intervention is compared with the learned router window by window, with a bootstrap
   interval over windows; tables and figures are written.
"""

import dataclasses
from typing import Any

import numpy as np
from lightning.pytorch import LightningDataModule
from rich.console import Console
from torch.utils.data import DataLoader

from dualpath_cli.command.launch import Launch
from dualpath_cli.command.session import Session
from dualpath_cli.study.ablation import figures as ablation_figures
from dualpath_cli.study.ablation.comparison import compare, excess
from dualpath_cli.study.ablation.scoring import Masks, Pass, Scorer, Scores, ScoreStore
from dualpath_cli.study.ablation.suites import BASELINE, Row, applicable, rows
from dualpath_cli.study.ablation.table import (
    Excess,
    Result,
    excess_table,
    layer_table,
    source_table,
    write,
)
from dualpath_cli.study.ablation.token_classes import count, masks_of, tag
from dualpath_cli.study.bootstrap import BOOTSTRAP_SEED, RESAMPLES, Counts
from dualpath_cli.study.facts import decisive_facts, source_facts, study_facts
from dualpath_cli.study.parts_of_speech import Tagger
from dualpath_cli.study.progress import StudyProgress
from dualpath_cli.study.tables import print_table
from dualpath_cli.training.data import DualPathDataModule
from dualpath_cli.training.windows import Tokens, Windows

SCORES = "scores"
"""Folder of the finished passes, inside that of the tables."""


def run(session: Session) -> None:
    """Scores a run's checkpoint under the suites asked for; prints and writes tables and figures.

    Raises:
        UserError: if a source holds no text, or tags are wanted and cannot be had.
    """
    launch, trainer, console = session.launch, session.trainer, session.console
    scorer, datamodule = session.module, session.datamodule
    assert isinstance(scorer, Scorer)
    found, skipped = applicable(rows(launch.options, launch.settings.model), launch.settings.model)
    for reason in dict.fromkeys(skipped.values()):
        names = ", ".join(name for name, why in skipped.items() if why == reason)
        console.print(f"left out {names}: {reason}", highlight=False, soft_wrap=True)
    classes = dict.fromkeys(row.of_class for row in found if row.of_class)
    tagger = Tagger(launch.options.tagger) if classes else None
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
        "suites": launch.options.suites,
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
    written = write(launch.options.out, report, results, excesses)
    written += ablation_figures.draw(launch.options.out, results, launch.settings.model.loops)
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
        self.results: dict[str, list[Result]] = {}
        self.excesses: dict[str, list[Excess]] = {}
        self.sources: dict[str, dict[str, Any]] = {}
        self.facts: dict[str, Any] = {}
        """What all passes share."""
        self._launch, self._options = launch, launch.options
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
        self.facts = study_facts(self._launch, self.trainer)
        self._store = ScoreStore(
            self._options.out / SCORES, decisive_facts(self.facts, self.trainer)
        )
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

    def _passes(self, name: str) -> list[tuple[int, Pass]]:
        """Cuts a source into windows, tags them where a row needs it, and returns its passes."""
        windows = self._windows[name] = self._datamodule.windows(name)
        location = self._launch.settings.data.val[name]
        self.sources[name] = {
            **source_facts(name, location, windows, self._datamodule.tokenizer.fingerprint),
            "tokens": windows.n_tokens,
        }
        if self._tagger is not None:
            self._console.print(f"tagging {name}", highlight=False)
            inputs = [window[:-1] for window in windows.windows[: windows.n_filled]]
            tags = tag(inputs, self._datamodule.tokenizer, self._tagger)
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
                print_table(self._console, source_table(title, own, loops, paper))
            elif suite == "layers" and len(own) > 1:
                print_table(self._console, layer_table(title, own[1:]))
            elif suite == "token-classes" and excesses:
                print_table(self._console, excess_table(title, excesses, paper))

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
