"""The project's Markdown, read for its links and headings. A pure reader; nothing is rendered.

Anchors are made as GitHub makes them, and the site makes them by the same `slug`, so that a link holds in both places.
Source of the rule: github.com/gjtorikian/html-pipeline, `TableOfContentsFilter`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_FENCE: Final = re.compile(r"^(?P<indent> *)(?P<mark>`{3,}|~{3,})(?P<info>.*)$")
_HEADING: Final = re.compile(r"^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$")
_INLINE_CODE: Final = re.compile(r"(`+)(?:(?!\1).)+\1")
_LINK: Final = re.compile(
    r"(?P<open>!?\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\()(?P<target>[^()\s]+)(?P<title>\s+\"[^\"]*\")?\)"
)
_DEFINITION: Final = re.compile(r"^ {0,3}\[(?P<name>[^\]]+)\]:\s*(?P<target>\S+)")
_NAMED: Final = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")
_LINKED: Final = re.compile(r"!?\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\([^)]*\)")
_EMPHASIS: Final = re.compile(r"(\*{1,3})(\S(?:.*?\S)?)\1")
_NOT_IN_A_SLUG: Final = re.compile(r"[^\w\- ]")
EXTERNAL: Final = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Link:
    """One link or picture. `line` counts from 1; `target` is as it is written."""

    line: int
    target: str

    @property
    def is_external(self) -> bool:
        return bool(EXTERNAL.match(self.target))


@dataclass(frozen=True, slots=True)
class Fence:
    """One fenced block. `line` is that of its first line of content; `info` is what stands behind the opening mark."""

    line: int
    info: str
    lines: tuple[str, ...]


def slug(text: str, separator: str = "-") -> str:
    """The anchor of a heading whose markup is already taken away. The second argument is Python-Markdown's."""
    return _NOT_IN_A_SLUG.sub("", text.strip().lower()).replace(" ", separator)


def headings(text: str) -> list[str]:
    """The text of every heading, without its markup, in order."""
    found = (_HEADING.match(line) for _, line in prose(text))
    return [_plain(match[2]) for match in found if match]


def anchors(text: str) -> set[str]:
    """Every anchor that a page has both on GitHub and on the site.

    A heading that occurs twice has only its first anchor here: GitHub and the site number the others differently.
    """
    named = {name for _, line in prose(text) for name in _NAMED.findall(line)}
    return {slug(heading) for heading in headings(text)} | named


def repeated_headings(text: str) -> set[str]:
    """Anchors that more than one heading of the page asks for."""
    return {name for name, count in Counter(slug(heading) for heading in headings(text)).items() if count > 1}


def links(text: str) -> list[Link]:
    """Every link and picture outside code, in order."""
    found = []
    for number, line in prose(text):
        bare = _INLINE_CODE.sub(lambda code: "x" * len(code[0]), line)
        found += [Link(number, match["target"]) for match in _all_links(bare)]
        if definition := _DEFINITION.match(bare):
            found.append(Link(number, definition["target"]))
    return found


def _all_links(line: str) -> Iterator[re.Match[str]]:
    for match in _LINK.finditer(line):
        yield match
        yield from _all_links(match["text"])  # a picture that is a link


def fences(text: str) -> list[Fence]:
    """Every fenced block, in order."""
    found: list[Fence] = []
    opened: re.Match[str] | None = None
    start = 0
    held: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        mark = _FENCE.match(line)
        if opened is None:
            if mark:
                opened, start, held = mark, number + 1, []
        elif _closes(mark, opened):
            found.append(Fence(start, opened["info"].strip(), tuple(held)))
            opened = None
        else:
            held.append(line.removeprefix(opened["indent"]))
    return found


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Every line outside fenced blocks, with its number from 1."""
    opened: re.Match[str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        mark = _FENCE.match(line)
        if opened is None:
            if mark:
                opened = mark
            else:
                yield number, line
        elif _closes(mark, opened):
            opened = None


def relinked(line: str, change: dict[str, str]) -> str:
    """The line with the targets of its links exchanged; what stands in code stays."""
    codes: list[str] = []

    def hide(code: re.Match[str]) -> str:
        codes.append(code[0])
        return f"\0{len(codes) - 1}\0"

    def exchange(one: re.Match[str]) -> str:
        inner = _LINK.sub(exchange, one["text"])
        opening = one["open"].replace(one["text"], inner) if one["text"] else one["open"]
        return f"{opening}{change.get(one['target'], one['target'])}{one['title'] or ''})"

    changed = _LINK.sub(exchange, _INLINE_CODE.sub(hide, line))
    if definition := _DEFINITION.match(changed):
        target = definition["target"]
        changed = changed.replace(target, change.get(target, target))
    return re.sub(r"\0(\d+)\0", lambda held: codes[int(held[1])], changed)


def _closes(mark: re.Match[str] | None, opened: re.Match[str]) -> bool:
    return bool(mark and not mark["info"].strip() and mark["mark"].startswith(opened["mark"]))


def _plain(heading: str) -> str:
    text = _LINKED.sub(r"\1", heading)
    codes = [code[0] for code in _INLINE_CODE.finditer(text)]
    text = _INLINE_CODE.sub("\0", text)
    text = _EMPHASIS.sub(r"\2", text)
    for code in codes:
        text = text.replace("\0", code.strip("`"), 1)
    return text
