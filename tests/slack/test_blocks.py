"""Messages: what they say, Slack's limits, and that other people's words stay words."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chalicelib.channels.slack.blocks import (
    HAPPENING,
    MAX_MESSAGE_CHARS,
    Button,
    Message,
    approval_blocks,
    incident_message,
    read_value,
    reply_message,
    value_of,
)
from chalicelib.channels.slack.digest import digest_message
from chalicelib.channels.slack.text import code, escape, plain, verbatim
from chalicelib.domain.model.approvals import ApprovalAnswer, Guard, Hold
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.notices.threads import LatestNotice
from chalicelib.domain.reporting.paste import paste_of
from tests.sizes import examples
from tests.slack.made import NOW, approval, complaints, incident, signal, texts

NASTY = "<!channel> <!here> <@U1> <#C1> <https://evil.example|ok> `*_~ & @channel \u202e\x00\n"
words = st.text(max_size=4000) | st.sampled_from([NASTY, NASTY * 60, "&" * 4000, "`" * 4000, "@here" * 300, ""])
SAID = LatestNotice(title="A GPU has fallen off the bus", text="The run is asked for a checkpoint.", at=NOW)


def shown(message: Message) -> str:
    """Everything people can read in it."""
    return html.unescape("\n".join([message.text, *texts(message.blocks)]))


def presses(message: Message) -> list[str]:
    return [
        element["action_id"] for block in message.blocks if block["type"] == "actions" for element in block["elements"]
    ]


def assert_mentions_nothing(message: Message) -> None:
    """Every `<` of ours begins a date; every `&` begins one of Slack's three entities."""
    for text in (message.text, *texts(message.blocks)):
        if text.startswith('{"i":'):
            continue  # a button's value: JSON, never shown
        assert not re.search(r"<(?!!date\^[0-9]+\^)", text), text
        assert not re.search(r"&(?!amp;|lt;|gt;)", text), text
        assert not re.search(r"@(channel|here|everyone|group)\b", text, re.IGNORECASE), text


def test_an_incident_tells_fault_evidence_state_and_what_is_asked() -> None:
    one = incident(phase=Phase.HOLDING, signals=(signal(),), approvals=(approval(),))
    message = incident_message(one, latest=SAID, can_press=True)
    text = shown(message)
    for part in ("lm-1", "node hardware", "holding", "Xid 79 on ip-10-0-0-7", HAPPENING[Phase.HOLDING]):
        assert part in text
    assert "May Rekindle replace ip-10-0-0-7 of ml (i-1); what is on its volumes is lost?" in text
    assert "counts as *denied*" in text
    assert "It needs an answer: may Rekindle replace ip-10-0-0-7" in html.unescape(message.text)
    assert presses(message) == [Button.APPROVE, Button.DENY, Button.CANCEL, Button.PAUSE]
    assert complaints(message.blocks) == []


def test_without_the_right_to_press_there_are_no_buttons_but_the_command() -> None:
    message = incident_message(incident(approvals=(approval(),)), latest=None, can_press=False)
    assert presses(message) == []
    assert "rekindle approvals approve inc-lm-000000000001 ap-1" in shown(message)


def test_a_press_asks_back_in_words_what_would_be_done_to_what() -> None:
    message = incident_message(incident(approvals=(approval(),)), latest=None, can_press=True)
    confirms = {
        element["action_id"]: element["confirm"]["text"]["text"]
        for block in message.blocks
        for element in block.get("elements", ())
        if element["type"] == "button"
    }
    assert confirms[Button.APPROVE].startswith("May Rekindle replace ip-10-0-0-7 of ml (i-1)")
    assert "closed" in confirms[Button.DENY]
    assert "ReplaceNode" not in shown(message)


def test_a_press_says_what_holds_the_step_now() -> None:
    about = incident(paused_since=NOW)
    approve = approval_blocks(about, approval(), can_press=True)[-1]["elements"][0]
    assert approve["confirm"]["text"]["text"].startswith("Held now by pause: done once that lets go. May Rekindle ")


