"""Checkpoints, of one file or of shards: written, checked, and loaded to continue a run."""
