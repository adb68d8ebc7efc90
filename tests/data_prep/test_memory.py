"""How much memory there is, and how it is divided."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep import memory
from data_prep.memory import IDLE_BYTES, LEAST_BYTES, divide_memory, machine_memory
from dualpath_cli.base.errors import UserError


@given(st.integers(1, 1000), st.integers(LEAST_BYTES, 10**13))
def test_no_more_is_used_than_is_given_and_every_worker_has_enough(workers, given):
    at_once, task_bytes = divide_memory(workers, given)
    assert 1 <= at_once <= workers
    assert at_once * (task_bytes + IDLE_BYTES) <= given
    assert task_bytes >= LEAST_BYTES - IDLE_BYTES


def test_by_default_half_of_the_machine_is_used_or_of_its_part(monkeypatch):
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < machine_memory() <= machine
    monkeypatch.setattr(memory, "_limits_of_groups", lambda: [8 * 10**9, 9 * 10**9])
    assert machine_memory() == min(machine, 8 * 10**9)
    assert divide_memory(2, None) == divide_memory(2, machine_memory() // 2)


@pytest.mark.parametrize(
    ("groups", "limits"),
    [
        ("0::/job/step\n", {"job/memory.max": 10**9, "job/step/memory.max": "max"}),
        (
            "5:cpu,cpuacct:/\n4:memory:/job/a:b\n0::/user\n",
            {
                "memory/memory.limit_in_bytes": 2**63 - 4096,  # none
                "memory/job/memory.limit_in_bytes": 10**9,
                "memory/job/a:b/memory.limit_in_bytes": 2 * 10**9,
                "cpu,cpuacct/memory.limit_in_bytes": 1,
            },
        ),
        # A container sees the paths of its machine, and its own group at the root.
        ("3:memory:/docker/c\n", {"memory/memory.limit_in_bytes": 10**9}),
    ],
    ids=["version 2", "version 1", "container"],
)
def test_the_least_limit_of_the_groups_above_a_process_counts(
    groups, limits, tmp_path, monkeypatch
):
    for name, limit in limits.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{limit}\n")
    (tmp_path / "own").write_text(groups)
    monkeypatch.setattr(memory, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(memory, "GROUPS", tmp_path)
    assert machine_memory() == 10**9


def test_too_little_memory_is_one_line():
    with pytest.raises(UserError, match=r"^--memory 1,000 is not enough"):
        divide_memory(1, 1000)
