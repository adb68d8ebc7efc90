"""Intervals, tests and levels, as every command that compares uses them."""
