"""Pretrain and study dual-path language models."""

__version__ = "0.1.0"
