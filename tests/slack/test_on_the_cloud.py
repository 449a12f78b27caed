"""The whole way on the embedded cloud: a run dies, Slack is asked, a button is pressed, the run comes back."""

from __future__ import annotations

import hashlib
import hmac
import json
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from chalice.config import Config
from chalice.local import LocalGateway

from app import app
from chalicelib.domain.model.incident import Phase
from localcloud.cloud import STACK
from localcloud.worlds.recoveries import Script, World, crash_at, world
from tests.canary import CANARY, SLACK_SIGNING_SECRET, SLACK_TOKEN
from tests.slack.fake_slack import CONVERSATION, FakeSlack, Mood, Posted

ASKS = {"approvals": {"rules": [{"when": {"actions": ["ResubmitJob"]}, "deadline_s": 7200, "default": "deny"}]}}
ADA = "U0ADA00"


def settle(w: World, slack: FakeSlack) -> None:
    """The channel's document and secrets, as a person sets them."""
    slack.now = w.cloud.clock.now
    ssm = w.cloud.client("ssm")
    entry = {
        "kind": "slack",
        "channel": CONVERSATION,
        "token_secret": "slack-token",
        "signing_secret": "slack-signing",
        "api_url": slack.url,
        "users": [ADA],
    }
    document = {"channels": {"ops": entry}, "routes": [{"to": ["ops"]}]}
    ssm.put_parameter(Name=f"/{STACK}/channels", Value=json.dumps(document), Type="String")
    for name, value in (("slack-token", SLACK_TOKEN), ("slack-signing", SLACK_SIGNING_SECRET)):
        ssm.put_parameter(Name=f"/{STACK}/secrets/{name}", Value=value, Type="SecureString")


def call(w: World, path: str, form: dict[str, str], **changes: str) -> dict[str, Any]:
    """Slack calls; the answer as API Gateway would send it."""
    raw = urlencode(form).encode()
    timestamp = str(int(w.cloud.clock.now().timestamp()))
    digest = hmac.new(SLACK_SIGNING_SECRET.encode(), f"v0:{timestamp}:".encode() + raw, hashlib.sha256).hexdigest()
    headers = {
        "content-type": "application/x-www-form-urlencoded",
        "x-slack-request-timestamp": timestamp,
        "x-slack-signature": f"v0={digest}",
    }
    answer: dict[str, Any] = LocalGateway(app, Config()).handle_request("POST", path, headers | changes, raw)
    return answer


def press(w: World, slack: FakeSlack, root: Posted, action_id: str) -> dict[str, Any]:
    """Somebody presses a button that the message shows."""
    (button,) = [
        element
        for block in root.states[-1]["blocks"]
        if block["type"] == "actions"
        for element in block["elements"]
        if element["action_id"] == action_id
    ]
    payload = {
        "type": "block_actions",
        "user": {"id": ADA, "username": "ada"},
        "channel": {"id": CONVERSATION},
        "container": {"type": "message", "channel_id": CONVERSATION},
        "response_url": slack.response_url,
        "actions": [{"action_id": button["action_id"], "value": button["value"], "type": "button"}],
    }
    return call(w, "/hooks/slack/actions", {"payload": json.dumps(payload)})


@pytest.mark.long
def test_a_run_comes_back_after_somebody_has_pressed_approve(slack: FakeSlack) -> None:
    with world(policies={"careful": ASKS}) as w:
        settle(w, slack)
        moods = (Mood(closes=True, takes=True), Mood(status=429, retry_after="20"), Mood(status=500))
        slack.next("chat.postMessage", *moods)
        w.submit(scripts=(Script(faults=(crash_at(35),)),), policy="careful")
        w.run_until(lambda: bool(slack.roots()) and "rekindle_approve" in slack.roots()[0].words)
        (root,) = slack.roots()
        assert len(w.jobs()) == 1  # nothing is submitted before a person has said so
        answer = press(w, slack, root, "rekindle_approve")
        assert (answer["statusCode"], answer["body"]) == (200, "")
        incident = w.recover()
        w.run_until(lambda: "recovered" in root.text, limit=timedelta(hours=2))
        assert incident.phase is Phase.RECOVERED
        assert incident.approvals[0].by == f"slack:{ADA} (ada)"
        story = [entry.text for entry in w.service.look.store.timeline(incident.incident_id)]
        assert any(text.startswith(f"slack:{ADA} (ada) pressed Approve in Slack") for text in story)
        assert slack.roots() == [root]
        said = [reply.text for reply in slack.replies(root)]
        assert len(said) == len(set(said))
        assert "rekindle_approve" not in root.words


def test_the_hooks_are_reached_through_the_app_and_closed_to_all_others(slack: FakeSlack) -> None:
    with world() as w:
        settle(w, slack)
        form = {"user_id": ADA, "channel_id": CONVERSATION, "text": "pause maintenance", "user_name": "ada"}
        assert "paused" in call(w, "/hooks/slack/commands", form)["body"]
        assert w.service.registry.is_paused()
        forged = call(w, "/hooks/slack/commands", form | {"text": CANARY}, **{"x-slack-signature": "v0=" + "0" * 64})
        assert forged["statusCode"] == 401
        assert json.loads(forged["body"])["title"] == "Not authenticated"
        other = call(w, "/hooks/slack/commands", form, **{"content-type": "application/json"})
        assert other["statusCode"] == 415
        got = LocalGateway(app, Config()).handle_request("GET", "/hooks/slack/commands", {}, b"")
        assert got["statusCode"] in (403, 405)
