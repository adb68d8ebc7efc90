"""Custom gates and combinations: found, allowed, tried, written down."""
