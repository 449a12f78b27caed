"""Resolves names of Jobs, Incidents, clusters and policies as people type them: whole, abbreviated, or misspelt.

A unique prefix is enough for a command that reads, and for an order that is confirmed with the full name on a terminal.
An unconfirmed order (--yes, no terminal) takes full names only, because a prefix that is unique today may not be so
tomorrow.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from rekindle.cli.terminal.parsing import did_you_mean
from rekindle.client.api import Client, path
from rekindle.client.errors import CliError, NotFound, UsageError
from rekindle.client.shapes import member, objects
from rekindle.client.table import clean

MAX_PAGES: Final = 20  # of 100: what is looked through for a name that does not exist
_PAGE: Final = 100
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class _List:
    """Where the API lists names: the path, the member that holds the rows, the member with the name."""

    rows: str
    name: str
    queries: tuple[dict[str, str], ...] = ({},)
    has_pages: bool = False


class Kind(Enum):
    """What has a name. The value is the word for one."""

    JOB = "Job"
    INCIDENT = "Incident"
    CLUSTER = "cluster"
    POLICY = "policy"


_LISTS: Final = {
    Kind.JOB: _List("jobs", "job_id", has_pages=True),
    Kind.INCIDENT: _List("incidents", "incident_id", ({"state": "open"}, {"state": "closed"}), has_pages=True),
    Kind.CLUSTER: _List("clusters", "cluster"),
    Kind.POLICY: _List("policies", "name"),
}


def read(client: Client, kind: Kind, name: str, *rest: str, whole: bool = False) -> tuple[str, dict[str, Any]]:
    """The whole name, and what the API says of it (or of `rest` below it).

    Raises:
        NotFound: there is no such name; the nearest are suggested. With `whole` its beginning is not enough.
        UsageError: several begin so.
    """
    base = _LISTS[kind].rows
    try:
        return name, client.get(path(base, name, *rest))
    except NotFound as err:
        meant = _meant(client, kind, name, err, whole=whole)
    print(f"rekindle: {kind.value} {clean(meant)}", file=sys.stderr)
    return meant, client.get(path(base, meant, *rest))


def _meant(client: Client, kind: Kind, name: str, missing: NotFound, *, whole: bool) -> str:
    """The one name that begins so. Raises: NotFound, UsageError."""
    try:
        known = list(dict.fromkeys(_known(client, kind)))
    except CliError:
        raise missing from None  # what was asked first is what is told
    if name in known:
        raise missing  # it exists: something below it does not
    begin_so = [candidate for candidate in known if candidate.startswith(name)]
    if len(begin_so) == 1 and not whole:
        return begin_so[0]
    if len(begin_so) > 1 and not whole:
        more = f" and {len(begin_so) - _SHOWN} more" if len(begin_so) > _SHOWN else ""
        shown = ", ".join(clean(candidate) for candidate in begin_so[:_SHOWN])
        raise UsageError(f"{clean(name)!r} is the beginning of {len(begin_so)} {kind.value}s: {shown}{more}")
    near = f"; did you mean {clean(begin_so[0])}?" if len(begin_so) == 1 else did_you_mean(name, known)
    raise NotFound(f"{missing}{near}")


def _known(client: Client, kind: Kind) -> Iterator[str]:
    where = _LISTS[kind]
    for query in where.queries:
        cursor: str | None = None
        for _ in range(MAX_PAGES if where.has_pages else 1):
            asked = {"limit": _PAGE, "cursor": cursor} if where.has_pages else {}
            page = client.get(f"/{where.rows}", **asked, **query)
            yield from (str(member(row, where.name)) for row in objects(page, where.rows) if member(row, where.name))
            cursor = member(page, "cursor") if isinstance(member(page, "cursor"), str) else None
            if cursor is None:
                break
