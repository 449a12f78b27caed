"""No secret leaves its place: not in the log at any level, not in an error, not in a repr.

The whole suite's output is searched as well (tests/conftest.py); here the libraries are made as loud as they can be.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from moto import mock_aws

from chalicelib.aws.ssm.settings import SsmSettings
from chalicelib.channels.apprise_channel import AppriseChannel
from chalicelib.channels.quiet import LEVELS, quieten
from chalicelib.channels.slack.blocks import Message
from chalicelib.channels.slack.web_api import SlackApi
from chalicelib.channels.webhook import Webhook
from chalicelib.domain.model.errors import DependencyUnavailable, Permanent, RecoveryError
from chalicelib.domain.notices.channels import Channels
from chalicelib.observability import Observability
from chalicelib.services.reporting.outcome import Outcome, OutcomeKind
from rekindle.console.gate import Gate
from tests.canary import CANARY, CHANNEL_PASSWORD, FORMS, SLACK_TOKEN, WEBHOOK_SECRET
from tests.notify.made import Secrets, notice
from tests.notify.receiver import Receiver
from tests.slack.fake_slack import CONVERSATION, FakeSlack


class Watch:
    def now(self) -> datetime:
        return datetime(2035, 1, 1, tzinfo=UTC)


def _holds_none(text: str) -> bool:
    return not any(form in text for form in FORMS)


@pytest.fixture
def loud(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The log at debug level, after the service has started as it does on Lambda."""
    before = {name: logging.getLogger(name).level for name in LEVELS}
    for name in LEVELS:
        logging.getLogger(name).setLevel(logging.NOTSET)
    Observability(service="rekindle", level="DEBUG")
    caplog.set_level(logging.DEBUG)
    yield caplog
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture
def ssm() -> Iterator[Any]:
    with mock_aws():
        client = boto3.client("ssm", region_name="us-west-2", aws_access_key_id="t", aws_secret_access_key="t")
        client.put_parameter(Name="/r/secrets/hook", Type="SecureString", Value=WEBHOOK_SECRET)
        yield client


def test_a_secret_is_read_without_a_trace(loud: pytest.LogCaptureFixture, ssm: Any) -> None:
    settings = SsmSettings(ssm, prefix="/r", clock=Watch())
    assert settings.secret("hook") == WEBHOOK_SECRET
    assert _holds_none(loud.text)
    assert _holds_none(repr(settings) + repr(settings._kept) + repr(vars(settings)))


@pytest.mark.may_print_secrets
def test_without_that_the_library_would_tell_it(caplog: pytest.LogCaptureFixture, ssm: Any) -> None:
    """What the test above would miss if nothing were there to be missed."""
    before = logging.getLogger("botocore").level
    logging.getLogger("botocore").setLevel(logging.DEBUG)
    try:
        caplog.set_level(logging.DEBUG)
        SsmSettings(ssm, prefix="/r", clock=Watch()).secret("hook")
        assert CANARY in caplog.text
    finally:
        logging.getLogger("botocore").setLevel(before)


def test_a_stricter_level_stays() -> None:
    logger = logging.getLogger("botocore")
    before = logger.level
    try:
        logger.setLevel(logging.ERROR)
        quieten()
        assert logger.level == logging.ERROR
    finally:
        logger.setLevel(before)


@pytest.mark.parametrize("answer", [200, 403, 429, 500, "close", "redirect"])
def test_a_webhook_and_apprise_tell_no_secret_whatever_is_answered(loud: pytest.LogCaptureFixture, answer: Any) -> None:
    path = f"/services/{CANARY}/token?key={CANARY}"
    document: dict[str, Any] = {
        "channels": {
            "hook": {"kind": "webhook", "url": "https://x.example", "signing_secret": "s", "private": True},
            "pager": {"kind": "apprise", "url_secret": "address"},
        }
    }
    with Receiver() as receiver:
        document["channels"]["hook"]["url"] = receiver.url + path
        channels = Channels.from_wire(document).channels
        address = receiver.url.replace("http://", f"json://user:{CHANNEL_PASSWORD}@") + path
        secrets = Secrets(s=WEBHOOK_SECRET, address=address)
        said = ""
        webhook = Webhook(channels["hook"], secrets, clock=Watch(), total_s=60.0)
        for channel in (webhook, AppriseChannel(channels["pager"], secrets, clock=Watch())):
            receiver.plan.extend([answer])
            try:
                channel.send(notice(), attempt=1)
            except RecoveryError as err:
                said += f"{err} {err!r}"
            said += repr(channel)
    assert len(receiver.got) >= 2
    assert _holds_none(said)
    assert _holds_none(loud.text)


def test_slack_s_token_is_told_nowhere(loud: pytest.LogCaptureFixture) -> None:
    message = Message(text="words", blocks=())
    with FakeSlack() as slack:
        api = SlackApi(lambda: SLACK_TOKEN, url=slack.url, timeout_s=60)
        api.post(CONVERSATION, message, mark="m1")
        bad = SlackApi(lambda: f"xoxb-wrong-{CANARY}", url=slack.url, timeout_s=60)
        with pytest.raises((DependencyUnavailable, Permanent)) as refused:
            bad.post(CONVERSATION, message, mark="m2")
    with pytest.raises(DependencyUnavailable) as gone:
        api.post(CONVERSATION, message, mark="m3")
    assert _holds_none(f"{refused.value!r} {gone.value!r} {api!r}")
    assert _holds_none(loud.text)


def test_the_console_s_keys_are_in_no_repr() -> None:
    assert _holds_none(repr(Gate(port=1, token=CANARY, session=CANARY)))


def test_a_log_line_is_one_line_whatever_stands_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Names and reasons from outside forge no second line, and no terminal obeys them."""
    evil = 'x"}\n{"level":"ERROR","message":"forged"}\r\n\x1b[2J\u2028'
    Observability(service="one-line", level="INFO").record(  # a name of its own: its stream is bound here
        Outcome(what=OutcomeKind.QUARANTINED, reason=evil, job_id=evil, facts={"source": evil, "field": evil})
    )
    lines = [line for line in capsys.readouterr().out.split("\n") if line.strip()]
    told = [json.loads(line) for line in lines]
    outcomes = [one for one in told if "outcome" in str(one.get("message"))]
    assert [outcome["reason"] for outcome in outcomes] == [evil]
    assert not any(one.get("message") == "forged" for one in told)
    assert "\x1b" not in "".join(lines)
