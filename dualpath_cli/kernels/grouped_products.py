"""Products of groups of rows, each with its matrix: the experts of an FFN.

Shapes: R rows sorted by group, E groups, D inputs, H outputs of a group's matrix.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from dualpath_cli.kernels.operations import unused

ROW_BYTES = 16
"""In PyTorch's kernel the rows of each matrix must begin at a multiple of this."""


def grouped_products(
    x_RD: torch.Tensor, w_EHD: torch.Tensor, ends_E: torch.Tensor
) -> torch.Tensor:
    """``x W_e^T`` of each row x by its group's matrix W_e, (R, H).

    The rows of group e end before ``ends_E[e]``, int32; a group may have none.
    Raises RuntimeError for matrices on another device than the rows.
    """
    # For matrices on meta, torch would return unwritten memory without an error.
    if w_EHD.device != x_RD.device:
        raise RuntimeError(
            f"the experts' matrices are on {w_EHD.device}, their tokens on "
            f"{x_RD.device}; keep layers with experts off cpu and disk in device_map"
        )

    if has_kernel(x_RD, w_EHD):
        return F.grouped_mm(x_RD, w_EHD.mT, offs=ends_E)

    y_RH: torch.Tensor = group_by_group(x_RD, w_EHD, ends_E)
    return y_RH


def has_kernel(x_RD: torch.Tensor, w_EHD: torch.Tensor) -> bool:
    """Whether PyTorch has a kernel for the device, the type and the widths.

    PyTorch's kernel for CPUs is also a loop over groups, with fewer types and strides.
    """
    on_gpu = x_RD.device.type == "cuda"
    _, H, D = w_EHD.shape
    fits = all(width * x_RD.itemsize % ROW_BYTES == 0 for width in (H, D))
    return on_gpu and x_RD.dtype == torch.bfloat16 and fits


@torch.library.custom_op(unused("group_by_group"), mutates_args=())
def group_by_group(
    x_RD: torch.Tensor, w_EHD: torch.Tensor, ends_E: torch.Tensor
) -> torch.Tensor:
    """`grouped_products` by a product for each group, in any type.

    One operation, so that a compiled graph serves any number of rows in a group.
    """
    y_RH = x_RD.new_empty(len(x_RD), w_EHD.shape[1])
    for w_HD, rows in zip(w_EHD, _rows_of_groups(ends_E), strict=True):
        torch.mm(x_RD[rows], w_HD.T, out=y_RH[rows])
    return y_RH


@torch.library.custom_op(unused("group_by_group_backward"), mutates_args=())
def _weight_gradient(
    grad_RH: torch.Tensor, x_RD: torch.Tensor, ends_E: torch.Tensor
) -> torch.Tensor:
    grad_EHD = x_RD.new_empty(len(ends_E), grad_RH.shape[1], x_RD.shape[1])
    for grad_HD, rows in zip(grad_EHD, _rows_of_groups(ends_E), strict=True):
        torch.mm(grad_RH[rows].T, x_RD[rows], out=grad_HD)
    return grad_EHD


def _rows_of_groups(ends_E: torch.Tensor) -> Iterator[slice]:
    """The rows of each group."""
    start = 0
    for end in ends_E.tolist():
        yield slice(start, end)
        start = end


@group_by_group.register_fake
def _empty_products(
    x_RD: torch.Tensor, w_EHD: torch.Tensor, ends_E: torch.Tensor
) -> torch.Tensor:
    return x_RD.new_empty(len(x_RD), w_EHD.shape[1])


@_weight_gradient.register_fake
def _empty_gradient(
    grad_RH: torch.Tensor, x_RD: torch.Tensor, ends_E: torch.Tensor
) -> torch.Tensor:
    return x_RD.new_empty(len(ends_E), grad_RH.shape[1], x_RD.shape[1])


def _save_inputs(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs)


def _product_gradients(ctx, grad_RH: torch.Tensor):  # type: ignore[no-untyped-def]
    x_RD, w_EHD, ends_E = ctx.saved_tensors
    grad_x_RD = group_by_group(grad_RH, w_EHD.mT, ends_E)
    grad_w_EHD = _weight_gradient(grad_RH, x_RD, ends_E)
    return grad_x_RD, grad_w_EHD, None


group_by_group.register_autograd(_product_gradients, setup_context=_save_inputs)
