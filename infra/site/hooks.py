"""What MkDocs calls while it builds the site (mkdocs.yml, `hooks`): pages from outside docs/, links, navigation, and a
look at what was built. Source of the events: mkdocs.org/dev-guide/plugins.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from infra.site.markdown import slug
from infra.site.pages import DOCS, Checkout, address, for_site, other_pages, title

_ROOT: Final = Path(__file__).resolve().parents[2]
# What a browser loads by itself when it shows a page; a link that a person follows is no such thing.
_LOADED: Final = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc=\"?(?P<src>[^\s\">]+)"
    r"|<link\b(?=[^>]*\brel=\"?(?:stylesheet|preload|preconnect|icon|modulepreload))[^>]*?\bhref=\"?(?P<href>[^\s\">]+)"
)
_IN_A_SHEET: Final = re.compile(r"(?:url\(\s*|@import\s+)['\"]?(?P<url>[^'\")\s;]+)")
_ELSEWHERE: Final = re.compile(r"(?:https?:)?//", re.IGNORECASE)


class NotLocal(Exception):
    """The site would load something from another host; the message lists pages and addresses."""


def on_config(config: Any) -> Any:
    """Anchors as GitHub makes them, and each folder of the navigation as the list of its pages."""
    config["mdx_configs"].setdefault("toc", {})["slugify"] = slug
    config["nav"] = opened(config["nav"], Checkout(_ROOT))
    return config


def on_files(files: Any, config: Any) -> Any:
    """The pages from outside docs/."""
    from mkdocs.structure.files import File

    for uri, text in sorted(other_pages(Checkout(_ROOT)).items()):
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """A page of docs/ as MkDocs needs it; the others are made so."""
    path = f"{DOCS}/{page.file.src_uri}"
    return for_site(Checkout(_ROOT), path, markdown) if (_ROOT / path).is_file() else markdown


def on_post_build(config: Any) -> None:
    """Nothing may be loaded from another host at reading time. Raises: NotLocal."""
    found = loaded_from_elsewhere(Path(config["site_dir"]))
    if found:
        raise NotLocal("the site loads from other hosts:\n" + "\n".join(found))


def opened(nav: list[Any], checkout: Checkout) -> list[Any]:
    """The navigation with `folder/` exchanged for the folder's pages, each by its title; README.md first."""
    made: list[Any] = []
    for entry in nav:
        if isinstance(entry, str) and entry.endswith("/"):
            pages = [page for page in checkout.docs() if Path(page).parent.as_posix() == f"{DOCS}/{entry}".rstrip("/")]
            pages.sort(key=lambda page: (not page.endswith("/README.md"), page))
            made += [{title(checkout.text(page), page): address(page)} for page in pages]
        elif isinstance(entry, dict):
            made += [
                {name: opened(inner, checkout) if isinstance(inner, list) else inner} for name, inner in entry.items()
            ]
        else:
            made.append(entry)
    return made


def loaded_from_elsewhere(site: Path) -> list[str]:
    """`page: address` for everything that a browser would load from another host."""
    found = []
    for path in sorted((*site.rglob("*.html"), *site.rglob("*.css"))):
        text = path.read_text(encoding="utf-8")
        looked = _IN_A_SHEET if path.suffix == ".css" else _LOADED
        for match in looked.finditer(text):
            where = next(value for value in match.groupdict().values() if value)
            if _ELSEWHERE.match(where):
                found.append(f"{path.relative_to(site).as_posix()}: {where}")
    return found
