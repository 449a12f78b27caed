"""For every eye, hand and screen reader: axe-core on each page in light and dark, the keyboard's way through it, no
script at all, a narrow screen. `axe.min.js` is axe-core 4.14.1 as published (MPL-2.0), for these tests only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
from selenium.webdriver.common.keys import Keys

from chalicelib.domain.model.job import Attempt
from chalicelib.domain.model.known import Unknown
from rekindle.client.api import Client
from rekindle.console.server import Console, running
from tests.cli.service import FakeService, serve
from tests.console.axe import violations
from tests.console.browser import NARROW, WIDE, Browser
from tests.console.world import NOW, Visitor, World, a_job

PAGES: Final = (
    "/",
    "/jobs",
    "/jobs?q=llama",
    "/jobs/llama-00001",
    "/incidents",
    "/incidents?state=all",
    "/incidents/inc-llama-00001-000000000001",
    "/approvals",
    "/ledger",
    "/nodes",
    "/policies",
    "/jobs/nobody",
)


@pytest.fixture(autouse=True)
def _as_before(browser: Browser) -> Iterator[None]:
    yield
    browser.wears()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_axe_finds_nothing(world: World, browser: Browser, page: str, dark: bool) -> None:
    browser.wears(dark=dark)
    browser.open(world.console, page)
    assert violations(browser) == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_its_landmarks_one_heading_and_named_tables(world: World, browser: Browser, page: str) -> None:
    browser.open(world.console, page)
    browser.until(lambda: browser.run("return document.querySelector('main') !== null"), f"{page} as a page")
    counts = browser.run(
        "return ['main', 'header', 'nav[aria-label]', 'footer', 'h1'].map((s) => document.querySelectorAll(s).length)"
    )
    assert counts[0] == counts[1] == counts[3] == counts[4] == 1
    assert counts[2] >= 1
    for table in browser.all("table"):
        assert browser.run("return arguments[0].caption && arguments[0].caption.textContent.trim()", table)
        if browser.run("return arguments[0].tHead !== null", table):
            assert browser.run("return [...arguments[0].tHead.rows[0].cells].every((c) => c.scope === 'col')", table)
    assert browser.run("return document.querySelectorAll('[tabindex]:not([tabindex=\"0\"]):not(main)').length") == 0
    assert browser.run("return document.documentElement.lang") == "en"


def test_the_keyboard_goes_through_the_page_in_its_order(world: World, browser: Browser) -> None:
    browser.open(world.console)
    seen = []
    for _ in range(12):
        browser.driver.switch_to.active_element.send_keys(Keys.TAB)
        seen.append(browser.run("return document.activeElement.textContent.trim()"))
        assert browser.run("return getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert seen[:9] == [
        *("Skip to the content", "Rekindle", "Fleet", "Jobs", "Incidents", "Approvals", "Ledger", "Nodes", "Policies")
    ]


def test_an_order_is_given_by_keyboard_alone(world: World, browser: Browser) -> None:
    browser.open(world.console)
    button = browser.one('form[action$="/pause"] button')
    browser.run("arguments[0].focus()", button)
    button.send_keys(Keys.ENTER)
    browser.until(lambda: "Paused." in browser.text(), "the banner")
    assert world.service.registry.is_paused() is True
    button = browser.one('form[action$="/pause"] button')
    button.send_keys(Keys.SPACE)
    browser.until(lambda: "The pause is lifted" in browser.text(), "what came of it")
    assert world.service.registry.is_paused() is False


def test_everything_but_the_refresh_works_without_script(world: World, browser: Browser) -> None:
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.open(world.console)
        browser.one('[data-live="open"] tbody th a').click()
        browser.until(lambda: browser.one("h1").text.startswith("llama-00000: loss spike"), "the Incident")
        assert not browser.one("#live").is_displayed()
        browser.one('a[href$="/jobs"]').click()
        browser.until(lambda: browser.one('input[name="q"]'), "the search").send_keys("00003", Keys.ENTER)
        browser.until(lambda: len(browser.all("tbody tr")) == 1, "the one Job")
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


# 320 pixels: what a window of 1,280 has at 400 %. Source: WCAG 2.2, 1.4.10 Reflow.
@pytest.mark.parametrize("size", [NARROW, (320, 640)], ids=["phone", "zoomed"])
@pytest.mark.parametrize("page", PAGES)
def test_a_narrow_screen_scrolls_down_only(world: World, browser: Browser, page: str, size: tuple[int, int]) -> None:
    browser.wears(size=size)
    browser.open(world.console, page)
    # Asked again for a while: right after a change of size, or of what is live, the page has still to be laid out.
    browser.until(
        lambda: browser.run("return document.documentElement.scrollWidth <= window.innerWidth"),
        f"{page} needs no sideways scrolling",
    )


def test_words_that_only_screen_readers_get_do_not_widen_a_page(browser: Browser) -> None:
    service = FakeService()
    attempt = Attempt(job_id="lm", number=1, name="lm", submitted_at=NOW, last_step=Unknown("no step was seen " * 9))
    service.registry.register(a_job("lm"), attempt)
    browser.wears(size=(320, 640))
    with serve(service) as url, running(Client(url=url)) as console:
        browser.open(console, "/jobs/lm")
        assert "no step was seen" in browser.run("return document.querySelector('tbody .unseen').textContent")
        assert browser.run("return document.documentElement.scrollWidth") == 320


def test_the_refresh_leaves_alone_what_is_typed_and_opened(world: World, browser: Browser) -> None:
    browser.wears(size=WIDE)
    browser.open(world.console, "/incidents/inc-llama-00001-000000000001")
    browser.run(
        "document.querySelector('details').open = true; window.before = document.getElementById('fresh').textContent"
    )
    browser.until(
        lambda: browser.run("return document.getElementById('fresh').textContent !== window.before"), "a refresh"
    )
    assert browser.run("return document.querySelector('details').open") is True


def test_a_console_whose_service_is_gone_says_so(browser: Browser) -> None:
    with running(Client(url="http://127.0.0.1:9")) as console:
        got = Visitor(console).get("/")
        assert (got.status, "cannot reach" in got.body) == (502, True)
        _says(browser, console)


def _says(browser: Browser, console: Console) -> None:
    browser.open(console, "/approvals")
    assert "could not be read" in browser.text()
    assert violations(browser) == []
