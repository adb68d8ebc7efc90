"""The content of a finished data folder: `dualpath prepare inspect`."""
