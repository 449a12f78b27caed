"""A picture of pixels: lines, rectangles and small letters, written as PNG with the standard library alone.

Enough for one curve with its axes; PNG is the W3C's recommendation (https://www.w3.org/TR/png-3/), here in true colour,
eight bits a channel, no interlace.
"""

from __future__ import annotations

import math
import struct
import zlib
from typing import Protocol

Colour = tuple[int, int, int]

GLYPH_COLUMNS, GLYPH_ROWS = 5, 8  # the eighth is for what hangs below the line
# ASCII 32 to 126, five columns each, the lowest bit on top: the classic 5x7 letters of character displays.
_FONT = bytes.fromhex(
    "000000000000005f00000007000700147f147f14242a7f2a12231308646236495522500005030000001c2241000041221c00"
    "14083e081408083e080800503000000808080808006060000020100804023e5149453e00427f400042615149462141454b31"
    "1814127f1027454545393c4a49493001710905033649494936064949291e0036360000005636000008142241001414141414"
    "00412214080251010906324979413e7e1111117e7f494949363e414141227f4141221c7f494949417f090909013e4149497a"
    "7f0808087f00417f41002040413f017f081422417f404040407f020c027f7f0408107f3e4141413e7f090909063e4151215e"
    "7f09192946464949493101017f01013f4040403f1f2040201f3f4038403f631408146307087008076151494543007f414100"
    "02040810200041417f0004020102044040404040000102040020545454787f484444383844444420384444487f3854545418"
    "087e09010218a4a49c787f0804047800447d40002040443d007f1028440000417f40007c041804787c080404783844444438"
    "fc1824241818242418fc7c080404084854545420043f4440203c4040207c1c2040201c3c4030403c44281028444c9090907c"
    "4464544c44000836410000007f000000413608001008100808"
)


class Surface(Protocol):
    """What a picture is drawn on: pixels or shapes, from the top left."""

    def fill(self, x: int, y: int, width: int, height: int, colour: Colour, share: float = 1.0) -> None:
        """A rectangle."""

    def line(self, x0: float, y0: float, x1: float, y1: float, colour: Colour, *, thick: float = 1.5) -> None:
        """A straight line."""

    def text(self, x: int, y: int, text: str, colour: Colour, *, size: int = 2) -> None:
        """Letters with their top left corner here."""

    def encoded(self) -> bytes:
        """The picture as a file."""
        ...


class Canvas:
    """A surface of pixels; what lies outside is not drawn."""

    def __init__(self, width: int, height: int, background: Colour) -> None:
        self.width = width
        self.height = height
        self._pixels = bytearray(bytes(background) * (width * height))

    def blend(self, x: int, y: int, colour: Colour, share: float = 1.0) -> None:
        """Paint one pixel, by a share from 0 to 1."""
        if not (0 <= x < self.width and 0 <= y < self.height) or share <= 0:
            return
        at = 3 * (y * self.width + x)
        for channel in range(3):
            old = self._pixels[at + channel]
            self._pixels[at + channel] = round(old + (colour[channel] - old) * min(share, 1.0))

    def fill(self, x: int, y: int, width: int, height: int, colour: Colour, share: float = 1.0) -> None:
        """A rectangle."""
        for row in range(max(y, 0), min(y + height, self.height)):
            for column in range(max(x, 0), min(x + width, self.width)):
                self.blend(column, row, colour, share)

    def line(self, x0: float, y0: float, x1: float, y1: float, colour: Colour, *, thick: float = 1.5) -> None:
        """A straight line with soft edges: a pixel is painted by how near it is."""
        steps = max(1, math.ceil(max(abs(x1 - x0), abs(y1 - y0))))
        is_steep = abs(y1 - y0) > abs(x1 - x0)
        reach = math.ceil(thick / 2)
        for i in range(steps + 1):
            x, y = x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps
            across = x if is_steep else y
            for offset in range(-reach, reach + 1):
                pixel = round(across) + offset
                share = thick / 2 + 0.5 - abs(pixel - across)
                if is_steep:
                    self.blend(pixel, round(y), colour, share)
                else:
                    self.blend(round(x), pixel, colour, share)

    def text(self, x: int, y: int, text: str, colour: Colour, *, size: int = 2) -> None:
        """Letters with their top left corner here; one that the font lacks is a question mark."""
        for char in text:
            code = ord(char) if 32 <= ord(char) <= 126 else ord("?")
            glyph = _FONT[(code - 32) * GLYPH_COLUMNS : (code - 31) * GLYPH_COLUMNS]
            for column, bits in enumerate(glyph):
                for row in range(GLYPH_ROWS):
                    if bits >> row & 1:
                        self.fill(x + column * size, y + row * size, size, size, colour)
            x += (GLYPH_COLUMNS + 1) * size

    def encoded(self) -> bytes:
        """The picture as a PNG file."""
        stride = 3 * self.width
        rows = b"".join(b"\0" + self._pixels[at : at + stride] for at in range(0, len(self._pixels), stride))
        header = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def text_width(text: str, size: int = 2) -> int:
    """Pixels that a text is wide."""
    return (len(text) * (GLYPH_COLUMNS + 1) - 1) * size


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
