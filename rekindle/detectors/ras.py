"""What NCCL's RAS says of a job: which processes are dead or do not answer, and which ranks are behind. Pure.

Read is what `ncclras -f json` prints (NCCL 2.28.7 and newer), and the text that older ones print (from 2.24 on), which
lists only the exceptions. Source: NCCL user guide, Troubleshooting, RAS, and src/ras/client_support.cc. A rank is one
of its communicator; it is the rank of the run in the largest one, where no second is as large, and where its process
and device are known from that one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rekindle.protocol.flights import RasState, RasSuspect
from rekindle.protocol.wire import MAX_RANK, MailboxError, parse_json

MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024  # a rank of a communicator takes some 600
MAX_SUSPECTS: Final = 64
_FINE: Final = (0, 7)  # Source: nccl.h, ncclSuccess and ncclInProgress
_COUNTS: Final = re.compile(r"\s*\d+\s+\d+\s+\d+\s+\d+\s+(\d+)\s*\Z")
_GROUP: Final = re.compile(r"\s*(\d{1,7})\s+(\d{1,7})\s+\d+\s+[\d-]+\s+(\d{1,7})\s+\d+\s+[A-Z][A-Z,|/+-]*\s+[A-Z]")
_COMM: Final = re.compile(r"#(\d+)-\d+ \([0-9a-f]+\) ([A-Z]+)\s*\Z")
_OPS: Final = re.compile(r"  Communicator ranks have different (?:(\w+) operation|collective operation) counts\s*\Z")
_MANY: Final = re.compile(
    r"  (\d+) ranks (?:have launched up to operation (\d+)|have not launched any operations)\s*\Z"
)
_RANK: Final = re.compile(
    r"  Rank (\d{1,7})(?: has launched up to operation (\d+)| has not launched any operations"
    r"| reported ([A-Z][\w ]*?))? --(?:.* on node (\S+))?"
)
_LISTED: Final = re.compile(r"  The missing ranks?: ([\d, ]+)\Z")
_PROCESS: Final = re.compile(r"  Process (\d+) on node (\S+) ")


@dataclass(frozen=True, slots=True, kw_only=True)
class RasAnswer:
    """The worst suspects and those of the largest communicator first. `pids`: of all processes, None where an answer
    does not tell; `gpus`: of the whole job, 0 where it does not tell.
    """

    suspects: tuple[RasSuspect, ...]
    pids: frozenset[int] | None = None
    gpus: int = 0


def read_ras(raw: bytes) -> RasAnswer:
    """Raises: MailboxError for what is no answer of RAS."""
    if len(raw) <= MAX_ANSWER_BYTES and not raw.lstrip().startswith(b"{"):
        return _of_text(raw.decode("utf-8", "replace"))
    return ras_of(parse_json(raw, MAX_ANSWER_BYTES))


def ras_of(status: object) -> RasAnswer:
    """Of the JSON form as plain values. Raises: MailboxError for what is no such answer."""
    comms = status.get("communicators") if isinstance(status, Mapping) else None
    if not isinstance(comms, list):
        raise MailboxError("$", "is no answer of NCCL's RAS in its JSON form")
    given = [comm for comm in comms if isinstance(comm, Mapping) and _whole(comm.get("size"))]
    largest = _only_largest([comm["size"] for comm in given])
    rows = [(comm, row) for comm in given for name in ("ranks", "missing_ranks") for row in _rows(comm.get(name))]
    of_run = {_device_of(row): row["rank"] for comm, row in rows if comm["size"] == largest}
    found: list[RasSuspect] = []
    for comm in given:
        size, is_whole = comm["size"], comm["size"] == largest
        for row, state, text in _exceptions(comm):
            device = _device_of(row)
            rank = None if is_whole or None in device else of_run.get(device)
            if rank is not None:
                found.append(_suspect(state, rank, largest, row.get("host"), text, is_of_run=True))
            else:
                found.append(_suspect(state, row["rank"], size, row.get("host"), text, is_of_run=is_whole))
    pids = frozenset(row["pid"] for _, row in rows if type(row.get("pid")) is int)
    return RasAnswer(suspects=_first(found), pids=pids)


def _only_largest(sizes: list[int]) -> int:
    """0 where two are as large."""
    largest = max(sizes, default=0)
    return largest if sizes.count(largest) == 1 else 0


def _device_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What is the same of one rank in all communicators."""
    values = (row.get("host"), row.get("pid"), row.get("nvml_dev"))
    return tuple(value if isinstance(value, str | int) else None for value in values)


