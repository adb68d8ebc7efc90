"""Options that several commands share, and the values that are written after them."""
