"""`dualpath ablate`: what interventions on one checkpoint cost, paired on identical windows.

1. every source is cut into the windows that `validate` scores;
2. each source is scored under the learned router, then under each intervention of the suites
   (`options.py`); what an earlier call finished is not scored again (`bench.py`);
3. each intervention is compared with the learned router window by window, with a bootstrap
   interval over documents; tables and figures are written (`tables.py`, `figures.py`).

Shapes: W windows of a source, B of a batch, T positions.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.data.windows import Windows
from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.model import RoutingTrace
from dualpath_cli.model.loss import IGNORE
from dualpath_cli.report import bootstrap
from dualpath_cli.report.bootstrap import clusters_of
from dualpath_cli.report.table import show
from dualpath_cli.study import bench
from dualpath_cli.study.ablation import figures as ablation_figures
from dualpath_cli.study.ablation.options import BASELINE, SHORTER, Ablate, Row, applicable
from dualpath_cli.study.ablation.tables import (
    Excess,
    Result,
    Scores,
    compare,
    excess,
    excess_table,
    layer_table,
    source_table,
    write,
)
from dualpath_cli.study.controls import Masks, Match, members_of, random_others, tag
from dualpath_cli.study.parts_of_speech import Tagger
from dualpath_cli.study.passes import FILLER, Arrays, Pass, array_digest
from dualpath_cli.training.launch import StudyLaunch
from dualpath_cli.training.module import DualPathModule
from dualpath_cli.training.session import Session


@dataclass
class Scoring(Pass):
    row: Row
    masks: Masks | None = None  # which input tokens of each window are overridden; None: all
    match: Match | None = None  # how closely tokens drawn at random match their class

    @property
    def title(self) -> str:
        return f"{self.source}: {self.row.intervention.name}"

    @property
    def decisive(self) -> Mapping[str, Any]:
        return {
            "intervention": dataclasses.asdict(self.row.intervention),
            "masks": None if self.masks is None else array_digest(self.masks),
        }

    def begin(self, module: DualPathModule, files: ExitStack) -> None:
        self._module = module
        self._columns: list[torch.Tensor] = []
        self._loops_run: list[float] = []

    def step(self, tokens: torch.Tensor, targets: torch.Tensor, places: list[int]) -> None:
        assert self._module.model is not None
        scored = targets != IGNORE
        trace = RoutingTrace()
        nll = forward(
            self._module.model, tokens, targets, trace=trace, intervention=self.row.intervention,
            token_mask=scored if self.masks is None else self._mask(self.masks, tokens, places),
        )  # fmt: skip
        self._columns.append(
            torch.stack([nll.double().sum(1), _loops(trace, scored), _passes(trace, scored)], dim=1)
        )
        runs = [layer.loops_run for layer in trace.layers if layer.loops_run is not None]
        # A batch of padding alone, which fills up a rank's share, halts at once.
        counts = bool(runs) and bool(scored.any())
        self._loops_run.append(float(np.mean(runs)) if counts else float("nan"))

    def end(self) -> Arrays:
        """Returns `Scores` of all ranks, in the order of the windows."""
        scores_WC = torch.cat(self._columns)
        runs = torch.tensor(self._loops_run, device=scores_WC.device)
        gathered, all_runs = self._module.all_gather((scores_WC, runs))
        # Ranks take turns with the windows; the last ones may only fill up a batch.
        in_order = gathered.reshape(-1, *scores_WC.shape).transpose(0, 1).reshape(-1, 3)
        columns = in_order[: self.windows.n_filled].cpu().numpy()
        nats, loops, passes = columns.T
        return dataclasses.asdict(Scores(nats, loops, passes, np.array(float(all_runs.nanmean()))))

    def _mask(self, masks: Masks, tokens: torch.Tensor, places: list[int]) -> torch.Tensor:
        """The masks of a batch's windows, (B, T), False at padding."""
        mask_BT = torch.zeros(tokens.shape, dtype=torch.bool)
        for row, place in enumerate(places):
            if place != FILLER:
                mask_BT[row, : len(masks[place])] = torch.from_numpy(masks[place])
        return mask_BT.to(tokens.device)


def _loops(trace: RoutingTrace, scored: torch.Tensor) -> torch.Tensor:
    """Expected loops of each window's tokens, summed, (B,): of each the mean over layers."""
    layers = [layer.expected_loops for layer in trace.layers]
    loops = [layer.double() for layer in layers if layer is not None]
    if not loops:
        return torch.full((len(scored),), float("nan"), device=scored.device, dtype=torch.float64)
    return (torch.stack(loops).mean(0) * scored).sum(1)


def _passes(trace: RoutingTrace, scored: torch.Tensor) -> torch.Tensor:
    """Sublayers that each window's tokens passed, summed, (B,): of each the mean over layers."""
    passes = torch.stack([layer.passes for layer in trace.layers]).double()
    return (passes.mean(0) * scored).sum(1)


