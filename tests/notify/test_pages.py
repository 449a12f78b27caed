"""An Incident's page: what it shows, that nothing from outside is markup in it, who writes it, and what opens it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import boto3
import pytest
from chalice.config import Config
from chalice.local import LocalGateway
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app import app
from chalicelib.aws.deadline import WIND_UP_S, Deadline, patience_of
from chalicelib.aws.s3.pages import PREFIX, S3Pages, key_of
from chalicelib.bootstrap.clients import Clients
from chalicelib.channels.address import Addresses
from chalicelib.channels.bus import detail_of
from chalicelib.channels.channel import read_notice
from chalicelib.channels.delivery.fan_out import FanOut
from chalicelib.channels.plain_text import body_of
from chalicelib.domain.model.errors import DependencyUnavailable
from chalicelib.domain.model.incident import Incident, Phase, TimelineEntry
from chalicelib.domain.model.instances import JobSize
from chalicelib.domain.model.job import Attempt, Job
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.start_view import BadNode
from chalicelib.domain.notices.channels import Channels
from chalicelib.domain.reporting.incident_page import MAX_LINES, STYLE, command, page_of
from chalicelib.domain.reporting.page_chart import LossCurve
from chalicelib.domain.reporting.sentence import sentence_of
from chalicelib.ports.notices import Address, PageLink
from chalicelib.services.reporting.curves import Curves
from chalicelib.services.reporting.pages import WRITES, Losses, Pages
from localcloud.memory_tables import MemoryIncidents, MemoryJobs
from localcloud.worlds.recoveries import Script, World, crash_at, world
from tests.ledger import books
from tests.ledger.test_postmortem import HOSTILE, story
from tests.notify.made import AT, notice, webhook
from tests.notify.test_page_chart import JOB
from tests.sizes import examples

BUCKET = "rekindle-mailbox"
# All that a page may hold. Attributes: with exactly these values, whatever the Incident says.
TAGS = set(
    [
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "header",
        "h1",
        "p",
        "span",
        "main",
        "section",
        "h2",
        "div",
        "dl",
        "dt",
        "dd",
        "details",
        "summary",
        "ul",
        "ol",
        "li",
        "code",
        "strong",
        "footer",
        "svg",
        "line",
        "text",
        "polyline",
        "a",
    ]
)
# Of the chart: colours are the page's own variables, all else are places and our own words.
ADDRESS = re.compile(r"https://eu-west-1\.console\.aws\.amazon\.com/cloudwatch/home[A-Za-z0-9?=#:/$._~-]+\Z")
OF_SHAPES = set(
    [
        *("xmlns", "width", "height", "viewbox", "font-family", "role", "aria-label", "points", "text-anchor"),
        *("x", "y", "x1", "y1", "x2", "y2", "stroke-width", "stroke-linecap", "stroke-dasharray", "font-size"),
        "font-weight",
    ]
)
CLASSES = {"soft", "box", "state bad", "state good", "state wait"}


class Read(HTMLParser):
    """A page as a browser takes it apart."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: set[tuple[str, str, str | None]] = set()
        self.words: list[str] = []
        self.others: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {(tag, name, value) for name, value in attrs}

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def handle_comment(self, data: str) -> None:
        self.others.append(data)

    def handle_pi(self, data: str) -> None:
        self.others.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def hostile(text: str) -> tuple[Incident, list[TimelineEntry]]:
    """The post-mortem's story, and the questions, suspects and nodes of an open Incident, all of `text`."""
    one, lines = story(text)
    (asked,) = one.approvals
    pending = replace(asked, approval_id=text, answer=None, by="", answered_at=None)
    bad = BadNode(node=text, instance_id=text, why=text)
    return replace(
        one, approvals=(asked, pending), resubmission=replace(one.resubmission, bad_nodes=(bad,)), attempt=text or None
    ), lines


CURVE = LossCurve(points=tuple((books.at(60 * index), 3.0 - 0.1 * index) for index in range(9)))


def drawn(one: Incident, lines: list[TimelineEntry]) -> str:
    return page_of(one, lines, books.ledger(one), now=books.at(5000), region="eu-west-1", curve=Known(CURVE))