def _exceptions(comm: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], RasState, str]]:
    ranks = _rows(comm.get("ranks"))
    for row in _rows(comm.get("missing_ranks")):
        status = row.get("status")
        held = status if isinstance(status, Mapping) else {}
        if held.get("considered_dead") is True:
            yield row, RasState.DEAD, "its process is dead"
        elif held.get("unresponsive") is True:
            yield row, RasState.UNRESPONSIVE, "its process does not answer"
        else:
            yield row, RasState.MISSING, "its process has told nothing"
    launched: dict[str, dict[int, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in ranks:
        status = row.get("status")
        error = status.get("async_error") if isinstance(status, Mapping) else None
        if type(error) is int and error not in _FINE:
            yield row, RasState.FAILED, f"NCCL reports error {error}"
        counts = row.get("collective_counts")
        for op, count in (counts if isinstance(counts, Mapping) else {}).items():
            if len(op) <= 64 and type(count) is int:
                launched[op][count].append(row)
    for op, by_count in sorted(launched.items()):
        late = _late({count: len(rows) for count, rows in by_count.items()})
        for count in late:
            for row in by_count[count]:
                yield row, RasState.BEHIND, _behind(op, count, max(by_count))


def _late(sizes: Mapping[int, int]) -> list[int]:
    """The counts below the highest, where fewer than half of the ranks are there, or one of two."""
    late, total = sorted(sizes)[:-1], sum(sizes.values())
    return late if total == 2 or 2 * sum(sizes[count] for count in late) < total else []


def _behind(op: str, count: int, most: int) -> str:
    return f"has launched {count} operations of {op}, others {most}"


@dataclass(slots=True)
class _Text:
    """What the lines so far say. `launched`: of one operation, how many ranks are at a count, and those listed."""

    sizes: dict[int, int] = field(default_factory=dict)  # of a group's communicators, by its number
    every: list[int] = field(default_factory=list)
    dead: set[tuple[int, str]] = field(default_factory=set)
    gpus: int = 0
    size: int = 0  # of the communicator that is told of
    section: str = ""
    op: str = ""
    at: int | None = None
    launched: dict[int, tuple[int, list[tuple[int, str]]]] = field(default_factory=dict)
    found: list[RasSuspect] = field(default_factory=list)

    def end_operation(self) -> None:
        most = max(self.launched, default=0)
        for count in _late({count: size for count, (size, _) in self.launched.items()}):
            for rank, host in self.launched[count][1]:
                self.add(RasState.BEHIND, rank, host, _behind(self.op, count, most))
        self.launched, self.op, self.at = {}, "", None

    def add(self, state: RasState, rank: int, host: str, text: str) -> None:
        if rank < self.size:
            self.found.append(_suspect(state, rank, self.size, host, text))


def _of_text(text: str) -> RasAnswer:
    """Raises: MailboxError."""
    if "Communicators..." not in text:
        raise MailboxError("$", "is no answer of NCCL's RAS")
    said = _Text()
    for line in text.splitlines():
        _read_line(line[:2048], said)
    said.end_operation()
    largest = _only_largest(said.every)
    found = [replace(suspect, is_of_run=suspect.size == largest) for suspect in said.found]
    return RasAnswer(suspects=_first(found), gpus=said.gpus)


def _read_line(line: str, said: _Text) -> None:
    if (comm := _COMM.match(line)) is not None:
        said.end_operation()
        said.size, said.section = said.sizes.get(int(comm[1]), 0), comm[2]
    elif not line.startswith("  ") or line.isspace():
        said.end_operation()
        said.section = line.strip() if line.strip() == "DEAD" else said.section
    elif (group := _GROUP.match(line)) is not None:
        said.sizes[int(group[1])] = int(group[3])
        said.every += [int(group[3])] * min(int(group[2]), 2)
    elif not said.sizes and (counts := _COUNTS.match(line)) is not None:
        said.gpus = int(counts[1])
    elif said.section == "DEAD" and (process := _PROCESS.match(line)) is not None:
        said.dead.add((int(process[1]), process[2]))
    elif said.size:
        _read_rank(line, said)


def _read_rank(line: str, said: _Text) -> None:
    """A line of one communicator."""
    if (ops := _OPS.match(line)) is not None:
        said.end_operation()
        said.op = ops[1] or "collectives"
    elif said.op and (many := _MANY.match(line)) is not None:
        said.at = int(many[2] or 0)
        said.launched[said.at] = (int(many[1]), [])
    elif said.section == "INCOMPLETE" and (listed := _LISTED.match(line)) is not None:
        for rank in re.findall(r"\d{1,7}", listed[1]):
            said.add(RasState.UNRESPONSIVE, int(rank), "", "its process does not answer")
    elif (row := _RANK.match(line)) is not None:
        _read_row(line, row, said)


def _read_row(line: str, row: re.Match[str], said: _Text) -> None:
    """A line about one rank."""
    rank, host = int(row[1]), row[4] or ""
    if said.section == "INCOMPLETE":
        process = re.search(r"managed by process (\d+) on node", line)
        is_dead = process is not None and (int(process[1]), host) in said.dead
        state = RasState.DEAD if is_dead else RasState.UNRESPONSIVE
        said.add(state, rank, host, "its process is dead" if is_dead else "its process does not answer")
    elif said.section == "ERROR" and row[3]:
        said.add(RasState.FAILED, rank, host, f"NCCL reports: {row[3].strip()}")
    elif said.op and ("launched" in line or said.at is not None):
        count = int(row[2] or 0) if "launched" in line else said.at or 0
        said.launched.setdefault(count, (1, []))[1].append((rank, host))


def _suspect(state: RasState, rank: int, size: int, host: object, text: str, *, is_of_run: bool = False) -> RasSuspect:
    named = "".join(char for char in host[:255] if char.isprintable()) if isinstance(host, str) else ""
    said = "".join(char for char in text[:200] if char.isprintable())
    return RasSuspect(state=state, rank=rank, size=size, host=named, text=said, is_of_run=is_of_run)


def _first(found: list[RasSuspect]) -> tuple[RasSuspect, ...]:
    """Each rank once in a state, the worst and those of the largest communicator first."""
    found.sort(key=lambda suspect: (list(RasState).index(suspect.state), -suspect.size, suspect.rank))
    first: dict[tuple[RasState, int, int], RasSuspect] = {}
    for suspect in found:
        first.setdefault((suspect.state, suspect.size, suspect.rank), suspect)
    return tuple(first.values())[:MAX_SUSPECTS]


def _rows(rows: object) -> list[Mapping[str, Any]]:
    given = rows if isinstance(rows, list) else []
    return [row for row in given if isinstance(row, Mapping) and _whole(row.get("rank"), least=0)]


def _whole(value: object, least: int = 1) -> bool:
    return type(value) is int and least <= value <= MAX_RANK
