"""What the monitor in the training process says (our own bus, source rekindle.monitor).

    {"detail-type": "Rekindle Non-Finite Loss", "source": "rekindle.monitor", "resources": [],
     "detail": {"v": 1, "job_id": "lm-7b", "attempt": "lm-7b-a3", "attempt_number": 3, "rank": 0, "world_size": 16,
      "step": 41200, "at": "2026-11-20T10:00:00Z", "loss_state": "nan", "metric": "loss", "own": false, "alone": null}}
    Rekindle Monitor Started        -
    Rekindle Stall                  phase, silent_s, limit_s, stacks {rank: text}
    Rekindle Progress Resumed       silent_s
    Rekindle Checkpoint Reply       the reply of rekindle/protocol/mailbox.py, beside the common fields or as `reply`
    a report that is a reason       why; see PLAIN_REPORTS in rekindle/protocol/signals.py
    the loss and the pace of steps  see monitor_loss.py

The training process is not trusted: ids match the mailbox's own pattern, texts and numbers are bounded, `v` must be 1.

Source: rekindle/protocol/signals.py for the events' names; rekindle/protocol/mailbox.py for the reply.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from chalicelib.domain.model.errors import MalformedEvent
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.ingest.envelope import Envelope
from chalicelib.ingest.evidence import bounded, dedupe_key, one_line
from chalicelib.ingest.fields import OUR_ID, Fields
from chalicelib.ingest.monitor_common import MAX_RANKS, MAX_SECONDS, MAX_WORD_CHARS, MonitorFields, News, at_step
from chalicelib.ingest.monitor_loss import LOSS_PARSERS
from rekindle.protocol.lives import MAX_LIFE
from rekindle.protocol.mailbox import CheckpointReply
from rekindle.protocol.signals import PLAIN_REPORTS, EventType, FaultClass, PlainReport
from rekindle.protocol.wire import MAX_STACKS_CHARS, MAX_STEP, WIRE_VERSION, MailboxError

MAX_ATTEMPTS: Final = 10_000
MAX_AGE_S: Final = 30 * 86_400.0
_MAX_WHY_CHARS: Final = 8192


def parse(envelope: Envelope) -> Signal:
    """One Signal per event; a non-finite loss and a stall trigger, the others are news.

    Raises:
        MalformedEvent: names the field.
    """
    detail = envelope.detail
    if detail.whole("v", high=10**6) != WIRE_VERSION:
        raise detail.fail("v", f"is not {WIRE_VERSION}, the only version known here")
    common = _common(detail)
    news = PARSERS[envelope.detail_type](detail, common)
    return Signal(
        kind=news.kind,
        source=SignalSource.MONITOR,
        occurred_at=_occurred_at(envelope),
        dedupe_key=dedupe_key("monitor", news.kind, common.job_id, common.attempt, *news.facts),
        summary=one_line(news.summary),
        job_id=common.job_id,
        attempt=common.attempt,
        fault=news.fault,
        triggers=news.fault is not None,
        evidence=bounded(
            {
                "step": common.step,
                "rank": common.rank,
                "world_size": common.world_size,
                "attempt_number": common.attempt_number,
                "life": common.life,
                **news.evidence,
            }
        ),
    )


def _occurred_at(envelope: Envelope) -> datetime:
    """By EventBridge's clock, less the seconds that the event waited to be sent; the host's may be minutes off."""
    age_s = envelope.detail.optional_number("age_s", high=MAX_AGE_S) or 0.0
    return envelope.time - timedelta(seconds=age_s)


def _common(detail: Fields) -> MonitorFields:
    rank = detail.whole("rank", high=MAX_RANKS - 1)
    world_size = detail.whole("world_size", low=1, high=MAX_RANKS)
    if rank >= world_size:
        raise detail.fail("rank", "must be smaller than world_size")
    return MonitorFields(
        job_id=detail.text("job_id", limit=128, pattern=OUR_ID),
        attempt=detail.text("attempt", limit=128, pattern=OUR_ID),
        attempt_number=detail.whole("attempt_number", high=MAX_ATTEMPTS),
        rank=rank,
        world_size=world_size,
        step=detail.optional_whole("step", high=MAX_STEP),
        at=detail.moment("at"),
        life=detail.optional_whole("life", high=MAX_LIFE) or 0,
    )


def _started(detail: Fields, common: MonitorFields) -> News:
    """A later life than the first is the end of the one before it: `reached` is the step at which that one was."""
    reached = detail.optional_whole("reached", high=MAX_STEP)
    again = f", started again in its place as its life {common.life}" if common.life else ""
    return News(
        kind=SignalKind.MONITOR_STARTED,
        summary=f"{common.attempt}: the monitor of rank {common.rank} started {at_step(common)}{again}",
        facts=(common.life, common.rank, common.at),
        fault=FaultClass.SOFTWARE_CRASH if common.life else None,
        evidence={} if reached is None or not common.life else {"step": reached},
    )


def _non_finite(detail: Fields, common: MonitorFields) -> News:
    loss_state = detail.word("loss_state", ("nan", "inf"))
    metric = detail.optional_text("metric", limit=MAX_WORD_CHARS) or "loss"
    own, alone = _yes_or_no(detail, "own"), _yes_or_no(detail, "alone")
    who = {None: "", True: " alone", False: " and others"}[alone]
    return News(
        kind=SignalKind.NON_FINITE,
        summary=f"{common.attempt}: {metric} is {loss_state} {at_step(common)} on rank {common.rank}{who}",
        # The rank is part of the fact: one rank alone points at its hardware, all ranks at the data.
        facts=(common.rank, common.step, metric),
        fault=FaultClass.NON_FINITE,
        evidence={"loss_state": loss_state, "metric": metric, "own": own, "alone": alone},
    )


def _yes_or_no(detail: Fields, name: str) -> bool | None:
    """A truth value, or None where it is absent (or not known: the monitor then sends null)."""
    if not detail.has(name):
        return None
    value = detail.required(name)
    if not isinstance(value, bool):
        raise detail.fail(name, "must be true, false or null")
    return value


def _stall(detail: Fields, common: MonitorFields) -> News:
    phase = detail.text("phase", limit=MAX_WORD_CHARS)
    silent_s = detail.optional_number("silent_s", high=MAX_SECONDS)
    return News(
        kind=SignalKind.STALL,
        summary=f"{common.attempt}: no step for {silent_s or 0:.0f} s {at_step(common)} ({phase}), "
        f"says rank {common.rank}",
        facts=(common.rank, common.step, phase, common.at),
        fault=FaultClass.HANG,
        evidence={
            "phase": phase,
            "silent_s": silent_s,
            "limit_s": detail.optional_number("limit_s", high=MAX_SECONDS),
            "stacks": _stacks(detail),
        },
    )


def _stacks(detail: Fields) -> dict[str, str] | None:
    """Stack texts by rank; each is cut to its last characters, where the frame that hangs stands."""
    if not detail.has("stacks"):
        return None
    stacks = detail.child("stacks")
    if len(stacks.body) > MAX_RANKS:
        raise detail.fail("stacks", f"holds more than {MAX_RANKS} ranks")
    kept: dict[str, str] = {}
    for rank in list(stacks.body)[:8]:  # evidence is small; the reply object in the mailbox keeps them all
        if not (rank.isascii() and rank.isdigit() and len(rank) <= 6):
            raise detail.fail("stacks", "must be named by rank")
        kept[rank] = stacks.text(rank, limit=MAX_STACKS_CHARS)[-1000:]
    return kept


def _resumed(detail: Fields, common: MonitorFields) -> News:
    silent_s = detail.optional_number("silent_s", high=MAX_SECONDS)
    return News(
        kind=SignalKind.PROGRESS_RESUMED,
        summary=f"{common.attempt}: steps move again {at_step(common)} after {silent_s or 0:.0f} s",
        facts=(common.rank, common.step, common.at),
        fault=None,
        evidence={"silent_s": silent_s},
    )


def _plain(report: PlainReport, detail: Fields, common: MonitorFields) -> News:
    why = detail.optional_text("why", limit=_MAX_WHY_CHARS) or "no reason given"
    text = report.text.format(rank=common.rank, at_step=at_step(common), why=why)
    by = detail.optional_text("superseded_by", limit=128, pattern=OUR_ID)
    return News(
        kind=report.kind,
        summary=f"{common.attempt}: {text}",
        facts=(common.rank, common.step, common.at),
        fault=report.fault,
        evidence={"why": why, "superseded_by": by},
    )


def _reply(detail: Fields, common: MonitorFields) -> News:
    body = detail.child("reply") if detail.has("reply") else detail
    wire = {"v": WIRE_VERSION, "job_id": common.job_id, "attempt": common.attempt, "replied_at": common.at.isoformat()}
    try:
        reply = CheckpointReply.from_wire({**wire, **body.body})
    except MailboxError as err:
        raise MalformedEvent(body.at(err.field), err.problem) from err
    if (reply.job_id, reply.attempt) != (common.job_id, common.attempt):
        raise body.fail("attempt", "is not the sender's own")
    return News(
        kind=SignalKind.CHECKPOINT_REPLY,
        summary=f"{common.attempt}: checkpoint {reply.outcome} {at_step(common)}"
        f"{f': {reply.why}' if reply.why else ''}",
        facts=(reply.request_id, reply.outcome),
        fault=None,
        evidence={
            "request_id": reply.request_id,
            "outcome": reply.outcome.value,
            "saved_step": reply.step,
            "manifest": reply.manifest,
            "bytes": reply.bytes,
            "took_s": reply.took_s,
            "why": reply.why or None,
            "stacks": reply.stacks[-1000:] if reply.stacks else None,
        },
    )


PARSERS: Final[dict[str, Callable[[Fields, MonitorFields], News]]] = {
    EventType.STARTED: _started,
    EventType.NON_FINITE: _non_finite,
    EventType.STALL: _stall,
    EventType.RESUMED: _resumed,
    EventType.REPLY: _reply,
    **LOSS_PARSERS,
    **{event: partial(_plain, report) for event, report in PLAIN_REPORTS.items()},
}
