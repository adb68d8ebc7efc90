"""A run: its folder, facts and tables, its checkpoints and their weights, the exported
folder."""
