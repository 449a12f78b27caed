"""What NCCL's RAS says of a job: which processes are dead or do not answer, and which ranks are behind. Pure.

Read is the JSON form, `ncclras -f json` (NCCL 2.28 and newer). Source: NCCL user guide, Troubleshooting, RAS, and
src/ras/client_support.cc. A rank is one of its communicator; in the largest one, where no second is as large, that is
the rank of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rekindle.compat import StrEnum
from rekindle.protocol.wire import MAX_RANK, MailboxError

MAX_SUSPECTS: Final = 64
MAX_HOST_CHARS: Final = 255


class RasState(StrEnum):
    """Worst first."""

    DEAD = "dead"
    UNRESPONSIVE = "unresponsive"
    MISSING = "missing"  # its process has told nothing, and is neither known to be dead nor silent
    FAILED = "failed"  # NCCL reports an asynchronous error there
    BEHIND = "behind"  # has launched fewer operations than most


@dataclass(frozen=True, slots=True, kw_only=True)
class RasSuspect:
    """`rank` within a communicator of `size` ranks; `is_of_run` where that is the rank of the run."""

    state: RasState
    rank: int
    size: int
    host: str
    text: str
    is_of_run: bool


def suspects_in(status: object) -> tuple[RasSuspect, ...]:
    """Of RAS's answer as plain values: the worst and those of the largest communicator first.

    Raises: MailboxError for what is no such answer.
    """
    comms = status.get("communicators") if isinstance(status, Mapping) else None
    if not isinstance(comms, list):
        raise MailboxError("$", "is no answer of NCCL's RAS in its JSON form")
    given = [comm for comm in comms if isinstance(comm, Mapping) and _whole(comm.get("size"))]
    sizes = [comm["size"] for comm in given]
    largest = max(sizes, default=0)
    found = [
        suspect
        for comm in given
        for suspect in _of(comm, is_of_run=comm["size"] == largest and sizes.count(largest) == 1)
    ]
    found.sort(key=lambda report: (list(RasState).index(report.state), -report.size, report.rank))
    return tuple(found[:MAX_SUSPECTS])


def _of(comm: Mapping[str, Any], *, is_of_run: bool) -> Iterator[RasSuspect]:
    ranks, missing = _rows(comm.get("ranks")), _rows(comm.get("missing_ranks"))
    size = comm["size"]

    def suspect(row: Mapping[str, Any], state: RasState, text: str) -> RasSuspect:
        host = row.get("host")
        named = "".join(char for char in host[:MAX_HOST_CHARS] if char.isprintable()) if isinstance(host, str) else ""
        return RasSuspect(state=state, rank=row["rank"], size=size, host=named, text=text, is_of_run=is_of_run)

    for row in missing:
        status = row.get("status")
        held = status if isinstance(status, Mapping) else {}
        if held.get("considered_dead") is True:
            yield suspect(row, RasState.DEAD, "its process is dead")
        elif held.get("unresponsive") is True:
            yield suspect(row, RasState.UNRESPONSIVE, "its process does not answer")
        else:
            yield suspect(row, RasState.MISSING, "its process has told nothing")
    for row in ranks:
        status = row.get("status")
        error = status.get("async_error") if isinstance(status, Mapping) else None
        if type(error) is int and error not in (0, 7):  # Source: nccl.h, ncclSuccess and ncclInProgress
            yield suspect(row, RasState.FAILED, f"NCCL reports error {error}")
    counts = {row["rank"]: _counts(row) for row in ranks}
    most = {op: max(count.get(op, 0) for count in counts.values()) for op in set().union(*counts.values())}
    late = [row for row in ranks if any(counts[row["rank"]].get(op, 0) < count for op, count in most.items())]
    if 2 * len(late) < len(ranks):
        for row in late:
            own = counts[row["rank"]]
            op = next(op for op, count in sorted(most.items()) if own.get(op, 0) < count)
            text = f"has launched {own.get(op, 0)} operations of {op}, others {most[op]}"
            yield suspect(row, RasState.BEHIND, text)


def _rows(rows: object) -> list[Mapping[str, Any]]:
    given = rows if isinstance(rows, list) else []
    return [row for row in given if isinstance(row, Mapping) and _whole(row.get("rank"), least=0)]


def _whole(value: object, least: int = 1) -> bool:
    return type(value) is int and least <= value <= MAX_RANK


def _counts(row: Mapping[str, Any]) -> dict[str, int]:
    counts = row.get("collective_counts")
    held = counts if isinstance(counts, Mapping) else {}
    return {op: count for op, count in held.items() if len(op) <= 64 and op.isprintable() and type(count) is int}
