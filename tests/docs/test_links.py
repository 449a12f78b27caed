"""Links and anchors of the README and of every page, as GitHub shows them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infra.site.markdown import anchors, headings, links, repeated_headings, slug

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    *(
        page.relative_to(ROOT).as_posix()
        for folder in ("docs", "examples", "events")
        for page in (ROOT / folder).rglob("*.md")
    ),
]


def broken(root: Path, page: str) -> list[str]:
    """`page:line: target: what is wrong` for every link of a page that leads nowhere."""
    found = []
    for link in links((root / page).read_text(encoding="utf-8")):
        if link.is_external:
            continue
        path, _, anchor = link.target.partition("#")
        where = Path(os.path.normpath(root / page / ".." / path)) if path else root / page
        text = where.read_text(encoding="utf-8") if anchor and where.suffix == ".md" and where.exists() else ""
        if not where.is_relative_to(root) or path.startswith("/") or not where.exists():
            found.append(f"{page}:{link.line}: {link.target}: no such file")
        elif anchor and anchor not in anchors(text):
            found.append(f"{page}:{link.line}: {link.target}: no such heading")
        elif anchor and anchor in repeated_headings(text):
            found.append(f"{page}:{link.line}: {link.target}: two headings have this anchor")
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_link_and_every_picture_leads_somewhere(page: str) -> None:
    assert broken(ROOT, page) == []


def test_what_is_broken_is_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text(
        "# A\n\n## Twice\n\n## Twice\n\n[x](b.md) [y](#a) [z](#none) [t](#twice) "
        "![p](no.png) `[c](code.md)` [o](../../x)\n"
        "[[![in](gone.svg)](a.md)\n\n```\n[f](fenced.md)\n```\n\n[name]: lost.md\n[e](https://example.org/x)\n"
    )
    told = [line.split(": ", 1)[1] for line in broken(tmp_path, "docs/a.md")]
    assert told == [
        "b.md: no such file",
        "#none: no such heading",
        "#twice: two headings have this anchor",
        "no.png: no such file",
        "../../x: no such file",
        "gone.svg: no such file",
        "lost.md: no such file",
    ]


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("What it costs", "what-it-costs"),
        ("`rekindle run`: submit", "rekindle-run-submit"),
        ("Nodes & jobs (Slurm)", "nodes--jobs-slurm"),
        ("[A link](x.md) and *emphasis*", "a-link-and-emphasis"),
        ("`GET /jobs/{job_id}`", "get-jobsjob_id"),
        ("`a_b_c` and d_e", "a_b_c-and-d_e"),
    ],
)
def test_anchors_are_githubs(heading: str, anchor: str) -> None:
    (text,) = headings(f"## {heading}\n")
    assert slug(text) == anchor
