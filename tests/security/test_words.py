"""Words of a failed run in the console, over its real HTTP; tests/console tries many more in a real browser."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from rekindle.client.api import Client
from rekindle.console.server import running
from tests.cli.service import FakeService, serve
from tests.console.world import Visitor

EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>\"' onfocus=alert(1) {{7*7}} javascript:alert(1)"


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def test_no_text_from_outside_is_markup_in_the_console() -> None:
    service = FakeService()
    service.protect("lm")
    incident = service.fail("lm", reason=f"AlgorithmError: {EVIL}")
    with serve(service) as url, running(Client(url=url)) as console:
        page = Visitor(console).get(f"/incidents/{incident}")
    assert page.status == 200
    seen = _Elements()
    seen.feed(page.body)
    assert "<script>alert(1)</script>" in seen.text  # shown as it is
    assert "{{7*7}}" in seen.text
    assert "img" not in seen.tags
    sources = [value or "" for name, value in seen.attributes if name == "src"]
    assert len(sources) == seen.tags.count("script"), "no script but our files"
    assert all(re.fullmatch(r"/c-[0-9a-f]+/static/[a-z.]+\.js", source) for source in sources), sources
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    assert not [value for name, value in seen.attributes if name in ("href", "src") and "javascript" in (value or "")]
