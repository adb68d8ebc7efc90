"""From arguments to a checked launch, and the commands that run with Lightning."""
