"""Texts from outside: job names, log lines, Slack and Markdown text, comments. They are shown, and are nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from typing import Final

import pytest

from chalicelib.aws.dynamodb.incident_items import pack_line
from chalicelib.aws.dynamodb.items import incident_pk, key
from chalicelib.aws.dynamodb.jobs import job_item
from chalicelib.domain.model.approvals import Approval, ApprovalAnswer, Guard, Hold
from chalicelib.domain.model.incident import TimelineEntry
from chalicelib.domain.model.known import Unknown
from rekindle.client.api import path
from rekindle.console import charts, curves
from rekindle.console.charts import Curve, Mark, MarkKind
from rekindle.drawing.strokes import Axis
from tests.console.axe import violations
from tests.console.browser import Browser
from tests.console.world import NOW, Visitor, World, a_job, a_signal, an_incident, an_item, raised

EVIL: Final = (
    "<script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    "\"><svg onload=window.pwned=1><b a='",
    "' autofocus onfocus='window.pwned=1",
    "</title></svg><script>window.pwned=1</script>",
    "{{ 7919*7907 }}{% raw %}{{ config }}",
    "javascript:window.pwned=1",
    "[x](javascript:window.pwned=1) **bold** <!channel> <@U1> <https://evil.example|click>",
    "&lt;b&gt; &amp;quot; &#60;i&#62;",
)
HIDDEN: Final = "abc\u202egnp.exe\u200b\x1b[31mred\x00end\u2028next"
ALL: Final = " ".join((*EVIL, HIDDEN))
JOB, INCIDENT = "lm-evil", "inc-evil-000000000001"
OURS: Final = ("html", "head", "meta", "title", "link", "script", "body")


@pytest.fixture(scope="module")
def evil() -> Iterator[World]:
    with raised() as world:
        job = a_job(JOB, open_incident=INCIDENT, limits=(ALL,))
        world.put(job_item(replace(job, name=ALL, policy_name=ALL, mailbox=ALL, current_attempt=ALL)))
        incident = an_incident(1, is_open=True).changed(
            incident_id=INCIDENT,
            job_id=JOB,
            signals=(a_signal(JOB, NOW, ALL, evidence={"line": ALL, ALL: [ALL]}),),
            attempt=ALL,
            fault_rule=ALL,
            conclusion=ALL,
            target_step=Unknown(ALL),
            order={"who": ALL},
            approvals=(
                Approval(
                    approval_id="a1",
                    key="k",
                    actions=(ALL,),
                    what=ALL,
                    why=ALL,
                    asked_at=NOW,
                    deadline_at=NOW + timedelta(hours=1),
                    default=ApprovalAnswer.DENIED,
                ),
                Approval(
                    approval_id="a2",
                    key="k2",
                    actions=(),
                    what=ALL,
                    why=ALL,
                    asked_at=NOW,
                    deadline_at=NOW,
                    default=ApprovalAnswer.DENIED,
                    answer=ApprovalAnswer.APPROVED,
                    by=ALL,
                    answered_at=NOW,
                    comment=ALL,
                ),
            ),
            holds=(Hold(guard=Guard.APPROVAL, since=NOW, text=ALL, actions=(ALL,)),),
        )
        entry = TimelineEntry(
            at=NOW,
            phase=incident.phase,
            rule=ALL,
            text=ALL,
            actions=(ALL,),
            facts={"failure_reason": ALL, ALL: ALL, "attempt": {"unknown": ALL}},
        )
        world.put(an_item(incident), key(incident_pk(INCIDENT), "T#000001") | pack_line(entry))
        yield world


PAGES: Final = (
    "/",
    "/jobs",
    "/jobs?q=script",
    path("jobs", JOB),
    "/incidents",
    path("incidents", INCIDENT),
    "/approvals",
    "/incidents?" + "state=open&job_id=%3Cscript%3E%22%27",
    path("jobs", EVIL[0]),
    path("incidents", EVIL[2]),
    path("policies", EVIL[1]),
    path("clusters", EVIL[3]),
)


class Tags(HTMLParser):
    """Every element and attribute of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


