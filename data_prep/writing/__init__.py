"""From pieces to a data folder: the mix, the chunks, what goes beside them, the upload."""
