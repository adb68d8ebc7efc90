"""The run folder: its files, its lock, its checkpoints, and the run as one file."""
