"""Tells people through the log: the channel of a deployment that has no other, and of tests."""

from __future__ import annotations

import logging

from chalicelib.domain.model.urgency import Severity
from chalicelib.ports.notices import Notice

_LEVELS = {Severity.INFO: logging.INFO, Severity.WARNING: logging.WARNING, Severity.PAGE: logging.ERROR}


class LogAnnouncer:
    """ports.Announcer over a standard logger. Cannot fail."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._log = logger or logging.getLogger(__name__)

    def announce(self, notice: Notice) -> None:
        """See ports.Announcer."""
        self._log.log(
            _LEVELS[notice.severity],
            "%s",
            notice.title,
            extra={
                "notice_id": notice.token,
                "severity": notice.severity.value,
                "incident_id": notice.incident_id,
                "job_id": notice.job_id,
                "text": notice.text,
            },
        )
