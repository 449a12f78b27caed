"""How Slurm writes single values: nothing, numbers, times, lists of hosts, exit statuses, KEY=VALUE lines. Pure.

Each reader returns a value or raises `Unreadable`; where a missing value is usual, None says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from rekindle.compat import UTC, from_iso
from rekindle.slurm_agent.reading.run import Unreadable

MAX_HOSTS: Final = 20_000
MAX_EPOCH: Final = 32_503_680_000  # the year 3000
NOTHING: Final = frozenset(
    {"", "(null)", "n/a", "none", "unknown", "(none)", "null", "not_set", "invalid", "unlimited", "no_val"}
)
_KEY: Final = re.compile(r"(?:^| )([A-Z][A-Za-z0-9_/:]*)=")
_RANGE: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_DURATION: Final = re.compile(r"(?:(\d{1,6})-)?(\d{1,7})(?::(\d{1,2}))?(?::(\d{1,2}))?(?:\.\d+)?")


def value(text: str | None) -> str:
    """The text, or "" for every way in which Slurm writes that there is none."""
    found = (text or "").strip()
    return "" if found.lower() in NOTHING else found


def is_number(text: str) -> bool:
    """Only the digits 0 to 9, and few enough of them. `str.isdigit` also takes what `int` does not (`²`)."""
    return text.isascii() and text.isdigit() and len(text) < 19


def whole(text: str | None) -> int | None:
    """A number that is not negative; None where there is none."""
    found = (text or "").strip()
    return int(found) if is_number(found) else None


def moment(text: str | None) -> datetime | None:
    """A time, None where it is not known.

    `%s` is asked for (see run.py); a Slurm that does not follow it writes ISO time in the machine's zone.
    """
    found = value(text)
    if not found:
        return None
    try:
        if found.isascii() and found.isdigit():
            seconds = int(found) if len(found) < 12 else MAX_EPOCH
            return datetime.fromtimestamp(seconds, UTC) if 0 < seconds < MAX_EPOCH else None
        return from_iso(found).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None


def seconds(text: str | None) -> int | None:
    """`[days-]hours:minutes:seconds`, `minutes:seconds` or `minutes`; None for UNLIMITED and what is no time."""
    found = _DURATION.fullmatch(value(text))
    if found is None:
        return None
    days, first, second, third = (int(part) if part else None for part in found.groups())
    if days is not None:  # D-H, D-H:M, D-H:M:S
        return ((days * 24 + (first or 0)) * 60 + (second or 0)) * 60 + (third or 0)
    if third is not None:
        return ((first or 0) * 60 + (second or 0)) * 60 + third
    return (first or 0) * 60 + (second or 0)


def exit_status(text: str | None) -> tuple[int | None, int | None]:
    """`code:signal`, or a wait status in one number. (None, None) where it cannot be read.

    Source: squeue of 22.05 shows DerivedEC as wait(2) gives it, 1792 for the exit code 7; 24.11 shows 7:0.
    """
    code, colon, number = (text or "").partition(":")
    if colon:
        return _byte(code), _byte(number)
    status = whole(code)
    return (status >> 8, status & 0x7F) if status is not None and 0 <= status <= 0xFFFF else (None, None)


def _byte(text: str) -> int | None:
    found = whole(text)
    return found if found is not None and found <= 255 else None


def hosts(text: str | None) -> tuple[str, ...]:
    """The nodes of a list such as `node[1-3,07],ip-10-1-0-[1-250],a[1-2]b[3-4]`, in its order.

    Raises: Unreadable for brackets that do not match, a range that runs backwards, and more than MAX_HOSTS nodes.
    """
    found: list[str] = []
    for part in _split(value(text)):
        for name in _expand(part):
            found.append(name)
            if len(found) > MAX_HOSTS:
                raise Unreadable(f"a list of hosts names more than {MAX_HOSTS}")
    return tuple(dict.fromkeys(found))


def _split(text: str) -> Iterator[str]:
    """At the commas outside brackets."""
    depth, start = 0, 0
    for index, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            if text[start:index].strip():
                yield text[start:index].strip()
            start = index + 1
        if depth not in (0, 1):
            raise Unreadable("a list of hosts has brackets that do not match")
    if depth:
        raise Unreadable("a list of hosts has brackets that do not match")
    if text[start:].strip():
        yield text[start:].strip()


def _expand(part: str) -> Iterator[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    inside, closed, tail = rest.partition("]")
    if not closed:
        raise Unreadable("a list of hosts has brackets that do not match")
    tails = list(_bounded(_expand(tail))) if tail else [""]
    for number in _numbers(inside):
        for end in tails:
            yield f"{head}{number}{end}"


def _bounded(names: Iterable[str]) -> Iterator[str]:
    for count, name in enumerate(names):
        if count > MAX_HOSTS:
            raise Unreadable(f"a list of hosts names more than {MAX_HOSTS}")
        yield name


def _numbers(text: str) -> Iterator[str]:
    """`1-3,07` -> 1, 2, 3, 07. Leading zeros of a range's first number are kept."""
    for part in text.split(","):
        found = _RANGE.fullmatch(part.strip())
        if found is None:
            raise Unreadable("a list of hosts has a range that is none")
        low, high = found[1], found[2] or found[1]
        if int(high) < int(low) or int(high) - int(low) > MAX_HOSTS:
            raise Unreadable("a list of hosts has a range that runs backwards or too far")
        width = len(low) if low.startswith("0") else 0
        for number in range(int(low), int(high) + 1):
            yield f"{number:0{width}d}" if width else str(number)


def fields(line: str, known: Mapping[str, str] | None = None) -> dict[str, str]:
    """The KEY=VALUE pairs of one line of `scontrol -o show`; of a key that comes twice, the first.

    Values are written without quotes, so a value with ` Word=` in it cannot be distinguished from the next pair.
    `known` are the values that someone was free to choose (a job's name, its comment) as another source gave them: they
    are taken out first, so that no one can name a job `x UserId=root(0)`.
    """
    found: dict[str, str] = {}
    for key, text in (known or {}).items():
        plain = f" {key}={text}"
        if text and plain in line:
            before, _, after = line.partition(plain)
            line = f"{before} {key}={after}" if after.startswith((" ", "\n")) or not after else line
            found[key] = text
    _, *parts = _KEY.split(line)  # keys and values in turn
    for key, given in zip(parts[::2], parts[1::2], strict=True):
        found.setdefault(key, given.strip())
    return found


def table(text: str) -> dict[str, str]:
    """`Key = value` lines, as scontrol show config prints them; of a key that comes twice, the first."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, rest = line.partition("=")
        if equals and key.strip() and len(key) < 64:
            found.setdefault(key.strip(), rest.strip())
    return found


def rows(text: str, between: str, end: str, width: int) -> Iterator[Sequence[str]]:
    """The rows of an output with markers of ours after each column. Raises: Unreadable for one of another width."""
    for part in text.split(end)[:-1]:
        columns = part.lstrip("\n").split(between)
        if len(columns) != width:
            raise Unreadable(f"a row has {len(columns)} columns in place of {width}")
        yield columns
    if text and text.rpartition(end)[2].strip():
        raise Unreadable("an output breaks off in the middle of a row")