def test_commands_are_shown_exactly_or_not_at_all() -> None:
    """What is pasted into a shell: cut in the middle, or with a quotation mark in place of a backtick, it does harm."""
    good = (
        "aws logs tail /aws/sagemaker/Clusters/" + "c" * 63 + "/k --log-stream-name-prefix " + "g" * 63 + " --since 1h"
    )
    spoilt = ["'a`; reboot;`b'", "x" * 700, "two\nlines", "a\u202eb", "a  b"]
    given = (("Story", "rekindle show inc-1"), *(("Bad", what) for what in spoilt), ("Agent", good))
    text = shown(reply_message("t", "t", paste=given))
    assert "Story: `rekindle show inc-1`" in text
    assert f"Agent: `{good}`" in text
    assert "Bad" not in text
    assert verbatim("a && b < c", 50) == "`a &amp;&amp; b &lt; c`"


def test_the_logs_are_a_link_into_the_console_and_nothing_else_is() -> None:
    one = incident(attempt="lm-" + "x" * 60, cluster=None)
    paste = paste_of(one, region="eu-west-1")
    (address,) = (what for label, what in paste if label == "Logs in the console")
    message = reply_message("t", "t", paste=(*paste, ("Logs", "https://evil.example/"), ("Logs <!here>", address)))
    text = "\n".join(texts(message.blocks))
    assert f"<{address}|Logs in the console>" in text
    assert "`https://evil.example/`" in text
    assert "<!here>" not in text


def test_an_answered_approval_says_who_and_has_no_buttons() -> None:
    answered = approval(answer=ApprovalAnswer.DENIED, by="slack:U7 (ada)", answered_at=NOW)
    message = incident_message(incident(approvals=(answered,)), latest=None, can_press=True)
    assert "*denied* by `slack:U7 (ada)`" in shown(message)
    assert presses(message) == [Button.CANCEL, Button.PAUSE]


def test_a_closed_incident_has_no_buttons() -> None:
    over = incident(phase=Phase.RECOVERED, closed_at=NOW, approvals=(approval(),))
    message = incident_message(over, latest=SAID, can_press=True)
    assert presses(message) == []
    assert message.blocks[0]["text"]["text"].startswith("✅")


def test_a_paused_incident_offers_to_lift_the_pause() -> None:
    message = incident_message(incident(paused_since=NOW), latest=None, can_press=True)
    assert presses(message) == [Button.CANCEL, Button.RESUME]


def test_what_holds_it_back_is_named_and_what_held_it_back_is_not() -> None:
    now = Hold(guard=Guard.REPAIR_BUDGET, since=NOW, text="2 of 8 nodes are in repair")
    before = Hold(guard=Guard.BREAKER, since=NOW, text="long ago", until=NOW + timedelta(seconds=1))
    text = shown(incident_message(incident(holds=(before, now)), latest=None, can_press=False))
    assert "repair budget" in text
    assert "2 of 8 nodes are in repair" in text
    assert "long ago" not in text


def test_every_phase_has_its_sentence_and_every_press_confirms() -> None:
    assert set(HAPPENING) == set(Phase)
    for phase in Phase:
        message = incident_message(incident(phase=phase, approvals=(approval(),)), latest=None, can_press=True)
        assert complaints(message.blocks) == []
        for block in message.blocks:
            assert all("confirm" in element for element in block.get("elements", ()) if element["type"] == "button")


