"""The way in for events: parse, complete, hand to the intake; what cannot be read goes to quarantine, once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from chalicelib.domain.model.errors import MalformedEvent, NotOurs, Permanent, Skip
from chalicelib.domain.model.signal import Signal
from chalicelib.ingest import dispatch
from chalicelib.ports.clock import Clock
from chalicelib.ports.platforms import ClusterReader
from chalicelib.ports.sweep import Quarantine
from chalicelib.services.intake.intake import Intake
from chalicelib.services.reporting.alarms import Alarms
from chalicelib.services.reporting.outcome import Outcome, OutcomeKind
from rekindle.protocol.wire import MAX_DEPTH

MAX_RAW_CHARS = 200_000  # an SQS message holds 256 KB; a longer event is kept with its end cut off, and says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingress:
    """Takes raw events in."""

    intake: Intake
    alarms: Alarms
    clusters: ClusterReader
    quarantine: Quarantine
    clock: Clock
    report: Callable[[Outcome], None]
    account: str = ""

    def take(self, function: str, raw: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Everything one event leads to. Returns the outcomes in brief, which is what the trigger answers.

        Raises:
            Retryable: the platform shall deliver the event again; nothing has been lost.
        """
        try:
            signals = self._parse(raw)
        except Skip as skip:
            return self._outcome(Outcome(what=OutcomeKind.DROPPED, reason=skip.reason))
        except Permanent as err:
            return self._outcome(self._quarantined(function, raw, err))
        outcomes: list[dict[str, Any]] = []
        now = self.clock.now()
        for signal in signals:
            # Senders name their own time, and readings that are newer overrule a claim: none is of the future.
            timely = signal if signal.occurred_at <= now else replace(signal, occurred_at=now)
            outcomes += self._outcome(self._receive(function, raw, timely))
        return outcomes

    def redrive(self, *, limit: int) -> dict[str, int]:
        """Feed quarantined events in again; one that fails again goes back as a new entry, so nothing is lost."""
        taken = again = 0
        # All are taken before the first is fed in: what goes back would otherwise be taken again, and again.
        for kept, receipt in list(self.quarantine.take(limit=limit)):
            taken += 1
            outcomes = self._redrive_one(kept)
            again += any(outcome["what"] == OutcomeKind.QUARANTINED for outcome in outcomes)
            self.quarantine.drop(receipt)
        return {"taken": taken, "quarantined_again": again}

    def _redrive_one(self, kept: Mapping[str, Any]) -> list[dict[str, Any]]:
        function, text = str(kept.get("function", "")), str(kept.get("raw", ""))
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError):
            return self._outcome(self._put_aside(function, text, MalformedEvent("event", "is not JSON")))
        return self.take(function, raw)

    def _parse(self, raw: Mapping[str, Any]) -> list[Signal]:
        try:
            signals = dispatch.parse(raw, expected_account=self.account or None)
        except NotOurs as skip:
            arn = dispatch.alarm_to_look_up(raw, skip)
            if arn is None:
                raise
            # A user's own alarm may name its run by a tag, which the event does not carry.
            tagged = dispatch.with_alarm_tags(raw, self.alarms.tags_of(arn))
            signals = dispatch.parse(tagged, expected_account=self.account or None)
        unsure = next((signal for signal in signals if signal.evidence.get("needs_groups")), None)
        if unsure is None or unsure.cluster is None:
            return signals
        # Warnings during scaling read like lost nodes; only the groups' counts tell them apart. Source:
        # docs/facts-sagemaker.md#hyperpod-events.
        moving = self.clusters.groups_in_motion(unsure.cluster)
        return dispatch.parse(raw, expected_account=self.account or None, groups_in_motion=moving)

    def _receive(self, function: str, raw: Mapping[str, Any], signal: Signal) -> Outcome:
        try:
            return self.intake.receive(self.alarms.weighed(self._completed(signal)))
        except Skip as skip:
            return Outcome(what=OutcomeKind.DROPPED, reason=skip.reason, signal=signal.kind.value)
        except Permanent as err:
            return self._quarantined(function, raw, err)

    def _completed(self, signal: Signal) -> Signal:
        """HyperPod's envelope carries nulls where the reason should be; DescribeClusterEvent has it."""
        event_id = signal.evidence.get("event_id")
        if not signal.evidence.get("needs_enrichment") or event_id is None or signal.cluster is None:
            return signal
        from chalicelib.ingest import hyperpod  # loaded only by the one function whose events need it

        answer = self.clusters.describe_event(signal.cluster, str(event_id))
        return hyperpod.enrich(signal, answer) if answer else signal

    def _quarantined(self, function: str, raw: Mapping[str, Any], err: Permanent) -> Outcome:
        return self._put_aside(function, json.dumps(_shallow(raw, MAX_DEPTH + 1), default=str), err)

    def _put_aside(self, function: str, text: str, err: Permanent) -> Outcome:
        field = getattr(err, "field", "event")
        self.quarantine.put(
            raw=text[:MAX_RAW_CHARS], function=function, error=str(err)[:500], field=field, at=self.clock.now()
        )
        return Outcome(
            what=OutcomeKind.QUARANTINED, reason=str(err)[:300], facts={"field": field, "function": function}
        )

    def _outcome(self, outcome: Outcome) -> list[dict[str, Any]]:
        self.report(outcome)
        return [
            {
                "what": outcome.what.value,
                "reason": outcome.reason,
                "incident_id": outcome.incident_id,
                "job_id": outcome.job_id,
                "signal": outcome.signal,
            }
        ]


def _shallow(value: Any, depth: int) -> Any:
    """The same to this depth, and a mark in place of what lies deeper: nothing could write that down."""
    if not isinstance(value, dict | list):
        return value
    if depth == 0:
        return "(what is nested deeper is left out)"
    if isinstance(value, list):
        return [_shallow(member, depth - 1) for member in value]
    return {name: _shallow(member, depth - 1) for name, member in value.items()}
