"""The curve of a run: which panels it has, and what each of them shows."""

from typing import Any

import pytest

from dualpath_cli.output import figures
from dualpath_cli.training.logs import curve


@pytest.mark.parametrize(
    ("block", "panels"),
    [
        # Of each layer a line: two gates in both, expected loops.
        ("dual", {"bits per byte": 2, "gate": 4, "expected loops": 2}),
        ("loop", {"bits per byte": 2, "expected loops": 2}),
        ("wide", {"bits per byte": 2}),
    ],
)
def test_a_panel_shows_what_the_blocks_have(block, panels, trained, monkeypatch):
    drawings, panels_of = [], figures.panels

    def panels_kept(*size: Any, **options: Any) -> Any:
        drawings.append(panels_of(*size, **options))
        return drawings[-1]

    monkeypatch.setattr(figures, "panels", panels_kept)
    run = trained(model={"block": block})
    drawn = curve.draw(run)
    assert (drawn, drawn.read_bytes()[:4]) == (run / "curve.png", b"\x89PNG")
    ((figure, _),) = drawings
    assert {ax.get_title(): len(ax.lines) for ax in figure.axes} == panels
    names = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert names == ["training", "held_out"]
    assert len(figure.axes[0].lines[0].get_xdata()) == 6
    assert len(figure.axes[0].lines[1].get_xdata()) == 3
