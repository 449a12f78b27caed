"""Charts to look into, in a real Chromium: values under the keys, zoom, the scale; and pages that fit a phone."""

from __future__ import annotations

import hashlib

import pytest

from rekindle.console.site import STATIC, static
from tests.console.axe import violations
from tests.console.browser import NARROW, Browser
from tests.console.world import Visitor, World, an_incident

# Source: the npm package uplot 1.6.32 (MIT), dist/ and LICENSE, unchanged (ADR 0034).
VENDORED = {
    "uplot.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot.license.txt": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}


@pytest.mark.parametrize("name", VENDORED)
def test_what_is_not_ours_is_as_published(name: str) -> None:
    assert name in STATIC
    assert hashlib.sha256(static(name)).hexdigest() == VENDORED[name]


def test_values_zoom_and_scale_by_keyboard(world: World, browser: Browser) -> None:
    browser.wears()
    browser.complaints()
    browser.open(world.console, "/ledger?days=1")
    browser.until(lambda: browser.all(".drawn canvas"), "the chart")
    sheet = browser.one('figure[data-name="opened"] .sheet')
    assert "Incidents opened per hour" in str(sheet.get_attribute("aria-label"))
    browser.run("document.getElementById('live').click(); arguments[0].focus()", sheet)
    sheet.send_keys("\ue014")  # the right arrow
    reading = browser.one('figure[data-name="opened"] .reading')
    assert reading.text.startswith("Incidents, ")
    assert reading.text.endswith("Z: 0")  # the oldest hour of the day holds none
    every = browser.one('figure[data-name="opened"] .tools button:nth-child(3)')
    assert not every.is_enabled()
    sheet.send_keys("+")
    assert every.is_enabled()
    sheet.send_keys("0")
    assert not every.is_enabled()
    log = browser.one('figure[data-name="opened"] .tools button:nth-child(4)')
    assert not log.is_enabled()  # a zero has no place on a logarithmic scale
    assert [line for line in browser.complaints() if "Content Security" in line or "Uncaught" in line] == []


def test_a_refresh_leaves_zoom_and_readers_alone(world: World, browser: Browser) -> None:
    browser.wears()
    browser.open(world.console, "/ledger?days=7")
    browser.until(lambda: browser.all(".drawn canvas"), "the chart")
    browser.one('figure[data-name="opened"] .tools button').click()
    assert browser.one('figure[data-name="opened"] .tools button:nth-child(3)').is_enabled()
    part = "document.querySelector('[data-live=trend]')"
    browser.run(
        f"const other = new DOMParser().parseFromString({part}.outerHTML, 'text/html');"
        "other.querySelectorAll('.drawn').forEach((one) => one.remove());"
        f"{part}.replaceChildren(...document.importNode(other.querySelector('[data-live=trend]'), true).childNodes);"
        f"{part}.dispatchEvent(new CustomEvent('rekindle:exchanged', {{bubbles: true}}));"
    )
    browser.until(lambda: browser.all(".drawn canvas"), "the chart, drawn again")
    assert browser.one('figure[data-name="opened"] .tools button:nth-child(3)').is_enabled()


def test_the_title_is_the_sentence_and_commands_can_be_copied(world: World, visitor: Visitor) -> None:
    incident = an_incident(5, is_open=False)
    page = visitor.ask("GET", f"/incidents/{incident.incident_id}").body
    assert "<h1>llama-00005: hang; recovered" in page
    assert page.index('id="suspect"') < page.index('id="doing"') < page.index('id="curve"') < page.index('id="story"')
    assert f"rekindle ledger postmortem {incident.incident_id}" in page


def test_a_post_mortem_is_drawn_and_can_be_had_as_markdown(world: World, visitor: Visitor) -> None:
    incident = an_incident(5, is_open=False)
    where = f"/incidents/{incident.incident_id}/postmortem"
    assert "<h2>Timeline</h2>" in visitor.ask("GET", where).body
    plain = visitor.ask("GET", f"{where}?as=markdown")
    assert plain.headers["content-type"].startswith("text/plain")
    assert "## Timeline" in plain.body


def test_an_empty_list_names_the_other_one(world: World, visitor: Visitor) -> None:
    page = visitor.ask("GET", "/incidents?state=open&job_id=no-such-job").body
    assert "state=closed" in page.partition('data-live="incidents"')[2]
    assert "Closed Incidents" in page


@pytest.mark.parametrize("path", ["/", "/ledger?days=7", "/incidents?state=all", "INCIDENT", "POSTMORTEM"])
def test_a_phone_needs_no_sideways_scrolling(world: World, browser: Browser, path: str) -> None:
    incident = f"/incidents/{an_incident(5, is_open=False).incident_id}"
    named = {"INCIDENT": incident, "POSTMORTEM": f"{incident}/postmortem"}
    browser.wears(size=NARROW)
    try:
        browser.open(world.console, named.get(path, path))
        browser.until(lambda: browser.all("main"), "the page")
        assert browser.run("return document.documentElement.scrollWidth") <= NARROW[0]
        scrolls = "(e) => e.clientWidth && e.scrollWidth > e.clientWidth + 1"
        wide = f"[...document.querySelectorAll('.scroll')].filter({scrolls})"
        assert browser.run(f"return {wide}.map((e) => e.getAttribute('aria-label'))") == []
        assert violations(browser) == []
    finally:
        browser.wears()
