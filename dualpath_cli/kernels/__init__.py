"""Kernels: operations that PyTorch has none fast enough for, each one call with its derivative."""
