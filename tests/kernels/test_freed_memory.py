"""Memory that is freed stays with the process: its pages are not taken anew."""

import platform
import resource
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dualpath_cli.training.module import DualPathModule
from tests.cli.processes import call_on_ranks


def print_faults(device: str) -> None:
    """Prints how many pages five large tensors take anew once a module is set up on a device."""

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(5):
            torch.ones(10_000_000)  # so large that malloc always takes them from the system
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    strategy = SimpleNamespace(root_device=torch.device(device))
    own: Any = SimpleNamespace(trainer=SimpleNamespace(strategy=strategy))
    DualPathModule.setup(own, "fit")
    for _ in range(4):  # until the heap has room for them beside what else is made on the way
        faults()
    print(faults())


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone is told")
@pytest.mark.parametrize(("device", "kept"), [("cpu", True), ("cuda", False)])
def test_a_model_on_a_cpu_keeps_what_a_step_frees(device, kept, tmp_path):
    (printed,) = call_on_ranks(1, partial(print_faults, device), tmp_path)
    faults, pages = int(printed), 5 * 40_000_000 // 4096
    # Fewer faults than pages where those are huge, of 2 MiB, as the system decides.
    assert faults < pages / 1000 if kept else faults > pages / 600
