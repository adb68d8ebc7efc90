"""The audit of the paper is a script with modules beside it, not a part of the package."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "docs" / "paper"))