@pytest.mark.parametrize("page", PAGES)
def test_no_text_becomes_an_element_an_attribute_or_a_link(evil: World, page: str) -> None:
    got = Visitor(evil.console).get(page)
    assert got.status in (200, 404)
    tags = Tags()
    tags.feed(got.body)
    scripts = [attributes for tag, attributes in tags.seen if tag == "script"]
    ours = [f"{evil.console.gate.base}/static/{name}" for name in ("console.js", "uplot.min.js", "plots.js")]
    assert scripts in ([{"src": src, "defer": None} for src in ours[:1]], [{"src": src, "defer": None} for src in ours])
    for tag, attributes in tags.seen:
        assert tag not in ("img", "iframe", "object", "embed", "style", "base", "b", "i")
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            assert name not in ("style", "srcdoc", "formaction", "autofocus")
            if name in ("href", "src", "action"):
                assert value is not None
                assert value.startswith(("/", "?", "#")), value
                assert not value.startswith("//")
    for hidden in ("\u202e", "\u200b", "\x1b", "\x00", "\u2028"):
        assert hidden not in got.body
    assert str(7919 * 7907) not in got.body  # a number that nothing else on a page is


@pytest.mark.parametrize("page", PAGES)
def test_nothing_of_it_runs_in_a_browser(evil: World, browser: Browser, page: str) -> None:
    browser.complaints()  # of pages before this one
    browser.open(evil.console, page)
    browser.until(lambda: browser.one("main"), "the page")
    assert browser.run(
        "return window.pwned === undefined && !document.querySelector('img, iframe, [onload], [onerror]')"
    )
    refused = [line for line in browser.complaints() if "Content Security Policy" in line]
    assert refused == []  # there was nothing to be refused: escaping alone holds


def test_the_texts_are_shown_as_they_are(evil: World, browser: Browser) -> None:
    browser.open(evil.console, path("incidents", INCIDENT))
    shown = browser.until(browser.text, "the page")
    for line in EVIL:
        assert line in shown
    assert "abc\\u202egnp.exe\\u200b\\x1b[31mred" in shown


def test_a_script_that_slipped_in_would_not_run(evil: World, browser: Browser) -> None:
    """The second wall: even markup that is written into the page by force is stopped by the policy."""
    browser.open(evil.console)
    browser.run(
        "const s = document.createElement('script'); s.textContent = 'window.pwned = 1'; document.body.append(s);"
        'const evil = \'<img src=x onerror="window.pwned = 1"><p style="color:red">\';'
        "document.body.insertAdjacentHTML('beforeend', evil);"
    )
    assert browser.run("return window.pwned === undefined")
    browser.until(lambda: any("Content Security Policy" in line for line in browser.complaints()), "the refusal")


def test_a_picture_of_evil_labels_and_numbers_is_only_a_picture(evil: World) -> None:
    marks = [Mark(kind=MarkKind.FAULT, low=3, label=ALL)]
    drawn = charts.draw(
        Curve(
            name="x",
            title=ALL,
            y_title=ALL,
            axis=Axis.STEP,
            points=[(1, float("nan")), (2, float("inf")), (3, 1e308), (4, -1e308), (5, 1.0)],
            marks=marks,
            why=ALL,
        )
    )
    template = evil.console.site._templates.from_string('{% from "chart.html" import picture %}{{ picture(chart) }}')
    body = template.render(chart=drawn)
    tags = Tags()
    tags.feed(body)
    assert {tag for tag, _ in tags.seen} <= {
        *("figure", "figcaption", "div", "p"),
        *("ul", "li", "span", "details", "summary", "table", "caption", "thead", "tbody", "tr", "th", "td"),
    }
    assert drawn is not None
    assert "NaN" not in drawn.plot
    assert "Infinity" not in drawn.plot
    for wrong in ({"curves": {"loss": {"known": [["a", 1], [1], None, [True, 2], [1, None]]}}}, {"curves": 3}, {}):
        assert curves.points_of(wrong, "loss") == []


def test_a_post_mortem_is_text_and_never_a_page(evil: World) -> None:
    got = Visitor(evil.console).get(f"{path('incidents', INCIDENT)}/postmortem?as=markdown")
    assert (got.status, got.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert got.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_where_people_are_asked(evil: World, browser: Browser, dark: bool) -> None:
    browser.wears(dark=dark)
    browser.open(evil.console, path("incidents", INCIDENT))
    assert browser.all(".card.ask")
    assert violations(browser) == []
    browser.wears()


def test_what_holds_every_order_stands_beside_the_questions(evil: World) -> None:
    visitor = Visitor(evil.console)
    assert "Held now" not in visitor.get("/approvals").body
    assert visitor.order("/pause", paused="yes").status == 303
    try:
        assert "<strong>Held now:</strong> the pause" in visitor.get("/approvals").body
    finally:
        assert visitor.order("/pause", paused="no").status == 303
