"""Draws docs/block.svg, the dual-path block, in the colours of the reader's light or dark theme.

python docs/block.py
"""

from pathlib import Path

STYLE = """
text { font: 15px sans-serif; fill: #1f2328; }
.small { font-size: 13px; fill: #59636e; }
.math { font-family: serif; font-style: italic; font-size: 17px; }
.line { fill: none; stroke: #59636e; stroke-width: 1.6; marker-end: url(#tip); }
.tip { fill: #59636e; }
.box { stroke-width: 1.6; }
.deep { fill: #ece6fb; stroke: #7446c2; }
.wide { fill: #dcecfb; stroke: #1f6fb5; }
.gate { fill: #f3f4f6; stroke: #59636e; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .small { fill: #9198a1; }
  .line { stroke: #9198a1; } .tip { fill: #9198a1; }
  .deep { fill: #2f2548; stroke: #b392f0; } .wide { fill: #14304a; stroke: #6cb6ff; }
  .gate { fill: #21262d; stroke: #9198a1; }
}
"""


def box(x: int, y: int, width: int, height: int, kind: str) -> str:
    return f'<rect class="box {kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="7"/>'


def text(x: int, y: int, words: str, kind: str = "", anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{words}</text>'


def line(path: str) -> str:
    return f'<path class="line" d="{path}"/>'


def sub(name: str, index: str) -> str:
    """A name with its index below the line, which goes back to where it was for what follows."""
    return f'{name}<tspan dy="5" font-size="12">{index}</tspan><tspan dy="-5">&#8203;</tspan>'


def drawing() -> str:
    """The block from left to right: the state, gates and both paths, their sum."""
    parts = [
        text(22, 170, "x", "math"),
        line("M34 165 H64 V60 H112"),
        line("M64 165 V270 H112"),
        line("M64 165 H112"),
        # The deep path: the sublayer with its loop, and the router over its states.
        box(116, 25, 190, 70, "deep"),
        text(211, 54, "deep sublayer"),
        text(211, 76, "attention, SwiGLU", "small"),
        line("M280 25 C280 -2 150 -2 150 22"),
        text(322, 17, "K times, shared weights", "small", "start"),
        line("M306 60 H372"),
        text(339, 51, sub("h", "k"), "math"),
        box(376, 33, 150, 54, "deep"),
        text(451, 56, "router"),
        text(451, 76, f"Σ {sub('w', 'k')} {sub('h', 'k')}", "math"),
        # The gates, of which each token has two.
        box(116, 142, 190, 46, "gate"),
        text(211, 170, "gates, per token"),
        line("M306 157 H616 V84"),
        line("M306 173 H616 V246"),
        text(470, 150, sub("g", "d"), "math"),
        text(470, 194, sub("g", "w"), "math"),
        # The wide path.
        box(116, 225, 410, 90, "wide"),
        text(321, 264, "wide sublayer"),
        text(321, 288, "attention, a wider SwiGLU; once", "small"),
        # The sum.
        line("M526 60 H598"),
        line("M526 270 H598"),
        text(562, 51, sub("h", "deep"), "math"),
        text(562, 261, sub("h", "wide"), "math"),
        text(616, 67, "×"),
        text(616, 277, "×"),
        '<circle class="box gate" cx="616" cy="60" r="16" fill-opacity="0"/>',
        '<circle class="box gate" cx="616" cy="270" r="16" fill-opacity="0"/>',
        line("M632 60 H690 V146"),
        line("M632 270 H690 V184"),
        '<circle class="box gate" cx="690" cy="165" r="16"/>',
        text(690, 171, "+"),
        line("M706 165 H742"),
        text(756, 170, "y", "math"),
    ]
    return "\n".join(parts)


def main() -> None:
    """Writes the picture beside this script."""
    tip = '<path class="tip" d="M0 0 L8 4 L0 8 Z"/>'
    size = 'markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto"'
    marker = f'<marker id="tip" {size}>{tip}</marker>'
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 -6 780 334" role="img">\n'
        "<title>The dual-path block: y = g_d h_deep + g_w h_wide</title>\n"
        f"<style>{STYLE}</style>\n<defs>{marker}</defs>\n{drawing()}\n</svg>\n"
    )
    Path(__file__).with_suffix(".svg").write_text(svg)


if __name__ == "__main__":
    main()
