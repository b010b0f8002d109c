"""Draws bar charts as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

BAR_PX, ROW_PX, LABEL_PX, VALUE_PX, TITLE_PX = 560, 26, 170, 90, 40
PLAIN, STRONG = "#8aa1b8", "#1f5fa8"


@dataclass(frozen=True, slots=True)
class Panel:
    """One group of bars.

    Attributes:
        title: What the values are, with their unit.
        rows: (label, value), from top to bottom.
        strong: Label of the highlighted bar.
    """

    title: str
    rows: Sequence[tuple[str, float]]
    strong: str = ""


def draw(panels: Sequence[Panel]) -> str:
    """Draw horizontal bars as SVG, one panel below the other, each with its own scale."""
    top, parts = 0, []
    for panel in panels:
        parts.append(_draw_panel(panel, top))
        top += TITLE_PX + len(panel.rows) * ROW_PX + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LABEL_PX + BAR_PX + VALUE_PX}" height="{top}" '
        f'font-family="sans-serif" font-size="13">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _draw_panel(panel: Panel, top: int) -> str:
    most = max((value for _, value in panel.rows), default=0) or 1
    bars = [f'<text x="{LABEL_PX}" y="{top + 26}" font-weight="bold">{escape(panel.title)}</text>']
    for number, (label, value) in enumerate(panel.rows):
        y, width = top + TITLE_PX + number * ROW_PX, max(1.0, BAR_PX * value / most)
        fill = STRONG if label == panel.strong else PLAIN
        bars.append(
            f'<text x="{LABEL_PX - 8}" y="{y + 14}" text-anchor="end">{escape(label)}</text>'
            f'<rect x="{LABEL_PX}" y="{y}" width="{width:.1f}" height="{ROW_PX - 7}" fill="{fill}"/>'
            f'<text x="{LABEL_PX + width + 6:.1f}" y="{y + 14}">{value:.3g}</text>'
        )
    return "".join(bars)
