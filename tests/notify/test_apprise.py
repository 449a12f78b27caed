"""Apprise as a channel: against a real receiver, and loaded no further than needed."""

from __future__ import annotations

import inspect
import json
import logging
import subprocess
import sys
from datetime import datetime, timedelta

import pytest
from apprise.manager_plugins import NotificationManager

from chalicelib.channels.apprise_channel import KEYS, AppriseChannel, plugin_of
from chalicelib.channels.plain_text import body_of, title_of
from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.errors import DependencyUnavailable, InvalidSettings
from chalicelib.domain.notices.channels import Channels
from chalicelib.ports.notices import NoticeKind
from tests.canary import CHANNEL_PASSWORD
from tests.notify.made import AT, Secrets, notice
from tests.notify.receiver import Receiver

CONFIG = Channels.from_wire({"channels": {"pager": {"kind": "apprise", "url_secret": "address"}}}).channels["pager"]


class Moment:
    """A clock that stands still."""

    def __init__(self, at: datetime = AT) -> None:
        self._at = at

    def now(self) -> datetime:
        return self._at


def pager(address: str, *, now: datetime = AT) -> AppriseChannel:
    return AppriseChannel(CONFIG, Secrets(address=address), clock=Moment(now))


def test_a_notice_reaches_the_service_with_title_text_and_what_to_paste(receiver: Receiver) -> None:
    channel = pager(receiver.url.replace("http", "json") + "/alerts")
    channel.send(notice(severity=Severity.PAGE), attempt=1)
    (got,) = receiver.got
    body = json.loads(got.body)
    assert got.path == "/alerts"
    assert (body["title"], body["type"]) == ("[page] lm-7b: a node is broken", "failure")
    assert "rekindle show inc-1" in body["message"]
    assert "Node: ip-10-0-0-7" in body["message"]


@pytest.mark.parametrize("status", [429, 500, 403])
def test_what_the_service_does_not_take_is_tried_again(receiver: Receiver, status: int) -> None:
    receiver.plan.append(status)
    channel = pager(receiver.url.replace("http", "json"))
    with pytest.raises(DependencyUnavailable, match="pager"):
        channel.send(notice(), attempt=1)
    channel.send(notice(), attempt=2)
    assert len(receiver.got) == 2


