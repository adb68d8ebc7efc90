"""The name of the computing device, to tell results of two machines apart."""

import torch


def device_name(device: torch.device) -> str:
    """The GPU's name; for a CPU, the kind of PyTorch's kernels: `cpu (AVX2)`."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        return f"cpu ({torch.backends.cpu.get_cpu_capability()})"
    return device.type
