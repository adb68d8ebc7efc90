"""The terminal and figures: console, tables, progress, colours."""
