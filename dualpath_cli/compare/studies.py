"""The ablations, routings and evaluations of a configuration's runs, together."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from statistics import mean, stdev
from typing import Any, TypeVar

from dualpath_cli.base.errors import UserError, content_fault
from dualpath_cli.base.files import read_json
from dualpath_cli.compare.configurations import (
    Configuration,
    Group,
    mean_and_error,
    partition,
)
from dualpath_cli.compare.runs import TrainedRun
from dualpath_cli.evaluation.benchmarks import FOLDER, RESULTS, score_table
from dualpath_cli.report.blocks import holm, signed_rank_p
from dualpath_cli.report.table import Column, Columns, Table, with_error, without_nan
from dualpath_cli.run.checkpoint_files import fault_of
from dualpath_cli.run.exported_folder import hash_of_weights
from dualpath_cli.run.run_folder import CHECKPOINTS, other_model
from dualpath_cli.study.ablation.options import REPORT
from dualpath_cli.study.parts_of_speech import CLASSES

T = TypeVar("T")
Record = dict[str, Any]
SourceText = tuple[Any, ...]  # the facts that tell it from others
MOST = 1e300  # of a number that any arithmetic here can take
REPORTS = f"ablations/step-*/{REPORT}"  # in a run folder
ROUTINGS = "routing/step-*/summary.json"  # the same; its writer imports torch
DAMAGE = (LookupError, AttributeError, TypeError, ValueError, OverflowError)
"""Errors that a report raises whose content is not that of a report."""
ROUTED = ("deep_share", "cosine")
"""Means of each layer in a report of `routing`: columns of routing.csv."""
SCORE_OF = itemgetter("benchmark", "metric", "documents", "window", "precision")
"""Scores of other documents, after less context or in another precision are other
scores."""


def ablations_of(
    groups: Sequence[Group],
) -> tuple[list[Record], list[Record], list[str]]:
    """Rows of ablations.csv and of ablation_classes.csv, and a line for each report
    left out.

    A configuration has rows if two of its runs have a report of their last step by
    `dualpath ablate`, all in one precision. They hold means over the runs, of what all
    of these reports have.
    """
    rows: list[Record] = []
    classes: list[Record] = []
    left_out: list[str] = []
    for group, c in _configurations_of(groups):
        found = _newest(c, REPORTS, _checked, left_out)
        kept = _of_same_texts(found, "ablation", left_out)
        reports = [report for _, report in kept]
        if len(reports) < 2 or _differ_in_precision(c, "ablation", reports, left_out):
            continue

        names = {"group": group.name, "configuration": c.name}
        differences = differences_over_runs([report["rows"] for report in reports])
        rows += [names | row for row in differences]

        tagged = [report["tagger"] for report in reports if report["excess"]]
        if any(tagger != tagged[0] for tagger in tagged):
            left_out.append(
                f"left out: the classes of tokens of '{c.name}', as the tags of its "
                "reports are of different pipelines, or versions of spaCy"
            )
            continue
        excesses = excess_over_runs([report["excess"] for report in reports])
        classes += [names | row for row in excesses]
    return rows, classes, left_out


def routing_of(groups: Sequence[Group]) -> tuple[list[Record], list[str]]:
    """Rows of routing.csv, and a line for each report left out.

    A configuration has a row for each source and place of a layer with gates, if one of
    its runs has a report of its last step by `dualpath routing`; several are all in one
    precision. The reports of a group have the same texts, so that its configurations
    can be compared.
    """
    rows: list[Record] = []
    left_out: list[str] = []
    for group in groups:
        found = chain.from_iterable(
            _newest(c, ROUTINGS, _checked_routing, left_out)
            for c in group.configurations
        )
        report_of = dict(_of_same_texts(found, "routing", left_out))
        for c in group.configurations:
            reports = [report_of[run] for run in c.runs if run in report_of]
            if not reports or _differ_in_precision(c, "routing", reports, left_out):
                continue
            names = {"group": group.name, "configuration": c.name}
            rows += [names | row for row in routing_over_runs(reports)]
    return rows, left_out


def evaluations_of(groups: Sequence[Group]) -> tuple[list[Record], list[str]]:
    """Rows of evaluations.csv, a row a run and score, and a line for each report left
    out.

    A run has rows if it has a report of its last step by `dualpath evaluate`.
    """
    rows: list[Record] = []
    left_out: list[str] = []
    for group, c in _configurations_of(groups):
        last = c.runs[0].settings.run.steps
        pattern = f"{FOLDER}/*-step-{last:08d}/{RESULTS}"
        for run, scores in _newest(c, pattern, _scores, left_out):
            names = {"group": group.name, "configuration": c.name, "seed": run.seed}
            rows += [names | score for score in scores]
    return rows, left_out


def _configurations_of(
    groups: Sequence[Group],
) -> Iterator[tuple[Group, Configuration]]:
    for group in groups:
        for configuration in group.configurations:
            yield group, configuration


def _newest(
    configuration: Configuration,
    pattern: str,
    check: Callable[[TrainedRun, Any], T],
    left_out: list[str],
) -> Iterator[tuple[TrainedRun, T]]:
    """The newest report of each run, as `check` returns it; one that is refused adds a
    line to `left_out`."""
    for run in configuration.runs:
        paths = sorted(run.folder.glob(pattern))
        if not paths:
            continue

        newest = paths[-1]
        try:
            yield run, check(run, read_json(newest))
        except UserError as error:
            left_out.append(f"left out: {error}")
        except DAMAGE as error:
            left_out.append(f"left out: {newest}, {content_fault(error)}")


def _check_subject(run: TrainedRun, model: Record, step: int, sha256: str) -> None:
    """Raises ValueError unless a report is of the model that the run ended with.

    `model`, `step` and `sha256` of the weights are the report's.
    """
    own_model = run.settings.as_recipe()["model"]
    if different := other_model(model, own_model):
        key, scored, own = different
        raise ValueError(f"of a model with {key}={scored}, the run's has {own}")

    last = run.settings.run.steps
    if step != last:
        raise ValueError(f"of step {step:,}, the run ended at step {last:,}")

    # A folder that was kept for its numbers has no checkpoints.
    checkpoint = run.folder / CHECKPOINTS / f"step-{step:08d}"
    is_kept = fault_of(checkpoint) is None
    if is_kept and hash_of_weights(checkpoint) != sha256:
        raise ValueError(f"of other weights than those in {checkpoint}")


def _of_same_texts(
    found: Iterable[tuple[TrainedRun, Record]], study: str, left_out: list[str]
) -> list[tuple[TrainedRun, Record]]:
    """The reports of a study whose texts are those of the first; each other one adds a
    line to `left_out`."""
    same: list[tuple[TrainedRun, Record]] = []
    # The text of each source, and the run whose report had it first.
    first: dict[str, tuple[SourceText, TrainedRun]] = {}
    for run, report in found:
        texts = _texts(report)
        others = [
            name for name in texts if name in first and texts[name] != first[name][0]
        ]
        if others:
            name = others[0]
            _, other = first[name]
            left_out.append(
                f"left out: the {study} of {run.folder}, whose '{name}' is another "
                f"text, or part of it, than that of {other.folder}"
            )
            continue

        same.append((run, report))
        for name, text in texts.items():
            first.setdefault(name, (text, run))
    return same


def _differ_in_precision(
    configuration: Configuration,
    study: str,
    reports: Sequence[Record],
    left_out: list[str],
) -> bool:
    """Whether reports of a study are in several precisions, which adds a line to
    `left_out`."""
    precisions = {str(report.get("precision")) for report in reports}
    if len(precisions) == 1:
        return False

    left_out.append(
        f"left out: the {study}s of '{configuration.name}', as its reports are in "
        f"different precisions: {', '.join(sorted(precisions))}"
    )
    return True


def _texts(report: Record) -> dict[str, SourceText]:
    """The facts that tell the text of each source, or the part of it, from another."""
    return {
        # Reports of earlier versions name no field.
        name: (
            source["sha256"],
            source.get("field", "text"),
            source["tokens"],
            report["val_seed"],
        )
        for name, source in report["sources"].items()
    }


def _checked(run: TrainedRun, report: Record) -> Record:
    """Returns the report. A damaged one raises here, where the file can be named."""
    checkpoint = report["checkpoint"]
    _check_subject(run, report["model"], checkpoint["step"], checkpoint["sha256"])
    _texts(report)

    for row in report["rows"]:
        _check_finite(row, "loss", "difference")
    for row in report["excess"]:
        if row["excess"] is not None:  # else a class without tokens
            _check_finite(row, "excess", "per_forced")

    # Used twice, as two runs would be: a missing value that the means need raises now.
    _ = report["tagger"]
    differences_over_runs([report["rows"]] * 2)
    excess_over_runs([report["excess"]] * 2)
    return report


def _checked_routing(run: TrainedRun, report: Record) -> Record:
    """Returns the report, as `_checked` does."""
    checkpoint = report["checkpoint"]
    _check_subject(run, report["model"], checkpoint["step"], checkpoint["sha256"])
    _texts(report)
    if not routing_over_runs([report]):
        raise ValueError("no layer of a source in it")
    return report


def _check_finite(row: Record, *names: str) -> None:
    """Raises ValueError for a value that is not a finite number: Python's JSON may hold
    NaN."""
    for name in names:
        value = row[name]
        is_number = type(value) in (int, float) and abs(value) < MOST
        if not is_number:
            raise ValueError(f"{name} is {value!r:.40}, not a finite number")


def _scores(run: TrainedRun, report: Record) -> list[Record]:
    """The rows of evaluate's table, of the model as trained."""
    facts = report["model"]
    _check_subject(run, facts["model"], facts["step"], facts["sha256"])
    override = facts["intervention"]
    if override != "learned":
        raise ValueError(f"scored under {override}")

    rows = []
    for name, _, documents, *scores in score_table(report["model"], report).rows:
        for metric, score in zip(("accuracy", "bits per byte"), scores, strict=True):
            if score is None:
                continue
            value = score[0]
            row = {
                "benchmark": name,
                "metric": metric,
                "documents": documents,
                "window": facts["window"],
                "precision": facts["precision"],
                "score": value,
            }
            _check_finite(row, "documents", "score")
            rows.append(row | {"score": float(value)})
    if not rows:
        raise ValueError("no score of a benchmark in it")
    return rows


