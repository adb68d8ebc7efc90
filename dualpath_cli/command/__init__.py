"""Commands: what there is, from words to a checked launch, and what runs it."""
