"""Pictures for the page: SVG of a few kilobytes, without a library, that follows the reader's light or dark mode."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LABELS, RIGHT = 880, 260, 90  # pixels: the whole width, the space left of the bars, the space right of them
ROW, TOP, BOTTOM = 22, 44, 14
_STYLE = """\
<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .title { font-weight: 600; font-size: 15px } .faint { fill: #59636e }
.bar { fill: #8c959f } .own { fill: #0969da } .line { stroke: #59636e; stroke-width: 1.5 } .grid { stroke: #d1d9e0 }
.target { stroke: #cf222e; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .faint { fill: #9198a1 } .bar { fill: #656c76 } .own { fill: #4493f8 } .line { stroke: #9198a1 }
  .grid { stroke: #3d444d } .target { stroke: #f85149 }
}
</style>"""


@dataclass(frozen=True)
class Bar:
    """low, high: the spread over the rounds. target: the value that the bar should reach; 0 for no target."""

    label: str
    value: float
    low: float
    high: float
    text: str
    own: bool = False
    target: float = 0.0


@dataclass(frozen=True)
class Range:
    """Latencies in milliseconds."""

    label: str
    p50: float
    p95: float
    p99: float
    own: bool = False


def bars(title: str, rows: Sequence[Bar]) -> str:
    """Return horizontal bars that start at zero, each with a whisker from the lowest to the highest round."""
    most = max([max(row.high, row.target) for row in rows], default=1.0) or 1.0

    def x(value: float) -> float:
        return LABELS + value / most * (WIDTH - LABELS - RIGHT)

    parts = []
    for number, row in enumerate(rows):
        y = TOP + number * ROW
        kind = "own" if row.own else "bar"
        parts += [
            _label(row.label, y),
            f'<rect class="{kind}" x="{LABELS}" y="{y + 3}" width="{x(row.value) - LABELS:.1f}" height="{ROW - 8}" rx="2"/>',
            _line("line", x(row.low), y + ROW / 2 - 1, x(row.high), y + ROW / 2 - 1),
        ]
        if row.target:
            parts.append(_line("target", x(row.target), y + 1, x(row.target), y + ROW - 3))
        parts.append(_text("faint", x(max(row.high, row.target)) + 6, y + 14, row.text))
    return _picture(title, len(rows), parts)


def ranges(title: str, rows: Sequence[Range]) -> str:
    """Return a chart with a line for each row, from p50 through p95 to p99, on a logarithmic scale of milliseconds."""
    least = math.floor(math.log10(min([row.p50 for row in rows], default=1.0)))
    most = max(math.ceil(math.log10(max([row.p99 for row in rows], default=10.0))), least + 1)

    def x(value: float) -> float:
        return LABELS + (math.log10(value) - least) / (most - least) * (WIDTH - LABELS - RIGHT)

    parts = []
    for power in range(least, most + 1):
        parts.append(_line("grid", x(10.0**power), TOP, x(10.0**power), TOP + len(rows) * ROW))
        parts.append(_text("faint", x(10.0**power) + 3, TOP - 4, f"{10.0**power:g} ms"))
    for number, row in enumerate(rows):
        y = TOP + number * ROW + ROW / 2
        kind = "own" if row.own else "bar"
        parts += [_label(row.label, y - ROW / 2), _line("line", x(row.p50), y, x(row.p99), y)]
        for value, size in ((row.p50, 5), (row.p95, 4), (row.p99, 3)):
            parts.append(f'<circle class="{kind}" cx="{x(value):.1f}" cy="{y}" r="{size}"/>')
        parts.append(_text("faint", x(row.p99) + 8, y + 4, f"{row.p99:.3g} ms"))
    return _picture(title, len(rows), parts)


def _picture(title: str, rows: int, parts: Sequence[str]) -> str:
    height = TOP + rows * ROW + BOTTOM
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">'
    return "\n".join([head, _STYLE, _text("title", 4, 18, title), *parts, "</svg>\n"])


def _label(text: str, y: float) -> str:
    return f'<text x="{LABELS - 8}" y="{y + 14:.1f}" text-anchor="end">{escape(text)}</text>'


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
