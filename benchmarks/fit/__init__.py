"""The cost of `dualpath fit` beside its training steps: of its start, and of every step."""