@pytest.mark.parametrize(
    "address",
    [
        "",
        "nothing",
        f"nothing://user:{CHANNEL_PASSWORD}@host",
        f"pagerduty://{CHANNEL_PASSWORD}",
        "syslog://",
        "json://",
        f"json://a:{CHANNEL_PASSWORD}@",
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_being_told(address: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        pager(address)
    assert caught.value.field == "channels.pager.url_secret"
    assert CHANNEL_PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "pagerduty://aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa@bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
        "opsgenie://aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",
        "workflows://prod.westus.logic.azure.com:443/643e69f83c8944/4dd0-43c7",
        "mailtos://user:word@example.com?to=oncall@example.com",
        "ntfys://ntfy.example.com/topic",
    ],
)
def test_the_services_that_people_page_with_are_there(address: str) -> None:
    pager(address)


def test_a_pager_knows_a_repetition_and_rings_for_every_other_notice(receiver: Receiver) -> None:
    """GoAlert stands for all: it can be run on this machine."""
    key = "01234567-89ab-cdef-0123-456789abcdef"  # the form that GoAlert wants
    channel = pager(receiver.url.replace("http", "goalert") + f"/{key}")
    receiver.plan.append(500)  # an answer that was lost looks like this to us
    with pytest.raises(DependencyUnavailable):
        channel.send(notice(), attempt=1)
    channel.send(notice(), attempt=2)
    channel.send(notice(token="inc-1.1.4.0"), attempt=1)
    first, again, other = (json.loads(one.body)["dedup"] for one in receiver.got)
    assert first == again != other
    assert len(first) < 100


@pytest.mark.parametrize(
    ("address", "word"),
    [
        (f"pagerduty://{'a' * 32}@{'b' * 32}", "dedup"),
        ("opsgenie://aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee", "alias"),
        (f"splunk://route@{'a' * 36}", "entity_id"),
    ],
)
def test_the_key_goes_where_the_service_wants_it_and_gives_way_to_the_user_s_own(address: str, word: str) -> None:
    assert getattr(pager(address)._address.speaker("msg_1"), word) == "msg_1"
    assert getattr(pager(f"{address}?{word}=mine")._address.speaker("msg_1"), word) == "mine"


@pytest.mark.parametrize(("module", "word"), sorted(KEYS.items()))
def test_each_plug_in_takes_the_key_that_the_table_has_for_it(module: str, word: str) -> None:
    plugins = filter(None, map(plugin_of, NotificationManager().schemas()))
    (plugin,) = {plugin for plugin in plugins if plugin.__module__ == f"apprise.plugins.{module}"}
    assert word in inspect.signature(plugin.__init__).parameters


def test_a_notice_that_comes_late_says_of_when_it_is() -> None:
    one = notice(title="started again")
    assert title_of(one, now=AT + timedelta(seconds=30)) == "[page] started again"
    assert title_of(one, now=AT + timedelta(hours=1)) == "[page] (late: of 09:30:00 UTC) started again"
    assert title_of(one, now=AT + timedelta(days=1)) == "[page] (late: of 2035-01-01 09:30:00 UTC) started again"
    assert "Sent: 09:30:00 UTC" in body_of(one, now=AT)


@pytest.mark.parametrize("limit", [400, 600, 1000, 1024, 4000])
def test_a_text_too_long_for_its_service_gives_way_to_what_is_pasted_next(limit: int) -> None:
    """PagerDuty takes 1024 characters, Teams a thousand, Splunk On-Call 400."""
    link = ("Logs in the console", "https://example.com/" + "x" * 300)
    shell = ("Shell on i-1", "aws ssm start-session --target sagemaker-cluster:k_gpu-i-1")
    long = notice(
        kind=NoticeKind.APPROVAL,
        approval_id="ap-1",
        text="why " * 2000,
        paste=(("Story", "rekindle show inc-1"), shell, link),
    )
    body = body_of(long, now=AT, limit=limit)
    assert len(body) <= limit
    assert body.startswith("why why")
    assert "rekindle approvals approve inc-1 ap-1" in body
    assert "rekindle show inc-1" in body
    assert (shell[1] in body, link[1] in body) == (True, limit > 600)


def test_what_a_library_would_log_of_a_secret_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Apprise quotes the account that it does not like in a warning."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(InvalidSettings):
        pager(f"twilio://{CHANNEL_PASSWORD}:b@c/d")
    assert CHANNEL_PASSWORD not in caplog.text


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("@everyone look", "@\u2060everyone look"),
        ("Hi @Here, @channel", "Hi @\u2060Here, @\u2060channel"),
        ("<!channel> <@U123> <#C1>", "<\u2060!channel> <\u2060@U123> <\u2060#C1>"),
        ("<https://evil.example|rekindle>", "<\u2060https://evil.example|rekindle>"),
        ("[approve](https://evil.example)", "[approve]\u2060(https://evil.example)"),
        ("a\x1b[31mb\u202ec", "a[31mbc"),
        ("@\u200beveryone", "@\u2060everyone"),
        ("ops@example.com", "ops@example.com"),
    ],
)
def test_other_people_s_words_ping_nobody_and_disguise_no_link(said: str, shown: str) -> None:
    one = notice(title=said, text=said, job_id=said, paste=())
    assert title_of(one, now=AT) == f"[page] {shown}"
    lines = body_of(one, now=AT).split("\n")
    assert (lines[0], lines[2]) == (shown, f"Job: {shown}")


def test_nothing_loads_apprise_before_a_channel_needs_it() -> None:
    program = (
        "import sys\n"
        "import app\n"
        "import chalicelib.channels.delivery.deliver, chalicelib.channels.delivery.fan_out\n"
        "import chalicelib.channels.makers\n"
        "heavy = [m for m in sys.modules if m.split('.')[0] in ('apprise', 'requests', 'slack_sdk')]\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
