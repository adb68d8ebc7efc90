"""Kernels: operations for which PyTorch is too slow, each one call with its
derivative."""
