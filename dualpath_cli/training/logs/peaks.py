"""The dense bfloat16 peaks of GPUs, the reference of MFU.

Datasheets print the sparse peak, which is twice the dense one, beside it or alone. Numbers are
those of matrix units that multiply bfloat16 and accumulate in float32, at the boost clock.
"""

import torch

PEAK_TFLOPS: dict[str, float] = {
    # NVIDIA Blackwell datasheet: HGX B200, 36 PFLOPS sparse of 8 GPUs.
    "NVIDIA B200": 2250,
    # NVIDIA H200 datasheet: 1,979 (SXM) and 1,671 (NVL), both sparse.
    "NVIDIA H200": 989.5,
    "NVIDIA H200 NVL": 835.5,
    # NVIDIA GH200 datasheet: 1,979, sparse.
    "NVIDIA GH200 480GB": 989.5,
    "NVIDIA GH200 120GB": 989.5,
    # NVIDIA H100 datasheet: 1,979 (SXM), 1,671 (NVL) and 1,513 (PCIe), all sparse.
    "NVIDIA H100 80GB HBM3": 989.5,
    "NVIDIA H100 NVL": 835.5,
    "NVIDIA H100 PCIe": 756.5,
    # NVIDIA A100 datasheet: the same for all forms.
    "NVIDIA A100-SXM4-80GB": 312,
    "NVIDIA A100-SXM4-40GB": 312,
    "NVIDIA A100 80GB PCIe": 312,
    "NVIDIA A100-PCIE-40GB": 312,
    # NVIDIA's datasheets of each.
    "NVIDIA A30": 165,
    "NVIDIA A40": 149.7,
    "NVIDIA A10": 125,
    "NVIDIA L40S": 362.05,
    "NVIDIA L40": 181.05,
    "NVIDIA L4": 121,  # 242, sparse
    # NVIDIA's whitepapers of the Ada and the Ampere GA102 architecture.
    "NVIDIA GeForce RTX 4090": 165.2,
    "NVIDIA GeForce RTX 3090": 71,
    "NVIDIA RTX A6000": 154.8,
}
"""By the name that ``torch.cuda.get_device_name`` gives. A slice of a GPU (MIG) has another one."""


def peak_tflops(device: torch.device) -> float | None:
    """Returns a device's dense bfloat16 peak in TFLOP/s; None where it is not known."""
    if device.type != "cuda":
        return None
    return PEAK_TFLOPS.get(torch.cuda.get_device_name(device))
