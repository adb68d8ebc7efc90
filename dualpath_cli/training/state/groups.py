"""The optimizer's groups in a checkpoint, as they are now: one of each kind of parameters.

Runs were begun with one of each group of decay, whose kinds had the same rate. Moments go to their
parameters; a group has the rate and decay that its parameters had.
"""

from collections.abc import Sequence
from typing import Any

from dualpath_cli.config import GROUP_OF, Kind

State = dict[str, Any]


def regroup(checkpoint: dict[str, Any], kinds: Sequence[Kind]) -> None:
    """Changes a loaded checkpoint; `kinds` are those of the model's parameters, in their order.

    Of the schedule only its step stays: the rates that it begins from follow from the recipe.
    """
    if states := checkpoint.get("optimizer_states"):  # else shards hold them, which go by names
        checkpoint["optimizer_states"] = [by_kind(state, kinds) for state in states]
    for schedule in checkpoint.get("lr_schedulers", []):
        schedule.pop("base_lrs", None)
        schedule["lr_lambdas"] = []


def by_kind(state: State, kinds: Sequence[Kind]) -> State:
    """An optimizer's state with a group of each kind, in the order in which the model has them.

    Raises:
        ValueError: where a group has not as many parameters as the model.
    """
    found: dict[int, tuple[Any, State]] = {}
    for group in state["param_groups"]:
        own = [n for n, kind in enumerate(kinds) if group["name"] in (kind, GROUP_OF[kind])]
        found |= {n: (old, group) for n, old in zip(own, group["params"], strict=True)}
    members: dict[Kind, list[int]] = {}
    for n in sorted(found):
        members.setdefault(kinds[n], []).append(n)
    order = [n for numbers in members.values() for n in numbers]
    number = {n: new for new, n in enumerate(order)}
    return {
        "state": {
            number[n]: state["state"][old] for n, (old, _) in found.items() if old in state["state"]
        },
        "param_groups": [
            {**found[numbers[0]][1], "name": kind, "params": [number[n] for n in numbers]}
            for kind, numbers in members.items()
        ],
    }


def named_groups(saved: Sequence[State], now: Sequence[State]) -> list[State]:
    """Saved groups as those of an optimizer now; the groups of both hold names of parameters."""
    before = {name: group for group in saved for name in group["params"]}
    return [
        {**before[group["params"][0]], "name": group["name"], "params": group["params"]}
        for group in now
    ]