def table_of_classes(rows: Sequence[Record]) -> Table:
    """The excess of each class of tokens, for the configurations of a group."""
    columns: Columns[Record] = [
        (Column("configuration"), itemgetter("configuration")),
        (Column("forced"), itemgetter("forced")),
        (Column("source"), itemgetter("source")),
        (Column("mean", "+.4f"), itemgetter("mean")),
        (Column("least", "+.4f"), itemgetter("least")),
        (Column("most", "+.4f"), itemgetter("most")),
        (Column("per forced", "+.3f"), itemgetter("per_forced")),
        (
            Column("above 0", "{0[0]} of {0[1]}".format),
            lambda row: (row["above"], row["runs"]),
        ),
        (Column("Wilcoxon p", ".3g"), itemgetter("p")),
        (Column("Holm", ".3g"), itemgetter("p_holm")),
    ]
    caption = (
        "Holm: p corrected over the classes, paths and sources of a configuration, the "
        "paper's classes apart from others"
    )
    if any(row["runs"] < 6 for row in rows):
        caption += "; with fewer than six runs the test cannot give p < 0.05"
    title = f"{rows[0]['group']}: excess over random tokens, over runs"
    return Table.of(rows, columns, title, caption)


def table_of_scores(rows: Sequence[Record]) -> Table:
    """A row a score, with the mean over seeds of each configuration of a group."""
    names = list(dict.fromkeys(row["configuration"] for row in rows))
    columns = [Column("benchmark"), Column("metric")]
    columns += [Column("documents", ","), Column("window", ","), Column("precision")]
    columns += [Column(name, with_error(".4f")) for name in names]

    cells = []
    for score, its_rows in partition(rows, SCORE_OF).items():
        by_name = partition(its_rows, itemgetter("configuration"))
        cell = list(score)
        for name in names:
            values = [row["score"] for row in by_name.get(name, [])]
            cell.append(mean_and_error(values) if values else None)
        cells.append(cell)

    caption = "± one standard error over seeds, not that of a difference; no tests"
    return Table(columns, cells, f"{rows[0]['group']}: benchmarks", caption)


