"""The console's pages at 10,000 Incidents of 1,000 Jobs, against 150 of 100 (pages as full, a small table) and against
nothing at all: CPU time of console and service together, API calls, AWS calls and items read per page.

The real console over HTTP in front of the real routes over HTTP; AWS's part is played back (benchmarks/played.py).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Final

import urllib3

from benchmarks.played import Counted, Played
from chalicelib.aws.dynamodb import items
from chalicelib.aws.dynamodb.incident_items import pack_line
from chalicelib.domain.model.incident import TimelineEntry
from localcloud.worlds.consoles import NOW, Visitor, World, an_incident, raised
from rekindle.client.api import pool
from rekindle.console.reads import MAX_AT_ONCE, AnswerCache

INCIDENTS: Final = 10_000
JOBS: Final = 1_000
SMALL: Final = (150, 100)
OPEN: Final = 100
ROUNDS: Final = 100
SUMS: Final = 20  # of a page that reads a thousand Incidents each time
LOOKS: Final = 30  # of the one Incident that is opened
JOB: Final = "llama-00001"
SHOWN: Final = f"inc-{JOB}-{1:012x}"
PAGES: Final = (
    "/",
    "/jobs",
    "/jobs?q=00001",
    f"/jobs/{JOB}",
    "/incidents",
    "/incidents?state=closed",
    "/incidents?state=all",
    "/incidents?state=closed&fault=hang",
    f"/incidents/{SHOWN}",
    "/approvals",
    "/nodes",
    "/policies",
    "/metrics",
    "/ledger?days=7",
)
OF_ONE: Final = frozenset({f"/jobs/{JOB}", f"/incidents/{SHOWN}"})  # not there in an empty store


class _CountingPool:
    """urllib3's pool, and how often it was asked."""

    def __init__(self, inner: urllib3.PoolManager) -> None:
        self._inner = inner
        self.asked = 0

    def request(self, *args: Any, **options: Any) -> Any:
        self.asked += 1
        return self._inner.request(*args, **options)


@dataclass(frozen=True)
class Row:
    """One page's figures; seconds in order."""

    own_s: list[float]
    api: int
    aws: Counted
    size: int

    def at(self, share: float) -> float:
        return self.own_s[int(len(self.own_s) * share)]


def fill(world: World, incidents: int, jobs: int) -> None:
    """As the stores write them, with the rows by which a Job finds its Incidents and one finds its story."""
    world.fill(jobs=jobs, incidents=incidents, opened=min(OPEN, incidents))
    rows = []
    for number in range(incidents):
        one = an_incident(number, is_open=number < OPEN)
        below = items.key(items.job_pk(one.job_id or ""), items.incident_sk(one.opened_at, one.incident_id))
        rows.append(below | {"incident_id": items.text(one.incident_id)})
    for look in range(LOOKS if incidents else 0):
        line = TimelineEntry(at=NOW, phase=an_incident(1, is_open=True).phase, rule="verify.wait", text=f"look {look}")
        rows.append(items.key(items.incident_pk(SHOWN), f"T#{look + 1:06d}") | pack_line(line))
    world.put(*rows)


def measure(incidents: int, jobs: int) -> dict[str, Row]:
    """Every page that this store has."""
    found: dict[str, Row] = {}
    with raised() as world:
        fill(world, incidents, jobs)
        site, visitor, played = world.console.site, Visitor(world.console), Played()
        web = _CountingPool(pool(connections=MAX_AT_ONCE))
        site.client = replace(site.client, http=web)  # type: ignore[arg-type]  # asked for nothing but `request`
        with played.over(list(world.cloud._clients.values())):
            visitor.get("/metrics")  # the week's ledger is kept from now on, as in a console that has been looked at
            for page in PAGES:
                if not (incidents or page not in OF_ONE):
                    continue
                own, api, aws, size = [], 0, played.counted, 0
                for _ in range((SUMS if page.startswith("/ledger") else ROUNDS) + 1):
                    if page.startswith("/ledger"):  # read anew each time
                        site.cache = AnswerCache(site.read_one, site._pool, site.now)
                    before, aws = web.asked, played.fresh()
                    began = time.process_time()
                    got = visitor.get(page)
                    own.append(time.process_time() - began)
                    assert got.status == 200, (page, got.body[:300])
                    api, size = web.asked - before, len(got.body)
                found[page] = Row(sorted(own[1:]), api, aws, size)  # the first one asked moto
    return found


def main() -> None:
    """Print the table."""
    empty, small, large = measure(0, 0), measure(*SMALL), measure(INCIDENTS, JOBS)
    print(f"{INCIDENTS:,d} Incidents ({OPEN} open) of {JOBS:,d} Jobs; CPU of console and service, AWS played back")
    print(f"ratios: against {SMALL[0]} of {SMALL[1]} Jobs, and against an empty store; AWS calls: empty, small, large")
    print(
        "page                                 p50 ms   p99 ms   p50 ratio   p99 ratio   API  AWS calls    items     kB"
    )
    for page in PAGES:
        row, before, none = large[page], small[page], empty.get(page)
        ratios = [
            f"{row.at(share) / before.at(share):5.2f} {row.at(share) / none.at(share):5.1f}"
            if none is not None
            else f"{row.at(share) / before.at(share):5.2f}     –"
            for share in (0.5, 0.99)
        ]
        calls = "/".join(
            str(measured.aws.all_calls) if measured is not None else "–" for measured in (none, before, row)
        )
        print(
            f"{page:36s} {row.at(0.5) * 1e3:6.1f} {row.at(0.99) * 1e3:8.1f} {ratios[0]:>11s} {ratios[1]:>11s}"
            f" {row.api:5d} {calls:>10s} {row.aws.items:8,d} {row.size / 1000:6.1f}"
        )


if __name__ == "__main__":
    main()
