"""Executors make pieces: in this process, in others of this machine, on a cluster."""

from abc import ABC, abstractmethod
from concurrent.futures import Executor


class PieceExecutor(Executor, ABC):
    """Runs functions elsewhere. A context manager: leaving it by an exception ends what runs."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """The number of functions that run at a time, now."""

    @abstractmethod
    def failure(self, error: Exception) -> str | None:
        """Returns in a line what failed where it was the workers; None for a function's error."""
