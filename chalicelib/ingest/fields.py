"""Reading one field of a foreign payload: the value in the wanted type, or MalformedEvent naming the dotted path.

Absent and JSON null are the same thing here, because AWS uses both (HyperPod Cluster Events carry whole subtrees as
null, so that `dict.get(name, {})` gives None). In AWS's own events an optional member that cannot be used counts as
absent, too: only what a decision needs can make such an event malformed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

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
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object and where it stands in the event; every reader raises MalformedEvent with the full path.

    `is_lenient`, and so every member below: what the `optional_…` readers, `items` and `children` cannot use counts as
    absent, whatever is wrong with it; the other readers stay strict.
    """

    path: str
    body: Mapping[str, Any]
    is_lenient: bool = False

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
        if self.body.get(name) == "":
            return None
        return self._optional(name, lambda: self.text(name, limit=limit, pattern=pattern))

    def word(self, name: str, known: Sequence[str]) -> str:
        """One of a closed list of words."""
        value = self.text(name, limit=256)
        if value not in known:
            raise self.fail(name, f"must be one of {', '.join(known)}")
        return value

    def optional_word(self, name: str, known: Sequence[str]) -> str | None:
        """As `word`, or None where it is absent or null."""
        return self._optional(name, lambda: self.word(name, known))

    def whole(self, name: str, *, low: int = 0, high: int = 2**63 - 1) -> int:
        """A whole number in [low, high]; true and false are not numbers."""
        value = self.required(name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fail(name, f"must be a whole number from {low} to {high}")
        return value

    def optional_whole(self, name: str, *, high: int = 2**63 - 1) -> int | None:
        """As `whole`, or None where it is absent or null."""
        return self._optional(name, lambda: self.whole(name, high=high))

    def optional_number(self, name: str, *, low: float = 0.0, high: float = 1e12) -> float | None:
        """A finite number in [low, high], or None where it is absent or null."""
        return self._optional(name, lambda: self._number(name, low, high))

    def child(self, name: str) -> Fields:
        """A member object."""
        value = self.required(name)
        if not isinstance(value, Mapping):
            raise self.fail(name, f"must be an object, not {type(value).__name__}")
        return Fields(self.at(name), value, self.is_lenient)

    def optional_child(self, name: str) -> Fields:
        """A member object; an empty one where it is absent or null."""
        found = self._optional(name, lambda: self.child(name))
        return Fields(self.at(name), {}, self.is_lenient) if found is None else found

    def items(self, name: str) -> list[Any]:
        """A member list; an empty one where it is absent or null."""
        return self._optional(name, lambda: self._list(name)) or []

    def children(self, name: str) -> list[Fields]:
        """A member list of objects; an empty one where it is absent or null."""
        found = []
        for index, item in enumerate(self.items(name)):
            at = f"{self.at(name)}[{index}]"
            if isinstance(item, Mapping):
                found.append(Fields(at, item, self.is_lenient))
            elif not self.is_lenient:
                raise MalformedEvent(at, f"must be an object, not {type(item).__name__}")
        return found

    def moment(self, name: str) -> datetime:
        """An aware UTC time from ISO-8601 text (also with an offset without a colon, as CloudWatch writes it), from
        RFC-1123 text (AWS Health) or from epoch milliseconds (SageMaker), which the developer guide's own example of a
        training job's event writes as text.
        """
        return _moment(self, name, self.required(name))

    def optional_moment(self, name: str) -> datetime | None:
        """As `moment`, or None where it is absent, null or empty."""
        return None if self.body.get(name) == "" else self._optional(name, lambda: self.moment(name))

    def _optional(self, name: str, read: Callable[[], _T]) -> _T | None:
        if not self.has(name):
            return None
        try:
            return read()
        except MalformedEvent:
            if not self.is_lenient:
                raise
            return None

    def _number(self, name: str, low: float, high: float) -> float:
        value = self.required(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.fail(name, f"must be a number from {low:g} to {high:g}")
        return float(value)

    def _list(self, name: str) -> list[Any]:
        value = self.required(name)
        if not isinstance(value, list):
            raise self.fail(name, f"must be a list, not {type(value).__name__}")
        return value


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
