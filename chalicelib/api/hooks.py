"""Inbound webhooks: alerts of other people's monitoring, authenticated by each source's own secret, as Signals.

Nothing is read out of a body before the request is known to be its source's, and a refused one stores nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from chalicelib.api.hook_auth import HookRefused, authenticate
from chalicelib.api.json_body import read_json
from chalicelib.api.problems import ApiResponse, from_error, problem
from chalicelib.aws.dynamodb.small_items import DynamoHookMarks
from chalicelib.aws.ssm.settings import SsmSettings
from chalicelib.channels.standard_webhooks import TOLERANCE_S
from chalicelib.domain.model.errors import (
    DependencyUnavailable,
    InvalidRequest,
    InvalidSettings,
    MalformedEvent,
    Permanent,
    RecoveryError,
    Skip,
    UnknownEntity,
)
from chalicelib.domain.model.signal import Signal
from chalicelib.domain.notices.sources import Source
from chalicelib.ports.clock import Clock
from chalicelib.services.intake.intake import Intake
from chalicelib.services.reporting.outcome import Outcome, OutcomeKind

MAX_BODY_BYTES: Final = 256 * 1024
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
        from chalicelib.ingest.alerts import PARSERS  # only here: most requests to the API are no webhook

        lower = {key.lower(): str(value) for key, value in headers.items()}
        try:
            source = self._source(name)
            body, mark = self._welcomed(source, lower, raw)
            signals = PARSERS[source.kind](body, source, now=self.clock.now())
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
    """The body.

    Raises:
        InvalidRequest: it is no JSON, or no object.
    """
    body = read_json(raw)
    if not isinstance(body, Mapping):
        raise InvalidRequest("body", f"must be an object, not {type(body).__name__}")
    return body
