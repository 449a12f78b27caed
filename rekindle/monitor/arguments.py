"""What the script hands over, made fit for use."""

from __future__ import annotations

import math

from rekindle.monitor.base.guard import must_pass
from rekindle.monitor.base.trouble import Trouble
from rekindle.protocol.wire import MAX_STEP

MAX_REASON_CHARS = 200
MAX_TIMEOUT_S = 86_400.0  # a day; `Event.wait` and `Thread.join` refuse what is longer than some 290 years


def step_number(value: object) -> int:
    """Raises: ValueError, TypeError, OverflowError for what is no step's number; and what the value itself raises."""
    number = int(value)  # type: ignore[call-overload]  # whatever the script handed over
    if not 0 <= number <= MAX_STEP:
        raise ValueError(f"a step's number is from 0 to {MAX_STEP}")
    return int(number)


def seconds(value: object, trouble: Trouble) -> float | None:
    """A duration; None for none, and for what is not one."""
    number = None if value is None else as_number(value)
    if number is not None and math.isfinite(number) and number >= 0:
        return number
    if value is not None:
        trouble.once("unreadable_seconds", "A duration is no number of seconds: %r", type(value))
    return None


def timeout(value: object) -> float:
    """Seconds to wait; none where the value is not a positive number."""
    number = as_number(value)
    return 0.0 if number is None or not number > 0 else min(number, MAX_TIMEOUT_S)


def reason_text(value: object) -> str:
    """Why a run ends, cut to size; the name of the value's type where the value cannot be written as text."""
    try:
        return str(value)[:MAX_REASON_CHARS]
    except BaseException as err:  # also an error like torch's CheckpointException
        if must_pass(err):
            raise
        return type(value).__name__


def as_number(value: object) -> float | None:
    """The value as a float, NaN and infinities included; None where it is no number."""
    try:
        return float(value)  # type: ignore[arg-type]  # any object of the training script; what float() refuses is None
    except BaseException as err:
        if must_pass(err):
            raise
        return None
