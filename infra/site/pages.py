"""Which pages the site has beyond docs/, and the Markdown of each as MkDocs needs it. Reads the checkout.

Pages of docs/ keep their addresses. The README is the start page. Every other file of the repository that a page links
to becomes a page below `project/`, so that the site is whole wherever it is served: Markdown as it is, anything else
as a listing. All links stay those of the repository until they are rewritten here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from infra.site.markdown import Fence, fences, headings, links, prose, relinked

DOCS: Final = "docs"
README: Final = "README.md"
START: Final = "index.md"
PROJECT: Final = "project"
_IMAGES: Final = frozenset({".svg", ".png", ".jpg", ".gif"})
_LANGUAGES: Final = {".py": "python", ".json": "json", ".yaml": "yaml", ".sh": "sh", ".toml": "toml", ".sbatch": "sh"}
_ITEM: Final = re.compile(r"^(?P<indent> *)(?:[-*+]|(?P<number>\d+)[.)])\s")
_EDGE: Final = re.compile(r"^\s*(?P<source>\S+) --> (?P<target>[^\s:]+)(?:: (?P<by>.*))?$")
_STATES: Final = "stateDiagram-v2"


class BrokenLink(Exception):
    """A page links to a file that the repository does not have; the message names page, line and target."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """The repository. Paths are relative to `root`, with forward slashes."""

    root: Path

    def text(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8")

    def docs(self) -> list[str]:
        """Every page of docs/."""
        return sorted(page.relative_to(self.root).as_posix() for page in (self.root / DOCS).rglob("*.md"))

    def resolved(self, page: str, target: str) -> str:
        """What a link of `page` leads to: a path of the repository, without its anchor."""
        path = target.partition("#")[0]
        return os.path.normpath(PurePosixPath(page).parent / path) if path else page


def address(path: str) -> str:
    """Where a file of the repository stands on the site, as MkDocs names its source."""
    if path == README:
        return START
    if path.startswith(f"{DOCS}/"):
        return path.removeprefix(f"{DOCS}/")
    if path.endswith(".md") or PurePosixPath(path).suffix in _IMAGES:
        return f"{PROJECT}/{path}"
    return f"{PROJECT}/{path}.md"


def other_pages(checkout: Checkout) -> dict[str, str]:
    """Address -> Markdown of every page that the site has beside docs/. Raises: BrokenLink."""
    found: dict[str, str] = {}
    waiting = [README, *checkout.docs()]
    seen = set(waiting)
    while waiting:
        page = waiting.pop()
        text = _text(checkout, page)
        if not page.startswith(f"{DOCS}/"):
            found[address(page)] = for_site(checkout, page, text)
        for target in _linked(checkout, page, text):
            if target not in seen and PurePosixPath(target).suffix not in _IMAGES:
                seen.add(target)
                waiting.append(target)
    return found


def for_site(checkout: Checkout, page: str, text: str) -> str:
    """A page's Markdown as MkDocs needs it: its links rewritten, its lists and tables set apart, diagrams as tables."""
    here = PurePosixPath(address(page)).parent
    change = {}
    for link in links(text):
        if link.is_external or link.target.startswith("#"):
            continue
        path = checkout.resolved(page, link.target)
        if (checkout.root / path / README).is_file():
            path = f"{path}/{README}"
        anchor = link.target.partition("#")[2]
        leads = os.path.relpath(address(path), here)
        change[link.target] = f"{leads}#{anchor}" if anchor else leads
    outside = dict(prose(text))
    lines = [relinked(line, change) if number in outside else line for number, line in enumerate(text.splitlines(), 1)]
    return _diagrams("\n".join(_set_apart(lines, set(outside))) + "\n")


def title(text: str, otherwise: str) -> str:
    """What a page is called: its first heading."""
    return next(iter(headings(text)), otherwise)


def _text(checkout: Checkout, path: str) -> str:
    where = checkout.root / path
    if where.is_dir():
        rows = [f"- [{entry.name}]({entry.name})" for entry in sorted(where.iterdir()) if entry.is_file()]
        return "\n".join([f"# {path}", "", *rows, ""])
    text = checkout.text(path)
    if path.endswith(".md"):
        return text
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    mark = "`" * max(3, longest + 1)
    return f"# {path}\n\n{mark}{_LANGUAGES.get(where.suffix, 'text')}\n{text.rstrip()}\n{mark}\n"


def _linked(checkout: Checkout, page: str, text: str) -> Iterator[str]:
    """Files of the repository that a page links to. Of a folder's listing, links are those of the folder."""
    base = f"{page}/-" if (checkout.root / page).is_dir() else page
    for link in links(text) if base != page or page.endswith(".md") else ():
        if link.is_external:
            continue
        path = checkout.resolved(base, link.target)
        where = checkout.root / path
        if path.startswith("..") or not where.exists():
            raise BrokenLink(f"{page}:{link.line}: {link.target} is not in the repository")
        yield f"{path}/{README}" if (where / README).is_file() else path


def _set_apart(lines: list[str], outside: set[int]) -> list[str]:
    """An empty line before each list and table that follows a paragraph, and nested items by four spaces.

    GitHub takes both without; Python-Markdown does not. Only a list that begins with 1 ends a paragraph (CommonMark).
    """
    made: list[str] = []
    for number, line in enumerate(lines, 1):
        before = made[-1] if made else ""
        if number not in outside:
            made.append(line)
            continue
        item = _ITEM.match(line)
        if item and 1 < len(item["indent"]) < 4:
            line = "    " + line.lstrip()
        in_list = bool(_ITEM.match(before)) or before.startswith(" ")
        begins = item is not None and not item["indent"] and item["number"] in (None, "1") and not in_list
        table = line.startswith("|") and not before.startswith("|")
        if before.strip() and (begins or table):
            made.append("")
        made.append(line)
    return made


def _diagrams(text: str) -> str:
    """State diagrams as tables: the site loads no script that could draw them."""
    lines = text.splitlines()
    for fence in reversed(fences(text)):
        if fence.info == "mermaid":
            lines[fence.line - 2 : fence.line + len(fence.lines)] = _table_of_states(fence)
    return "\n".join(lines) + "\n"


def _table_of_states(fence: Fence) -> list[str]:
    if not fence.lines or fence.lines[0].strip() != _STATES:
        raise ValueError(f"line {fence.line}: the site draws state diagrams only")
    following: dict[str, dict[str, list[str]]] = {}
    for line in fence.lines[1:]:
        edge = _EDGE.match(line)
        if edge is None:
            raise ValueError(f"line {fence.line}: {line.strip()!r} is no transition")
        by = following.setdefault(_state(edge["source"], "start"), {}).setdefault(_state(edge["target"], "end"), [])
        if edge["by"]:
            by.append(f"`{edge['by'].strip()}`")
    rows = []
    for source, targets in following.items():
        cells = [f"{target} ({', '.join(by)})" if by else target for target, by in targets.items()]
        rows.append(f"| {source} | {', '.join(cells)} |")
    return ["", "| from | to |", "|---|---|", *rows, ""]


def _state(name: str, otherwise: str) -> str:
    return f"*{otherwise}*" if name == "[*]" else f"`{name}`"
