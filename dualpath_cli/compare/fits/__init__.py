"""`dualpath compare --fit`: scaling laws of families of runs. Torch-free."""
