"""A browser sees a real run on the embedded cloud: its loss spikes and it comes back by itself. Then it turns to NaN,
a person is asked, approves in the page, and sees it recover. Nothing is reloaded but by the page itself."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from chalicelib.domain.policy.document import overlaid
from localcloud.demo.stage import MONITOR, POLICY_DOCUMENT, Stage, raised, write_dataset
from rekindle.client.api import Client
from rekindle.console.server import Console, running
from tests.console.browser import NARROW, Browser

PICTURES = Path(os.environ.get("REKINDLE_PICTURES") or "build/console")
AHEAD = 120  # steps from now to the harm: some seconds, so that it is written before the run gets there
ASKS = {"when": {"actions": ["StopJob"], "faults": ["non_finite"]}, "deadline_s": 3600, "default": "deny"}
SPIKE_BATCHES = 400  # as long as a few looks take
POLICY = overlaid(
    POLICY_DOCUMENT,
    {
        # PaLM's remedy in small.
        "loss": {
            "spike_heal_steps": 10,
            "spike_rewind_steps": 20,
            "skip_margin_steps": 0,
            "skip_steps": SPIKE_BATCHES,
        },
        # At thirty steps a second, a spike may count as a divergence before the service has looked twice.
        "playbooks": {"divergence": {"response": "watch_then_roll_back", "deadline": "full"}},
        # Of a machine with twenty other things to do nobody may think that the run hangs, or does not start.
        "timing": {"start_limit_s": 240, "stop_limit_s": 240, "silent_limit_s": 240, "checkpoint_deadline_s": 60},
        "approvals": {"rules": [ASKS]},
    },
)
PATIENT_MONITOR = {
    **MONITOR,
    "REKINDLE_STALL_FLOOR_S": "240",
    "REKINDLE_STALL_STARTUP_S": "240",
    "REKINDLE_METRICS_S": "2",  # the new attempt is first measured when it has left the skipped steps behind
}


@dataclass(frozen=True)
class Show:
    """The run, and the console in front of it."""

    stage: Stage
    console: Console

    def step(self) -> int:
        steps = self.stage.watch.trace.read()
        return max(steps, key=lambda one: one.at).step if steps else 0  # read attempt by attempt, in no order of time

    def harm(self, harm: Callable[[int], None]) -> list[int]:
        """Harm the data that the run will read soon; further on where it was faster than we. Returns the steps."""
        harmed = []
        while not harmed or self.step() >= harmed[-1]:
            harmed.append(self.step() + AHEAD)
            harm(harmed[-1])
        return harmed

    def attempts(self) -> int:
        return len(self.api(f"/jobs/{self.stage.job_id}")["attempts"])

    def incidents(self) -> list[dict[str, Any]]:
        """Newest first."""
        found: list[dict[str, Any]] = self.api("/incidents?state=all")["incidents"]
        return found

    def api(self, path: str) -> dict[str, Any]:
        with urlopen(f"{self.stage.api_url}/v1{path}", timeout=120) as answer:  # noqa: S310  loopback
            body: dict[str, Any] = json.load(answer)
        return body


@pytest.fixture(scope="module")
def show(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Show]:
    out = tmp_path_factory.mktemp("show")
    write_dataset(out / "data")
    with (
        raised(out=out, data=out / "data", seed=7, policy=POLICY, monitor=PATIENT_MONITOR) as stage,
        running(Client(url=stage.api_url)) as console,
    ):
        yield Show(stage, console)


def test_a_run_is_watched_approved_and_seen_to_recover(show: Show, browser: Browser) -> None:
    browser.wears()
    browser.complaints()  # of pages before these
    browser.open(show.console)
    browser.until(lambda: show.step() > 60, "the run's sixtieth step")
    browser.until(lambda: browser.one("#incidents-open").text == "0", "how many are open")
    spiked = _a_spike_is_seen_and_cured(show, browser)
    _the_job_page_draws_the_run_while_it_trains(show, browser)
    _a_person_is_asked_and_approves(show, browser, spiked)
    assert [line for line in browser.complaints() if "Content Security" in line or "Uncaught" in line] == []


def _a_spike_is_seen_and_cured(show: Show, browser: Browser) -> str:
    show.harm(lambda step: show.stage.weigh(step, [4.0] * SPIKE_BATCHES))  # the loss is four times what it was
    # Whoever blinks for as long as a recovery takes finds it among those that have closed.
    links = '[data-live="open"] tbody th a, [data-live="closed"] tbody th a'
    browser.click(links, "the Incident on the fleet's page, by itself")
    browser.until(lambda: browser.one("#phase").text == "recovered", "the recovery on the Incident's page, by itself")
    browser.until(
        lambda: browser.all('[data-live="curve"] .key.redo') and browser.all('[data-live="curve"] .key.skip'),
        "the way back and the skipped window, in the legend",
    )
    browser.until(lambda: browser.all('[data-live="curve"] .drawn canvas'), "the curve, drawn")
    browser.until(lambda: browser.all('[data-live="curve"] .key.earlier'), "a line for each attempt")
    said = browser.until(
        lambda: browser.one('[data-live="curve"] .words').get_attribute("textContent"), "the curve in words"
    )
    incident = show.incidents()[0]
    detail = show.api(f"/incidents/{incident['incident_id']}")
    assert f"bad since step {detail['loss']['onset_step']['known']}" in said
    assert f"data of {detail['loss']['skips'][0][0]}-{detail['loss']['skips'][0][1] - 1} skipped" in said
    assert f"to {detail['resubmission']['tries'][0]['resume_step']['known']}" in said
    rules = {entry["rule"] for entry in detail["timeline"]}
    browser.until(lambda: all(rule in browser.text() for rule in rules), f"the looks: {rules}")
    _pictures(browser, show, f"/incidents/{incident['incident_id']}", "incident")
    return str(incident["incident_id"])


def _the_job_page_draws_the_run_while_it_trains(show: Show, browser: Browser) -> None:
    browser.go(show.console, f"/jobs/{show.stage.job_id}")
    browser.until(lambda: len(browser.all('[data-live="curves"] .drawn canvas')) >= 2, "loss and step rate")
    longest = (
        "return Math.max(...[...document.querySelectorAll('figure[data-plot]')]"
        ".flatMap((figure) => JSON.parse(figure.dataset.plot).lines.map((line) => line.xs.length)))"
    )
    before = browser.run(longest)
    browser.until(lambda: browser.run(longest) >= before + 3, "three points more, by themselves")
    _pictures(browser, show, f"/jobs/{show.stage.job_id}", "job")


def _a_person_is_asked_and_approves(show: Show, browser: Browser, earlier: str) -> None:
    attempts = show.attempts()
    browser.go(show.console, "/")
    poisoned = show.harm(show.stage.poison)
    browser.until(lambda: browser.one(".card.ask"), "the question on the fleet's page, by itself")
    (incident,) = [incident for incident in show.incidents() if incident["incident_id"] != earlier]
    assert show.attempts() == attempts  # nothing is stopped or submitted before a person has said so
    assert show.api(f"/incidents/{incident['incident_id']}")["approvals"][0]["answer"] is None
    for step in poisoned:  # the same data are tried once more, and are found to be good
        show.stage.mend(step)
    _pictures(browser, show, "/", "fleet")
    browser.go(show.console, f"/incidents/{incident['incident_id']}")
    browser.write('.card.ask input[name="comment"]', "go on <b>please</b>", "the question on the Incident's page")
    browser.click('.card.ask button[value="approve"]', "its button")
    browser.until(lambda: "Approved" in browser.one(".note").text, "what came of the answer")
    browser.until(lambda: browser.one("#phase").text == "recovered", "the recovery after the approval")
    browser.until(lambda: not browser.all(".card.ask"), "the question's end")
    answers = browser.until(lambda: browser.one("#answered").text, "the answer on the page")
    assert "approved" in answers
    assert "go on <b>please</b>" in answers  # as text
    (approval,) = show.api(f"/incidents/{incident['incident_id']}")["approvals"]
    assert (approval["answer"], approval["comment"]) == ("approved", "go on <b>please</b>")
    assert show.attempts() > attempts


def _pictures(browser: Browser, show: Show, path: str, name: str) -> None:
    """Light, dark and narrow; and the page as it was afterwards."""
    browser.go(show.console, path)
    browser.picture(PICTURES / f"{name}.png")
    browser.wears(dark=True)
    browser.picture(PICTURES / f"{name}-dark.png")
    browser.wears(size=NARROW)
    browser.picture(PICTURES / f"{name}-narrow.png", size=NARROW)
    browser.wears()
