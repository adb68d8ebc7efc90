"""`dualpath compare`: runs of several configurations and seeds.
Torch-free."""
