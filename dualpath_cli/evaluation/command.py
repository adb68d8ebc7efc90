"""`dualpath evaluate`: reads all questions, then scores each model, then compares them."""

import json
import os
from dataclasses import asdict

from dualpath_cli.errors import UserError
from dualpath_cli.evaluation import benchmarks
from dualpath_cli.evaluation.benchmarks import BENCHMARKS
from dualpath_cli.evaluation.data import Asked, NoData, ask, ask_text, write_requests
from dualpath_cli.evaluation.request import Evaluate, there
from dualpath_cli.files import format_csv, without_nan, write_text
from dualpath_cli.options import folder_of


def run(options: Evaluate) -> str:
    """Evaluates, and returns where the scores are as text."""
    assert options.out is not None
    out, subjects = folder_of("--out", options.out), options.subjects()
    asked, skipped = _asked(options)
    if options.requests:
        return "\n".join(str(write_requests(one, out)) for one in asked)
    os.environ.setdefault("TQDM_DISABLE", "1")  # bars of our own are shown
    from dualpath_cli.evaluation import comparison, results, runner, table
    from dualpath_cli.output.console import plain_console
    from dualpath_cli.output.table import show

    console = plain_console()
    for name, reason in skipped.items():
        console.print(f"{name}: left out, {reason}", highlight=False, soft_wrap=True)
    everything = []
    for subject in subjects:
        setting = runner.Setting(subject, options)
        folder, facts = out / subject.name, setting.facts()
        found = runner.run(setting, facts, asked, folder, console)
        means = table.means_of(table.scores_of(found))
        results.write(folder, facts, found, means, skipped)
        row = options.paper_row(subject)
        theirs = None if row is None else table.paper_scores(row)
        show(console, table.score_table(facts, found, means, theirs, row))
        everything.append(found)
    written = [str(out / subject.name / "results.json") for subject in subjects]
    if len(everything) > 1:
        rows = comparison.compare([subject.name for subject in subjects], everything)
        show(console, table.comparison_table(rows))
        records = [without_nan(asdict(row)) for row in rows]
        write_text(out / "comparison.json", json.dumps(records, indent=2) + "\n")
        write_text(out / "comparison.csv", format_csv(records))
        written.append(str(out / "comparison.csv"))
    return "\n".join(written)


def _asked(options: Evaluate) -> tuple[list[Asked], dict[str, str]]:
    """All benchmarks with their documents, and why those of a suite that have none are left out."""
    sources, limit = options.texts(), options.documents
    data = [there("--data", path) for path in options.data]
    fewshot = None if options.fewshot is None else there("--fewshot", options.fewshot)
    asked = [ask_text(benchmarks.text(name), spec, limit) for name, spec in sources.items()]
    skipped = {}
    for name in options.benchmarks:
        try:
            if name not in sources:
                asked.append(ask(BENCHMARKS[name], data, fewshot, limit))
        except NoData as missing:
            if options.tasks:
                raise
            skipped[name] = str(missing)
    if not asked:
        name, reason = next(iter(skipped.items()))
        raise UserError(f"there is nothing to evaluate on: {name}: {reason}")
    return asked, skipped
