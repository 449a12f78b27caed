"""What code, pages, settings and sample events refer to is there: pages, their sections, decisions, and files."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from infra.site.markdown import anchors

ROOT = Path(__file__).parents[2]
_TEXT = {".py", ".md", ".sh", ".yaml", ".yml", ".toml", ".json", ".in", ".txt", ".sbatch", ""}
# Their cases, or their history, name what is not there.
_MADE_UP = {"tests/docs/test_references.py", "tests/docs/test_site.py", "CHANGELOG.md"}
_PAGE = re.compile(r"(?<![\w/.-])(docs/[\w./-]+\.md)(?:#([\w-]+))?")
_DECISION = re.compile(r"\bADR (\d{4})\b")
_FOLDERS = "rekindle|chalicelib|infra|localcloud|simulation|fleets|tests"
_FILE = re.compile(rf"(?<![\w/.{{-])((?:{_FOLDERS})/[\w/-]+\.(?:py|md))\b")
_QUOTED = re.compile(rf"`((?:{_FOLDERS}|benchmarks|events|examples)/[\w./-]+)`")  # in pages: folders as well


@cache
def _anchors(page: Path) -> frozenset[str]:
    return frozenset(anchors(page.read_text(encoding="utf-8")))


def dangling(text: str, root: Path = ROOT, *, is_page: bool = False) -> Iterator[str]:
    """Each reference in a text to a page, a section, a decision, or a file that is not there."""
    for page, section in _PAGE.findall(text):
        if not (root / page).is_file():
            yield page
        elif section and section not in _anchors(root / page):
            yield f"{page}#{section}"
    for number in _DECISION.findall(text):
        if not list((root / "docs" / "adr").glob(f"{number}-*.md")):
            yield f"ADR {number}"
    for path in (*_FILE.findall(text), *(_QUOTED.findall(text) if is_page else ())):
        if not (root / path).exists():
            yield path


def _files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return [path for path in listed if Path(path).suffix in _TEXT and path not in _MADE_UP and (ROOT / path).is_file()]


def test_what_the_repository_refers_to_is_there() -> None:
    found = [
        f"{path}: {reference}"
        for path in _files()
        for reference in dangling(
            (ROOT / path).read_text(encoding="utf-8", errors="replace"), is_page=path.endswith(".md")
        )
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("see docs/a.md and docs/a.md#part-one", []),
        ("see docs/b.md", ["docs/b.md"]),
        ("see docs/a.md#part-two.", ["docs/a.md#part-two"]),
        ("why: ADR 0001, ADR 0002", ["ADR 0002"]),
        ("rekindle/here.py and rekindle/gone.py", ["rekindle/gone.py"]),
        ("in `rekindle/here.py`, `rekindle/left/`", ["rekindle/left/"]),
    ],
)
def test_what_is_lost_is_found(tmp_path: Path, text: str, lost: list[str]) -> None:
    (tmp_path / "docs" / "adr").mkdir(parents=True)
    (tmp_path / "rekindle").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# A\n\n## Part one\n")
    (tmp_path / "docs" / "adr" / "0001-x.md").write_text("# 0001 · X\n")
    (tmp_path / "rekindle" / "here.py").write_text("")
    assert list(dangling(text, tmp_path, is_page=True)) == lost