def differences_over_runs(runs: Sequence[Sequence[Record]]) -> list[Record]:
    """The cost of each ablation that all runs have: mean and standard deviation over
    them."""
    in_all = _in_all(runs, ("suite", "intervention", "source"))
    return [
        {
            "suite": suite,
            "intervention": intervention,
            "source": source,
            "runs": len(rows),
            "loss": mean(row["loss"] for row in rows),
            "difference": mean(row["difference"] for row in rows),
            "difference_sd": stdev(row["difference"] for row in rows),
        }
        for (suite, intervention, source), rows in in_all.items()
    ]


def excess_over_runs(runs: Sequence[Sequence[Record]]) -> list[Record]:
    """The excess of each class of tokens that all runs have over random tokens, by
    source.

    With Wilcoxon's signed-rank test on the runs' excesses. Holm's correction is over
    the paper's classes, and separately over all other classes.
    """
    records: list[Record] = []
    of_paper: list[Record] = []
    others: list[Record] = []
    in_all = _in_all(runs, ("token_class", "upos", "path", "source"))
    for (token_class, upos, path, source), rows in in_all.items():
        values = [row["excess"] for row in rows]
        if None in values:  # a class without tokens
            continue
        record = {
            "forced": f"{token_class} {path}",
            "source": source,
            "runs": len(values),
            "mean": mean(values),
            "least": min(values),
            "most": max(values),
            "per_forced": mean(row["per_forced"] for row in rows),
            "above": sum(value > 0 for value in values),
            "p": signed_rank_p(values),
        }
        records.append(record)
        is_of_paper = ",".join(CLASSES.get(token_class, ())) == upos
        family = of_paper if is_of_paper else others
        family.append(record)

    for family in (of_paper, others):
        corrected = holm([record["p"] for record in family])
        for record, p in zip(family, corrected, strict=True):
            record["p_holm"] = p
    return [without_nan(record) for record in records]


