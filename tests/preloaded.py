"""What the server of `tests/processes.py` imports for its forks: Lightning as `dualpath` does."""

from dualpath_cli.training.internals import import_torchmetrics

import_torchmetrics()

import datasketch  # noqa: E402
import pytest  # noqa: E402

import data_prep.prepare  # noqa: E402
import dualpath_cli.session.lightning_cli  # noqa: E402

__all__ = ["data_prep", "datasketch", "dualpath_cli", "pytest"]
