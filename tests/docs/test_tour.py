"""docs/tour.ipynb runs and its outputs hold; `python -m tests.docs.test_tour` renews
it."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="the extra `dev` is not installed")
nbclient = pytest.importorskip("nbclient", reason="the extra `dev` is not installed")

TOUR = Path(__file__).parents[2] / "docs" / "tour.ipynb"
TRAIN = "dualpath fit --config quickstart"


def ran(folder: Path, train: str = TRAIN) -> "nbformat.NotebookNode":
    """The notebook, run in a folder with the commands of this Python; a cell that fails
    ends it."""
    notebook = nbformat.read(TOUR, as_version=4)
    assert sum(TRAIN in cell.source for cell in notebook.cells) == 1
    for cell in notebook.cells:
        cell.source = cell.source.replace(TRAIN, train)
    place = {"metadata": {"path": str(folder)}}
    client = nbclient.NotebookClient(
        notebook,
        timeout=600,
        record_timing=False,
        coalesce_streams=True,
        resources=place,
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    client.execute(env={**os.environ, "PATH": path, "PYTHONWARNINGS": "ignore"})
    return notebook


@pytest.mark.slow
def test_every_cell_runs(tmp_path):
    # 20 are the warm-up
    notebook = ran(tmp_path, f"{TRAIN} --run.max_tokens {21 * 2048}")
    assert "training: 21 of 21 steps" in str(notebook.cells)


def test_the_committed_outputs_are_those_of_one_whole_run():
    cells = [
        cell
        for cell in nbformat.read(TOUR, as_version=4).cells
        if cell.cell_type == "code"
    ]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell.outputs for cell in cells[1:])
    assert sys.prefix not in (text := TOUR.read_text(encoding="utf-8"))
    assert len(text) < 200_000


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        nbformat.write(ran(Path(name)), TOUR)
