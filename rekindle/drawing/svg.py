"""A picture of shapes, written as SVG. Source: SVG 1.1, W3C (shapes and text)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from xml.sax.saxutils import escape, quoteattr

FONT: Final = "system-ui, sans-serif"


class Svg:
    """Shapes in the order in which they were drawn, from the top left. Colours are CSS colours.

    `title`: what it shows, in words. `background`: None for a transparent one.
    """

    def __init__(self, width: int, height: int, *, title: str = "", background: str | None = None) -> None:
        label = f' role="img" aria-label={quoteattr(_printable(title))}' if title else ""
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family={quoteattr(FONT)}{label}>'
        )
        self._shapes = [f"<title>{escape(_printable(title))}</title>"] if title else []
        if background is not None:
            self.rect(0, 0, width, height, background)

    def rect(self, x: float, y: float, width: float, height: float, fill: str, *, opacity: float = 1.0) -> None:
        """A rectangle; one without extent is drawn as nothing."""
        size = f'width="{_short(max(width, 0))}" height="{_short(max(height, 0))}"'
        faint = f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
        self._shapes.append(f'<rect x="{_short(x)}" y="{_short(y)}" {size} fill="{fill}"{faint}/>')

    def line(
        self, x0: float, y0: float, x1: float, y1: float, stroke: str, *, width: float = 1, dash: str = ""
    ) -> None:
        """A straight line. `dash`: lengths of strokes and gaps, such as `5 4`."""
        places = f'x1="{_short(x0)}" y1="{_short(y0)}" x2="{_short(x1)}" y2="{_short(y1)}"'
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        look = f'stroke="{stroke}" stroke-width="{width:g}" stroke-linecap="round"{dashed}'
        self._shapes.append(f"<line {places} {look}/>")

    def polyline(self, points: Iterable[tuple[float, float]], stroke: str, *, width: float = 1) -> None:
        """Straight lines from point to point."""
        places = " ".join(f"{_short(x)},{_short(y)}" for x, y in points)
        self._shapes.append(f'<polyline points="{places}" fill="none" stroke="{stroke}" stroke-width="{width:g}"/>')

    def text(
        self,
        x: float,
        y: float,
        text: str,
        fill: str,
        *,
        size: float = 13,
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        """One line on its baseline; what cannot be printed is a question mark. `anchor`: start, middle or end."""
        shown = escape(_printable(text))
        more = ' font-weight="600"' if bold else ""
        place = f'x="{_short(x)}" y="{_short(y)}" font-size="{size:g}" text-anchor="{anchor}"'
        self._shapes.append(f'<text {place} fill="{fill}"{more}>{shown}</text>')

    def __str__(self) -> str:
        return "\n".join([self._head, *self._shapes, "</svg>", ""])


def _printable(text: str) -> str:
    """XML 1.0 knows no other controls than tab and line ends."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _short(value: float) -> str:
    """To a hundredth of a pixel."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
