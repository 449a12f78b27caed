"""What comes from Slack: buttons and `/rekindle`. Signed by Slack instead of by IAM; answered within its 3 seconds.

A press is a few writes: the mark against replays, a line in the Incident's timeline with who pressed what, the order
itself, the wake-up. What becomes of it the message shows with the next change. docs/slack.md counts the calls.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from chalicelib.api.problems import ApiResponse, from_error
from chalicelib.api.slack_request import (
    ButtonPress,
    Sender,
    SlackRequestRefused,
    SlashCommand,
    authentic,
    mark_of,
    read_command,
    read_press,
)
from chalicelib.aws.dynamodb.chat_threads import DynamoChatThreads
from chalicelib.aws.ssm.settings import SsmSettings
from chalicelib.channels.outbound import post
from chalicelib.channels.slack.blocks import Button, Message
from chalicelib.channels.slack.groups import SlackGroups
from chalicelib.channels.slack.lists import ephemeral, help_message, incidents_message, status_message, text_message
from chalicelib.channels.slack.settings import slack_settings, takes_answers_at
from chalicelib.domain.model.errors import InvalidSettings, Permanent, RecoveryError, Skip, UnknownEntity
from chalicelib.domain.model.incident import TimelineEntry
from chalicelib.domain.notices.channels import SlackConfig
from chalicelib.ports.clock import Clock
from chalicelib.ports.incidents import IncidentQuery, IncidentStore, Listings
from chalicelib.services.operator.approvals import Approvals
from chalicelib.services.operator.holds import Holds
from chalicelib.services.operator.orders import Orders
from chalicelib.services.operator.switches import Switches
from chalicelib.services.reporting.outcome import Outcome, OutcomeKind

_LOG = logging.getLogger(__name__)

ANSWER_S: Final = 1.0  # for the reply to a press; the press itself is recorded by then
SHOWN: Final = 10

_LABELS: Final = {
    Button.APPROVE: "Approve",
    Button.DENY: "Deny",
    Button.CANCEL: "Cancel this recovery",
    Button.PAUSE: "Pause all recoveries",
    Button.RESUME: "Lift the pause",
}
_DONE: Final = {
    Button.APPROVE: "Approved. Rekindle does it now.",
    Button.DENY: "Denied. It is not done: the Incident is closed, and everything is left as it is.",
    Button.CANCEL: "The recovery ends now. What has been done stays done.",
    Button.PAUSE: "All recoveries are paused.",
    Button.RESUME: "The pause is lifted.",
}
# What guards may hold: the words where one does.
_HELD: Final = {Button.APPROVE: "Approved.", Button.DENY: "Denied.", Button.RESUME: "The pause is lifted."}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackHooks:
    """The two addresses that Slack calls."""

    book: SsmSettings
    presses: DynamoChatThreads
    groups: SlackGroups
    store: IncidentStore
    listings: Listings
    approvals: Approvals
    orders: Orders
    switches: Switches
    holds: Holds
    clock: Clock
    report: Callable[[Outcome], None]
    answer_s: float = ANSWER_S

    def answer(self, operation: str, headers: Mapping[str, str], raw: bytes) -> ApiResponse:
        """`operation` is slack_actions or slack_commands."""
        lower = {str(name).lower(): str(value) for name, value in headers.items()}
        try:
            settings = self._admitted(lower, raw)
            if operation == "slack_commands":
                return self._commanded(read_command(raw), settings)
            return self._pressed(read_press(raw), settings, mark_of(lower))
        except SlackRequestRefused as err:
            self.report(
                Outcome(
                    what=OutcomeKind.DROPPED, reason=f"a request to {operation} was refused", facts={"why": err.why}
                )
            )
            return err.answer()
        except RecoveryError as err:
            return from_error(err)

    # --- who is there ---

    def _admitted(self, headers: Mapping[str, str], raw: bytes) -> tuple[SlackConfig, ...]:
        """The channels of the app that sent it. Raises SlackRequestRefused."""
        now = self.clock.now()
        known: dict[str, list[SlackConfig]] = {}
        for config in self.book.channels().channels.values():
            if isinstance(config, SlackConfig) and config.signing_secret:
                try:
                    settings = slack_settings(config)
                    known.setdefault(self.book.secret(settings.signing_secret), []).append(settings)
                except (InvalidSettings, UnknownEntity) as err:
                    _LOG.warning("a Slack channel cannot be used", extra={"channel": config.name, "error": str(err)})
        secret = authentic(headers, raw, tuple(known), now=now)
        if not self.presses.is_first(mark_of(headers), now=now):
            raise SlackRequestRefused(409, "Not applicable", "this request was received before")
        return tuple(known[secret])

    def _who_allows(self, sender: Sender, channels: tuple[SlackConfig, ...]) -> SlackConfig | None:
        """The channel whose settings let this one press; user groups are asked for last, because that takes a call."""
        for settings in channels:
            if sender.user in settings.users or sender.conversation in settings.channels:
                return settings
        for settings in channels:
            for group in settings.groups:
                try:
                    if sender.user in self.groups.members(settings, group):
                        return settings
                except RecoveryError as err:  # no access while Slack cannot be asked
                    _LOG.warning("a user group cannot be read", extra={"group": group, "error": str(err)})
        return None

    # --- buttons ---

    def _pressed(self, pressed: ButtonPress, channels: tuple[SlackConfig, ...], mark: str) -> ApiResponse:
        sender = pressed.sender
        settings = self._who_allows(sender, channels)
        if settings is None:
            self._refused(sender, pressed.press.value)
            self._answer_press(
                pressed, channels[0], text_message(f"You may not press {_LABELS[pressed.press]}: {_NOT_ALLOWED}")
            )
            return _taken()
        try:
            self.report(self._order(pressed, mark))
            reply = text_message(self._done(pressed))
        except Skip as skipped:
            reply = text_message(f"Nothing was done: {skipped.reason}.")
        except Permanent as err:
            reply = text_message(f"Nothing was done: {err}")
        self._answer_press(pressed, settings, reply)
        return _taken()

    def _order(self, pressed: ButtonPress, mark: str) -> Outcome:
        """First the line that says who pressed what, then the order; both are safe to repeat under this mark."""
        who, key = pressed.sender.who, f"slack:{mark}"
        incident = self.store.load(pressed.incident_id).incident
        asked = next(
            (approval.what for approval in incident.approvals if approval.approval_id == pressed.approval_id), ""
        )
        text = f"{who} pressed {_LABELS[pressed.press]} in Slack" + (f": {asked}" if asked else "")
        entry = TimelineEntry(
            at=self.clock.now(), phase=incident.phase, rule="slack.pressed", text=text, facts={"who": who}
        )
        self.store.append(incident.incident_id, token=f"slack-{mark}", entry=entry)
        match pressed.press:
            case Button.APPROVE | Button.DENY:
                answer = "approve" if pressed.press is Button.APPROVE else "deny"
                return self.approvals.answer(incident.incident_id, pressed.approval_id, answer=answer, who=who, key=key)
            case Button.CANCEL:
                return self.orders.cancel(incident.incident_id, who=who, key=key)
            case Button.PAUSE | Button.RESUME:
                why = f"pressed at {incident.incident_id}"
                return self.switches.set_pause(pressed.press is Button.PAUSE, who=who, why=why)

    def _done(self, pressed: ButtonPress) -> str:
        """What was ordered, and what holds it now."""
        if pressed.press not in _HELD:
            return _DONE[pressed.press]
        try:
            held = [hold.text for hold in self.holds.of_incident(pressed.incident_id, is_order=False)]
        except RecoveryError:
            return f"{_HELD[pressed.press]} Whether something holds it now is not known."
        if not held:
            return _DONE[pressed.press]
        return " ".join([_HELD[pressed.press], *(f"Held now: {text}." for text in held)])

    def _answer_press(self, pressed: ButtonPress, settings: SlackConfig, message: Message) -> None:
        """Shown only to the person who pressed. Lost where Slack is slow; the press counts all the same."""
        if not takes_answers_at(pressed.response_url, settings.api_url):
            return
        body = json.dumps(ephemeral(message)).encode()
        is_here = settings.api_url.startswith("http://")
        try:
            post(
                pressed.response_url, body, {"Content-Type": "application/json"}, private=is_here, total_s=self.answer_s
            )
        except RecoveryError as err:
            _LOG.warning("the reply to a press was not delivered", extra={"error": str(err)})

    # --- commands ---

    def _commanded(self, command: SlashCommand, channels: tuple[SlackConfig, ...]) -> ApiResponse:
        sender = command.sender
        is_home = any(sender.conversation == settings.channel for settings in channels)
        if command.word == "help":
            return _reply(help_message())
        if command.word in ("status", "incidents") and is_home:
            return _reply(self._open_work(command.word))
        if self._who_allows(sender, channels) is None:
            self._refused(sender, command.word)
            return _reply(text_message(f"You may not do that: {_NOT_ALLOWED}"))
        match command.word:
            case "status" | "incidents":
                return _reply(self._open_work(command.word))
            case "pause":
                self.report(self.switches.set_pause(True, who=sender.who, why=command.rest or "ordered in Slack"))
                return _reply(text_message(_DONE[Button.PAUSE]))
            case "resume" | "unpause":
                self.report(self.switches.set_pause(False, who=sender.who, why=command.rest))
                return _reply(text_message(_DONE[Button.RESUME]))
            case _:
                return _reply(help_message())

    def _open_work(self, word: str) -> Message:
        wanted = IncidentQuery(is_open=True)
        newest = self.listings.incidents(wanted, limit=SHOWN).incidents
        count = max(self.listings.open_incidents(), len(newest))
        if word == "incidents":
            return incidents_message(newest, open_count=count)
        jobs = self.listings.active_jobs()
        return status_message(self.switches.read(), open_count=count, active_jobs=jobs, newest=newest)

    def _refused(self, sender: Sender, what: str) -> None:
        facts = {"who": sender.who, "pressed": what, "conversation": sender.conversation}
        self.report(Outcome(what=OutcomeKind.DROPPED, reason="a person in Slack who may not", facts=facts))


_NOT_ALLOWED: Final = "the channels document does not name you, a group of yours or this channel (docs/slack.md)."


def _taken() -> ApiResponse:
    """Slack wants an empty answer to a press."""
    return ApiResponse(status=200, body={})


def _reply(message: Message) -> ApiResponse:
    return ApiResponse(status=200, body=ephemeral(message))
