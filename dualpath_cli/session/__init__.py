"""Commands that run with Lightning: its CLI and Trainer, `fit` and `validate`."""
