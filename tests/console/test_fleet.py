"""The first page: what a newcomer sees, what is said of switches, and that nothing is hidden that could not be read."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from chalicelib.domain.model.job import Attempt
from rekindle.client.api import Client
from rekindle.console.server import Console, running
from tests.cli.service import FakeService, serve
from tests.console.world import NOW, Visitor, a_job, an_incident

NOT_ALLOWED = json.dumps({"message": "User: op is not authorized to perform: execute-api:Invoke"}).encode()


class Forbidding(FakeService):
    """Some routes are forbidden to this operator."""

    forbidden: frozenset[str] = frozenset()

    def handle(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        if target.partition("?")[0].removeprefix("/v1") in self.forbidden:
            return 403, {}, NOT_ALLOWED
        return super().handle(method, target, headers, body)


@pytest.fixture
def service() -> Forbidding:
    return Forbidding()


@pytest.fixture
def console(service: Forbidding) -> Iterator[Console]:
    with serve(service) as url, running(Client(url=url)) as made:
        yield made


def _protect(service: FakeService) -> None:
    attempt = Attempt(job_id="lm", number=1, name="lm", submitted_at=NOW)
    service.registry.register(a_job("lm"), attempt)


def _tile(page: str, name: str) -> str:
    return page.split(f"<dt>{name}</dt><dd>")[1].split("</dd>")[0]


def test_how_far_an_attempt_came_says_what_it_means(service: Forbidding, console: Console) -> None:
    _protect(service)
    page = Visitor(console).get("/jobs/lm").body
    assert '<th scope="col" class="num">Good up to step</th>' in page
    assert "the last one that counts, as last observed" in page


def test_a_newcomer_is_told_how_to_begin_and_is_not_told_that_all_is_well(console: Console) -> None:
    page = Visitor(console).get("/").body
    assert "Begin here" in page
    assert "rekindle:policy=default" in page
    assert "Every protected run trains" not in page


def test_who_has_a_job_is_no_newcomer(service: Forbidding, console: Console) -> None:
    _protect(service)
    page = Visitor(console).get("/").body
    assert "Begin here" not in page
    assert "Every protected run trains" in page


def test_who_had_incidents_is_no_newcomer(service: Forbidding, console: Console) -> None:
    one = an_incident(1, is_open=False)
    service.store.put(one)
    assert "Begin here" not in Visitor(console).get("/").body


def test_protection_is_not_on_where_nothing_is_done(service: Forbidding, console: Console) -> None:
    visitor = Visitor(console)
    assert _tile(visitor.get("/").body, "Protection") == "on"
    service.switches.set_shadow("everywhere", None, True, who="op")
    assert _tile(visitor.get("/").body, "Protection") == "shadow only"
    service.switches.set_pause(True, who="op")
    assert _tile(visitor.get("/").body, "Protection") == "paused"


def test_questions_that_could_not_be_read_are_not_hidden(service: Forbidding, console: Console) -> None:
    service.forbidden = frozenset({"/approvals", "/clusters"})
    page = Visitor(console).get("/").body
    asks = page.split('data-live="asks"')[1].split("</section>")[0]
    assert "Waiting for people" in asks
    assert "Approvals: could not be read (not allowed: User: op is not authorized" in asks
    assert "Clusters: could not be read" in page


def test_switches_that_could_not_be_read_leave_protection_open(service: Forbidding, console: Console) -> None:
    service.forbidden = frozenset({"/switches"})
    assert "not known" in _tile(Visitor(console).get("/").body, "Protection")


def test_what_holds_an_order_stands_beside_its_button_and_in_what_came_of_it(
    service: Forbidding, console: Console
) -> None:
    visitor = Visitor(console)
    service.protect("lm")
    service.head_nodes.heartbeat("ml")
    service.switches.set_pause(True, who="ada", why="change freeze")
    held = "the pause by ada since 2026-11-20"
    orders = visitor.get("/jobs/lm").body.split('id="orders"')[1]
    assert "<strong>Held now:</strong> the pause by ada" in orders
    given = visitor.order("/jobs/lm/checkpoint", key="5" * 32)
    assert given.status == 303
    cookie = given.headers.get("set-cookie", "").partition(";")[0]
    page = visitor.get(given.headers["location"], Cookie=f"{visitor.cookie}; {cookie}").body
    assert "A checkpoint was ordered" in page
    assert f"Held now: {held}" in page
    service.forbidden = frozenset({"/holds"})
    assert "What holds an order now is not known" in visitor.get("/jobs/lm").body
