"""The name of the device that computes, by which results of two machines can be told apart."""

import torch


def device_name(device: torch.device) -> str:
    """The GPU's name; of a CPU, for which PyTorch has several kernels, those: `cpu (AVX2)`."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        return f"cpu ({torch.backends.cpu.get_cpu_capability()})"
    return device.type