def _is_harmless(page: str) -> Read:
    read = Read(page)
    assert set(read.tags) <= TAGS
    assert read.others == []
    for tag, name, value in read.attributes:
        if name == "class":
            assert value in CLASSES
        elif tag == "a":
            assert (name, value) == ("rel", "noreferrer noopener") or (name == "href" and ADDRESS.match(value or ""))
        elif tag in ("svg", "line", "text", "polyline"):
            assert name in OF_SHAPES or (name in ("fill", "stroke") and re.fullmatch(r"none|var\(--\w+\)", value or ""))
        else:
            assert (tag, name) in {
                ("html", "lang"),
                ("meta", "charset"),
                ("meta", "name"),
                ("meta", "content"),
                ("meta", "http-equiv"),
            }
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e\u2028\u2029]", page)
    return read


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("phase", [Phase.STOPPING, Phase.RECOVERED])
def test_nothing_from_outside_is_markup_in_a_page(text: str, phase: Phase) -> None:
    one, lines = hostile(text)
    one = replace(one, phase=phase, closed_at=None if phase is Phase.STOPPING else one.closed_at)
    read = _is_harmless(drawn(one, lines))
    assert ("meta", "http-equiv", "Content-Security-Policy") in read.attributes


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.text(st.sampled_from("ab<>&\"'`/=!-;#x{}()\n\r\t\x00\x1b\u202e\u2028 scriptSTYLE"), max_size=40))
def test_no_text_changes_what_a_page_is_made_of(text: str) -> None:
    one, lines = hostile("a" + text)
    one = replace(one, phase=Phase.STOPPING, closed_at=None)
    read = _is_harmless(drawn(one, lines))
    calm, calm_lines = hostile("ada")
    same = Read(drawn(replace(calm, phase=Phase.STOPPING, closed_at=None), calm_lines))
    # A command that holds signs which would not be seen is left out; all the rest has one shape.
    shape = [tag for tag in read.tags if tag not in ("code", "p", "a")]
    assert shape == [tag for tag in same.tags if tag not in ("code", "p", "a")]
    assert read.words[1] == STYLE or STYLE in read.words


def test_a_page_asks_for_nothing_from_anywhere_and_its_style_is_the_one_that_its_policy_allows() -> None:
    page = drawn(*hostile("ada"))
    read = Read(page)
    assert not re.search(r"\b(?:src|action|on[a-z]+)\s*=", page)
    (policy,) = [value for _, _, value in read.attributes if value and "default-src" in value]
    digest = base64.b64encode(hashlib.sha256(re.findall(r"<style>(.*?)</style>", page, re.DOTALL)[0].encode()).digest())
    assert f"default-src 'none'; style-src 'sha256-{digest.decode()}'" in policy
    assert {name for tag, name, value in read.attributes if value in ("no-referrer", "noindex, nofollow")} == {
        "content"
    }
    assert "prefers-color-scheme:dark" in page
    assert 'content="width=device-width, initial-scale=1"' in page


def test_the_title_is_the_story_in_one_sentence() -> None:
    one = books.incident()
    assert sentence_of(one) == "lm: software crash; recovered, 100 steps lost"
    bad = BadNode(node="ip-1", why="w")
    held = replace(one, resubmission=replace(one.resubmission, bad_nodes=(bad,)), phase=Phase.STOPPING, closed_at=None)
    assert sentence_of(held) == "lm: software crash, node ip-1 suspected; stopping"


def test_what_is_not_known_is_folded_with_its_reason_and_is_no_zero() -> None:
    one = books.incident()
    ledger = books.ledger(one, size=JobSize(gpus=Unknown("its size is not known")))
    text = Read(page_of(one, [], ledger, now=books.at(5000), region="")).text
    assert "Not known: GPU-hours lost, US dollars lost" in text
    assert "GPU-hours lost: its size is not known" in text
    assert "GPU-hours lost 0" not in text
    known = books.ledger(one).to_wire()
    shown = Read(page_of(one, [], books.ledger(one), now=books.at(5000), region="")).text
    assert f"US dollars lost {known['dollars_lost']:,.2f}" in shown
    assert f"Steps lost {known['steps_lost']}" in shown


def test_a_long_timeline_keeps_its_beginning_and_its_end() -> None:
    lines = [
        TimelineEntry(at=books.at(n), phase=Phase.HOLDING, rule="r", text=f"line-{n}-") for n in range(MAX_LINES + 50)
    ]
    text = Read(page_of(books.incident(), lines, books.ledger(books.incident()), now=books.at(9), region="")).text
    assert "line-0-" in text
    assert f"line-{MAX_LINES + 49}-" in text
    assert "50 lines are left out here" in text


