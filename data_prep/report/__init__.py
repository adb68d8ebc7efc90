"""The content of a finished data folder: `python -m data_prep inspect`."""
