"""`dualpath ablate`: the cost of interventions on one checkpoint, paired on identical
windows.

1. every source is cut into the same windows as in `validate`;
2. each source is scored under the learned router, then under each intervention of the
   suites (`options.py`, `passes.py`); finished passes of an earlier call are not scored
   again (`bench.py`);
3. each intervention is compared with the learned router window by window, with a
   bootstrap interval over documents (`scores.py`);
4. the suite `depth` divides the documents of a source: read-outs are fitted on some,
   and its rows scored on the others (`depth.py`, `depth_results.py`);
5. tables are printed (`tables.py`), and written as Markdown, CSV and JSON; figures are
   drawn (`figures.py`).
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dualpath_cli.base.files import write_texts
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.data.windows import Windows
from dualpath_cli.report import bootstrap
from dualpath_cli.report.bootstrap import clusters_of
from dualpath_cli.report.table import Table, format_csv, markdown, show, without_nan
from dualpath_cli.study import bench
from dualpath_cli.study.ablation import read_outs, schedules
from dualpath_cli.study.ablation.depth import Division, depth_passes, divide
from dualpath_cli.study.ablation.depth_results import (
    depth_results,
    fit_caption,
    fit_facts,
)
from dualpath_cli.study.ablation.figures import draw_figures
from dualpath_cli.study.ablation.options import (
    BASELINE,
    DEPTH,
    REPORT,
    Ablate,
    AblationRow,
)
from dualpath_cli.study.ablation.passes import AblationPass
from dualpath_cli.study.ablation.scores import (
    ONLY_DEPTH,
    Excess,
    Result,
    compare,
    excesses,
)
from dualpath_cli.study.ablation.tables import (
    depth_table,
    excess_table,
    exit_table,
    layer_table,
    source_table,
)
from dualpath_cli.study.controls import (
    Masks,
    MatchQuality,
    class_masks,
    matched_random_tokens,
    tag_windows,
)
from dualpath_cli.study.parts_of_speech import Tagger
from dualpath_cli.training.launch import RunLaunch
from dualpath_cli.training.session import Session


def ablate(session: Session[RunLaunch]) -> None:
    """Scores the suites' rows on all sources; prints and writes the results."""
    options: Ablate = session.launch.options
    model = session.launch.settings.model

    rows, skipped = options.rows(model)
    for reason in dict.fromkeys(skipped.values()):
        names = [name for name, why in skipped.items() if why == reason]
        session.say(f"left out {', '.join(names)}: {reason}")

    classes = dict.fromkeys(row.token_class for row in rows if row.token_class)
    tagger = Tagger(options.tagger) if classes else None
    ablation = Ablation(session, rows, tagger)
    module = bench.run_passes(ablation, session)
    if not session.trainer.is_global_zero:
        return

    interventions = {}
    for row in rows:
        facts = asdict(row.intervention) | {"random_seed": row.random_seed}
        interventions[row.intervention.name] = facts
    report = {
        **module.facts,
        "suites": options.suites,
        "sources": module.sources,
        "bootstrap": bootstrap.FACTS,
        "tagger": tagger and tagger.facts,
        "classes": [asdict(forced) for forced in classes],
        "interventions": interventions,
        "skipped": skipped,
    }
    if DEPTH in options.suites:
        report["depth"] = {
            "fit": read_outs.FACTS,
            "schedule_seed": schedules.SEED,
            "sources": ablation.depth_facts,
        }

    # Sources may have finished in another order than they are named.
    whole = Finished([], [], [])
    for source in module.sources:
        whole.extend(ablation.finished[source])
    paths = write_results(options.folder, report, whole)
    paths += draw_figures(options.folder, whole.results, model)
    session.say("\n".join(map(str, paths)))


@dataclass(frozen=True)
class Finished:
    """The numbers of one or more finished sources."""

    results: list[Result]
    excesses: list[Excess]
    tables: list[Table]

    def extend(self, other: "Finished") -> None:
        self.results.extend(other.results)
        self.excesses.extend(other.excesses)
        self.tables.extend(other.tables)


