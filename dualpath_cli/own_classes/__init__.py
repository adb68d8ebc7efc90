"""Gates and combinations from outside the project: found, allowed, tried, written down."""
