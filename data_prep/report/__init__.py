"""What is in a finished data folder: `python -m data_prep inspect`."""
