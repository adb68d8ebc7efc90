"""`dualpath compare`: runs of several configurations and seeds, side by side.
Torch-free."""
