"""1,000 Jobs and 10,000 Incidents: every page stays short and leads to all of them. Real routes, ports in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from chalicelib.domain.model.job import Attempt
from rekindle.client.api import Client
from rekindle.console.pages import PAGE
from rekindle.console.server import Console, running
from tests.cli.service import FakeService, serve
from tests.console.browser import Browser
from tests.console.test_incident import PICTURES
from tests.console.world import NOW, Visitor, a_job, an_incident

JOBS, INCIDENTS, OPENED = 1_000, 10_000, 120
MAX_PAGE_BYTES = 120_000


@pytest.fixture(scope="module")
def large() -> Iterator[Console]:
    service = FakeService()
    for number in range(JOBS):
        name = f"llama-{number:05d}"
        attempt = Attempt(job_id=name, number=1, name=name, submitted_at=NOW)
        service.registry.register(a_job(name), attempt)
    for number in range(INCIDENTS):
        incident = an_incident(number, is_open=number < OPENED)
        service.store.put(incident)
    with serve(service) as url, running(Client(url=url)) as console:
        service.url = url
        yield console


@pytest.mark.parametrize(
    "page", ["/", "/jobs", "/incidents", "/incidents?state=closed", "/incidents?state=all", "/ledger"]
)
def test_a_page_is_short_however_much_there_is(large: Console, page: str) -> None:
    got = Visitor(large).get(page)
    assert got.status == 200
    assert len(got.body) < MAX_PAGE_BYTES
    assert got.body.count("<tr>") <= 3 * (PAGE + 1)


@pytest.mark.parametrize(("page", "count"), [("/jobs", JOBS), ("/incidents?state=open", OPENED)])
def test_the_next_pages_lead_to_all_of_them(large: Console, page: str, count: int) -> None:
    visitor, seen = Visitor(large), set()
    where: str | None = page
    while where is not None:
        body = visitor.get(where).body
        rows = re.findall(r'<th scope="row"(?: class="wraps")?><a href="/c-[0-9a-f]+(/(?:jobs|incidents)/[^"]+)"', body)
        assert rows
        assert seen.isdisjoint(rows)
        seen |= set(rows)
        found = re.search(r'<a href="([^"]+)" rel="next">', body)
        where = found[1].replace("&amp;", "&") if found else None
    assert len(seen) == count


def test_a_job_is_found_by_a_part_of_its_name(large: Console) -> None:
    body = Visitor(large).get("/jobs?q=0077").body
    assert "11 of 1000 Jobs" in body
    assert body.count("<tr>") == 1 + 11  # 00077, and 00770 to 00779


def test_it_is_readable(large: Console, browser: Browser) -> None:
    browser.wears()
    browser.open(large)
    for page, name in (("/", "many-fleet"), ("/incidents?state=all", "many-incidents"), ("/jobs", "many-jobs")):
        browser.go(large, page)
        browser.until(lambda: browser.all("tbody tr"), f"the rows of {name}")
        browser.picture(Path(PICTURES) / f"{name}.png")