def routing_over_runs(runs: Sequence[Record]) -> list[Record]:
    """The deep share, and the cosine of the paths' updates, at each place that all
    reports of `routing` have: mean and standard deviation over runs, None for one
    run."""
    in_all = _in_all(list(map(_places, runs)), ("source", "layer", "repetition"))
    records: list[Record] = []
    for (source, layer, repetition), rows in in_all.items():
        record: Record = {
            "source": source,
            "layer": layer,
            "repetition": repetition,
            "runs": len(rows),
        }
        for name in ROUTED:
            values = [row[name] for row in rows]
            record[name] = mean(values)
            record[f"{name}_sd"] = stdev(values) if len(values) > 1 else None
        records.append(record)
    return records


def _places(report: Record) -> list[Record]:
    """A row a source and place of a report of `routing`."""
    layers = report["layers"]
    repetitions = report.get("repetitions", [None] * len(layers))
    rows = []
    for source, content in report["sources"].items():
        columns = [content["layers"][name]["mean"] for name in ROUTED]
        lengths = {len(column) for column in (repetitions, *columns)}
        if lengths != {len(layers)}:
            raise ValueError(f"means of '{source}' are not of its layers")
        for layer, repetition, *values in zip(
            layers, repetitions, *columns, strict=True
        ):
            place = {"source": source, "layer": layer, "repetition": repetition}
            row = place | dict(zip(ROUTED, values, strict=True))
            _check_finite(row, "layer", *ROUTED)
            rows.append(row)
    return rows


def _in_all(
    runs: Sequence[Sequence[Record]], keys: Sequence[str]
) -> dict[tuple[Any, ...], list[Record]]:
    """The rows of runs by their values of some keys, where every run has such a row."""

    def values_of(row: Record) -> tuple[Any, ...]:
        return tuple(row[key] for key in keys)

    by_values = partition(chain.from_iterable(runs), values_of)
    return {
        values: rows for values, rows in by_values.items() if len(rows) == len(runs)
    }
