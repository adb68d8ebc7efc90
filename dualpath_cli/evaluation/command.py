"""`dualpath evaluate`: reads all questions, then scores each model, then compares them."""

import json
import os
from argparse import Namespace
from dataclasses import asdict

from dualpath_cli.errors import UserError
from dualpath_cli.evaluation import benchmarks, request
from dualpath_cli.evaluation.benchmarks import BENCHMARKS
from dualpath_cli.evaluation.data import Asked, NoData, ask, ask_text, write_requests
from dualpath_cli.evaluation.request import OF_THE_RECIPE, Request, Subject
from dualpath_cli.files import format_csv, without_nan, write_text


def run(options: Namespace) -> str:
    """Evaluates, and returns where the scores are as text."""
    wanted = request.read(options)
    asked, skipped = _asked(wanted)
    if not wanted.subjects:
        return "\n".join(str(write_requests(one, wanted.out)) for one in asked)
    os.environ.setdefault("TQDM_DISABLE", "1")  # bars of our own are shown
    from dualpath_cli.evaluation import comparison, results, runner, table
    from dualpath_cli.output.console import plain_console
    from dualpath_cli.output.table import show

    console = plain_console()
    for name, reason in skipped.items():
        console.print(f"{name}: left out, {reason}", highlight=False, soft_wrap=True)
    settings = [runner.setting(subject, wanted) for subject in wanted.subjects]
    everything = []
    for setting in settings:
        folder = wanted.out / setting.subject.name
        facts = setting.facts()
        found = runner.run(setting, facts, asked, folder, console)
        means = table.means_of(table.scores_of(found))
        results.write(folder, facts, found, means, skipped)
        row = _paper_row(wanted, setting.subject)
        theirs = None if row is None else table.paper_scores(row)
        show(console, table.score_table(facts, found, means, theirs, row))
        everything.append(found)
    written = [str(wanted.out / subject.name / "results.json") for subject in wanted.subjects]
    if len(everything) > 1:
        rows = comparison.compare([subject.name for subject in wanted.subjects], everything)
        show(console, table.comparison_table(rows))
        records = [without_nan(asdict(row)) for row in rows]
        write_text(wanted.out / "comparison.json", json.dumps(records, indent=2) + "\n")
        write_text(wanted.out / "comparison.csv", format_csv(records))
        written.append(str(wanted.out / "comparison.csv"))
    return "\n".join(written)


def _asked(wanted: Request) -> tuple[list[Asked], dict[str, str]]:
    """All benchmarks with their documents, and why those of a suite that have none are left out."""
    asked, skipped = [], {}
    for name, spec in wanted.sources.items():
        asked.append(ask_text(benchmarks.text(name), spec, wanted.limit))
    for name in wanted.tasks:
        try:
            asked.append(ask(BENCHMARKS[name], wanted.data, wanted.fewshot, wanted.limit))
        except NoData as missing:
            if wanted.named:
                raise
            skipped[name] = str(missing)
    if not asked:
        name, reason = next(iter(skipped.items()))
        raise UserError(f"there is nothing to evaluate on: {name}: {reason}")
    return asked, skipped


def _paper_row(wanted: Request, subject: Subject) -> str | None:
    if wanted.paper != OF_THE_RECIPE:
        return wanted.paper
    assert subject.trained is not None
    return subject.trained.settings.run.recipe
