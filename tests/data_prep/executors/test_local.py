"""Processes of a pool are started and ended whole."""

import _thread
import os
import signal
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

import pytest

from data_prep.executors.local import Pool


def test_ctrl_c_waits_for_a_process_that_is_being_started(monkeypatch):
    started: list[bool] = []

    def submit(*_: object) -> Future[Any]:
        _thread.interrupt_main()  # a signal that another thread took, whatever this one blocks
        started.append(True)
        return Future()

    monkeypatch.setattr(ProcessPoolExecutor, "submit", submit)
    with Pool(2) as pool, pytest.raises(KeyboardInterrupt):
        pool.submit(print)
    assert started


def test_work_for_a_pool_that_lost_a_worker_fails_as_the_work_of_that_worker():
    with Pool(1) as pool:
        lost = pool.submit(os.kill, pool.submit(os.getpid).result(), signal.SIGKILL).exception()
        late = pool.submit(os.getpid).exception()
    assert isinstance(lost, Exception)
    assert isinstance(late, Exception)
    assert pool.failure(late) == pool.failure(lost) is not None
