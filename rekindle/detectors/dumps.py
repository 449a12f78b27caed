"""A flight-recorder dump of torch's, read with bounds: as JSON, or as a pickle that is never run. Pure.

Source: torch/csrc/distributed/c10d/FlightRecorder.hpp, versions 2.0 to 2.10 of the dump. Two recorders write it: that
of NCCL, where a call has ended when its state is `completed`, and the one of gloo, which never leaves the state
`scheduled` and marks what has ended as `retired`. In NCCL's, what is retired and not completed has timed out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rekindle.checkpoints.pickle_values import NotPlain, plain_value
from rekindle.protocol.flights import (
    MAX_CALLS,
    MAX_GROUPS,
    MAX_NAME_CHARS,
    MAX_TENSORS_CHARS,
    Call,
    CallState,
    Flight,
    GroupFlight,
    ranks_text,
)
from rekindle.protocol.wire import MAX_RANK, MAX_STEP, MailboxError, parse_json

MAX_DUMP_BYTES: Final = 64 * 1024 * 1024
MAX_ENTRIES: Final = 100_000  # of the newest; torch's own default is 2,000
MAX_SHAPES: Final = 8
_NUMBER: Final = re.compile(r"[0-9]{1,7}")
_STATES: Final = {"scheduled": CallState.WAITING, "started": CallState.STARTED, "completed": CallState.DONE}
_LEAST_VERSION: Final = 2  # before it one sequence counted collectives and point-to-point calls alike

_Key = tuple[str, str, str]  # name, description, backend


class BadDump(ValueError):
    """What was given is no dump that can be read; the message says why."""


def read_dump(raw: bytes) -> Flight:
    """Raises: BadDump, and nothing else, for whatever bytes are given."""
    if len(raw) > MAX_DUMP_BYTES:
        raise BadDump(f"is larger than {MAX_DUMP_BYTES} bytes")
    try:
        dump = plain_value(raw) if raw[:1] == b"\x80" else parse_json(raw, MAX_DUMP_BYTES)
    except (NotPlain, MailboxError) as err:
        raise BadDump(f"is no flight-recorder dump: {getattr(err, 'problem', err)}") from err
    return flight_of(dump)


def flight_of(dump: object) -> Flight:
    """Of a dump's plain values. Raises: BadDump for what is none, or older than version 2."""
    if not isinstance(dump, Mapping) or not isinstance(dump.get("version"), str):
        raise BadDump("is no flight-recorder dump: it has no version")
    major = _NUMBER.match(dump["version"])
    if major is None or int(major[0]) < _LEAST_VERSION:
        raise BadDump(f"is of version {dump['version'][:16]!r}; 2.0 and newer are known")
    entries = dump.get("entries")
    calls: dict[_Key, dict[tuple[bool, int], Call]] = {}
    ids: dict[_Key, str] = {}
    for entry in reversed(entries[-MAX_ENTRIES:] if isinstance(entries, list | tuple) else ()):
        key, call = (_key(entry), _call(entry)) if isinstance(entry, Mapping) else (None, None)
        if key is None or call is None:
            continue
        ids.setdefault(key, str(entry.get("pg_id")))
        held = calls.setdefault(key, {})
        place = (call.is_p2p, call.seq)
        held[place] = call if place not in held else _together(call, held[place])
    status, config = dump.get("pg_status"), dump.get("pg_config")
    groups = [
        _group(key, list(held.values()), _entered(status, ids[key]), _members(config, key))
        for key, held in calls.items()
    ]
    groups += [_group(key, [], 0, ranks) for key, ranks in _unused(config, list(calls))]
    groups.sort(key=lambda group: group.first_waiting is None)  # stable: the newest used stay first
    return Flight(groups=tuple(groups[:MAX_GROUPS]))


def _key(entry: Mapping[str, Any]) -> _Key | None:
    pair = entry.get("process_group")
    if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
        return None
    op = entry.get("profiling_name")
    return _line(pair[0]), _line(pair[1]), _line(op.partition(":")[0]) if isinstance(op, str) and ":" in op else ""


