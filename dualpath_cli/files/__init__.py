"""Files that are whole or not there, and how those of others are read."""
