"""Kernels: operations for which PyTorch is too slow, with their derivatives."""