def _call(entry: Mapping[str, Any]) -> Call | None:
    is_p2p = entry.get("is_p2p") is True
    seq, op, state = entry.get("p2p_seq_id" if is_p2p else "collective_seq_id"), entry.get("profiling_name"), None
    if isinstance(entry.get("state"), str):
        state = _STATES.get(entry["state"])
    if type(seq) is not int or not 0 <= seq <= MAX_STEP or not isinstance(op, str) or state is None:
        return None
    backend, _, short = op.rpartition(":") if ":" in op else ("", "", op)
    if entry.get("retired") is True and backend != "nccl":
        state = CallState.DONE
    return Call(seq=seq, op=_line(short), tensors=_tensors(entry), state=state, is_p2p=is_p2p)


def _together(older: Call, newer: Call) -> Call:
    """Two parts of one coalesced call, which share a number: it has ended where all parts have."""
    is_done = older.state is newer.state is CallState.DONE
    return replace(older, state=CallState.DONE if is_done else min(older.state, newer.state, key=_STILL.index))


_STILL: Final = (CallState.WAITING, CallState.STARTED, CallState.DONE)


def _tensors(entry: Mapping[str, Any]) -> str:
    """`[4, 8] Float`, of the inputs; of the outputs where there are none."""
    for side in ("input", "output"):
        sizes, types = entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes")
        if isinstance(sizes, list | tuple) and sizes:
            shapes = (
                f"[{', '.join(str(size) for size in shape if type(size) is int and abs(size) < MAX_STEP)}]"
                for shape in (shape[:MAX_SHAPES] for shape in sizes[:MAX_SHAPES] if isinstance(shape, list | tuple))
            )
            kinds = types[:MAX_SHAPES] if isinstance(types, list | tuple) else ()
            named = dict.fromkeys(kind for kind in kinds if isinstance(kind, str) and len(kind) < MAX_NAME_CHARS)
            return _line(" ".join([*shapes, *named]), MAX_TENSORS_CHARS)
    return ""


def _group(key: _Key, calls: Sequence[Call], entered: int, ranks: str) -> GroupFlight:
    own = sorted(calls, key=lambda call: call.seq)
    entered = max([entered, *(call.seq for call in own if not call.is_p2p)], default=0)
    waiting = [call for call in own if call.state is not CallState.DONE]
    kept = [*_first(waiting, is_p2p=False), *_first(waiting, is_p2p=True)]
    kept += [call for call in reversed(own) if call not in kept][: MAX_CALLS - len(kept)]
    kept.sort(key=lambda call: (call.is_p2p, call.seq))
    name, desc, backend = key
    return GroupFlight(name=name, desc=desc, backend=backend, ranks=ranks, entered=entered, calls=tuple(kept))


def _first(waiting: Sequence[Call], *, is_p2p: bool) -> list[Call]:
    return [call for call in waiting if call.is_p2p is is_p2p][: MAX_CALLS // 3]


def _entered(status: object, group_id: str) -> int:
    """What the recorder says of a group in sum, where older calls have been overwritten."""
    held = status.get(group_id) if isinstance(status, Mapping) else None
    last = held.get("last_enqueued_collective") if isinstance(held, Mapping) else None
    if isinstance(last, str) and _NUMBER.fullmatch(last):  # the JSON form writes texts
        last = int(last)
    return last if type(last) is int and 0 <= last <= MAX_STEP else 0


def _members(config: object, key: _Key) -> str:
    """A group's ranks as the recorder names them. Gloo's holds one group without a name: that one is left out."""
    held = config.get(key[0]) if key[0] and isinstance(config, Mapping) else None
    return _listed(held.get("ranks")) if isinstance(held, Mapping) else ""


def _unused(config: object, used: Sequence[_Key]) -> Iterator[tuple[_Key, str]]:
    """Groups that the rank is a member of, and has never called, or so long ago that it is overwritten."""
    names = {name for name, _, _ in used}
    backend = used[0][2] if used else "nccl"  # only the recorder of NCCL knows groups before their first call
    for name, held in list(config.items())[:MAX_GROUPS] if isinstance(config, Mapping) else ():
        if isinstance(name, str) and name and _line(name) not in names and isinstance(held, Mapping):
            desc = held.get("desc")
            key = (_line(name), _line(desc) if isinstance(desc, str) else "", backend)
            yield key, _listed(held.get("ranks"))


def _listed(ranks: object) -> str:
    if not isinstance(ranks, str) or len(ranks) > MAX_RANK:
        return ""
    return ranks_text(map(int, _NUMBER.findall(ranks)))


def _line(text: str, limit: int = MAX_NAME_CHARS) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:limit])
