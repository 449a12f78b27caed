"""A request that says it is from Slack: is it, is it fresh, is it the first of its kind, and what does it ask.

Nothing is read out of a body before its signature has been found right, and a refused request leaves nothing behind but
a log line without it. Source: docs.slack.dev, verifying requests from Slack; block_actions payload; slash commands.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import parse_qs

from chalicelib.api.problems import PROBLEM_JSON, ApiResponse
from chalicelib.channels.slack.blocks import Button, read_value

MAX_BODY_BYTES: Final = 128 * 1024  # a press carries the whole message that it was made in
MAX_AGE_S: Final = 300
MAX_FIELDS: Final = 64
FORM: Final = "application/x-www-form-urlencoded"
_TIMESTAMP: Final = re.compile(r"[0-9]{1,12}\Z")
_SIGNATURE: Final = re.compile(r"v0=[0-9a-f]{64}\Z")
_ID: Final = re.compile(r"[A-Z0-9]{2,24}\Z")
_HIDDEN: Final = re.compile(r"[^ -~]")


class SlackRequestRefused(Exception):
    """A request that is turned away: `status` is the 4xx it gets, and the text says why, without a word of the body."""

    def __init__(self, status: int, title: str, why: str) -> None:
        super().__init__(why)
        self.status, self.title, self.why = status, title, why

    def answer(self) -> ApiResponse:
        """As problem+json."""
        body = {"type": "about:blank", "title": self.title, "status": self.status, "detail": self.why}
        return ApiResponse(status=self.status, body=body, headers={"Content-Type": PROBLEM_JSON})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Who it is from. `name` is for display only: its owner can change it."""

    user: str
    name: str
    conversation: str

    @property
    def who(self) -> str:
        """As it stands in the timeline."""
        return f"slack:{self.user} ({self.name})" if self.name else f"slack:{self.user}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ButtonPress:
    """A button of ours."""

    sender: Sender
    press: Button
    incident_id: str
    approval_id: str
    response_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlashCommand:
    """`/rekindle word rest`."""

    sender: Sender
    word: str
    rest: str


def mark_of(headers: Mapping[str, str]) -> str:
    """Equal for copies of one request. A signature holds its time and its body, so no two requests share one."""
    return hashlib.sha256(headers.get("x-slack-signature", "").encode()).hexdigest()[:32]


def authentic(headers: Mapping[str, str], raw: bytes, secrets: Sequence[str], *, now: datetime) -> str:
    """The secret that the request is signed with. `headers` have names in lower case.

    Raises:
        SlackRequestRefused: too large, of another content type, not signed, signed with another secret, late, or from
            the future.
    """
    if len(raw) > MAX_BODY_BYTES:
        raise SlackRequestRefused(413, "Too large", f"larger than {MAX_BODY_BYTES} bytes")
    if headers.get("content-type", "").split(";")[0].strip().lower() != FORM:
        raise SlackRequestRefused(415, "Not a form", f"must be {FORM}")
    timestamp, signature = headers.get("x-slack-request-timestamp", ""), headers.get("x-slack-signature", "")
    # slack_sdk's verifier takes these as given and fails in its own ways on what is no number or not ASCII.
    if not _TIMESTAMP.match(timestamp) or not _SIGNATURE.match(signature):
        raise _unsigned("the request is not signed as Slack signs")
    if abs(now.timestamp() - int(timestamp)) > MAX_AGE_S:
        raise _unsigned(f"the request is more than {MAX_AGE_S} seconds away from now")
    found = next((secret for secret in secrets if _is_signed(raw, timestamp, signature, secret, now)), None)
    if found is None:
        raise _unsigned("the signature is not ours")
    return found


def read_press(raw: bytes) -> ButtonPress:
    """The button in a body that has been found authentic. Raises SlackRequestRefused."""
    try:
        payload = json.loads(_form(raw)["payload"])
        if payload["type"] != "block_actions":
            raise _unreadable("payload.type")
        (action,) = payload["actions"]
        incident_id, approval_id = read_value(_text(action, "value"))
        sender = Sender(
            user=_id(payload["user"], "id"),
            name=_shown(payload["user"].get("username") or payload["user"].get("name")),
            conversation=_id(payload.get("channel") or payload["container"], "id", "channel_id"),
        )
        return ButtonPress(
            sender=sender,
            press=Button(_text(action, "action_id")),
            incident_id=_bounded(incident_id),
            approval_id=_bounded(approval_id),
            response_url=str(payload.get("response_url") or ""),
        )
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        raise _unreadable("payload") from None


def read_command(raw: bytes) -> SlashCommand:
    """The slash command in a body that has been found authentic. Raises SlackRequestRefused."""
    try:
        form = _form(raw)
        words = form.get("text", "").split()
        return SlashCommand(
            sender=Sender(
                user=_id(form, "user_id"), name=_shown(form.get("user_name")), conversation=_id(form, "channel_id")
            ),
            word=words[0].lower()[:32] if words else "help",
            rest=" ".join(words[1:])[:200],
        )
    except (KeyError, ValueError, TypeError):
        raise _unreadable("command") from None


class _FixedClock:
    """The time that slack_sdk's verifier goes by."""

    def __init__(self, now: datetime) -> None:
        self._now = now

    def now(self) -> float:
        return self._now.timestamp()


def _is_signed(raw: bytes, timestamp: str, signature: str, secret: str, now: datetime) -> bool:
    from slack_sdk.signature import SignatureVerifier  # 80 ms, which no other route is to pay

    verifier = SignatureVerifier(secret, clock=_FixedClock(now))  # type: ignore[arg-type]  # only its now() is used
    try:
        return verifier.is_valid(raw, timestamp, signature)
    except UnicodeDecodeError:  # Slack's bodies are ASCII
        return False


def _unsigned(why: str) -> SlackRequestRefused:
    return SlackRequestRefused(401, "Not authenticated", why)


def _unreadable(what: str) -> SlackRequestRefused:
    return SlackRequestRefused(400, "Bad request", f"{what}: cannot be read")


def _form(raw: bytes) -> dict[str, str]:
    fields = parse_qs(raw.decode(), keep_blank_values=True, strict_parsing=True, max_num_fields=MAX_FIELDS)
    return {name: values[-1] for name, values in fields.items()}


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body[name]
    if not isinstance(value, str):
        raise TypeError(name)
    return value


def _id(body: Mapping[str, Any], *names: str) -> str:
    value = _text(body, next(name for name in names if name in body) if any(n in body for n in names) else names[0])
    if not _ID.match(value):
        raise ValueError(names[0])
    return value


def _bounded(value: str) -> str:
    if len(value) > 200 or _HIDDEN.search(value):
        raise ValueError("value")
    return value


def _shown(value: object) -> str:
    return _HIDDEN.sub("", str(value or ""))[:60]
