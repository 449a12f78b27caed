"""Screens as one moving SVG: a strip of all screens, of which a window shows one after the other.

It moves by CSS alone, so it plays in an `<img>` of a README. Where nothing moves (a reader who wants no motion, a
printer) the last screen stands. Source: SVG 1.1; CSS Animations Level 1 (`step-end`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from xml.sax.saxutils import escape

from infra.recording.screens import Row, Screen
from infra.recording.terminal import COLUMNS, LINES

CELL: Final = 8.0  # pixels, width of a character
LINE: Final = 17
PAD: Final = 12
BAR: Final = 30  # of the window, with its title
SHORT_S, LONG_S, LAST_S = 0.3, 0.9, 7.0  # how long a screen stands
SPEED: Final = 4.0  # faster than it was

# Of the field's dark terminals; on #11151c each has a contrast of 4.5 and more.
_COLOURS: Final[Mapping[str, str]] = {
    "default": "#d7dde5",
    "white": "#d7dde5",
    "black": "#8b96a5",
    "red": "#ff7b72",
    "green": "#56d364",
    "brown": "#e3b341",
    "blue": "#79c0ff",
    "magenta": "#d2a8ff",
    "cyan": "#4fd1c5",
    "brightred": "#ff7b72",
    "brightgreen": "#7ee787",
    "brightbrown": "#f2cc60",
    "brightyellow": "#f2cc60",
}


def film_of(screens: Sequence[Screen], *, title: str) -> str:
    """The picture. `title`: what it shows, in words."""
    width, height = round(COLUMNS * CELL) + 2 * PAD, LINES * LINE + BAR + 2 * PAD
    rows: dict[Row, str] = {}
    strip = []
    for number, screen in enumerate(screens):
        for line, row in enumerate(screen.rows):
            if row:
                name = rows.setdefault(row, f"r{len(rows)}")
                strip.append(f'<use href="#{name}" y="{number * height + line * LINE}"/>')
    colours = sorted({run.colour for row in rows for run in row})
    classes = {colour: f"c{number}" for number, colour in enumerate(colours)}
    inner = f"M0 0H{width}V{height - BAR}H0z"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title>",
            f"<style>{_style(screens, classes, height)}</style>",
            "<defs>",
            *(f'<g id="{name}">{_runs(row, classes)}</g>' for row, name in rows.items()),
            f'<clipPath id="w"><path d="{inner}"/></clipPath>',
            "</defs>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#11151c"/>',
            *(
                f'<circle cx="{18 + 18 * n}" cy="16" r="5.5" fill="{fill}"/>'
                for n, fill in enumerate(("#ff7b72", "#e3b341", "#56d364"))
            ),
            f'<text x="{width / 2:g}" y="21" text-anchor="middle" fill="#8b96a5">{escape(title)}</text>',
            f'<g transform="translate(0 {BAR})" clip-path="url(#w)"><g class="film">',
            f'<g transform="translate({PAD} {PAD + LINE - 4})">',
            *strip,
            "</g></g></g>",
            "</svg>",
            "",
        ]
    )


def _style(screens: Sequence[Screen], classes: Mapping[str, str], height: int) -> str:
    ends = [one.at for one in screens[1:]]
    lasts = [min(LONG_S, max(SHORT_S, (end - one.at) / SPEED)) for one, end in zip(screens, ends, strict=False)] + [
        LAST_S
    ]
    whole = sum(lasts)
    frames, passed = [], 0.0
    for number, seconds in enumerate(lasts):
        frames.append(f"{100 * passed / whole:.2f}%{{transform:translateY(-{number * height}px)}}")
        passed += seconds
    last = (len(screens) - 1) * height
    return "".join(
        [
            'text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre}',
            ".b{font-weight:700}",
            *(f".{name}{{fill:{_COLOURS.get(colour, '#d7dde5')}}}" for colour, name in classes.items()),
            f".film{{transform:translateY(-{last}px);animation:film {whole:.1f}s step-end infinite}}",
            f"@keyframes film{{{''.join(frames)}100%{{transform:translateY(-{last}px)}}}}",
            "@media (prefers-reduced-motion:reduce){.film{animation:none}}",
        ]
    )


def _runs(row: Row, classes: Mapping[str, str]) -> str:
    """Each held to the width of its cells, whatever the reader's font."""
    return "".join(
        f'<text x="{run.column * CELL:g}" class="{classes[run.colour]}{" b" if run.is_bold else ""}" '
        f'textLength="{len(run.text) * CELL:g}" lengthAdjust="spacingAndGlyphs">{escape(run.text)}</text>'
        for run in row
    )
