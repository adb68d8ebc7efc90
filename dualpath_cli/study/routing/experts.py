"""What a source says about experts: their load, and what a token's expert goes with.

A *choice* is a token and one of its experts. Shapes: R 1 + resamples, L layers with gates, E
experts, P parts of speech.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import entr

from dualpath_cli.output.table import Column, Table, with_interval
from dualpath_cli.statistics.bootstrap import Floats
from dualpath_cli.study.routing.sums import Sums

LOAD = ("load_max", "load_entropy", "idle_experts")
"""As metrics.csv has them of training."""
BY_SHARE, BY_TAG = "experts_deep_share", "experts_upos"
DEFINITION = (
    "load: the largest over the mean, and its entropy over ln n (1: all alike); deep share "
    "explained: the part of its variance that lies between experts (η²); expert explained: the "
    "part of its entropy that the part of speech (UPOS) takes away; untrained: before training, "
    "mean of all sources"
)
"""The caption of the table."""


def expert_means(sums: Sums) -> dict[str, Floats]:
    """Means by name, (R, L) each, nan in layers without experts; none where no layer has any.

    `LOAD`; `BY_SHARE`, the correlation ratio η² of deep share; `BY_TAG`, the uncertainty
    coefficient I(expert; part of speech) / H(expert) of the choices of tagged tokens. Both are
    above 0 for a router that has learned nothing, since it goes by the token as well, and a little
    by chance: they are to be read beside the untrained model's.
    """
    tokens, experts = sums["expert_tokens"], sums["experts"]
    if not experts.any():
        return {}
    with np.errstate(divide="ignore", invalid="ignore"):
        load = tokens / tokens.sum(-1, keepdims=True)
        idle = ((tokens == 0) & (np.arange(tokens.shape[-1]) < experts[:, None])).sum(-1)
        entropy = np.where(experts > 1, entr(load).sum(-1) / np.log(experts), 1.0)
        found = zip(LOAD, (load.max(-1) * experts, entropy, idle.astype(float)), strict=True)
        means = {**dict(found), BY_SHARE: _by_share(sums), BY_TAG: _by_tag(sums["expert_tags"])}
    return {name: np.where(experts > 0, values, np.nan) for name, values in means.items()}


def _by_share(sums: Sums) -> Floats:
    tokens, total = sums["expert_tokens"], sums["expert_shares"]
    among = total.sum(-1) ** 2 / tokens.sum(-1)
    between = np.where(tokens > 0, total**2 / tokens, 0).sum(-1) - among
    return np.asarray(between / (sums["share_squares"] - among))


def _by_tag(counts: Floats) -> Floats:
    """Of counts (R, L, E, P)."""
    shares = counts / counts.sum((-2, -1), keepdims=True)
    of_expert, of_tag = (entr(shares.sum(axis)).sum(-1) for axis in (-1, -2))
    return np.asarray((of_expert + of_tag - entr(shares).sum((-2, -1))) / of_expert)


def expert_loads(sums: Sums) -> Floats:
    """The part of a layer's choices that each expert has, (L, E); nan where it has none."""
    tokens = sums["expert_tokens"][0]
    exists = np.arange(tokens.shape[-1]) < sums["experts"][:, None]
    return np.where(exists, tokens / tokens.sum(-1, keepdims=True).clip(1), np.nan)


def table(lines: Mapping[str, Any]) -> Table:
    """A row a layer with experts of each line's `Summary`."""
    columns = [
        Column("source"), Column("layer", "d"),
        Column("load,\nmaximum", ".2f"), Column("load,\nentropy", ".3f"),
        Column("idle", ".0f"),
        Column("deep share explained,\n95 % interval", with_interval(".3f")),
        Column("expert explained,\n95 % interval", with_interval(".3f")),
    ]  # fmt: skip
    rows: list[Sequence[Any]] = []
    for source, line in lines.items():
        agreements = [(line.means[name], *line.interval(line.means[name]))
                      for name in (BY_SHARE, BY_TAG)]  # fmt: skip
        first = len(rows)
        for place, layer in enumerate(line.layers):
            load = [line.means[name][0, place] for name in LOAD]
            if not np.isnan(load[0]):
                agreed = [(values[0, place], low[place], high[place])
                          for values, low, high in agreements]  # fmt: skip
                rows.append(["" if len(rows) > first else source, layer, *load, *agreed])
        rows.append(())
    tagged = any(np.isfinite(line.means[BY_TAG]).any() for line in lines.values())
    shown = columns if tagged else columns[:-1]
    return Table(shown, rows, "experts of the wide path", DEFINITION, names=2)
