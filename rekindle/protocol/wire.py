"""How Rekindle's wire messages are read and written: one clear error, bounded, standard library only.

The messages stand beside it: mailbox.py, launch_orders.py, reports.py.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final, TypeVar
from urllib.parse import unquote, urlsplit

from rekindle.compat import UTC, Self, StrEnum, from_iso

WIRE_VERSION: Final = 1
FOLDER: Final = "rekindle"
MAX_STEP: Final = 10**12 - 1  # twelve digits keep manifest names sorted by step
MAX_MESSAGE_BYTES: Final = 256 * 1024  # fence, request, reply, report and heartbeat; stacks are the only large part
MAX_PATH_CHARS: Final = 1024  # an S3 key's own limit
MAX_TEXT_CHARS: Final = 2000
MAX_STACKS_CHARS: Final = 48 * 1024  # a reply travels as an event too, and an event has 256 KB
MAX_RANK: Final = 10**7
MAX_DEPTH: Final = 32  # lists and objects within each other in one document

_ID: Final = re.compile(r"(?!\.+\Z)[A-Za-z0-9._-]{1,128}\Z")


class MailboxError(ValueError):
    """A message, key, URI or variable is wrong. `field` is its dotted path, `problem` says what is wrong."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


def is_id(value: str) -> bool:
    return _ID.match(value) is not None


def check_id(value: object, field: str = "id") -> str:
    """The id itself. Raises: MailboxError for anything outside `[A-Za-z0-9._-]{1,128}`, and for dots alone."""
    if not isinstance(value, str) or not is_id(value):
        raise MailboxError(field, "must be 1 to 128 characters of A-Z a-z 0-9 . _ -, and not dots alone")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where something lies: `s3://bucket/path`, or a directory (`bucket` is None and `path` absolute)."""

    bucket: str | None
    path: str

    @classmethod
    def parse(cls, uri: str, field: str = "uri") -> Place:
        """Raises: MailboxError, and nothing else, for anything but `s3://bucket[/path]`, `file:///path` or an absolute
        path, and for one that no file system or bucket can hold: control characters, what is no UTF-8.
        """
        if "\0" in uri or len(uri) > 2 * MAX_PATH_CHARS:
            raise MailboxError(field, "is too long or holds a NUL")
        if uri.startswith("s3://"):
            bucket, _, path = uri[len("s3://") :].partition("/")
            if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", bucket):
                raise MailboxError(field, "names no valid bucket")
            place = cls(bucket=bucket, path=path.strip("/"))
        elif uri.startswith("file://"):
            try:
                parts = urlsplit(uri)
                path = unquote(parts.path, errors="strict")
            except ValueError as err:
                raise MailboxError(field, "is no file URI that can be read") from err
            if parts.netloc not in ("", "localhost"):
                raise MailboxError(field, "a file URI must not name a host")
            place = cls(bucket=None, path=path.rstrip("/"))
        else:
            place = cls(bucket=None, path=uri.rstrip("/"))
        if place.bucket is None and not place.path.startswith("/"):
            raise MailboxError(field, "must be s3://bucket/prefix, file:///path or an absolute path")
        if ".." in place.path.split("/"):
            raise MailboxError(field, "must not hold '..'")
        if not is_text(place.path) or _CONTROL_CHARACTER.search(place.path):
            raise MailboxError(field, "holds a control character or half a character")
        return place

    def join(self, key: str) -> Place:
        """The place of `key` below this one."""
        return Place(bucket=self.bucket, path=f"{self.path}/{key}" if self.path or self.bucket is None else key)

    @property
    def uri(self) -> str:
        return self.path if self.bucket is None else f"s3://{self.bucket}/{self.path}".rstrip("/")


_W = TypeVar("_W", bound=StrEnum)
_CONTROL_CHARACTER: Final = re.compile("[\x00-\x1f\x7f]")
_HALF_CHARACTER: Final = re.compile(r"\\u[dD][89a-fA-F]")


def is_text(value: str) -> bool:
    """False for a string that cannot be written down: half of a surrogate pair."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def parse_json(raw: bytes | str, limit: int, field: str = "$") -> Any:
    """The value, of which each number is finite and each text can be written down, nested MAX_DEPTH deep at most.

    Raises: MailboxError, and nothing else, for whatever is given.
    """
    if len(raw) > limit:
        raise MailboxError(field, f"is larger than {limit} bytes")

    def no_constant(name: str) -> float:
        raise MailboxError(field, f"holds {name}, which is not JSON")

    def finite(digits: str) -> float:
        number = float(digits)
        if not math.isfinite(number):
            raise MailboxError(field, "holds a number that is too large")
        return number

    try:
        text = raw if isinstance(raw, str) else raw.decode("utf-8")
        value = json.loads(text, parse_constant=no_constant, parse_float=finite)
    except MailboxError:
        raise
    except (ValueError, RecursionError) as err:
        raise MailboxError(field, "is not a JSON text") from err
    if text.count("{") + text.count("[") > MAX_DEPTH and is_deep(value):
        raise MailboxError(field, f"is nested more than {MAX_DEPTH} deep")
    if _HALF_CHARACTER.search(text) and not is_text(json.dumps(value, ensure_ascii=False)):
        raise MailboxError(field, "holds half a character")
    return value