def run(session: Session[StudyLaunch]) -> None:
    options, model = session.launch.options, session.launch.settings.model
    rows, skipped = applicable(options.selection.rows(model), model)
    for reason in dict.fromkeys(skipped.values()):
        names = ", ".join(name for name, why in skipped.items() if why == reason)
        session.say(f"left out {names}: {reason}")
    classes = dict.fromkeys(row.token_class for row in rows if row.token_class)
    tagger = Tagger(options.tagger) if classes else None
    ablation = Ablation(session, options, rows, tagger)
    module = bench.run(ablation, session)
    if not session.trainer.is_global_zero:
        return
    report = {
        **module.facts,
        "suites": options.selection.suites,
        "sources": module.sources,
        "bootstrap": bootstrap.FACTS,
        "tagger": tagger and tagger.facts,
        "classes": [dataclasses.asdict(forced) for forced in classes],
        "interventions": {
            row.intervention.name: dataclasses.asdict(row.intervention)
            | {"random_seed": row.random_seed}
            for row in rows
        },
        "skipped": skipped,
    }
    results = [result for source in module.sources for result in ablation.results[source]]
    excesses = [row for source in module.sources for row in ablation.excesses[source]]
    written = write(options.folder, report, results, excesses, model.same_loops)
    written += ablation_figures.draw(options.folder, results, model.same_loops)
    session.say("\n".join(map(str, written)))


class Ablation(bench.Study[Scoring]):
    """A pass for each source and row; a table for each source and suite."""

    semantics = 4

    def __init__(
        self,
        session: Session[StudyLaunch],
        options: Ablate,
        rows: Sequence[Row],
        tagger: Tagger | None,
    ) -> None:
        """`rows` are scored, the learned router first."""
        self.folder = options.folder / "scores"
        self.results: dict[str, list[Result]] = {}
        self.excesses: dict[str, list[Excess]] = {}
        model = session.launch.settings.model
        self._loops, self._last_is_dual = model.same_loops, model.block_kinds[-1] == "dual"
        self._console = session.console
        self._options, self._rows, self._tagger = options, rows, tagger

    def passes(self, source: str, windows: Windows, tokenizer: Tokenizer) -> list[Scoring]:
        passes = [Scoring(source, windows, row) for row in self._rows]
        if self._tagger is not None:
            self._console.print(f"tagging {source}", highlight=False)
            inputs = [window[:-1] for window in windows.windows[: windows.n_filled]]
            tags = tag(inputs, tokenizer, self._tagger)
            # Both paths are forced on the same tokens, random ones as well.
            masks: dict[tuple[str, int | None], tuple[Masks, Match | None]] = {}
            for pass_ in passes:
                forced, seed = pass_.row.token_class, pass_.row.random_seed
                if forced is None:
                    continue
                key = (forced.name, seed)
                if key not in masks:
                    members = members_of(tags, forced.upos)
                    masks[key] = members, None
                    if seed is not None:
                        masks[key] = random_others(tags, members, seed, forced.name)
                pass_.masks, pass_.match = masks[key]
        return passes

    def finish(self, source: str, passes: Sequence[Scoring]) -> None:
        scores = [Scores(**pass_.arrays) for pass_ in passes]
        windows = passes[0].windows
        self.results[source] = compare(source, self._rows, scores, windows)
        self.excesses[source] = self._excesses(source, passes, scores)
        title = f"{source}: nats per token over {windows.n_tokens:,} tokens, {clusters_of(windows)}"
        paper = self._options.compare_paper
        for suite in self._options.selection.suites:
            rows = [row for row in self.results[source] if row.suite in (suite, BASELINE)]
            if suite in ("paper", "experts", "kv-slots", *SHORTER):
                table = source_table(title, rows, self._loops, paper)
            elif suite == "layers" and len(rows) > 1:
                table = layer_table(title, rows[1:], self._last_is_dual)
            elif suite == "token-classes" and self.excesses[source]:
                table = excess_table(title, self.excesses[source], paper)
            else:
                continue
            show(self._console, table)

    def _excesses(
        self, source: str, passes: Sequence[Scoring], scores: Sequence[Scores]
    ) -> list[Excess]:
        excesses = []
        for pass_, scored in zip(passes, scores, strict=True):
            forced = pass_.row.token_class
            if forced is None or pass_.row.random_seed is not None:
                continue
            random = [
                (other.match, drawn.nats)
                for other, drawn in zip(passes, scores, strict=True)
                if other.row.token_class == forced and other.match is not None
            ]
            excesses.append(
                excess(
                    source, forced, np.array([mask.sum() for mask in pass_.masks or []]),
                    scores[0].nats, scored.nats, [nats for _, nats in random], pass_.windows,
                    Match.mean([match for match, _ in random]),
                )
            )  # fmt: skip
        return excesses
