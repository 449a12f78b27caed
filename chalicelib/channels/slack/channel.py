"""The Slack channel: one message per Incident, kept up to date; what people must read goes into its thread.

A notice only says "look at this Incident": what the message shows is read again each time, so that deliveries in any
order end in the newest state. One delivery at a time works on a message (Threads.take). When the answer to a post got
lost, the lease is left to run out, and then the message is looked for before it is posted again.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, TypeVar

from chalicelib.aws.dynamodb.chat_threads import DynamoChatThreads
from chalicelib.channels.channel import RetryLater
from chalicelib.channels.plain_text import is_late
from chalicelib.channels.slack.blocks import Message, incident_message, reply_message
from chalicelib.channels.slack.digest import digest_message
from chalicelib.channels.slack.visit import LEASE, ThreadDelivery, released_at_exit
from chalicelib.channels.slack.web_api import OutcomeUnknown, Refused, SlackApi
from chalicelib.domain.model.errors import DependencyUnavailable, RecoveryError, UnknownEntity, VersionConflict
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.urgency import Severity
from chalicelib.domain.notices.threads import LatestNotice, Post, Thread
from chalicelib.domain.reporting.ledger import IncidentLedger
from chalicelib.ports.clock import Clock
from chalicelib.ports.incidents import IncidentStore
from chalicelib.ports.notices import Address, Notice, NoticeKind

log = logging.getLogger(__name__)

DIGEST_EVERY: Final = timedelta(seconds=10)
SKEW: Final = timedelta(minutes=5)  # between our clock and Slack's, when a lost post is looked for
_CLOCKS: Final = timedelta(seconds=2)  # between the clocks of two functions
_BUSY_S: Final = 15.0
_RACES: Final = 8
_Answer = TypeVar("_Answer")

# Its text alone is sent where Slack takes no blocks of ours; the notice still arrives.
_UNFIT: Final = frozenset({"invalid_blocks", "invalid_blocks_format", "msg_blocks_too_long", "msg_too_long"})
# The message is gone, or may not be edited any more: the next one takes its place.
_LOST: Final = frozenset({"message_not_found", "cant_update_message", "edit_window_closed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackChannel:
    """channels.channel.Channel over one conversation of Slack's."""

    name: str
    conversation: str
    api: SlackApi
    threads: DynamoChatThreads
    incidents: IncidentStore
    clock: Clock
    can_press: bool
    ledger: Callable[[Incident], IncidentLedger] | None = None
    console_url: str = ""

    def send(self, notice: Notice, *, attempt: int) -> None:  # noqa: ARG002  the protocol's
        """See channels.channel.Channel. `attempt` is not needed: what was posted is on record, or is looked for."""
        if not notice.incident_id:
            self._alone(notice)
            return
        thread = self.threads.peek(self.name, notice.incident_id)
        if thread.root is None and not thread.digest and not self._is_known(notice.incident_id):
            self._alone(notice)
            return
        if not thread.digest:
            if thread.root is None and notice.kind is NoticeKind.CHANGE:
                return  # no notice of this Incident was sent here, so it has no followers here
            thread = self._about(notice)
        if thread.digest:
            # A digest that was read before this Incident became a part of it does not show it.
            self._digest(thread.digest, max(notice.at, thread.shown_at or notice.at))

    # --- an Incident ---

    def _about(self, notice: Notice) -> Thread:
        """Tell of an Incident: in its own message, unless too many began at once. The thread as it stands then."""
        visit = self._visit(notice.incident_id)
        with released_at_exit(visit):
            if visit.thread.digest:
                return visit.thread
            digest = self._storm() if visit.thread.root is None else ""
            if digest:
                now = self.clock.now()
                self.threads.fold(self.name, digest, notice.incident_id, now=now)
                visit.thread = replace(visit.thread, digest=digest, shown_at=now)
            else:
                self._show(visit, notice)
        return visit.thread

    def _show(self, visit: ThreadDelivery, notice: Notice) -> None:
        """The Incident's own message, then the reply that this notice is worth."""
        token = _short(notice.token)
        thread = _with_latest(visit.thread, notice)
        visit.thread = thread
        if thread.root is None or not thread.root.ts:
            self._root(visit, token, notice.address)
        incident = self._refresh(visit, notice)
        if notice.kind is not NoticeKind.CHANGE and _is_due(visit.thread, token):
            self._reply(visit, notice, token, is_loud=_is_loud(notice, incident))

    def _root(self, visit: ThreadDelivery, token: str, address: Address | None) -> None:
        """Post it, unless a post whose answer was lost is found. What it says first needs no reply."""
        thread = visit.thread
        if thread.root is not None:
            found = self._find(visit, thread.conversation or self.conversation, thread.root.asked_at, thread.key)
            if found is not None:
                conversation = thread.conversation or self.conversation
                root = replace(thread.root, ts=found)
                thread = replace(thread, root=root, conversation=conversation, shown=-1)
                visit.keep(thread.with_reply(root.of, root))
                return
        incident = self.incidents.load(thread.key).incident
        message = self._message(incident, thread.latest, address)
        self._post_root(visit, message, token)
        thread = replace(visit.thread, shown=incident.version, shown_at=self.clock.now())
        visit.thread = thread.with_reply(token, thread.root)

    def _post_root(self, visit: ThreadDelivery, message: Message, token: str = "") -> None:
        asked = Post(asked_at=self.clock.now(), of=token)
        before = visit.thread
        visit.keep(replace(before, root=asked, conversation=self.conversation))
        try:
            conversation, ts = self._fitting(
                visit, message, lambda content: self.api.post(self.conversation, content, mark=self._mark(before.key))
            )
        except OutcomeUnknown:
            raise
        except Exception:
            visit.thread = replace(before, root=None)  # it is certain that nothing was posted
            raise
        visit.keep(replace(visit.thread, root=replace(asked, ts=ts), conversation=conversation))

    def _refresh(self, visit: ThreadDelivery, notice: Notice) -> Incident:
        """Show the newest state, read under the lease: an older one can never come after it."""
        read_at = self.clock.now()
        incident = self.incidents.load(visit.thread.key).incident
        thread = visit.thread
        if thread.root is None or (incident.version <= thread.shown and notice.kind is NoticeKind.CHANGE):
            return incident
        if incident.version <= thread.shown and thread.posted(_short(notice.token)) is not None:
            return incident
        message = self._message(incident, thread.latest, notice.address)
        try:
            self._update(visit, message)
        except Refused as err:
            if err.code not in _LOST:
                raise
            visit.thread = replace(thread, root=None, shown=-1, replies=())
            if notice.kind is not NoticeKind.CHANGE:  # else a person has deleted it, and there is no news to send
                self._root(visit, _short(notice.token), notice.address)
            return incident
        visit.keep(replace(visit.thread, shown=incident.version, shown_at=read_at))
        return incident

    def _message(self, incident: Incident, newest: LatestNotice | None, address: Address | None) -> Message:
        """The Incident as it stands; of one that is over, what it took and cost."""
        ledger = None
        if self.ledger is not None and not incident.is_open:
            try:
                ledger = self.ledger(incident)
            except RecoveryError as err:  # the notice itself must arrive
                log.warning("the ledger of %s cannot be read: %s", incident.incident_id, err)
        return incident_message(
            incident,
            latest=newest,
            can_press=self.can_press,
            ledger=ledger,
            console_url=self.console_url,
            address=address,
        )

    def _update(self, visit: ThreadDelivery, message: Message) -> None:
        thread = visit.thread
        root = thread.root
        if root is None:
            raise RetryLater("the message is not there yet", retry_after_s=LEASE.total_seconds())
        self._fitting(
            visit,
            message,
            lambda content: self.api.update(thread.conversation, root.ts, content, mark=self._mark(thread.key)),
        )

    def _reply(self, visit: ThreadDelivery, notice: Notice, token: str, *, is_loud: bool) -> None:
        thread, root = visit.thread, visit.thread.root
        if root is None:
            return
        mark = self._mark(thread.key, token)
        known = thread.posted(token)
        if known is not None:
            found = self._find(visit, thread.conversation, known.asked_at, thread.key, token, root.ts)
            if found is not None:
                visit.thread = thread.with_reply(token, replace(known, ts=found))
                return
        asked = Post(asked_at=self.clock.now())
        visit.keep(thread.with_reply(token, asked))
        message = self._notice_message(notice)
        try:
            _, ts = self._fitting(
                visit,
                message,
                lambda content: self.api.post(
                    thread.conversation, content, mark=mark, thread=root.ts, broadcast=is_loud
                ),
            )
        except OutcomeUnknown:
            raise
        except Exception:
            visit.thread = thread.with_reply(token, None)
            raise
        visit.thread = visit.thread.with_reply(token, replace(asked, ts=ts))

    # --- many Incidents ---

    def _storm(self) -> str:
        """Whether this Incident, new to the channel, is one too many: the digest's key, or empty."""
        for _ in range(_RACES):
            before = self.threads.weather(self.name)
            after, digest = before.admit(now=self.clock.now())
            if after == before:
                return digest
            try:
                self.threads.set_weather(self.name, after)
            except VersionConflict:
                continue
            return digest
        raise RetryLater("many Incidents begin at once", retry_after_s=2)

    def _digest(self, key: str, at: datetime) -> None:
        """Bring the digest up to date, unless it was read after `at` already; at most every DIGEST_EVERY."""
        if self._is_shown(self.threads.peek(self.name, key), at):
            return
        visit = self._visit(key)
        with released_at_exit(visit):
            thread = visit.thread
            if self._is_shown(thread, at):
                return
            now = self.clock.now()
            began_at = thread.root.asked_at if thread.root is not None else now
            message = digest_message(self.threads.folded(self.name, key), began_at=began_at, can_press=self.can_press)
            if thread.root is not None and not thread.root.ts:
                found = self._find(visit, self.conversation, thread.root.asked_at, key)
                root = None if found is None else replace(thread.root, ts=found)
                visit.thread = replace(thread, root=root, conversation=self.conversation)
            if visit.thread.root is None:
                self._post_root(visit, message)
            else:
                self._update(visit, message)
            visit.thread = replace(visit.thread, shown_at=now)

    def _is_shown(self, digest: Thread, at: datetime) -> bool:
        """Raises RetryLater where the digest is to be brought up to date, but not yet."""
        if digest.shown_at is None:
            return False
        if digest.shown_at > at + _CLOCKS:
            return True
        if self.clock.now() - digest.shown_at < DIGEST_EVERY:
            raise RetryLater("the digest was brought up to date just now", retry_after_s=DIGEST_EVERY.total_seconds())
        return False

    # --- no Incident ---

    def _alone(self, notice: Notice) -> None:
        if notice.kind is NoticeKind.CHANGE:
            return
        key = f"notice-{_short(notice.token)}"
        visit = self._visit(key)
        with released_at_exit(visit):
            root = visit.thread.root
            if root is not None and not root.ts:
                found = self._find(visit, self.conversation, root.asked_at, key)
                root = None if found is None else replace(root, ts=found)
                visit.thread = replace(visit.thread, root=root, conversation=self.conversation)
            if root is None:
                self._post_root(visit, self._notice_message(notice))

    # --- parts ---

    def _notice_message(self, notice: Notice) -> Message:
        late_of = notice.at if is_late(notice, now=self.clock.now()) else None
        return reply_message(notice.title, notice.text, paste=notice.paste, late_of=late_of)

    def _visit(self, key: str) -> ThreadDelivery:
        try:
            return ThreadDelivery(self.threads, self.clock, self.name, key)
        except DependencyUnavailable as err:
            raise RetryLater(f"{err}", retry_after_s=_BUSY_S) from err

    def _is_known(self, incident_id: str) -> bool:
        try:
            self.incidents.load(incident_id)
        except UnknownEntity:
            return False
        return True

    def _mark(self, key: str, token: str = "") -> str:
        return f"{self.name}/{key}/{token}" if token else f"{self.name}/{key}"

    def _find(
        self, visit: ThreadDelivery, conversation: str, asked_at: datetime, key: str, token: str = "", thread: str = ""
    ) -> str | None:
        """A post whose answer was lost. Where the app may not read the conversation, a double is the lesser harm."""
        visit.must_last(self.api.timeout)
        try:
            return self.api.find(conversation, mark=self._mark(key, token), since=asked_at - SKEW, thread=thread)
        except Refused:
            return None

    def _fitting(self, visit: ThreadDelivery, message: Message, send: Callable[[Message], _Answer]) -> _Answer:
        visit.must_last(self.api.timeout)
        try:
            return send(message)
        except Refused as err:
            if err.code not in _UNFIT or not message.blocks:
                raise
        visit.must_last(self.api.timeout)
        return send(replace(message, blocks=()))


def _with_latest(thread: Thread, notice: Notice) -> Thread:
    if notice.kind is NoticeKind.CHANGE or (thread.latest is not None and thread.latest.at > notice.at):
        return thread
    return replace(thread, latest=LatestNotice(title=notice.title, text=notice.text, at=notice.at, paste=notice.paste))


def _is_loud(notice: Notice, incident: Incident) -> bool:
    """Whether the whole channel is to see it. A late question that was answered meanwhile mentions no one."""
    if notice.kind is not NoticeKind.APPROVAL:
        return notice.severity is Severity.PAGE
    asked = next((approval for approval in incident.approvals if approval.approval_id == notice.approval_id), None)
    return asked is None or (incident.is_open and asked.is_pending)


def _is_due(thread: Thread, token: str) -> bool:
    known = thread.posted(token)
    return known is None or not known.ts


def _short(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()[:16]
