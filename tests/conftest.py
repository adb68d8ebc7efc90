"""Settings and paths that all tests share."""

from pathlib import Path

import pytest
import torch

# Tiny models gain nothing from threads and lose 40 times on a busy machine.
torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kills", type=int, default=3, help="How often test_kills.py kills a preparation."
    )


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real text beside the checkout; tests that need it skip where it is absent."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}")
    return folder
