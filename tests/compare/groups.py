"""Groups from numbers alone, without files."""

from collections.abc import Mapping
from typing import Any

from dualpath_cli.compare.configurations import Configuration, Group
from dualpath_cli.compare.runs import AGGREGATE


def configuration(name: str, scores: Mapping[int, float], **changes: Any) -> Configuration:
    """One with these scores by seed, on the aggregate and on the set `text`."""
    fields: dict[str, Any] = {
        "family": "dual", "alpha": 50.0, "loops": 2, "layers": 4, "tokens": 1000,
        "parameters": 1_000_000, "flops_linear": 600e3, "flops_total": 700e3,
        "flops_trained": 700e3, "kv_bytes": 4096, "line": name,
        "seconds_per_token": 1e-4, "scores": {AGGREGATE: dict(scores), "text": dict(scores)},
    }  # fmt: skip
    return Configuration(name=name, **(fields | changes))


def wide(scores: Mapping[int, float], **changes: Any) -> Configuration:
    """The PureWide."""
    return configuration("wide", scores, family="wide", alpha=None, loops=None,
                         **{"parameters": 2_000_000, **changes})  # fmt: skip


def group(*configurations: Configuration, **changes: Any) -> Group:
    """A group with its first configuration as baseline."""
    fields: dict[str, Any] = {
        "name": "budget 600K, 1,000 tokens", "measures": (AGGREGATE, "text"),
        "quality": AGGREGATE, "configurations": configurations, "wide": configurations[0],
        "baselines": configurations[:1],
    }  # fmt: skip
    return Group(**(fields | changes))
