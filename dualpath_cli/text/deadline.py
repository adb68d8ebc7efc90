"""Work that may hang where there is no network, as looking up a name does, ended by the clock."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

FIRST_ANSWER_SECONDS = 15.0
"""The time to wait for a server that has not answered yet."""

Result = TypeVar("Result")


def within(seconds: float | None, work: Callable[[], Result]) -> Result:
    """Returns what `work` returns, and raises what it raises.

    Raises TimeoutError where that takes longer than `seconds`, of which None are without
    end; the work is then left to a thread that does not hold up the end of the process.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future.result(seconds)
