"""What all messages of the protocol share: their error, limits, ids, places, and the reader of their JSON.

Types and their limits are read by `rekindle.protocol.codec`. Standard library only.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit

WIRE_VERSION: Final = 1
FOLDER: Final = "rekindle"
MAX_STEP: Final = 10**12 - 1  # twelve digits keep manifest names sorted by step
MAX_MESSAGE_BYTES: Final = 256 * 1024  # fence, request, reply, report and heartbeat; stacks are the only large part
MAX_PATH_CHARS: Final = 1024  # an S3 key's own limit
MAX_TEXT_CHARS: Final = 2000
MAX_STACKS_CHARS: Final = 48 * 1024  # a reply travels as an event too, and an event has 256 KB
MAX_RANK: Final = 10**7
MAX_DEPTH: Final = 32  # lists and objects within each other in one document

_CONTROL_CHARACTER: Final = re.compile("[\x00-\x1f\x7f]")
HALF_CHARACTER: Final = re.compile(r"\\u[dD][89a-fA-F]")  # half of a surrogate pair, as JSON escapes it
_ID: Final = re.compile(r"(?!\.+\Z)[A-Za-z0-9._-]{1,128}\Z")


class MailboxError(ValueError):
    """A message, key, URI or variable is wrong. `field` is its dotted path, `problem` says what is wrong."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}" if field else problem)
        self.field = field
        self.problem = problem

    def within(self, name: str) -> MailboxError:
        """The same of the document that holds this one as its member `name`."""
        return MailboxError(f"{name}.{self.field}" if self.field else name, self.problem)


def is_id(value: str) -> bool:
    """Whether `check_id` accepts it."""
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
    if HALF_CHARACTER.search(text) and not is_text(json.dumps(value, ensure_ascii=False)):
        raise MailboxError(field, "holds half a character")
    return value


def is_deep(value: Any) -> bool:
    """Whether lists and objects stand in it more than MAX_DEPTH deep within each other. Not recursive itself."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return False
        inner = (member for outer in level for member in (outer.values() if isinstance(outer, dict) else outer))
        level = [member for member in inner if isinstance(member, dict | list)]
    return bool(level)
