"""Counting and solving: parameters, FLOPs, widths for a budget."""
