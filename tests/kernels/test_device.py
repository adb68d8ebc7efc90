"""Devices are told apart by name, CPUs by their kernels."""

import pytest
import torch

from dualpath_cli.kernels.device import device_name


@pytest.mark.parametrize(
    ("device", "name"),
    [("cpu", "cpu (AVX2)"), ("cuda:1", "GPU of cuda:1"), ("mps", "mps")],
)
def test_a_device_is_named_by_what_computes(
    device: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda one: f"GPU of {one}")
    assert device_name(torch.device(device)) == name