class Ablation(bench.Study[bench.Pass]):
    semantics = 5

    def __init__(
        self,
        session: Session[RunLaunch],
        rows: Sequence[AblationRow],
        tagger: Tagger | None,
    ) -> None:
        """`rows` are scored, the learned router first."""
        self._options: Ablate = session.launch.options
        self._model = session.launch.settings.model
        self._console = session.console
        self._rows = rows
        self._tagger = tagger
        micro_batch = session.launch.settings.run.micro_batch
        self._full_batch = session.trainer.world_size * micro_batch
        self.folder = self._options.folder / "scores"
        self.finished: dict[str, Finished] = {}
        self.depth_facts: dict[str, Any] = {}
        """Facts of the suite `depth`, by source."""
        self._divisions: dict[str, Division] = {}

    def passes(
        self, source: str, windows: Windows, tokenizer: Tokenizer
    ) -> list[bench.Pass]:
        rows = [row for row in self._rows if row.suite != DEPTH]
        passes = [AblationPass(source, windows, row) for row in rows]
        if self._tagger is not None:
            self._choose_tokens(source, windows, tokenizer, passes)

        of_depth = [row for row in self._rows if row.suite == DEPTH]
        if not of_depth:
            return [*passes]
        division = divide(source, windows, self._full_batch)
        self._divisions[source] = division
        return [*passes, *depth_passes(source, division, of_depth)]

    def _choose_tokens(
        self,
        source: str,
        windows: Windows,
        tokenizer: Tokenizer,
        passes: Sequence[AblationPass],
    ) -> None:
        """Gives passes over classes of tokens, and over random ones, their masks."""
        assert self._tagger is not None
        self._console.print(f"tagging {source}")
        inputs = [window[:-1] for window in windows.windows[: windows.n_filled]]
        tags = tag_windows(inputs, tokenizer, self._tagger)

        # Both paths are forced on the same tokens, also on the same random tokens.
        @cache
        def chosen(
            name: str, upos: tuple[str, ...], seed: int | None
        ) -> tuple[Masks, MatchQuality | None]:
            members = class_masks(tags, upos)
            if seed is None:
                return members, None
            return matched_random_tokens(tags, members, seed, name)

        for pass_ in passes:
            forced = pass_.row.token_class
            seed = pass_.row.random_seed
            if forced is not None:
                pass_.masks, pass_.match = chosen(forced.name, forced.upos, seed)

    def finish(self, source: str, passes: Sequence[bench.Pass]) -> None:
        whole = [
            pass_
            for pass_ in passes
            if isinstance(pass_, AblationPass) and pass_.row.suite != DEPTH
        ]
        divided = passes[len(whole) :]  # behind the others, see `passes`

        title = _title(source, whole[0].windows)
        results = compare(whole)
        source_excesses = excesses(whole)
        tables = self._tables(title, results, source_excesses)

        if divided:
            division = self._divisions[source]
            facts = fit_facts(division, divided)
            self.depth_facts[source] = facts
            of_depth = depth_results(divided)
            results += of_depth
            title = _title(source, division.scored)
            tables.append(depth_table(title, of_depth, fit_caption(facts)))
            if any(result.intervention.halting is not None for result in of_depth):
                tables.append(exit_table(title, of_depth))
        self.finished[source] = Finished(results, source_excesses, tables)

        for table in tables:
            show(self._console, table)

    def _tables(
        self, title: str, results: Sequence[Result], source_excesses: Sequence[Excess]
    ) -> list[Table]:
        """A table for each suite with rows."""
        tables = []
        for suite in self._options.suites:
            # Tables begin with the learned router, but for those of differences.
            rows = [row for row in results if row.suite in (suite, BASELINE)]
            if len(rows) == 1:
                continue
            if suite == "layers":
                last = self._model.layers[-1]
                # A repeated core takes the scale into its next repetition.
                has_no_scale = last.block == "dual" and last.core_loops == 1
                tables.append(layer_table(title, rows[1:], has_no_scale))
            elif suite == "token-classes":
                tables.append(excess_table(title, source_excesses))
            else:
                tables.append(source_table(title, rows, self._model))

        return tables


def _title(source: str, windows: Windows) -> str:
    return (
        f"{source}: nats per token over {windows.n_tokens:,} tokens, "
        f"{clusters_of(windows)}"
    )


def write_results(
    folder: Path, report: dict[str, Any], finished: Finished
) -> list[Path]:
    """Writes ablations.json (the report and all rows), .csv and .md; returns their
    paths.

    A missing number is null in JSON and empty in CSV; tables are those on the screen.
    """
    left_out: tuple[str, ...] = () if DEPTH in report["suites"] else ONLY_DEPTH
    if report["model"]["core"] is None:
        left_out = (*left_out, "expected_core_loops", "core_loops_run")
    rows = []
    for result in finished.results:
        row = asdict(result) | {"intervention": result.name}
        kept = {
            name: value for name, value in row.items() if not name.startswith(left_out)
        }
        rows.append(without_nan(kept))
    excess_rows = [without_nan(excess) for excess in finished.excesses]

    content = {**report, "rows": rows, "excess": excess_rows}
    texts = {
        REPORT: json.dumps(content, indent=2) + "\n",
        "ablations.csv": format_csv(rows),
        "ablations.md": "\n".join(map(markdown, finished.tables)),
        "token_classes.csv": format_csv(excess_rows),
    }
    return write_texts(folder, texts)