def test_a_command_is_shown_as_it_is_or_not_at_all() -> None:
    assert command("rekindle show 'a<b'") == "<code>rekindle show &#x27;a&lt;b&#x27;</code>"
    assert command("rekindle show 'a\u202eb'") == ""
    assert command("rekindle  show") == ""  # one space would be shown


# ---- who writes it ---------------------------------------------------------------------------------------------------


@dataclass
class Shelf:
    """ports.IncidentPages in memory."""

    pages: dict[str, list[str]] = field(default_factory=dict)
    fails: bool = False

    def put(self, incident_id: str, page: str) -> None:
        if self.fails:
            raise DependencyUnavailable("S3 does not answer")
        self.pages.setdefault(incident_id, []).append(page)

    def link(self, incident_id: str, *, lasts: timedelta) -> PageLink | None:
        if self.fails:
            raise DependencyUnavailable("S3 does not answer")
        if incident_id not in self.pages:
            return None
        url = f"https://b.s3.eu-west-1.amazonaws.com/incident-pages/i.html?X-Amz-Security-Token={'t' * 1200}&X-Amz-S=1"
        return PageLink(url=url, until=AT + lasts, written_at=AT)


class Moving(MemoryIncidents):
    """The Incident stands elsewhere at each reading, as many times as told."""

    def __init__(self, states: list[Incident]) -> None:
        super().__init__(MemoryJobs())
        self.states = states

    def load(self, incident_id: str) -> Any:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return type("Looked", (), {"incident": state})()

    def timeline(self, incident_id: str) -> tuple[TimelineEntry, ...]:
        return ()


class _Prices:
    def load(self) -> Any:
        return books.PRICES


class _Clock:
    def now(self) -> datetime:
        return AT


class _NoMetrics:
    def series_of(self, *_: object, **__: object) -> Any:
        raise DependencyUnavailable("CloudWatch does not answer")


