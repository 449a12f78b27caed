"""Reading one field of a foreign payload: the value in the wanted type, or MalformedEvent naming the dotted path.

Absent and JSON null are the same thing here, because AWS uses both (HyperPod Cluster Events carry whole subtrees as
null, so that `dict.get(name, {})` gives None).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from chalicelib.domain.model.errors import MalformedEvent

MAX_TEXT_CHARS = 65_536  # above any single AWS text field, below the event's own limit

INSTANCE_ID = re.compile(r"i-[a-f0-9]{8}(?:[a-f0-9]{9})?")  # Source: botocore, sagemaker ClusterNodeId
RESOURCE_NAME = re.compile(r"[a-zA-Z0-9](?:-*[a-zA-Z0-9]){0,62}")  # Source: botocore, TrainingJobName, ClusterName
GROUP_NAME = RESOURCE_NAME
OUR_ID = re.compile(r"(?!\.+\Z)[A-Za-z0-9._-]{1,128}")  # the mailbox's ids; see rekindle/protocol/mailbox.py

# From 2001 to 2286 a count has thirteen digits in milliseconds, and nine or ten in seconds; any other is no time.
_MIN_EPOCH_MS, _MAX_EPOCH_MS = 1_000_000_000_000, 10_000_000_000_000
_EPOCH_TEXT = re.compile(r"\d{10}(?:\.\d{1,9})?|\d{13}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object and where it stands in the event; every reader raises MalformedEvent with the full path."""

    path: str
    body: Mapping[str, Any]

    def at(self, name: str) -> str:
        """The dotted path of a member."""
        return f"{self.path}.{name}" if self.path else name

    def fail(self, name: str, problem: str) -> MalformedEvent:
        """The error for a member, to be raised by the caller."""
        return MalformedEvent(self.at(name), problem)

    def has(self, name: str) -> bool:
        """Present and not null."""
        return self.body.get(name) is not None

    def required(self, name: str) -> Any:
        """The raw value. Raises: MalformedEvent where it is absent or null."""
        value = self.body.get(name)
        if value is None:
            raise self.fail(name, "missing")
        return value

    def text(self, name: str, *, limit: int = MAX_TEXT_CHARS, pattern: re.Pattern[str] | None = None) -> str:
        """A non-empty text of at most `limit` characters, matching `pattern` as a whole."""
        value = self.required(name)
        if not isinstance(value, str):
            raise self.fail(name, f"must be a text, not {type(value).__name__}")
        if not value:
            raise self.fail(name, "is empty")
        if len(value) > limit:
            raise self.fail(name, f"is longer than {limit} characters")
        if pattern is not None and not pattern.fullmatch(value):
            raise self.fail(name, f"does not have the form {pattern.pattern}")
        return value

    def optional_text(
        self, name: str, *, limit: int = MAX_TEXT_CHARS, pattern: re.Pattern[str] | None = None
    ) -> str | None:
        """As `text`, or None where it is absent, null or empty."""
        value = self.body.get(name)
        return None if value is None or value == "" else self.text(name, limit=limit, pattern=pattern)

    def word(self, name: str, known: Sequence[str]) -> str:
        """One of a closed list of words."""
        value = self.text(name, limit=256)
        if value not in known:
            raise self.fail(name, f"must be one of {', '.join(known)}")
        return value

    def whole(self, name: str, *, low: int = 0, high: int = 2**63 - 1) -> int:
        """A whole number in [low, high]; true and false are not numbers."""
        value = self.required(name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fail(name, f"must be a whole number from {low} to {high}")
        return value

    def optional_whole(self, name: str, *, low: int = 0, high: int = 2**63 - 1) -> int | None:
        """As `whole`, or None where it is absent or null."""
        return self.whole(name, low=low, high=high) if self.has(name) else None

    def optional_number(self, name: str, *, low: float = 0.0, high: float = 1e12) -> float | None:
        """A finite number in [low, high], or None where it is absent or null."""
        if not self.has(name):
            return None
        value = self.body[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.fail(name, f"must be a number from {low:g} to {high:g}")
        return float(value)

    def child(self, name: str) -> Fields:
        """A member object."""
        value = self.required(name)
        if not isinstance(value, Mapping):
            raise self.fail(name, f"must be an object, not {type(value).__name__}")
        return Fields(self.at(name), value)

    def optional_child(self, name: str) -> Fields:
        """A member object; an empty one where it is absent or null."""
        return self.child(name) if self.has(name) else Fields(self.at(name), {})

    def items(self, name: str) -> list[Any]:
        """A member list; an empty one where it is absent or null."""
        value = self.body.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.fail(name, f"must be a list, not {type(value).__name__}")
        return value

    def children(self, name: str) -> list[Fields]:
        """A member list of objects; an empty one where it is absent or null."""
        return [_object(f"{self.at(name)}[{index}]", item) for index, item in enumerate(self.items(name))]

    def moment(self, name: str) -> datetime:
        """An aware UTC time from ISO-8601 text (also with an offset without a colon, as CloudWatch writes it), from
        RFC-1123 text (AWS Health) or from epoch milliseconds (SageMaker), which the developer guide's own example of a
        training job's event writes as text.
        """
        return _moment(self, name, self.required(name))

    def optional_moment(self, name: str) -> datetime | None:
        """As `moment`, or None where it is absent, null or empty."""
        value = self.body.get(name)
        return None if value is None or value == "" else _moment(self, name, value)


def _object(path: str, value: Any) -> Fields:
    if not isinstance(value, Mapping):
        raise MalformedEvent(path, f"must be an object, not {type(value).__name__}")
    return Fields(path, value)


def _moment(fields: Fields, name: str, value: Any) -> datetime:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise fields.fail(name, "must be a time")
    if isinstance(value, str):
        return _moment_from_text(fields, name, value)
    if _MIN_EPOCH_MS / 1000 <= value < _MAX_EPOCH_MS / 1000:
        return _EPOCH + timedelta(seconds=value)
    if not _MIN_EPOCH_MS <= value < _MAX_EPOCH_MS:
        raise fields.fail(name, "must be a time in epoch milliseconds or seconds")
    return _EPOCH + timedelta(milliseconds=value)


def _moment_from_text(fields: Fields, name: str, value: str) -> datetime:
    if len(value) > 64:
        raise fields.fail(name, "is too long for a time")
    if _EPOCH_TEXT.fullmatch(value):
        return _moment(fields, name, float(value) if "." in value else int(value))
    try:
        moment = datetime.fromisoformat(value) if value[:1].isdigit() else parsedate_to_datetime(value)
        if moment.tzinfo is None:
            raise fields.fail(name, "must say its offset from UTC")
        return moment.astimezone(UTC)
    except (ValueError, TypeError, IndexError, OverflowError) as err:
        raise fields.fail(name, "must be a time in ISO-8601 or RFC-1123 form") from err
