"""Memory that is freed stays with the process: its pages are not taken anew."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
from types import SimpleNamespace
import torch
from dualpath_cli.training import module

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(10_000_000)  # so large that malloc always takes them from the system
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

strategy = SimpleNamespace(root_device=torch.device(sys.argv[1]))
own = SimpleNamespace(trainer=SimpleNamespace(strategy=strategy))
module.DualPathModule.setup(own, "fit")
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone is told")
@pytest.mark.parametrize(("device", "kept"), [("cpu", True), ("cuda", False)])
def test_a_model_on_a_cpu_keeps_what_a_step_frees(device: str, kept: bool) -> None:
    printed = subprocess.run([sys.executable, "-c", FAULTS, device], capture_output=True, text=True)
    assert printed.returncode == 0, printed.stderr
    faults, pages = int(printed.stdout), 5 * 40_000_000 // 4096
    # Fewer faults than pages where those are huge, of 2 MiB, as the system decides.
    assert faults < pages / 1000 if kept else faults > pages / 600
