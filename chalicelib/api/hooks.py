"""Inbound webhooks: alerts of other people's monitoring, authenticated by each source's own secret, as Signals.

Nothing is read out of a body before the request is known to be its source's, and a refused one stores nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from chalicelib.api.hook_auth import HookRefused, authenticate
from chalicelib.api.problems import ApiResponse, from_error, problem
from chalicelib.aws.dynamodb.hook_marks import DynamoHookMarks
from chalicelib.aws.ssm.settings import SsmSettings
from chalicelib.channels.standard_webhooks import TOLERANCE_S
from chalicelib.domain.model.errors import (
    DependencyUnavailable,
    InvalidSettings,
    MalformedEvent,
    Permanent,
    RecoveryError,
    Skip,
    UnknownEntity,
)
from chalicelib.domain.model.signal import Signal
from chalicelib.domain.notices.sources import Source, SourceKind
from chalicelib.ports.clock import Clock
from chalicelib.services.intake.intake import Intake
from chalicelib.services.reporting.outcome import Outcome, OutcomeKind

MAX_BODY_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 16  # Alertmanager's and Grafana's bodies are 4 deep
_JSON: Final = ("application/json", "application/cloudevents+json")
# Twice the tolerance: a request may be stamped so far ahead, and come again until it is so late.
_REMEMBERED: Final = timedelta(seconds=2 * TOLERANCE_S + 60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Takes alerts in."""

    book: SsmSettings
    marks: DynamoHookMarks
    intake: Intake
    clock: Clock
    report: Callable[[Outcome], None]

    def answer(self, name: str, headers: Mapping[str, str], raw: bytes) -> ApiResponse:
        """One request to /hooks/in/{name}. 200 with what became of each alert; else a problem that names the field.

        409 for a signed request that was taken in before; 503 where it should be sent again.
        """
        lower = {key.lower(): str(value) for key, value in headers.items()}
        try:
            source = self._source(name)
            body, mark = self._welcomed(source, lower, raw)
            signals = _parse(source, body, now=self.clock.now())
            taken = [self._receive(signal) for signal in signals]
            if mark is not None:
                self.marks.keep(mark, until=self.clock.now() + _REMEMBERED)
        except HookRefused as err:
            return self._refused(name, problem(err.status, str(err), at=err.field))
        except MalformedEvent as err:
            return self._refused(name, problem(400, str(err), at=err.field))
        except RecoveryError as err:
            return self._refused(name, from_error(err))
        return ApiResponse(status=200, body={"alerts": taken})

    def _source(self, name: str) -> Source:
        try:
            source = self.book.sources().get(name)
        except InvalidSettings as err:  # not the sender's fault: it shall try again
            raise DependencyUnavailable("the sources document cannot be used; see the service's log") from err
        if source is None:
            raise UnknownEntity("name: there is no source of this name")
        return source

    def _welcomed(self, source: Source, headers: Mapping[str, str], raw: bytes) -> tuple[Mapping[str, Any], str | None]:
        if len(raw) > MAX_BODY_BYTES:
            raise HookRefused("body", f"is larger than {MAX_BODY_BYTES} bytes", status=413)
        if headers.get("content-type", "").partition(";")[0].strip().lower() not in _JSON:
            raise HookRefused("content-type", f"must be {_JSON[0]}", status=415)
        try:
            names = [name for name in (source.secret, source.older_secret) if name]
            secrets = [(name, self.book.secret(name)) for name in names]
            given = authenticate(source, secrets, headers, raw, now=self.clock.now())
        except (InvalidSettings, UnknownEntity) as err:
            raise DependencyUnavailable("this source's secret cannot be used; see the service's log") from err
        mark = f"{source.name}#{given}" if given is not None else None
        if mark is not None and self.marks.is_known(mark):
            raise HookRefused("webhook-id", "this request was received before", status=409)
        return _json(raw), mark

    def _receive(self, signal: Signal) -> dict[str, Any]:
        try:
            outcome = self.intake.receive(signal)
        except Skip as skip:
            outcome = Outcome(what=OutcomeKind.DROPPED, reason=skip.reason, signal=signal.kind.value)
        except Permanent as err:
            outcome = Outcome(what=OutcomeKind.DROPPED, reason=f"{err}"[:200], signal=signal.kind.value)
        self.report(outcome)
        return {"alert": signal.evidence.get("alert"), "what": outcome.what.value, "reason": outcome.reason}

    def _refused(self, name: str, answer: ApiResponse) -> ApiResponse:
        """`name` comes from a public address: only its length is bounded."""
        reason = f"webhook refused: {answer.status}"
        self.report(
            Outcome(
                what=OutcomeKind.DROPPED,
                reason=reason,
                facts={"source": name[:64], "field": answer.body.get("field", "")},
            )
        )
        return answer


def _json(raw: bytes) -> Mapping[str, Any]:
    """The body, of bounded depth.

    Raises:
        MalformedEvent: it is no JSON object, or deeper than any that we know.
    """
    try:
        body = json.loads(raw, parse_constant=_no_number)
        is_deep = _depth(body) > MAX_DEPTH
    except RecursionError:
        is_deep = True
        body = {}
    except ValueError as err:
        raise MalformedEvent("body", "is not JSON") from err
    if is_deep:
        raise MalformedEvent("body", f"is nested more than {MAX_DEPTH} deep")
    if not isinstance(body, Mapping):
        raise MalformedEvent("body", f"must be an object, not {type(body).__name__}")
    return body


def _no_number(word: str) -> float:
    raise ValueError(word)  # NaN and Infinity are not JSON


def _depth(value: Any) -> int:
    """Level by level, without recursion."""
    depth, level = 0, [value]
    while level and depth <= MAX_DEPTH:
        depth += 1
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    return depth


def _parse(source: Source, body: Mapping[str, Any], *, now: datetime) -> list[Signal]:
    match source.kind:
        case SourceKind.ALERTMANAGER:
            from chalicelib.ingest import alertmanager

            return alertmanager.parse(body, source, now=now)
        case SourceKind.GRAFANA:
            from chalicelib.ingest import grafana

            return grafana.parse(body, source, now=now)
        case SourceKind.GENERIC:
            from chalicelib.ingest import webhook

            return webhook.parse(body, source, now=now)
