"""From a notice on the bus to the Incident's page, and to one message per channel in the queue `deliveries`.

The function `notice_event`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chalicelib.aws.sqs.deliveries import SqsDeliveries
from chalicelib.aws.ssm.settings import SsmSettings
from chalicelib.channels.channel import read_notice
from chalicelib.channels.routing import routed
from chalicelib.domain.model.errors import MalformedEvent
from chalicelib.ports.clock import Clock
from chalicelib.ports.notices import Notice
from chalicelib.services.reporting.outcome import Outcome, OutcomeKind
from chalicelib.services.reporting.pages import Pages


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOut:
    """Routes notices. An event that comes twice makes doubles, which the delivery's log tells apart."""

    book: SsmSettings
    queue: SqsDeliveries
    clock: Clock
    report: Callable[[Outcome], None]
    pages: Pages

    def take(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """One event of our own bus.

        Raises:
            Retryable, InvalidSettings, MalformedEvent: nothing was routed, or only to what the document has right.
            Lambda tries again and then keeps the event in the failures queue, whose alarm tells people.
        """
        detail = event.get("detail")
        if not isinstance(detail, Mapping):
            raise MalformedEvent("detail", "missing")
        notice = read_notice(detail)
        if notice.incident_id:  # before the notices are sent, so that the page is there when they are opened
            self.pages.write(notice.incident_id)
        book = self.book.channels()
        names = routed(book, notice, now=self.clock.now())
        self.queue.enqueue([json.dumps({"channel": name, "detail": detail}) for name in names])
        self.report(_routed(notice, names))
        if book.problems:  # a receiver was not told: the event must not be lost
            raise book.problems[0]
        return {"channels": list(names)}


def _routed(notice: Notice, names: Sequence[str]) -> Outcome:
    return Outcome(
        what=OutcomeKind.ROUTED,
        reason="" if names else "no channel wants it",
        incident_id=notice.incident_id or None,
        job_id=notice.job_id,
        facts={"notice_id": notice.token, "kind": notice.kind.value, "channels": list(names)},
    )
