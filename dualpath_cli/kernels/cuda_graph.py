"""Work of a GPU captured once, and replayed with one launch."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class CudaGraph(Generic[T]):
    """Work on tensors with fixed addresses; a call launches the whole work.

    The next call, also of one of the `others`, overwrites the result.
    """

    def __init__(
        self,
        work: Callable[[], T],
        device: torch.device,
        warm_up: Callable[[], object],
        others: Sequence["CudaGraph[T]"] = (),
    ) -> None:
        """`warm_up` does the same work, thrice before the capture.

        It compiles, and lets libraries load kernels. `others` share their memory with
        this graph, and never run at the same time.
        """
        with torch.cuda.device(device):
            self._side: torch.cuda.Stream
            self._side = others[0]._side if others else torch.cuda.Stream()
            self._side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._side):
                for _ in range(3):
                    warm_up()
            torch.cuda.current_stream().wait_stream(self._side)

            self._graph = torch.cuda.CUDAGraph()
            pool = others[0]._graph.pool() if others else None
            # the graph needs workspaces in its memory
            torch._C._cuda_clearCublasWorkspaces()
            # Other threads, such as a loader's, may allocate memory meanwhile.
            with torch.cuda.graph(self._graph, pool, self._side, "thread_local"):
                self._result = work()
            torch._C._cuda_clearCublasWorkspaces()

    def __call__(self) -> T:
        self._graph.replay()
        return self._result
