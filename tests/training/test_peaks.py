"""MFU is measured against the dense peak of the very chip, or not at all."""

import pytest
import torch

from dualpath_cli.training.logs.peaks import PEAK_TFLOPS, peak_tflops


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989.5),
        ("NVIDIA H100 80GB HBM3", 989.5),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA H100 PCIe", 756.5),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA H20", None),
        ("", None),
    ],
)
def test_a_known_gpu_has_its_dense_peak_and_a_slice_of_one_none(
    name: str, peak: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak_tflops(torch.device("cuda", 0)) == peak
    assert peak_tflops(torch.device("cpu")) is None


def test_an_h200_computes_as_an_h100_does() -> None:
    assert PEAK_TFLOPS["NVIDIA H200 NVL"] == PEAK_TFLOPS["NVIDIA H100 NVL"]
