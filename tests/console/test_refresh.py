"""A page that refreshes itself under a reader: what is opened, focused, read and aimed at stays where it was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from selenium.webdriver import ActionChains

from chalicelib.domain.model.incident import Incident, Phase, TimelineEntry
from chalicelib.domain.model.job import Attempt
from rekindle.client.api import Client
from rekindle.console.pages import MAX_LOOKS
from rekindle.console.server import Console, running
from tests.cli.service import FakeService, serve
from tests.console.browser import Browser
from tests.console.world import NOW, a_job, an_incident

READ = "/incidents/inc-llama-00000-000000000000"
LOOK = '.timeline > li[data-key="{0}"]'


@dataclass
class Stage:
    """A service in memory, and what happens in it."""

    service: FakeService
    console: Console
    opened: int = 0

    def incident(self) -> Incident:
        """One more, newer than all before."""
        one = an_incident(0, is_open=True)
        if self.opened:
            name = f"new-{self.opened}"
            one = replace(one, incident_id=f"inc-{name}", job_id=name, opened_at=NOW + timedelta(seconds=self.opened))
        self.opened += 1
        self.service.store.put(one)
        return one

    def look(self) -> int:
        """One more look at the first Incident; returns its number."""
        recorded = self.service.store._records[READ.rpartition("/")[2]].recorded
        number = len(recorded) + 1
        at = NOW + timedelta(seconds=number)
        facts = {"number": number}
        recorded.append(
            TimelineEntry(at=at, phase=Phase.VERIFYING, rule="verify.waiting", text=f"look {number} of it", facts=facts)
        )
        return number


@pytest.fixture
def stage(browser: Browser) -> Iterator[Stage]:
    service = FakeService()
    attempt = Attempt(job_id="llama-00000", number=1, name="llama-00000", submitted_at=NOW)
    service.registry.register(a_job("llama-00000"), attempt)
    with serve(service) as url, running(Client(url=url)) as console:
        service.url = url
        made = Stage(service, console)
        made.incident()
        yield made
        browser.driver.get("about:blank")


def test_what_was_opened_and_is_read_stays_when_older_looks_give_way(stage: Stage, browser: Browser) -> None:
    for _ in range(MAX_LOOKS + 5):
        stage.look()
    browser.open(stage.console, READ)
    read = LOOK.format(40)
    browser.run(
        f"document.querySelector('{read} details').open = true; document.querySelector('{read}').scrollIntoView()"
    )
    browser.run("window.top_before = document.querySelector(arguments[0]).getBoundingClientRect().top", read)
    first = browser.one(".timeline > li").get_attribute("data-key")
    newest = LOOK.format(stage.look())
    browser.until(lambda: browser.one(newest), "the newest look, by itself")
    assert browser.one(".timeline > li").get_attribute("data-key") == str(int(first or 0) + 1)  # the oldest gave way
    opened = browser.all(".timeline > li:has(details[open])")
    assert [one.get_attribute("data-key") for one in opened] == ["40"]
    moved = "return Math.abs(document.querySelector(arguments[0]).getBoundingClientRect().top - window.top_before)"
    browser.until(lambda: browser.run(moved, read) < 2, "the look at the place where it was read")


def test_the_focus_stays_with_its_row_and_with_a_region_that_is_scrolled(stage: Stage, browser: Browser) -> None:
    browser.open(stage.console)
    browser.run("document.querySelector('[data-live=\"open\"] tbody th a').focus()")
    mine = browser.run("return document.activeElement.textContent")
    newer = stage.incident().incident_id
    browser.until(lambda: newer in browser.one('[data-live="open"] tbody').text, "the new Incident, by itself")
    assert browser.run("return document.activeElement.textContent") == mine
    browser.run("document.querySelector('[data-live=\"open\"] .scroll').focus()")
    newest = stage.incident().incident_id
    browser.until(lambda: newest in browser.one('[data-live="open"] tbody').text, "another one")
    assert browser.run("return document.activeElement.getAttribute('aria-label')") == "Open Incidents: table"


def test_nothing_moves_under_a_pointer_that_is_held_down(stage: Stage, browser: Browser) -> None:
    browser.open(stage.console)

    def held() -> bool:
        """Tried again where the row is exchanged between our look and our hand."""
        ActionChains(browser.driver).click_and_hold(browser.one('[data-live="open"] tbody td')).perform()
        return True

    browser.until(held, "a pointer on the row")
    newer = stage.incident().incident_id
    browser.until(lambda: browser.one("#incidents-open").text == "2", "the new Incident in the figures above")
    assert newer not in browser.one('[data-live="open"] tbody').text
    ActionChains(browser.driver).release().perform()
    browser.until(lambda: newer in browser.one('[data-live="open"] tbody').text, "the row, once nobody aims at it")


def test_marked_text_stays_marked(stage: Stage, browser: Browser) -> None:
    browser.open(stage.console)
    browser.run("getSelection().selectAllChildren(document.querySelector('[data-live=\"open\"] tbody th'))")
    stage.incident()
    browser.until(lambda: browser.one("#incidents-open").text == "2", "the new Incident in the figures above")
    assert "inc-llama" in browser.run("return getSelection().toString()")
    browser.run("getSelection().removeAllRanges()")
    browser.until(lambda: len(browser.all('[data-live="open"] tbody tr')) == 2, "the row, once nothing is marked")


def test_a_page_that_has_grown_old_says_so_at_its_top(stage: Stage, browser: Browser) -> None:
    browser.open(stage.console)
    assert not browser.one("#stale").is_displayed()
    stage.service.answers = [(503, {}, b"{}")] * 200
    browser.until(lambda: browser.one("#stale").is_displayed(), "the word that nobody answers")
    assert "What stands here is old (Read at " in browser.one("#stale").text
    stage.service.answers.clear()
    browser.until(lambda: not browser.one("#stale").is_displayed(), "its end")
