"""What the server of `processes.py` imports for its forks: Lightning as `dualpath` does."""

import datasketch
import pytest

import data_prep.prepare
import dualpath_cli.cli.lightning

__all__ = ["data_prep", "datasketch", "dualpath_cli", "pytest"]
