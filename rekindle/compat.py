"""Names of the standard library that Python 3.10 lacks: `rekindle` runs on 3.10 and newer, the service on 3.11.

boto3 needs 3.10 as well: an older Python could not reach AWS with a supported client. Source: boto3 1.44, package
metadata, Requires-Python. Standard library only.
"""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn

if sys.version_info >= (3, 11):
    from datetime import UTC
    from enum import StrEnum
    from typing import Self, assert_never
else:
    if TYPE_CHECKING:
        from typing_extensions import Self
    else:
        Self = Any  # annotations only, and those are not evaluated

    UTC = timezone.utc

    class StrEnum(str, Enum):
        """enum.StrEnum: the member is its value, also when printed."""

        __str__ = str.__str__

        def __format__(self, format_spec: str) -> str:
            return str.__format__(self.value, format_spec)

        @staticmethod
        def _generate_next_value_(name: str, start: int, count: int, last_values: list[Any]) -> str:  # noqa: ARG004
            return name.lower()

    def assert_never(value: NoReturn) -> NoReturn:
        """typing.assert_never."""
        raise AssertionError(f"unexpected value: {value!r}")


def from_iso(text: str) -> datetime:
    """datetime.fromisoformat, with `Z` for UTC also on 3.10. Raises: ValueError."""
    if sys.version_info < (3, 11) and text.endswith(("Z", "z")):
        text = f"{text[:-1]}+00:00"
    return datetime.fromisoformat(text)


__all__ = ["UTC", "Self", "StrEnum", "assert_never", "from_iso"]
