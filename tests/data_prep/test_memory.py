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


def test_too_little_memory_is_one_line():
    with pytest.raises(UserError, match=r"^--memory 1,000 is not enough"):
        divide_memory(1, 1000)
