"""A picture of shapes, written as SVG: what raster.py paints in pixels. Source: SVG 1.1, W3C (shapes and text)."""

from __future__ import annotations

from typing import Final, Protocol
from xml.sax.saxutils import escape

from rekindle.cli.raster import GLYPH_ROWS, Colour, text_width


class Surface(Protocol):
    """What a picture is drawn on: pixels or shapes, from the top left."""

    def fill(self, x: int, y: int, width: int, height: int, colour: Colour, share: float = 1.0) -> None:
        """A rectangle."""

    def line(self, x0: float, y0: float, x1: float, y1: float, colour: Colour, *, thick: float = 1.5) -> None:
        """A straight line."""

    def text(self, x: int, y: int, text: str, colour: Colour, *, size: int = 2) -> None:
        """Letters with their top left corner here."""


class VectorCanvas:
    """Shapes in the order in which they were drawn. Text takes the room that raster.py gives it."""

    _BASELINE: Final = GLYPH_ROWS - 1

    def __init__(self, width: int, height: int, background: Colour) -> None:
        self._size = (width, height)
        self._shapes = [f'<rect width="{width}" height="{height}" fill="{_hex(background)}"/>']

    def fill(self, x: int, y: int, width: int, height: int, colour: Colour, share: float = 1.0) -> None:
        """See Surface."""
        opacity = f' fill-opacity="{share:g}"' if share < 1 else ""
        self._shapes.append(
            f'<rect x="{x}" y="{y}" width="{max(width, 0)}" height="{max(height, 0)}" fill="{_hex(colour)}"{opacity}/>'
        )

    def line(self, x0: float, y0: float, x1: float, y1: float, colour: Colour, *, thick: float = 1.5) -> None:
        """See Surface."""
        self._shapes.append(
            f'<line x1="{x0:.2f}" y1="{y0:.2f}" x2="{x1:.2f}" y2="{y1:.2f}" stroke="{_hex(colour)}" '
            f'stroke-width="{thick:g}" stroke-linecap="round"/>'
        )

    def text(self, x: int, y: int, text: str, colour: Colour, *, size: int = 2) -> None:
        """See Surface."""
        shown = escape("".join(char if char.isprintable() else "?" for char in text))
        room = f'textLength="{text_width(text, size)}" lengthAdjust="spacingAndGlyphs"'
        self._shapes.append(
            f'<text x="{x}" y="{y + self._BASELINE * size}" font-family="monospace" font-size="{9 * size}" '
            f'fill="{_hex(colour)}" {room}>{shown}</text>'
        )

    def svg(self) -> bytes:
        """The picture as an SVG file."""
        width, height = self._size
        size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', *self._shapes, "</svg>", ""]).encode()


def _hex(colour: Colour) -> str:
    return "#" + "".join(f"{channel:02x}" for channel in colour)
