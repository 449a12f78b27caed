"""One part of an observation, read so that nothing in it ends the observation."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from chalicelib.domain.model.errors import RecoveryError
from chalicelib.domain.model.known import Maybe, Unknown

_LOG = logging.getLogger(__name__)

T = TypeVar("T")
DEFECT: Final = "a defect of Rekindle"  # the first words of the reason


def part_of(subject: str, what: str, read: Callable[[], Maybe[T]]) -> Maybe[T]:
    """What `read` answers; Unknown where it raises what no code foresaw, which is logged as an error.

    Documents beside a run may hold anything, and each is read in a place of its own: one that trips a defect harms the
    part that it belongs to, never the whole observation, without which nothing would be decided or told again.

    Raises:
        RecoveryError: `read` raised it: the observation is tried again, or ends, on purpose.
    """
    try:
        return read()
    except RecoveryError:
        raise
    except Exception as err:
        _LOG.exception("a part of an observation cannot be read", extra={"subject": subject, "part": what})
        return Unknown(f"{DEFECT} keeps {what} from being read: {type(err).__name__}: {err}"[:200])
