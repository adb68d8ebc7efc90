"""The paper's 26 configurations as groups of single runs, from its printed tables."""

from dualpath_cli.compare.configurations import Configuration, Group
from dualpath_cli.flops import paper
from dualpath_cli.flops.count import kv_bytes, mean_layer_flops, parameters

ALL = "mean of 17"  # the measure of the parameter-quality figure: the mean of all benchmarks
AGGREGATE = "aggregate"  # mean of C4, WikiText-103, commonsense and math
COLUMNS = {"C4": "C4", "WikiText-103": "WikiText-103", "Commonsense BPB": "commonsense",
           "Easy math avg BPB": "math"}  # fmt: skip
SEED = 0  # stands for the paper's one run of each, whose seed it does not give


def groups() -> list[Group]:
    """One of each budget. Models are counted as trained, which gives the paper's *Params*."""
    return [_group(budget) for budget in paper.BUDGETS]


def _group(budget: str) -> Group:
    results = paper.results(budget)
    measures = {AGGREGATE: paper.aggregate_bpb(budget)}
    measures |= {name: results[column] for column, name in COLUMNS.items()}
    measures[ALL] = paper.mean_bpb(budget)
    rows = [
        _configuration(row, {name: values[row.label] for name, values in measures.items()})
        for row in paper.configurations(budget)
    ]
    return Group(
        name=f"{budget} of the paper, {paper.TRAINING_TOKENS:,} tokens",
        measures=tuple(measures),
        quality=ALL,
        configurations=tuple(rows),
        wide=next(c for c in rows if c.family == "wide"),
        note="single runs, no error known, no tests; α as the paper names it; parameters and FLOPs "
        f"counted as trained; time of all {paper.GPUS} GPUs together",
    )


def _configuration(row: paper.Configuration, scores: dict[str, float]) -> Configuration:
    model = row.model_config("as_trained")
    flops = mean_layer_flops(model)
    return Configuration(
        name=row.recipe,
        family=row.block,
        alpha=row.alpha,
        loops=None if row.block == "wide" else row.loops,
        layers=model.n_layers,
        tokens=paper.TRAINING_TOKENS,
        parameters=parameters(model),
        flops_linear=flops["linear_total"],
        flops_total=flops["total"],
        flops_trained=flops["total"],
        kv_bytes=kv_bytes(model),
        line=f"{row.alpha}",
        scores={name: {SEED: value} for name, value in scores.items()},
        seconds_per_token=row.hours_on_64_gpus * 3600 / paper.TRAINING_TOKENS,
    )
