"""Links, anchors and navigation, without MkDocs: the README and every page, on GitHub and on the site."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.site.hooks import loaded_from_elsewhere, opened
from infra.site.markdown import anchors, fences, headings, links, relinked, repeated_headings, slug
from infra.site.pages import BrokenLink, Checkout, address, for_site, other_pages

ROOT = Path(__file__).parents[2]
HERE = Checkout(ROOT)
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    *HERE.docs(),
    *(page.relative_to(ROOT).as_posix() for folder in ("examples", "events") for page in (ROOT / folder).rglob("*.md")),
]


def broken(checkout: Checkout, page: str) -> list[str]:
    """`page:line: target: what is wrong` for every link of a page that leads nowhere."""
    found = []
    for link in links(checkout.text(page)):
        if link.is_external:
            continue
        path, anchor = checkout.resolved(page, link.target), link.target.partition("#")[2]
        where = checkout.root / path
        if path.startswith("..") or link.target.startswith("/") or not where.exists():
            found.append(f"{page}:{link.line}: {link.target}: no such file")
        elif anchor and (where.suffix != ".md" or anchor not in anchors(checkout.text(path))):
            found.append(f"{page}:{link.line}: {link.target}: no such heading")
        elif anchor and anchor in repeated_headings(checkout.text(path)):
            found.append(f"{page}:{link.line}: {link.target}: two headings have this anchor")
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_link_and_every_picture_leads_somewhere(page: str) -> None:
    assert broken(HERE, page) == []


def test_what_is_broken_is_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text(
        "# A\n\n## Twice\n\n## Twice\n\n[x](b.md) [y](#a) [z](#none) [t](#twice) "
        "![p](no.png) `[c](code.md)` [o](../../x)\n"
        "[[![in](gone.svg)](a.md)\n\n```\n[f](fenced.md)\n```\n\n[name]: lost.md\n[e](https://example.org/x)\n"
    )
    told = [line.split(": ", 1)[1] for line in broken(Checkout(tmp_path), "docs/a.md")]
    assert told == [
        "b.md: no such file",
        "#none: no such heading",
        "#twice: two headings have this anchor",
        "no.png: no such file",
        "../../x: no such file",
        "gone.svg: no such file",
        "lost.md: no such file",
    ]
    with pytest.raises(BrokenLink, match=r"a\.md:7: b\.md"):
        other_pages(_with_readme(tmp_path))


def _with_readme(root: Path) -> Checkout:
    (root / "README.md").write_text("# R\n")
    return Checkout(root)


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


def _entries(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        if isinstance(entry, str):
            yield entry
        else:
            for inner in entry.values():
                yield from _entries(inner) if isinstance(inner, list) else [inner]


def test_every_page_stands_in_the_navigation_once() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    entries = list(_entries(opened(nav, HERE)))
    assert len(entries) == len(set(entries))
    docs = {address(page) for page in HERE.docs()}
    assert docs <= set(entries)
    assert set(entries) - docs <= set(other_pages(HERE))


def test_the_sites_pages_link_to_pages_of_the_site() -> None:
    pages = other_pages(HERE) | {address(page): for_site(HERE, page, HERE.text(page)) for page in HERE.docs()}
    assert pages["index.md"].startswith("# Rekindle")
    images = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*") if path.is_file()}
    site = Checkout(ROOT)
    for uri, text in pages.items():
        for link in links(text):
            if not link.is_external:
                assert site.resolved(uri, link.target) in pages.keys() | images, f"{uri}: {link.target}"


def test_links_in_code_stay_and_others_are_exchanged() -> None:
    line = "`[a](x.md)` [a](x.md) [![p](x.md)](y.md) [q](z.md)"
    assert relinked(line, {"x.md": "1", "y.md": "2"}) == "`[a](x.md)` [a](1) [![p](1)](2) [q](z.md)"


def test_a_state_diagram_becomes_a_table_and_no_other_is_taken() -> None:
    diagram = "a\n\n```mermaid\nstateDiagram-v2\n    [*] --> open\n    open --> shut: key\n    shut --> [*]\n```\nb\n"
    made = for_site(HERE, "docs/policy.md", diagram)
    assert "| *start* | `open` |" in made
    assert "| `open` | `shut` (`key`) |" in made
    assert "| `shut` | *end* |" in made
    assert fences(made) == []
    with pytest.raises(ValueError, match="state diagrams only"):
        for_site(HERE, "docs/policy.md", "```mermaid\ngraph TD\n```\n")


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("word\n- item\n", "word\n\n- item\n"),
        ("word\n55. no list\n", "word\n55. no list\n"),
        ("word\n1. item\n2. item\n", "word\n\n1. item\n2. item\n"),
        ("1. item\n   - inner\n", "1. item\n    - inner\n"),
        ("<!-- x -->\n| a |\n|---|\n", "<!-- x -->\n\n| a |\n|---|\n"),
        ("```\nx\n- y\n| z |\n```\n", "```\nx\n- y\n| z |\n```\n"),
    ],
)
def test_lists_and_tables_are_set_apart(text: str, made: str) -> None:
    assert for_site(HERE, "docs/policy.md", text) == made


def test_what_would_be_loaded_from_another_host_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="https://x.org/"></a><script src="assets/a.js"></script><script src=https://cdn.example/b.js></script>'
        '<link href="//fonts.example/c" rel="stylesheet"><link rel="canonical" href="https://x.org"><img src="i.png">'
    )
    (tmp_path / "a.css").write_text(
        "@import 'https://fonts.example/d'; b { background: url(data:x) } c { src: url(e.ttf) }"
    )
    assert loaded_from_elsewhere(tmp_path) == [
        "a.css: https://fonts.example/d",
        "a.html: https://cdn.example/b.js",
        "a.html: //fonts.example/c",
    ]
