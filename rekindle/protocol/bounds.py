"""What a field's type may say beyond its Python type: the limits of its JSON, given in Annotated.

    Node = Annotated[str, Text(64, check=check_node)]

    nodes: Annotated[tuple[Node, ...], Items(1000), "the nodes that it ran on"] = ()

A text in Annotated describes the field in its JSON Schema. `rekindle.protocol.codec` reads all of these. Standard
library only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from rekindle.protocol.wire import MAX_PATH_CHARS, MAX_RANK, MAX_STEP, MAX_TEXT_CHARS, MailboxError, Place, check_id

MAX_LISTED: Final = 10_000


@dataclass(frozen=True)
class Text:
    """A string of `least` to `limit` characters that matches the regular expression `pattern` as a whole, if given.

    `problem` says what is wrong with one that does not. `check(value, field)` is called last; it raises
    MailboxError for a value that it refuses, and what it returns is not used.
    """

    limit: int = MAX_TEXT_CHARS
    least: int = 0
    pattern: str | None = None
    problem: str = ""
    check: Callable[[str, str], object] | None = None


@dataclass(frozen=True)
class OneOf:
    """A string that is one of `words`."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class Whole:
    """An integer from `low` to `high`, both included."""

    low: int = 0
    high: int = MAX_STEP


@dataclass(frozen=True)
class Number:
    """A finite number from `low` to `high`, both included; of a duration, its seconds."""

    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True)
class Items:
    """A list or an object of `least` to `limit` members."""

    limit: int = MAX_LISTED
    least: int = 0


class Required:
    """The JSON must have the field, although the class has a default for it."""


class Sparse:
    """A document leaves the field out where it has its default, as it did before there was such a field."""


@dataclass(frozen=True)
class Via:
    """The field's JSON is that of `kind`: `read` makes the value of it, `write` the other way round."""

    kind: Any
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]


def check_printable(value: str, field: str) -> None:
    """For what people see on one line, without anything that a terminal would obey. Raises: MailboxError."""
    if not value.isprintable():
        raise MailboxError(field, "must be printable")


# ---- types that many documents use -----------------------------------------------------------------------------------

Identity = Annotated[str, Text(128, check=check_id)]
Words = Annotated[str, Text()]  # a line or two for people
Count = Annotated[int, Whole()]
Finite = Annotated[float, Number()]
Bytes = Annotated[int, Whole(0, 2**63 - 1)]
Rank = Annotated[int, Whole(0, MAX_RANK)]
WorldSize = Annotated[int, Whole(1, MAX_RANK)]
PlaceUri = Annotated[str, Text(2 * MAX_PATH_CHARS, check=Place.parse)]
Sha256 = Annotated[str, Text(64, pattern="[0-9a-f]{64}", problem="must be 64 lower-case hex digits")]
