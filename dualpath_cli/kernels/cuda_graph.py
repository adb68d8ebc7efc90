"""Work of a GPU captured once, and launched as one."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class CudaGraph(Generic[T]):
    """Work on tensors that stay in their places; a call launches all of it.

    Its result is overwritten by the next call, also of one of the `others`.
    """

    def __init__(
        self, work: Callable[[], T], device: torch.device, warm_up: Callable[[], object],
        others: Sequence["CudaGraph[T]"] = (),
    ) -> None:  # fmt: skip
        """`warm_up` does the same thrice before: it compiles, and lets libraries load kernels.

        `others` share their memory with this one, and never run at the same time.
        """
        with torch.cuda.device(device):
            self._side: torch.cuda.Stream = others[0]._side if others else torch.cuda.Stream()
            self._side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._side):
                for _ in range(3):
                    warm_up()
            torch.cuda.current_stream().wait_stream(self._side)
            self._graph = torch.cuda.CUDAGraph()
            pool = others[0]._graph.pool() if others else None
            torch._C._cuda_clearCublasWorkspaces()  # the graph's must be in its own memory
            # Other threads, such as a loader's, go on to allocate memory.
            with torch.cuda.graph(self._graph, pool, self._side, "thread_local"):
                self._result = work()
            torch._C._cuda_clearCublasWorkspaces()

    def __call__(self) -> T:
        self._graph.replay()
        return self._result