class CountedJobs(MemoryJobs):
    """Counts how often a Job is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def get(self, job_id: str) -> Job:
        self.reads += 1
        return super().get(job_id)


def pages(states: list[Incident], shelf: Shelf, metrics: Any = None, *, registry: MemoryJobs | None = None) -> Pages:
    jobs = registry or MemoryJobs()
    return Pages(
        store=Moving(states),
        registry=jobs,
        prices=_Prices(),
        pages=shelf,
        clock=_Clock(),
        region="eu-west-1",
        within=lambda _: nullcontext(),
        losses=Losses(curves=Curves(registry=jobs, metrics=metrics or _NoMetrics(), clock=_Clock())),
    )


def test_a_page_is_written_once_and_again_only_where_the_incident_moved_on_meanwhile() -> None:
    opened = replace(books.incident(), phase=Phase.STOPPING, closed_at=None)
    still, moved = Shelf(), Shelf()
    assert pages([opened, replace(opened, version=9), opened], still).write("inc-lm-1")
    assert len(still.pages["inc-lm-1"]) == 1  # another look that nobody is told of
    assert pages([opened, books.incident(), books.incident()], moved).write("inc-lm-1")
    assert len(moved.pages["inc-lm-1"]) == 2
    assert "recovered" in moved.pages["inc-lm-1"][-1]
    restless = Shelf()
    states = [replace(opened, phase=phase) for phase in (Phase.OPEN, Phase.HOLDING) * 5]
    assert pages(states, restless).write("inc-lm-1")
    assert len(restless.pages["inc-lm-1"]) == WRITES


@pytest.mark.parametrize("phase", [Phase.RECOVERED, Phase.STOPPING])
def test_a_page_reads_its_job_once(phase: Phase) -> None:
    jobs, shelf = CountedJobs(), Shelf()
    jobs.register(JOB, Attempt(job_id="lm", number=1, name="lm", submitted_at=JOB.created_at))
    one = books.incident(phases=((Phase.RESUBMITTING, 60), (phase, 660)))
    assert pages([one], shelf, registry=jobs).write(one.incident_id)
    assert jobs.reads == 1
    assert "could not be read" in shelf.pages[one.incident_id][0]  # the metrics; the Job was


def test_a_page_that_cannot_be_written_or_drawn_is_logged_and_nothing_is_raised(caplog: Any) -> None:
    one = books.incident()
    assert not pages([one], Shelf(fails=True)).write("inc-lm-1")
    assert not pages([replace(one, phase="no phase")], Shelf()).write("inc-lm-1")
    assert [record.message for record in caplog.records] == ["a page was not written", "a page could not be drawn"]


def test_within_a_limit_nothing_is_begun_that_would_outlast_it_and_what_follows_keeps_its_time() -> None:
    times = iter([0.0, 10.0, 11.0, 20.0, 30.0])
    deadline = Deadline(monotonic=lambda: next(times))
    deadline.begin(type("Context", (), {"get_remaining_time_in_millis": staticmethod(lambda: 60_000)})())
    with deadline.within(20.0):
        assert deadline.left_s() == 19.0
        assert deadline.left_s() == 10.0 < patience_of("deliver").attempt_s + WIND_UP_S
    assert deadline.left_s() == 30.0


class Queue:
    """A queue of deliveries that keeps what is laid into it."""

    def __init__(self) -> None:
        self.bodies: list[str] = []

    def enqueue(self, bodies: Sequence[str]) -> None:
        self.bodies += bodies

    def later(self, receipt: str, *, wait_s: int) -> None: ...

    def bury(self, body: str, *, why: str, at: datetime) -> None: ...


class Book:
    """The channels document, with one webhook that wants everything."""

    def channels(self) -> Channels:
        channels = {"hook": webhook("https://hooks.example/x", wants=["news", "approval", "change"])}
        return Channels.from_wire({"channels": channels, "routes": [{"to": ["hook"]}]})


@pytest.mark.parametrize("fails", [False, True])
def test_people_are_told_whether_or_not_the_page_could_be_written(fails: bool) -> None:
    queue, shelf = Queue(), Shelf(fails=fails)
    fan_out = FanOut(
        book=Book(), queue=queue, clock=_Clock(), report=lambda _: None, pages=pages([books.incident()], shelf)
    )
    assert fan_out.take({"detail": detail_of(notice())}) == {"channels": ["hook"]}
    assert len(queue.bodies) == 1
    assert len(shelf.pages) == (0 if fails else 1)
    fan_out.take({"detail": detail_of(notice(incident_id=""))})
    assert len(queue.bodies) == 2
    assert "" not in shelf.pages


# ---- what notices carry ----------------------------------------------------------------------------------------------


def addresses(shelf: Shelf, *, console_url: str = "", hours: int = 4) -> Addresses:
    return Addresses(pages=shelf, console_url=console_url, lasts=timedelta(hours=hours), within=lambda _: nullcontext())


def test_a_notice_leads_to_the_console_where_there_is_one_else_to_a_link_that_ends_else_to_the_command() -> None:
    shelf = Shelf(pages={"inc-1": ["x"]})
    told = "rekindle show inc-1 --report"
    console = addresses(shelf, console_url="https://ops.example/rk/").addressed(notice()).address
    assert console == Address(url="https://ops.example/rk/incidents/inc-1", until=None, command=told)
    linked = addresses(shelf).addressed(notice()).address
    assert linked is not None
    assert (linked.url[:8], linked.until, linked.command) == ("https://", AT + timedelta(hours=4), told)
    for given_up in (addresses(Shelf()), addresses(Shelf(fails=True)), addresses(shelf, hours=0)):
        assert given_up.addressed(notice()).address == Address(url="", until=None, command=told)
    assert addresses(shelf).addressed(notice(incident_id="")).address is None


def test_a_text_has_the_whole_link_with_its_end_and_the_command_or_the_command_alone() -> None:
    linked = addresses(Shelf(pages={"inc-1": ["x"]})).addressed(notice())
    assert linked.address is not None
    text = body_of(linked, now=AT)
    assert f"Page: {linked.address.url}\n" in text
    assert "(opens for anyone who has it, until 13:30:00 UTC at the latest; then: rekindle show inc-1 --report)" in text
    short = body_of(linked, now=AT, limit=600)
    assert "https://" not in short
    assert "Page: rekindle show inc-1 --report" in short
    assert len(short) <= 600
    assert "Page:" not in body_of(notice(), now=AT)


def test_a_webhook_gets_the_address_and_what_travels_over_the_bus_is_read_as_it_was() -> None:
    linked = addresses(Shelf(pages={"inc-1": ["x"]})).addressed(notice())
    wire = json.loads(json.dumps(detail_of(linked)))
    assert wire["data"]["address"] == {
        "url": linked.address.url if linked.address else None,
        "until": "2035-01-01T13:30:00+00:00",
        "command": "rekindle show inc-1 --report",
    }
    assert read_notice(wire) == linked
    del wire["data"]["address"]  # of a version that had none
    assert read_notice(wire) == replace(linked, address=None)


# ---- on the embedded cloud -------------------------------------------------------------------------------------------


def _ask(path: str) -> Mapping[str, Any]:
    answer: Mapping[str, Any] = LocalGateway(app, Config()).handle_request("GET", f"/v1{path}", {}, b"")
    return {"status": answer["statusCode"], **json.loads(answer["body"])}


def _page(w: World, incident_id: str) -> str:
    body = w.cloud.client("s3").get_object(Bucket=BUCKET, Key=key_of(incident_id))["Body"].read()
    return str(body.decode())


def _is_written(w: World) -> bool:
    return bool(w.cloud.client("s3").list_objects_v2(Bucket=BUCKET, Prefix=PREFIX)["KeyCount"])


@pytest.mark.filterwarnings("ignore:IAMAuthorizer:UserWarning")
def test_a_fresh_link_opens_the_page_over_http_and_nothing_opens_it_without_one() -> None:
    with world(http=True) as w:
        w.submit(scripts=(Script(faults=(crash_at(2),)),))
        w.run_until(lambda: bool(w.cloud.engine.executions()) and _is_written(w))
        (one,) = w.incidents()
        told = _ask(f"/incidents/{one.incident_id}/report")
        assert told["status"] == 200
        assert (datetime.fromisoformat(told["until"]) - w.cloud.clock.now()) == timedelta(hours=1)
        assert "X-Amz-Expires=3600" in told["url"]
        with urllib.request.urlopen(told["url"]) as opened:  # noqa: S310  this machine's own S3
            page = opened.read().decode()
            assert opened.headers["Content-Type"] == "text/html; charset=utf-8"
            assert opened.headers["Cache-Control"] == "no-store"
        assert page == _page(w, one.incident_id)
        assert f"Incident {one.incident_id};" in Read(page).text
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(told["url"].partition("?")[0])  # noqa: S310
        assert _ask("/incidents/inc-nobody/report")["status"] == 404
        w.cloud.client("s3").delete_object(Bucket=BUCKET, Key=key_of(one.incident_id))
        gone = _ask(f"/incidents/{one.incident_id}/report")
        assert gone["status"] == 404
        assert "rekindle ledger postmortem" in gone["detail"]


def test_each_told_change_writes_the_page_once_and_it_ends_with_the_end() -> None:
    with world() as w:
        written: list[str] = []
        put = w.service.page_store.put

        class Counting(S3Pages):
            def put(self, incident_id: str, page: str) -> None:
                written.append(Read(page).text)
                put(incident_id, page)

        shelf = Counting(w.cloud.client("s3"), bucket=BUCKET, clock=w.cloud.clock)
        w.service.fan_out = replace(w.service.fan_out, pages=replace(w.service.pages, pages=shelf))
        w.submit(scripts=(Script(faults=(crash_at(35),)),))
        one = w.recover()
        w.run_until(lambda: bool(written) and "recovered, " in written[-1], limit=timedelta(minutes=5))
        notices = w.cloud.wire.calls["eventbridge.PutEvents"]
        assert 3 <= len(written) <= notices
        assert "recovered, " in Read(_page(w, one.incident_id)).text
        assert w.cloud.roles.denied == []


def test_links_are_signed_by_version_4_for_the_regions_own_host() -> None:
    session = boto3.session.Session(
        region_name="eu-west-1", aws_access_key_id="AKIA", aws_secret_access_key="x", aws_session_token="t"
    )
    url = Clients(session)("s3").generate_presigned_url("get_object", Params={"Bucket": "b-1", "Key": "k"})
    assert url.startswith("https://b-1.s3.eu-west-1.amazonaws.com/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&")
    assert datetime.now(UTC).strftime("%Y%m") in url
