"""The fleet's ledger is a sum over many Incidents: it is read once a minute, and no page of the fleet waits for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from rekindle.client.api import Client
from rekindle.client.errors import CliError
from rekindle.console.reads import KEPT_FOR, TRIED_AGAIN_AFTER, AnswerCache, Panel, Question, ask, read_one
from tests.cli.service import FakeService, serve
from tests.console.world import NOW

LEDGER = ask("/ledger", days=7)


class Desk:
    """A service that is asked over HTTP when the test lets it, and a clock."""

    def __init__(self, client: Client, pool: ThreadPoolExecutor) -> None:
        self.client = client
        self.now = NOW
        self.asked = 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.kept = AnswerCache(self.read, pool, lambda: self.now)

    def read(self, question: Question) -> Panel:
        self.asked += 1
        assert self.may_answer.wait(120)
        return read_one(self.client, question)


@pytest.fixture
def service() -> Iterator[FakeService]:
    with_url = FakeService()
    with serve(with_url) as url:
        with_url.url = url
        yield with_url


@pytest.fixture
def desk(service: FakeService) -> Iterator[Desk]:
    with ThreadPoolExecutor(2) as pool:
        yield Desk(Client(url=service.url), pool)


def says(service: FakeService, days: int) -> None:
    service.answers.append((200, {}, json.dumps({"days": days}).encode()))


def test_a_page_does_not_wait_and_the_next_one_has_it(service: FakeService, desk: Desk) -> None:
    says(service, 7)
    desk.may_answer.clear()
    first, second = desk.kept.without_waiting(LEDGER), desk.kept.without_waiting(LEDGER)
    assert (first.is_coming, second.is_coming, bool(first)) == (True, True, False)
    desk.may_answer.set()
    assert desk.kept.wait_for(LEDGER).body == {"days": 7}
    assert desk.kept.without_waiting(LEDGER).body == {"days": 7}
    assert desk.asked == len(service.requests) == 1


def test_it_is_read_again_after_a_minute_and_the_old_one_stands_meanwhile(service: FakeService, desk: Desk) -> None:
    says(service, 7)
    says(service, 8)
    assert desk.kept.wait_for(LEDGER).body == {"days": 7}
    desk.now += KEPT_FOR - timedelta(seconds=1)
    assert desk.kept.wait_for(LEDGER).body == {"days": 7}
    desk.now += timedelta(seconds=1)
    desk.may_answer.clear()
    assert desk.kept.without_waiting(LEDGER).body == {"days": 7}
    desk.may_answer.set()
    assert desk.kept.wait_for(LEDGER).body == {"days": 8}
    assert desk.asked == 2


def test_another_question_is_another_answer(service: FakeService, desk: Desk) -> None:
    says(service, 7)
    says(service, 30)
    assert desk.kept.wait_for(LEDGER).body == {"days": 7}
    assert desk.kept.wait_for(ask("/ledger", days=30)).body == {"days": 30}


def test_a_failure_is_told_and_tried_again_soon(service: FakeService, desk: Desk) -> None:
    service.answers.append((503, {}, b"{}"))
    says(service, 7)
    assert desk.kept.wait_for(LEDGER).body is None
    assert "not now" in desk.kept.without_waiting(LEDGER).why
    assert desk.asked == 1
    desk.now += TRIED_AGAIN_AFTER
    assert desk.kept.wait_for(LEDGER).body == {"days": 7}


def test_a_reading_that_breaks_does_not_stand_for_ever(desk: Desk) -> None:
    def breaks(_: Question) -> Panel:
        raise CliError("no")

    with ThreadPoolExecutor(1) as pool:
        kept = AnswerCache(breaks, pool, lambda: desk.now)
        with pytest.raises(CliError):
            kept.wait_for(LEDGER)
        assert kept.without_waiting(LEDGER).why == "it could not be read"
