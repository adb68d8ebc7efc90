"""What `dualpath fit` costs beside its training steps: its start, and every step."""