def is_deep(value: Any) -> bool:
    """Whether lists and objects stand in it more than MAX_DEPTH deep within each other. Not recursive itself."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return False
        inner = (one for outer in level for one in (outer.values() if isinstance(outer, dict) else outer))
        level = [one for one in inner if isinstance(one, dict | list)]
    return bool(level)


def _parse_object(raw: bytes | str, limit: int) -> dict[str, Any]:
    value = parse_json(raw, limit)
    if not isinstance(value, dict):
        raise MailboxError("$", "must be a JSON object")
    return value


class Reader:
    """Typed access to one JSON object; every complaint names the field."""

    def __init__(self, wire: Mapping[str, Any], at: str = "") -> None:
        self._wire = wire
        self._at = at

    def _get(self, name: str) -> Any:
        return self._wire.get(name)

    def fail(self, name: str, problem: str) -> MailboxError:
        return MailboxError(f"{self._at}{name}", problem)

    def value(self, name: str) -> Any:
        """What stands there, as JSON gave it; None where nothing does."""
        return self._get(name)

    def text(self, name: str, limit: int = MAX_TEXT_CHARS, default: str | None = None) -> str:
        value = self._get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or len(value) > limit:
            raise self.fail(name, f"must be a string of at most {limit} characters")
        return value

    def optional_text(self, name: str, limit: int = MAX_TEXT_CHARS) -> str | None:
        return None if self._get(name) is None else self.text(name, limit)

    def identity(self, name: str) -> str:
        return check_id(self._get(name), f"{self._at}{name}")

    def optional_identity(self, name: str) -> str | None:
        return None if self._get(name) is None else self.identity(name)

    def whole(self, name: str, low: int = 0, high: int = MAX_STEP) -> int:
        value = self._get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fail(name, f"must be a whole number from {low} to {high}")
        return value

    def optional_whole(self, name: str, low: int = 0, high: int = MAX_STEP) -> int | None:
        return None if self._get(name) is None else self.whole(name, low, high)

    def optional_number(self, name: str) -> float | None:
        value = self._get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(name, "must be a number")
        try:
            number = float(value)
        except OverflowError as err:
            raise self.fail(name, "is too large") from err
        if not math.isfinite(number):
            raise self.fail(name, "must be finite")
        return number

    def number(self, name: str, low: float, high: float) -> float:
        number = self.optional_number(name)
        if number is None or not low <= number <= high:
            raise self.fail(name, f"must be a number from {low:g} to {high:g}")
        return number

    def flag(self, name: str) -> bool:
        """False where it is absent."""
        value = self._get(name)
        if value is not None and not isinstance(value, bool):
            raise self.fail(name, "must be true or false")
        return value is True

    def moment(self, name: str) -> datetime:
        value = self._get(name)
        if not isinstance(value, str) or len(value) > 64:
            raise self.fail(name, "must be an ISO-8601 time")
        try:
            parsed = from_iso(value)
            if parsed.tzinfo is None:
                raise self.fail(name, "must carry a UTC offset")
            return parsed.astimezone(UTC)
        except MailboxError:
            raise
        except (ValueError, OverflowError) as err:
            raise self.fail(name, "must be an ISO-8601 time") from err

    def word(self, name: str, vocabulary: Callable[[str], _W], default: _W | None = None) -> _W:
        value = self._get(name)
        if value is None and default is not None:
            return default
        try:
            return vocabulary(value)
        except ValueError as err:
            raise self.fail(name, "is not one of the known words") from err

    def items(self, name: str, limit: int) -> Sequence[Any]:
        value = self._get(name)
        if not isinstance(value, list) or len(value) > limit:
            raise self.fail(name, f"must be a list of at most {limit}")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        value = self._get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.fail(name, "must be an object")
        return value


class Message:
    """Shared by the five messages: to and from JSON bytes, with a size limit and the version check."""

    __slots__ = ()
    LIMIT_BYTES: ClassVar[int] = MAX_MESSAGE_BYTES

    def to_wire(self) -> dict[str, Any]:
        raise NotImplementedError

    @classmethod
    def from_reader(cls, reader: Reader) -> Self:
        raise NotImplementedError

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Raises: MailboxError naming the first wrong field. Unknown fields are ignored, an unknown `v` is not."""
        reader = Reader(wire)
        if reader.whole("v", 0) != WIRE_VERSION:
            raise MailboxError("v", f"is not {WIRE_VERSION}, the only version known here")
        return cls.from_reader(reader)

    @classmethod
    def from_json(cls, raw: bytes | str) -> Self:
        """Raises: MailboxError, and nothing else, for whatever bytes are given."""
        return cls.from_wire(_parse_object(raw, cls.LIMIT_BYTES))

    def to_json(self) -> bytes:
        """Bytes that `from_json` accepts. Raises: MailboxError where the message would not be readable again."""
        wire = {"v": WIRE_VERSION, **self.to_wire()}
        try:
            raw = json.dumps(wire, allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as err:
            raise MailboxError("$", f"cannot be written as JSON: {err}") from err
        if len(raw) > self.LIMIT_BYTES:
            raise MailboxError("$", f"is larger than {self.LIMIT_BYTES} bytes")
        if is_deep(wire) or _HALF_CHARACTER.search(raw.decode()):
            parse_json(raw, self.LIMIT_BYTES)
        self.from_wire(wire)
        return raw
