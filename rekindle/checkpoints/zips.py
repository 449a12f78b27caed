"""A zip archive's own table of contents: whether it is whole, and where each member lies.

torch's files and NumPy's .npz are zips. The table is at the end of the file, so an archive that ends with a table whose
members all fit in front of it was written to its end. Source: PKWARE APPNOTE 4.3.7, 4.3.12 to 4.3.16.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rekindle.checkpoints.found import Folder

_END: Final = struct.Struct("<4s4H2LH")
_LOCATOR: Final = struct.Struct("<4sLQL")
_END64: Final = struct.Struct("<4sQ2H2L4Q")
_ENTRY: Final = struct.Struct("<4s6H3L5H2L")
LOCAL: Final = struct.Struct("<4s5H3L2H")
TAIL_BYTES: Final = 64 * 1024  # one read: the end record, and the whole table of most archives
MAX_TABLE_BYTES: Final = 8 * 1024 * 1024
_IN_EXTRA: Final = 0xFFFFFFFF  # the value is in the entry's zip64 field
_ZIP64: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One file in the archive. `at` is where its local header begins, `bytes` how long it is in the archive."""

    name: str
    at: int
    bytes: int
    is_stored: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What the end of an archive says. `problem` is None for a whole one; `members` are then in the file's order.

    `members` is also empty where the table is too long to be read.
    """

    members: tuple[Member, ...] = ()
    problem: str | None = None


NO_END: Final = "the end of its archive is not there"


def table_of(folder: Folder, path: str, size: int) -> Table | None:
    """The table of contents; None where the file cannot be read."""
    start = max(size - TAIL_BYTES, 0)
    tail = folder.read(path, start, TAIL_BYTES)
    if tail is None:
        return None
    placed = _placed(tail, size)
    if placed is None:
        return Table(problem=NO_END)
    count, at, length = placed
    if length > MAX_TABLE_BYTES:
        return Table()
    raw = tail[at - start : at - start + length] if at >= start else folder.read(path, at, length)
    if raw is None:
        return None
    members = _members(raw)
    if members is None or len(members) != count or len(raw) != length:
        return Table(problem="its archive's table of contents is broken")
    end = 0
    for member in members:
        if member.at < end:
            return Table(problem=f"in its archive {member.name} overlaps what is before it")
        end = member.at + LOCAL.size + member.bytes
    if end > at:
        return Table(problem="its archive's table of contents names more than the file holds")
    return Table(members=members)


def data_start(raw: bytes) -> int | None:
    """Where a member's bytes begin, counted from its local header, whose first bytes `raw` are; None for none."""
    if len(raw) < LOCAL.size:
        return None
    mark, *_, name_bytes, extra_bytes = LOCAL.unpack(raw[: LOCAL.size])
    return LOCAL.size + int(name_bytes) + int(extra_bytes) if mark == b"PK\x03\x04" else None


def _placed(tail: bytes, size: int) -> tuple[int, int, int] | None:
    """(entries, offset, bytes) of the table, which lies directly before the end records; None where it does not."""
    if len(tail) < _END.size:
        return None
    mark, _, _, _, count, length, at, comment = _END.unpack(tail[-_END.size :])
    end = size - _END.size
    if mark != b"PK\x05\x06" or comment:
        return None
    before = tail[: -_END.size]
    if len(before) >= _LOCATOR.size + _END64.size and before[-_LOCATOR.size :].startswith(b"PK\x06\x07"):
        _, _, at64, _ = _LOCATOR.unpack(before[-_LOCATOR.size :])
        record = before[-_LOCATOR.size - _END64.size : -_LOCATOR.size]
        mark64, _, _, _, _, _, _, count, length, at = _END64.unpack(record)
        end -= _LOCATOR.size + _END64.size
        if mark64 != b"PK\x06\x06" or at64 != end:
            return None
    return (count, at, length) if at + length == end else None


def _members(raw: bytes) -> tuple[Member, ...] | None:
    """Sorted by where they lie; None where the table cannot be read."""
    try:
        return tuple(sorted(_entries(raw), key=lambda member: member.at))
    except (struct.error, ValueError, IndexError):
        return None


def _entries(raw: bytes) -> Iterator[Member]:
    at = 0
    while at < len(raw):
        mark, _, _, _, method, _, _, _, packed, plain, name_bytes, extra_bytes, note_bytes, _, _, _, offset = (
            _ENTRY.unpack_from(raw, at)
        )
        if mark != b"PK\x01\x02":
            raise ValueError("no entry of a table of contents")
        at += _ENTRY.size
        name = raw[at : at + name_bytes].decode("utf-8", "replace")
        extra = raw[at + name_bytes : at + name_bytes + extra_bytes]
        at += name_bytes + extra_bytes + note_bytes
        if at > len(raw):
            raise ValueError("an entry is cut short")
        long = _long_values(extra)
        _ = next(long) if plain == _IN_EXTRA else plain  # the order in the field is fixed
        packed = next(long) if packed == _IN_EXTRA else packed
        offset = next(long) if offset == _IN_EXTRA else offset
        yield Member(name=name, at=offset, bytes=packed, is_stored=method == 0)


def _long_values(extra: bytes) -> Iterator[int]:
    """The 64-bit numbers of the zip64 field. Raises: ValueError where one more is asked for than there are."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        at += 4
        if kind == _ZIP64:
            for inner in range(at, at + length - 7, 8):
                yield struct.unpack_from("<Q", extra, inner)[0]
            break
        at += length
    raise ValueError("a 64-bit value is missing")
