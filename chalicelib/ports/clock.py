"""The service's clock."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    pass


class Clock(Protocol):
    """The time, aware UTC."""

    def now(self) -> datetime: ...
