"""Recipes: their sections, ranges and units, and how they build on each other."""
