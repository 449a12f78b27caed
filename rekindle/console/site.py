"""Which page answers which path, and how a page becomes bytes."""

from __future__ import annotations

import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Any, Final
from urllib.parse import unquote

from jinja2 import Environment, PackageLoader, StrictUndefined

from rekindle.client.api import Client, path
from rekindle.client.shapes import member, objects, short_step, step, what_was_seen, windows
from rekindle.console import figures
from rekindle.console.gate import Gate
from rekindle.console.reads import MAX_AT_ONCE, AnswerCache, Panel, Question, read_all, read_one
from rekindle.console.words import FILTERS, tidy, word
from rekindle.protocol.quantities import duration
from rekindle.protocol.run_links import is_address

HTML: Final = "text/html; charset=utf-8"
TEXT: Final = "text/plain; charset=utf-8"
MAX_NOTES: Final = 50
# Static files by name, with their type; anything else is not there.
STATIC: Final[Mapping[str, str]] = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "mark.svg": "image/svg+xml",
    "plots.js": "text/javascript; charset=utf-8",
    "uplot.min.js": "text/javascript; charset=utf-8",
    "uplot.min.css": "text/css; charset=utf-8",
    "uplot.license.txt": TEXT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """One request, let in by the gate."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageResponse:
    """What goes back."""

    status: int = 200
    body: bytes = b""
    kind: str = HTML
    headers: Mapping[str, str] = field(default_factory=dict)


# A path's pattern, and the page that answers: called with the site, the request and the names in the path.
Route = tuple[re.Pattern[str], Callable[..., PageResponse]]


class NoSuchPage(Exception):
    """Nothing is at this path, or the API has no such thing; the message says what."""


class Refused(Exception):
    """The service could not be asked for the page's main matter; the message says why."""


@dataclass(frozen=True, slots=True)
class Note:
    """The result of an order, shown once on the next page. `tone` is good or bad."""

    tone: str
    text: str


class Site:
    """All pages over one API. Thread-safe: what is shared is the client, the pool, and the notes.

    `routes`: by method (GET or POST), tried in order.
    """

    def __init__(
        self,
        client: Client,
        *,
        gate: Gate,
        now: Callable[[], datetime],
        routes: Mapping[str, Sequence[Route]],
        can_order: bool = True,
    ) -> None:
        self.client = client
        self._routes = routes
        self.gate = gate
        self.now = now
        self.can_order = can_order
        self._pool = ThreadPoolExecutor(MAX_AT_ONCE, thread_name_prefix="console-read")
        self.kept = AnswerCache(self.one, self._pool, now)
        self._notes: OrderedDict[str, Note] = OrderedDict()
        self._templates = _environment(gate.base)

    def close(self) -> None:
        """Ask no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def answer(self, asked: PageRequest) -> PageResponse:
        """The answer to a request; every failure is a page, too."""
        try:
            for pattern, page in self._routes[asked.method]:
                names = _match(pattern, asked.path)
                if names is not None:
                    return page(self, asked, **names)
        except NoSuchPage as err:
            return self.page("message.html", asked, status=404, title="Not found", message=str(err))
        except Refused as err:
            return self.page("message.html", asked, status=502, title="Not read", message=str(err))
        return self.page("message.html", asked, status=404, title="Not found", message="There is no such page.")

    # ---- for the pages ---------------------------------------------------------------------------------------------

    def read(self, **questions: Question) -> dict[str, Panel]:
        """All answers at once."""
        return read_all(self.client, self._pool, questions)

    def main(self, panel: Panel, what: str) -> Mapping[str, Any]:
        """The body of what a page is about.

        Raises:
            NoSuchPage: the API has no such thing.
            Refused: it could not be read.
        """
        if panel.body is not None:
            return panel.body
        if panel.is_absent:
            raise NoSuchPage(f"{what}: {panel.why}")
        raise Refused(f"{what}: {panel.why}")

    def one(self, question: Question) -> Panel:
        """One answer."""
        return read_one(self.client, question)

    def page(self, template: str, asked: PageRequest, *, status: int = 200, **values: Any) -> PageResponse:
        """A drawn page."""
        text = self._templates.get_template(template).render(
            path=asked.path,
            query=asked.query,
            now=self.now(),
            csrf=self.gate.csrf,
            order_key=secrets.token_hex(16),
            can_order=self.can_order,
            service=self.client.url,
            note=self._notes.pop(asked.query.get("note", ""), None),
            **values,
        )
        return PageResponse(status=status, body=text.encode())

    def go_to(self, where: str, note: Note) -> PageResponse:
        """Back to a page of ours after an order, which then tells what came of it."""
        key = secrets.token_hex(8)
        self._notes[key] = note
        while len(self._notes) > MAX_NOTES:
            self._notes.popitem(last=False)
        where = f"{self.gate.base}{where}"
        return PageResponse(status=303, headers={"Location": f"{where}{'&' if '?' in where else '?'}note={key}"})


def _match(pattern: re.Pattern[str], where: str) -> dict[str, str] | None:
    """The names in a path. Each segment is decoded separately, so that an encoded slash stays within its segment."""
    found = pattern.fullmatch(where)
    if found is None:
        return None
    try:
        return {name: unquote(value, errors="strict") for name, value in found.groupdict().items()}
    except UnicodeDecodeError:
        return None


def route(pattern: str) -> re.Pattern[str]:
    """`/jobs/{job_id}` as a pattern; a name matches one part of a path."""
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]{1,800})", pattern))


@cache
def static(name: str) -> bytes:
    """One of the files in STATIC."""
    return resources.files("rekindle.console").joinpath("static").joinpath(name).read_bytes()


def _environment(base: str) -> Environment:
    """Everything is escaped, nothing is silently empty, and every text is cleaned on its way out.

    `base`: what our own links begin with (Gate.base).
    """
    environment = Environment(
        loader=PackageLoader("rekindle.console"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=tidy,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= FILTERS
    environment.globals |= {
        "member": member,
        "objects": objects,
        "word": word,
        "step": step,
        "short_step": short_step,
        "windows": windows,
        "span": duration,
        "is_address": is_address,
        "base": base,
        "link": lambda *parts: f"{base}{path(*parts)}",
        "facts": figures.facts,
        "measures": figures.measures,
        "has_rows": figures.has_rows,
        "missing": figures.unknown_figures,
        "title": figures.title,
        "shares": figures.shares,
        "texts": figures.texts,
        "shown_above": figures.SHOWN_ABOVE,
        "table_of": figures.table_of,
        "seen": what_was_seen,
        "answers_after": figures.answers_after,
    }
    return environment
