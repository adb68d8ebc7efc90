"""From words to a checked launch, and the commands that run with Lightning: its CLI,
Trainer."""
