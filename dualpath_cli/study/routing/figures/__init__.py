"""Figures of a model's routing."""
