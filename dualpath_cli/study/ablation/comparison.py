"""Scores of passes set against those of the learned router, window by window.

Shapes: W windows, R rows, S seeds.
"""

from collections.abc import Sequence

import numpy as np

from dualpath_cli.study.ablation.scoring import Scores
from dualpath_cli.study.ablation.suites import Row
from dualpath_cli.study.ablation.table import Excess, Result
from dualpath_cli.study.bootstrap import Counts, Floats, bootstrap_interval


def compare(
    source: str, found: Sequence[Row], scores: Sequence[Scores], tokens_W: Counts
) -> list[Result]:
    """Returns a result per row: its loss, and the difference to the first one's."""
    nats_WR = np.stack([each.nats for each in scores], axis=1)
    differences_WR = nats_WR - nats_WR[:, :1]
    low_R, high_R = bootstrap_interval(differences_WR, tokens_W)
    n_tokens = tokens_W.sum()
    return [
        Result(
            suite=row.suite,
            intervention=row.intervention.name,
            source=source,
            loss=float(nats_WR[:, r].sum() / n_tokens),
            difference=float(differences_WR[:, r].sum() / n_tokens),
            low=float(low_R[r]),
            high=float(high_R[r]),
            expected_loops=float(scores[r].loops.sum() / n_tokens),
            loops_run=scores[r].loops_run,
        )
        for r, row in enumerate(found)
    ]


def excess(
    source: str,
    row: Row,
    chosen: int,
    learned_W: Floats,
    class_W: Floats,
    random_SW: Sequence[Floats],
    tokens_W: Counts,
) -> Excess:
    """Returns what overriding a class costs beyond the mean over seeds of random others.

    `chosen` is the number of the class's tokens; the others are nats of each window. The interval
    is over windows: what another random draw would change is not in it. A class without tokens
    has no excess: nan.
    """
    assert row.of_class is not None
    random_W = np.mean(random_SW, axis=0) if chosen else np.full(len(tokens_W), np.nan)
    n_tokens = int(tokens_W.sum())
    (low,), (high,) = bootstrap_interval((class_W - random_W)[:, None], tokens_W)
    return Excess(
        token_class=row.of_class.name,
        upos=",".join(row.of_class.upos),
        path=row.of_class.path,
        source=source,
        tokens=chosen,
        share=chosen / n_tokens,
        difference=float((class_W - learned_W).sum() / n_tokens),
        random_difference=float((random_W - learned_W).sum() / n_tokens),
        excess=float((class_W - random_W).sum() / n_tokens),
        low=float(low),
        high=float(high),
    )
