"""Routes requests to pages, reads the API for them and renders their templates."""

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
from rekindle.protocol.addresses import is_address
from rekindle.protocol.quantities import duration

HTML: Final = "text/html; charset=utf-8"
TEXT: Final = "text/plain; charset=utf-8"
MAX_NOTES: Final = 50
# The static files that are served, with their content types.
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
    """A request that the gate has admitted."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageResponse:
    """The response. `kind` is its content type."""

    status: int = 200
    body: bytes = b""
    kind: str = HTML
    headers: Mapping[str, str] = field(default_factory=dict)


# A path's pattern, and the function of its page: called with the site, the request and the names in the path.
Route = tuple[re.Pattern[str], Callable[..., PageResponse]]


class NoSuchPage(Exception):
    """There is no such page, or no such resource in the API; the message says which."""


class Refused(Exception):
    """The API could not be read for the page's main resource; the message says why."""


@dataclass(frozen=True, slots=True)
class Note:
    """The result of an order, shown once on the next page. `tone` is good or bad."""

    tone: str
    text: str


class Site:
    """All pages over one API. Thread-safe.

    `routes`: by method (GET or POST), tried in order. `can_order`: whether the pages offer orders.
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
        self.cache = AnswerCache(self.read_one, self._pool, now)
        self._notes: OrderedDict[str, Note] = OrderedDict()
        self._templates = _environment(gate.base)

    def close(self) -> None:
        """Stop reading the API."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def answer(self, request: PageRequest) -> PageResponse:
        """The response to a request. Failures are pages too: 404 for NoSuchPage, 502 for Refused."""
        try:
            for pattern, page in self._routes[request.method]:
                names = _match(pattern, request.path)
                if names is not None:
                    return page(self, request, **names)
        except NoSuchPage as err:
            return self.page("message.html", request, status=404, title="Not found", message=str(err))
        except Refused as err:
            return self.page("message.html", request, status=502, title="Not read", message=str(err))
        return self.page("message.html", request, status=404, title="Not found", message="There is no such page.")

    # ---- used by the pages -------------------------------------------------------------------------------------------

    def read(self, **questions: Question) -> dict[str, Panel]:
        """All answers, by name, read concurrently."""
        return read_all(self.client, self._pool, questions)

    def body_of(self, panel: Panel, what: str) -> Mapping[str, Any]:
        """The body of a page's main resource, without which there is no page. `what` names it in errors.

        Raises:
            NoSuchPage: the API has no such resource.
            Refused: it could not be read.
        """
        if panel.body is not None:
            return panel.body
        if panel.is_absent:
            raise NoSuchPage(f"{what}: {panel.why}")
        raise Refused(f"{what}: {panel.why}")

    def read_one(self, question: Question) -> Panel:
        """The answer to one question."""
        return read_one(self.client, question)

    def page(self, template: str, request: PageRequest, *, status: int = 200, **values: Any) -> PageResponse:
        """The page that `template` renders with `values`."""
        text = self._templates.get_template(template).render(
            path=request.path,
            query=request.query,
            now=self.now(),
            csrf=self.gate.csrf,
            order_key=secrets.token_hex(16),
            can_order=self.can_order,
            service=self.client.url,
            note=self._notes.pop(request.query.get("note", ""), None),
            **values,
        )
        return PageResponse(status=status, body=text.encode())

    def go_to(self, where: str, note: Note) -> PageResponse:
        """A redirect after an order to `where`, a path of the console, which shows `note` once."""
        key = secrets.token_hex(8)
        self._notes[key] = note
        while len(self._notes) > MAX_NOTES:
            self._notes.popitem(last=False)
        url = f"{self.gate.base}{where}"
        return PageResponse(status=303, headers={"Location": f"{url}{'&' if '?' in url else '?'}note={key}"})


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
    """The pattern of a path such as `/jobs/{job_id}`; a name matches one segment."""
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]{1,800})", pattern))


@cache
def static(name: str) -> bytes:
    """One of the files in STATIC."""
    return resources.files("rekindle.console").joinpath("static").joinpath(name).read_bytes()


def _environment(base: str) -> Environment:
    """The templates' environment: values are escaped and cleaned, and an undefined one is an error.

    `base`: the prefix of the console's own links (Gate.base).
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
