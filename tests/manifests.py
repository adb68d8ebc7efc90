"""What became of a source's documents, with nothing lost unless a test says so."""

from typing import Any

from dualpath_cli.text.manifest import SourceCount


def source_count(name: str, **counts: Any) -> SourceCount:
    """Returns counts of a source `name`; those that are not given are zero."""
    unset: dict[str, Any] = {
        "path": f"{name}.txt",
        "read": counts.get("documents", 0),
        "documents": 0,
        "validation": 0,
        "rejected": {},
        "exact_duplicates": 0,
        "near_duplicates": 0,
        "unused": 0,
        "passes": 1.0,
        "tokens": 0,
        "text_bytes": 0,
        "normalised": 0,
        "faults": [],
    }
    return SourceCount(name, **(unset | counts))
