"""Means over benchmarks as the paper defines them, ours and the paper's own."""

from collections.abc import Mapping
from statistics import mean

from dualpath_cli.flops import paper

AGGREGATE = "aggregate BPB"
ALL = "mean BPB of 17"


def means_of(scores: Mapping[str, float]) -> dict[str, float]:
    """The paper's means of those scores that are there: each needs all that it is made of.

    `scores` go by the paper's columns: `PIQA Acc.`, `PIQA BPB`, `C4`. `aggregate BPB` is the mean
    of four, C4, WikiText-103, the mean of commonsense and the mean of math; the parameter-quality
    figure takes the mean of all 17 (appendix on evaluation).
    """
    known = dict(scores)
    for name, parts in (
        *paper.AVERAGES.items(),
        (AGGREGATE, paper.AGGREGATE),
        (ALL, paper.ALL_BENCHMARKS),
    ):
        if all(part in known for part in parts):
            known[name] = mean(known[part] for part in parts)
    return {name: value for name, value in known.items() if name not in scores}


def paper_scores(recipe: str) -> dict[str, float]:
    """The paper's scores of one of its configurations, named as its recipe: f80m_a50_k4."""
    (row,) = (c for c in paper.configurations() if c.recipe == recipe)
    budget, label = row.budget_name, row.label
    printed = {name: values[label] for name, values in paper.results(budget).items()}
    aggregate, of_all = paper.aggregate_bpb(budget)[label], paper.mean_bpb(budget)[label]
    return printed | {AGGREGATE: aggregate, ALL: of_all}
