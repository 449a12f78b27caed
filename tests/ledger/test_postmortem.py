"""The post-mortem: everything that people ask for stands in it, and nothing from outside is more than text in it."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from chalicelib.domain.model.approvals import Approval, ApprovalAnswer, Guard, Hold
from chalicelib.domain.model.incident import CheckpointAsk, Failure, Incident, Phase, TimelineEntry
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.reporting.markdown import plain
from chalicelib.domain.reporting.postmortem import MAX_LINES, postmortem_of
from rekindle.protocol.signals import FaultClass
from tests.ledger.books import at, incident, ledger, restart
from tests.sizes import examples

SECTIONS = [
    "Summary",
    "Timeline",
    "Evidence",
    "Decisions",
    "What held it back",
    "Approvals",
    "Cost",
    "Without Rekindle",
    "What to do next",
]
MINE = {"h1", "h2", "ul", "li", "p", "table", "thead", "tbody", "tr", "th", "td"}
HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[click](javascript:alert(1))",
    "![x](https://evil.example/pixel.png)",
    "<https://evil.example>",
    "https://evil.example/a?b=c",
    "www.evil.example",
    "@everyone look",
    "x\n# Summary\n\n- Outcome: fine",
    "x\r\n\r\n<b>bold</b>",
    "`code` ``more`` ```\nfence",
    "**bold** _under_ ~~gone~~",
    "a | b | c",
    "| a |\n|---|\n| b |",
    "- item",
    "1. item",
    "> quote",
    "+ plus",
    "=====",
    "---",
    "\\",
    "&lt;script&gt; &#60;b&#62;",
    "\x1b[31mred\x1b[0m \u202egnp.exe \u2028next",
    "[ref]: https://evil.example",
    "<!-- hidden",
    "</li></ul><h1>x",
    "a\tb",
    "$$x$$",
]


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def rendered(markdown: str) -> _Tags:
    html = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(markdown)
    tags = _Tags()
    tags.feed(html)
    return tags


def story(text: str) -> tuple[Incident, list[TimelineEntry]]:
    """An Incident in which every word that may come from outside is `text`."""
    signal = Signal(
        kind=SignalKind.STALL,
        source=SignalSource.MONITOR,
        occurred_at=at(0),
        dedupe_key="x",
        summary=text,
        fault=FaultClass.HANG,
    )
    approval = Approval(
        approval_id="a1",
        key="k",
        actions=("ReplaceNode",),
        what=text,
        why=text,
        asked_at=at(61),
        deadline_at=at(600),
        default=ApprovalAnswer.DENIED,
        answer=ApprovalAnswer.APPROVED,
        by=text,
        answered_at=at(70),
        comment=text,
    )
    one = incident(fault=FaultClass.HANG, restarts=[restart(kind="emergency", resume=Known(990))]).changed(
        incident_id=text or "x",
        job_id=text or "x",
        fault_rule=text,
        outcome=text,
        policy_name=text,
        policy_version=text,
        conclusion=text,
        signals=(signal,),
        signals_seen=1,
        failures=(Failure(attempt=text, signature=text, step=Known(7)),),
        approvals=(approval,),
        holds=(Hold(guard=Guard.APPROVAL, since=at(61), text=text, actions=(text,), until=at(70)),),
        ask=CheckpointAsk(
            request_id="r", attempt="lm", asked_at=at(1), deadline_at=at(9), outcome="cannot", step=None, why=text
        ),
    )
    facts = {"results": [{"action": text, "done": text, "detail": text}]}
    lines = [TimelineEntry(at=at(60), phase=Phase.STOPPING, rule=text, text=text, actions=(text,), facts=facts)]
    return one, lines


def written(text: str) -> str:
    one, lines = story(text)
    return postmortem_of(one, lines, ledger(one), job_name=text)


def _shape(markdown: str) -> list[str]:
    return rendered(markdown).tags


def test_every_section_is_there_in_order_and_tells_what_happened() -> None:
    text = written("ada")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert "approved by ada" in text
    assert "approval, from 2026-11-20 10:01:01 UTC until 2026-11-20 10:01:10 UTC" in text
    assert "- Steps lost: 10\n- Steps saved: 90\n" in text
    assert "GPU-hours lost: 5.87" in text
    assert "Spared is an estimate." in text
    assert "The emergency checkpoint did not come (cannot: ada)." in text
    assert "| detect | 2026-11-20 10:00:00 UTC | 60.0 |" in text


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_from_outside_is_markup_a_link_or_a_line_of_its_own(text: str) -> None:
    markdown = written(text)
    tags = rendered(markdown)
    assert set(tags.tags) <= MINE
    assert tags.attributes == []
    assert _shape(markdown) == _shape(written("ada"))
    assert re.findall(r"^## (.*)$", markdown, re.MULTILINE) == SECTIONS
    assert not re.search(r"(?i)https?://|www\.|@\w|<[a-z/!]", markdown)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e\u2028\u2029]", markdown)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(st.text(st.sampled_from("ab1.)-+>#*_`~[]()<>!|\\&;:/@$=\n\r\t \u2028wh"), max_size=30))
def test_no_text_changes_the_shape_of_the_document(text: str) -> None:
    tags = rendered(f"- first {plain(text)} last\n- second\n")
    assert tags.tags == ["ul", "li", "li"]
    said = "".join(tags.words).replace("\u2060", "")
    assert " ".join(said.split()) == " ".join(f"first {' '.join(text.split())} last second".split())
    assert rendered(f"- {plain(text)}\n").tags in (["ul", "li"],)


def test_a_long_timeline_keeps_its_beginning_and_its_end() -> None:
    one, lines = story("ada")
    many = [replace(lines[0], text=f"look {number}", actions=()) for number in range(MAX_LINES + 50)]
    text = postmortem_of(one, many, ledger(one), job_name="lm")
    assert "look 0" in text
    assert f"look {MAX_LINES + 49}" in text
    assert "50 lines are left out here" in text


def test_what_is_not_known_is_said_to_be_unknown() -> None:
    one = incident(phases=((Phase.RESUBMITTING, 60), (Phase.HANDED_OVER, 90)))
    text = postmortem_of(one, [], ledger(one), job_name="")
    assert "Time to recover (MTTR): unknown (it was not recovered: it was left to a person)" in text
    assert "It was left to a person. What it cost is not known: " in text
    assert "Decide about the run" in text
    assert "US dollars lost: unknown" in text


def test_the_first_lines_tell_the_whole_to_who_reads_nothing_else() -> None:
    one = incident(fault=FaultClass.NON_FINITE, restarts=[restart(kind="emergency", resume=Known(990))])
    text = postmortem_of(one, [], ledger(one), job_name="llm 7b")
    short = text.split("\n")[4]
    assert short.startswith("llm 7b: non-finite loss (NaN or Inf) at 2026-11-20 10:00:00 UTC. ")
    assert "It was brought back after 11 min. " in short
    assert re.search(r"It cost [0-9.]+ min of training, [0-9.]+ GPU-hours, [0-9.,]+ US dollars\.", short)
    assert "Size: 4 × ml.p5.48xlarge; GPUs: 32" in text.replace("\\", "")


def test_words_stand_before_the_names_of_rules_and_actions() -> None:
    one = incident()
    line = TimelineEntry(
        at=at(60),
        phase=Phase.HANDED_OVER,
        rule="verify.passed",
        text="lm is back",
        actions=("StopJob", "NewAction"),
        facts={"results": [{"action": "ResubmitJob", "done": "name_taken"}]},
    )
    text = postmortem_of(one, [line], ledger(one), job_name="").replace("\\", "")
    assert "10:01:00 UTC · lm is back (handed over, rule verify.passed)" in text
    assert "· stop the run (StopJob), new action (NewAction), by rule verify.passed" in text
    assert "· answered: start the run again (ResubmitJob): name taken" in text


def test_the_stages_add_up_on_paper_too() -> None:
    one = incident(phases=((Phase.RESUBMITTING, 20.5), (Phase.VERIFYING, 51), (Phase.RECOVERED, 57.5)))
    text = postmortem_of(one, [], ledger(one), job_name="")
    told = [float(seconds) for seconds in re.findall(r"^\| \w+ \| \S+ \S+ UTC \| ([0-9.]+) \|$", text, re.MULTILINE)]
    assert sum(told) == 57.5
    assert "| in all | | 57.5 |" in text
