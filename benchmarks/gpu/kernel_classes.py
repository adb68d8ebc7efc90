"""Which class of work a kernel is of, by its name: a kernel of CUDA, or a CPU's operation."""

import re
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

PATTERNS = (
    # What torch.compile has fused is named after all that went into it, attention and copies too.
    ("loss", r"^triton_(poi|per|red)_.*(softmax|nll_loss)"),
    ("elementwise", r"^triton_(poi|per|red)_|cpp_fused"),
    ("attention backward", r"flash_bwd|fmha_cutlassB|sdpa.*bprop|attention.*backward|FlashAttnBwd"),
    ("attention forward", r"flash_fwd|fmha_cutlassF|sdpa.*fprop|attention|FlashAttnFwd"),
    ("optimizer", r"adam|multi_tensor_apply|_foreach|lpnorm|linalg_vector_norm"),
    ("loss", r"softmax|nll_loss|cross_entropy"),
    ("GEMM", r"gemm|nvjet|cutlass|xmma|splitk|gemv|cublas|triton_tem_.*mm|aten::(add|b|)mm$|"
             r"mkldnn.*linear"),
    ("copies", r"memcpy|memset|copy|catarray|aten::(clone|zero_|fill_)"),
    ("elementwise", r"elementwise|reduce|norm|index|embedding|scatter|gather|"
                    r"aten::(add|mul|sub|div|neg|silu|sigmoid|sum|mean|exp|pow|rsqrt|cat|cumsum)"),
    ("other", r""),
)  # fmt: skip
"""Classes and what is in the name of a kernel; the first that is found counts, in any case."""

CLASSES = tuple(dict.fromkeys(name for name, _ in PATTERNS))
ATTENTION = ("attention forward", "attention backward")


class Kernel(NamedTuple):
    """All launches of one kernel in a trace."""

    name: str
    seconds: float
    launches: int

    @property
    def kind(self) -> str:
        """One of CLASSES."""
        return class_of(self.name)


def class_of(name: str) -> str:
    """The class of a kernel or of a CPU's operation."""
    return next(kind for kind, found in PATTERNS if re.search(found, name, re.IGNORECASE))


def kernels_of(trace: profile, device: torch.device) -> list[Kernel]:
    """Kernels of a finished trace, the longest first; on a CPU operations without their parts.

    Ranges that only bear a name, such as an optimizer's step, would count their kernels twice.
    """
    cuda = device.type == "cuda"
    found = []
    for event in trace.key_averages():
        on_device = event.device_type == torch.autograd.DeviceType.CUDA
        if event.is_user_annotation or on_device != cuda:
            continue
        micros = event.self_device_time_total if cuda else event.self_cpu_time_total
        found.append(Kernel(event.key, micros / 1e6, event.count))
    return sorted(found, key=lambda kernel: -kernel.seconds)


def record(call: Callable[[], object], device: torch.device) -> profile:
    """Traces a call, until the device is done with it."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as trace:
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
    return trace


def attention_kernels(step: Callable[[], object], device: torch.device) -> list[str]:
    """Names of the kernels that a step's attention really runs, shortened."""
    kernels = kernels_of(record(step, device), device)
    return [kernel.name[:80] for kernel in kernels if kernel.kind in ATTENTION]
