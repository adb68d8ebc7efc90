"""`dualpath ablate`: the cost of interventions on one checkpoint, paired on identical windows.

1. every source is cut into the same windows as in `validate`;
2. each source is scored under the learned router, then under each intervention of the suites
   (`options.py`); finished passes of an earlier call are not scored again (`bench.py`);
3. each intervention is compared with the learned router window by window, with a bootstrap
   interval over documents (`scores.py`); tables and figures are written.
"""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain

from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.data.windows import Windows
from dualpath_cli.report import bootstrap
from dualpath_cli.report.bootstrap import clusters_of
from dualpath_cli.report.table import Table, show
from dualpath_cli.study import bench
from dualpath_cli.study.ablation.options import BASELINE, SHORTER, Ablate, Row
from dualpath_cli.study.ablation.report import draw, excess_table, layer_table, source_table, write
from dualpath_cli.study.ablation.scores import Excess, Result, Scoring, compare, excesses
from dualpath_cli.study.controls import Masks, Match, members_of, random_others, tag
from dualpath_cli.study.parts_of_speech import Tagger
from dualpath_cli.training.launch import StudyLaunch
from dualpath_cli.training.session import Session


def run(session: Session[StudyLaunch]) -> None:
    options: Ablate = session.launch.options
    model = session.launch.settings.model
    rows, skipped = options.rows(model)
    for reason in dict.fromkeys(skipped.values()):
        names = ", ".join(name for name, why in skipped.items() if why == reason)
        session.say(f"left out {names}: {reason}")
    classes = dict.fromkeys(row.token_class for row in rows if row.token_class)
    tagger = Tagger(options.tagger) if classes else None
    ablation = Ablation(session, rows, tagger)
    module = bench.run(ablation, session)
    if not session.trainer.is_global_zero:
        return
    report = {
        **module.facts,
        "suites": options.suites,
        "sources": module.sources,
        "bootstrap": bootstrap.FACTS,
        "tagger": tagger and tagger.facts,
        "classes": [asdict(forced) for forced in classes],
        "interventions": {
            row.intervention.name: asdict(row.intervention) | {"random_seed": row.random_seed}
            for row in rows
        },
        "skipped": skipped,
    }
    found = zip(*(ablation.finished[source] for source in module.sources), strict=True)
    results, of_classes, tables = (list(chain.from_iterable(each)) for each in found)
    written = write(options.folder, report, results, of_classes, tables)
    written += draw(options.folder, results, model.same_loops)
    session.say("\n".join(map(str, written)))


class Ablation(bench.Study[Scoring]):
    semantics = 4

    def __init__(
        self, session: Session[StudyLaunch], rows: Sequence[Row], tagger: Tagger | None
    ) -> None:
        """`rows` are scored, the learned router first."""
        self._options: Ablate = session.launch.options
        self._model, self._console = session.launch.settings.model, session.console
        self._rows, self._tagger = rows, tagger
        self.folder = self._options.folder / "scores"
        self.finished: dict[str, tuple[list[Result], list[Excess], list[Table]]] = {}

    def passes(self, source: str, windows: Windows, tokenizer: Tokenizer) -> list[Scoring]:
        passes = [Scoring(source, windows, row) for row in self._rows]
        if self._tagger is not None:
            self._console.print(f"tagging {source}", highlight=False)
            inputs = [window[:-1] for window in windows.windows[: windows.n_filled]]
            tags = tag(inputs, tokenizer, self._tagger)
            # Both paths are forced on the same tokens, also on the same random tokens.
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
        results, of_classes, tables = self.finished[source] = compare(passes), excesses(passes), []
        windows = passes[0].windows
        title = f"{source}: nats per token over {windows.n_tokens:,} tokens, {clusters_of(windows)}"
        for suite in self._options.suites:
            rows = [row for row in results if row.suite in (suite, BASELINE)]
            if suite in ("paper", "experts", "kv-slots", *SHORTER):
                tables.append(source_table(title, rows, self._model.same_loops))
            elif suite == "layers" and len(rows) > 1:
                is_dual = self._model.block_kinds[-1] == "dual"
                tables.append(layer_table(title, rows[1:], is_dual))
            elif suite == "token-classes" and of_classes:
                tables.append(excess_table(title, of_classes))
        for table in tables:
            show(self._console, table)
