"""`trainer.deterministic`: all that training does has a deterministic algorithm."""

from collections.abc import Iterator

import pytest
import torch

from tests.tiny_run import Fit, tables


@pytest.fixture
def as_before() -> Iterator[None]:
    """Lightning sets the mode for the whole process, and leaves it."""
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    "block", ["dual", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("loop", "wide"))]
)
def test_deterministic_mode_runs_and_changes_no_number_on_the_cpu(
    block: str, fit: Fit, trained: Fit, as_before: None
) -> None:
    expected = tables(trained(model={"block": block}))
    run = fit(
        model={"block": block}, trainer={"deterministic": True}, run={"name": "deterministic"}
    )
    assert torch.are_deterministic_algorithms_enabled()
    assert tables(run) == expected
