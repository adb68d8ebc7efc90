"""Modules that are imported at their first use: every worker collects every test, and runs few."""

import importlib
from typing import Any


class Lazy:
    """Stands for a module in a test file."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)
