"""An AWS call that hangs never outlasts the function that makes it.

Lambda ends a function at its time-out at once: nothing is logged, nothing is returned, and the caller's retry meets the
same. So each attempt of a call may last so long and no longer, and none is begun that could not end, and be
reported, before the function must. botocore settles time-outs when a client is made, which is before the function knows
when it must end; therefore the attempt is refused, not shortened.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from botocore.exceptions import BotoCoreError

# What is left for the end: the pause before the attempt that is refused, log lines, metrics, the answer.
WIND_UP_S: Final = 4.0
_GUARD: Final = "rekindle-deadline"


class OutOfTime(BotoCoreError):  # type: ignore[misc]  # botocore has no types
    """The function ends too soon for this call. Not one of the errors that botocore tries again."""

    fmt = "{left_s:.1f} s are left, and one attempt may take {attempt_s:.1f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """How long one function waits for AWS. attempts: with the first one."""

    connect_s: float = 2.0
    read_s: float = 6.0
    attempts: int = 3

    @property
    def attempt_s(self) -> float:
        """The longest that one attempt can take: connected late, headers late, body late.

        Source: botocore and urllib3: `read_timeout` restarts with every read from the socket.
        """
        return self.connect_s + 2 * self.read_s

    def config(self, service: str = "") -> Any:
        """botocore's Config for clients of `service`: retries inside one call; the durable steps retry beyond them."""
        from botocore.config import Config

        return Config(
            connect_timeout=self.connect_s,
            read_timeout=self.read_s,
            retries={"mode": "standard", "total_max_attempts": self.attempts},
            # For signed links: without these botocore signs them by version 2, which new buckets refuse, and for the
            # global endpoint, which redirects. Source: botocore 1.43, client.py and signers.py.
            signature_version="s3v4" if service == "s3" else None,
            s3={"addressing_style": "virtual"} if service == "s3" else None,
        )


# The recovery calls SageMaker's slow operations and has time. Everything else is answered within a second or two.
PATIENCE: Final[Mapping[str, RetryLimits]] = MappingProxyType({"recover": RetryLimits(connect_s=3.0, read_s=20.0)})


def patience_of(function: str) -> RetryLimits:
    """Of a function, by its name in app.py."""
    return PATIENCE.get(function, RetryLimits())


class Deadline:
    """The deadline of the current invocation. One per process: Lambda runs one invocation at a time in it."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ends = math.inf

    def begin(self, context: Any) -> None:
        """Take the deadline of an invocation from Lambda's `context`; without one there is none."""
        remaining = getattr(context, "get_remaining_time_in_millis", None)
        self._ends = math.inf if remaining is None else self._monotonic() + remaining() / 1000

    @contextmanager
    def during(self, context: Any) -> Iterator[None]:
        """For one invocation: `begin`, and no deadline for what runs in this process between it and the next one."""
        self.begin(context)
        try:
            yield
        finally:
            self._ends = math.inf

    def left_s(self) -> float:
        """Seconds until the invocation ends; infinite where it has no time-out."""
        return self._ends - self._monotonic()

    @contextmanager
    def within(self, limit_s: float) -> Iterator[None]:
        """For what may be left out: the block's calls behave as if the invocation ended in `limit_s` seconds.

        So no attempt lasts longer than `limit_s - WIND_UP_S` after the block began, and what comes after it
        keeps its own time.
        """
        before = self._ends
        self._ends = min(before, self._monotonic() + limit_s)
        try:
            yield
        finally:
            self._ends = before

    def guard(self, client: Any, patience: RetryLimits) -> Any:
        """The client itself; from now on it begins no attempt that could outlast the function. A guard of before ends:
        the embedded cloud's clients serve one service after another."""

        def check(**_: Any) -> None:
            left_s = self.left_s()
            if left_s < patience.attempt_s + WIND_UP_S:
                raise OutOfTime(left_s=left_s, attempt_s=patience.attempt_s)

        client.meta.events.unregister("before-send", unique_id=_GUARD)
        client.meta.events.register_first("before-send", check, unique_id=_GUARD)
        return client
