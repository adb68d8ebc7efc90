"""The sample's words and patterns, read from `grammar.yaml`."""

from pathlib import Path
from typing import Any

import yaml

GRAMMAR: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("grammar.yaml").read_text(encoding="utf-8")
)
"""`arithmetic`, `world`, `relations` and `tales`, each by name: words, or patterns with fields."""