@settings(max_examples=examples(25))
@given(words, words, words, st.booleans())
def test_other_peoples_words_stay_words_and_inside_the_limits(first: str, second: str, third: str, press: bool) -> None:
    holds = tuple(Hold(guard=Guard.LADDER, since=NOW, text=third) for _ in range(9))
    one = incident(
        job_id=first or "x",
        attempt=second,
        node=third,
        conclusion=first,
        signals=tuple(signal(summary=second) for _ in range(9)),
        approvals=tuple(approval(number, what=first, why=third) for number in range(9)),
        holds=holds,
    )
    said = LatestNotice(title=second, text=third, at=NOW, paste=((first, second),) * 9)
    message = incident_message(one, latest=said, can_press=press)
    assert complaints(message.blocks) == []
    assert_mentions_nothing(message)
    assert len(json.dumps(message.blocks, ensure_ascii=False)) <= MAX_MESSAGE_CHARS
    reply = reply_message(first, second, paste=((second, third),) * 9)
    assert complaints(reply.blocks) == []
    assert_mentions_nothing(reply)


def test_after_a_storm_what_needs_a_person_is_not_lost_among_what_is_closed() -> None:
    over = [incident(n, phase=Phase.RECOVERED, closed_at=NOW) for n in range(90)]
    left = [incident(n, phase=Phase.HANDED_OVER, closed_at=NOW) for n in range(90, 100)]
    message = digest_message([*over, *left], began_at=NOW, can_press=True)
    text = shown(message)
    assert "100 Incidents at once: 0 open, 10 need a person, 90 closed" in text
    assert "lm-99: node hardware, handed over" in text
    assert "and 2 more: `rekindle incidents --closed`" in text
    calm = digest_message(over, began_at=NOW, can_press=True)
    assert "a person" not in shown(calm)


@pytest.mark.parametrize("name", [NASTY * 60, "&" * 4000, "\u202e" * 300, "ع" * 500, "🔥" * 500, "x" * 4000])
def test_the_largest_digest_is_one_that_slack_takes(name: str) -> None:
    asked = tuple(approval(number, what=name, why=name) for number in range(9))
    storm = [incident(n, job_id=name, attempt=name, approvals=asked) for n in range(300)]
    storm += [incident(n, job_id=name, phase=Phase.HANDED_OVER, closed_at=NOW) for n in range(300, 600)]
    message = digest_message(storm, began_at=NOW, can_press=True)
    assert complaints(message.blocks) == []
    assert_mentions_nothing(message)
    assert len(json.dumps(message.blocks, ensure_ascii=False)) <= MAX_MESSAGE_CHARS


@given(words, st.integers(min_value=1, max_value=3000))
def test_escaped_text_reads_back_as_it_was_as_far_as_it_goes(text: str, limit: int) -> None:
    sent = escape(text, limit)
    assert len(sent) <= limit
    assert "<" not in sent
    assert ">" not in sent
    assert not re.search(r"&(?!amp;|lt;|gt;)", sent)
    whole = escape(text, 10**6)
    kept = sent.removesuffix("…")
    assert whole.startswith(kept)
    assert sent == whole or sent.endswith("…")


def test_text_that_fits_exactly_is_whole() -> None:
    assert escape("a<", 5) == "a&lt;"
    assert escape("ab", 2) == "ab"
    assert escape("abc", 2) == "a…"


def test_words_cannot_leave_their_backticks() -> None:
    assert code("a` *b* `c\nd", 50) == "`a' *b* 'c d`"
    assert plain("  ", 10)["text"] == "-"


def test_a_value_reads_back_and_nothing_else_is_read() -> None:
    assert read_value(value_of("inc-1", "ap-1")) == ("inc-1", "ap-1")
    for other in ("", "[]", '{"i":1,"a":""}', '{"i":"x"}', '{"i":"x","a":"","b":""}', "nonsense"):
        with pytest.raises(ValueError):
            read_value(other)


def test_the_newest_evidence_is_what_is_shown() -> None:
    many = tuple(replace(signal(), summary=f"signal {number}") for number in range(10))
    text = shown(incident_message(incident(signals=many), latest=None, can_press=False))
    assert "signal 9" in text
    assert "signal 7" in text
    assert "signal 6" not in text
