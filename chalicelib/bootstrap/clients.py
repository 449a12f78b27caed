"""Where the machine's time and boto3's clients enter the service."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chalicelib.aws.deadline import RetryLimits


class SystemClock:
    """The machine's own time."""

    def now(self) -> datetime:
        """Aware UTC."""
        return datetime.now(UTC)


class Clients:
    """One client per AWS service, all from one Session: a Session each would cost about 100 ms more."""

    def __init__(
        self,
        session: Any,
        *,
        patience: RetryLimits | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        from chalicelib.aws.deadline import Deadline, patience_of

        self._session = session
        self._patience = patience or patience_of("")
        self._made: dict[str, Any] = {}
        self.deadline = Deadline(monotonic=monotonic)

    @property
    def made(self) -> tuple[str, ...]:
        """The services that have been asked for."""
        return tuple(self._made)

    def __call__(self, name: str) -> Any:
        """The client of one AWS service."""
        if name not in self._made:
            client = self._session.client(name, config=self._patience.config(name))
            self._made[name] = self.deadline.guard(client, self._patience)
        return self._made[name]


def session_of(region: str) -> Any:
    """A boto3 Session, whose answers hold aware times."""
    import boto3
    from botocore.session import get_session

    core = get_session()
    core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=timestamp)
    return boto3.session.Session(botocore_session=core, region_name=region)


def timestamp(value: Any) -> datetime:
    """A time of an answer, aware. botocore's own reader goes through the machine's time zone: for the numbers of
    GetMetricData, a quarter of a million of them in a large sweep, that took more than all else together."""
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC)
    from botocore.utils import parse_timestamp

    return parse_timestamp(value)  # type: ignore[no-any-return]  # botocore has no types
