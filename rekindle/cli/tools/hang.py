"""`rekindle hang DUMPS…`: which rank a stalled run waits for, from files that its ranks have left. Nothing is asked.

Read are torch's flight-recorder dumps (one per rank, whose number ends the file's name), the reports that the monitor
leaves in the mailbox, and what NCCL's `ncclras` prints; folders of them, too. No pickle is ever run.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rekindle.client.errors import BadFile
from rekindle.client.table import Column, Style, clean, render
from rekindle.detectors.dumps import MAX_DUMP_BYTES, BadDump, flight_of, read_dump
from rekindle.detectors.flight import GroupView, ranks_word, who_is_missing
from rekindle.detectors.ranks import RankVerdict, find_suspects
from rekindle.detectors.ras import ras_of, read_ras
from rekindle.protocol.flights import Flight, RasSuspect, ranks_of
from rekindle.protocol.reports import RankReport
from rekindle.protocol.summaries import HostSummary
from rekindle.protocol.wire import MailboxError, parse_json

MAX_FILES: Final = 20_000
_RANK: Final = re.compile(r"([0-9]{1,7})(?:\.[a-z]{1,8})?\Z")
_COLUMNS: Final = (
    Column("group"),
    Column("ranks", right=True),
    Column("call"),
    Column("waiting", right=True),
    Column("not entered"),
    Column("unknown"),
    Column("other call"),
)


@dataclass(slots=True)
class _Given:
    """What the files hold."""

    flights: dict[int, Flight] = field(default_factory=dict)
    reports: list[RankReport] = field(default_factory=list)
    ras: list[RasSuspect] = field(default_factory=list)


def register(commands: Any) -> None:
    """Add the command. It does not use the service, so it has no options for reaching it."""
    help_ = "which rank a stalled run waits for, from flight-recorder dumps"
    parser = commands.add_parser("hang", help=help_, description=help_, allow_abbrev=False)
    parser.add_argument(
        "dumps",
        nargs="+",
        metavar="DUMP",
        help="dumps of torch, reports of the monitor, the output of ncclras; folders",
    )
    parser.add_argument("--ranks", type=int, metavar="N", help="how many ranks the run has (default: as the files say)")
    parser.add_argument("--json", action="store_true", help="one object instead of the table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Judge the files. Raises: BadFile."""
    given = _Given()
    for path in _files(args.dumps):
        _take(path, given)
    world_size = args.ranks or _world_size(given)
    flights = given.flights | {report.rank: report.flight for report in given.reports if report.flight is not None}
    shown = who_is_missing(flights, world_size)
    verdict = find_suspects(given.reports, world_size, flights=given.flights, ras=given.ras)
    if args.json:
        print(json.dumps(_object(verdict, shown.groups, given, world_size)))
    else:
        print(_summary(verdict, shown.groups, given, world_size, Style.of(sys.stdout)))
    return 0


def _files(names: list[str]) -> Iterator[Path]:
    """The files, and those in the folders, in order. Raises: BadFile."""
    count = 0
    for name in names:
        path = Path(name)
        try:
            inner = sorted(item for item in path.iterdir() if item.is_file()) if path.is_dir() else [path]
        except OSError as err:
            raise BadFile(f"{clean(name)}: cannot be read: {clean(err.strerror or err)}") from err
        for item in inner:
            count += 1
            if count > MAX_FILES:
                raise BadFile(f"more than {MAX_FILES} files")
            yield item


def _take(path: Path, given: _Given) -> None:
    """Raises: BadFile."""
    name = clean(str(path))
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_DUMP_BYTES + 1)
    except (OSError, ValueError) as err:
        raise BadFile(f"{name}: cannot be read: {clean(getattr(err, 'strerror', None) or err)}") from err
    try:
        if b"Communicators..." in raw[:4096]:
            given.ras += read_ras(raw).suspects
            return
        if raw[:1] == b"\x80" or len(raw) > MAX_DUMP_BYTES:
            _add_dump(path, read_dump(raw), given)
            return
        value = parse_json(raw, MAX_DUMP_BYTES)
        if isinstance(value, dict) and "communicators" in value:
            given.ras += ras_of(value).suspects
        elif isinstance(value, dict) and "job_id" in value:
            summary = HostSummary.from_wire(value).dated(None) if "first_rank" in value else None
            given.reports += summary if summary is not None else [RankReport.from_wire(value)]
        else:
            _add_dump(path, flight_of(value), given)
    except BadDump as err:
        raise BadFile(f"{name}: {err}") from err
    except MailboxError as err:
        raise BadFile(f"{name}: neither a dump, a report nor an answer of RAS: {clean(err)}") from err


def _add_dump(path: Path, flight: Flight, given: _Given) -> None:
    """Raises: BadFile."""
    match = _RANK.search(path.name)
    if match is None:
        raise BadFile(f"{clean(str(path))}: no rank ends its name, as in nccl_trace_rank_3")
    rank = int(match[1])
    if rank in given.flights:
        raise BadFile(f"{clean(str(path))}: a second dump of rank {rank}")
    given.flights[rank] = flight


def _world_size(given: _Given) -> int:
    """As the reports say, else as large as the ranks that are named anywhere make it."""
    named = [report.world_size for report in given.reports] + [rank + 1 for rank in given.flights]
    named += [suspect.size for suspect in given.ras if suspect.is_of_run]
    for flight in given.flights.values():
        named += [max(ranks) + 1 for group in flight.groups if (ranks := ranks_of(group.ranks, MAX_FILES))]
    return max(named, default=1)


def _object(verdict: RankVerdict, groups: tuple[GroupView, ...], given: _Given, world_size: int) -> dict[str, Any]:
    return {
        "ranks": list(verdict.suspect_ranks),
        "hosts": list(verdict.hosts),
        "confidence": verdict.confidence,
        "rule": verdict.rule.value,
        "text": verdict.text,
        "world_size": world_size,
        "groups": [
            {
                "name": group.name,
                "members": sorted(group.members),
                "all_members_known": group.is_whole,
                "seq": group.seq,
                "op": group.op,
                "waiting": sorted(group.waiting),
                "not_entered": sorted(group.missing),
                "unknown": sorted(group.mute),
                "other_call": sorted(group.odd),
            }
            for group in groups
        ],
        "ras": [
            {
                "state": report.state.value,
                "rank": report.rank,
                "size": report.size,
                "host": report.host,
                "text": report.text,
            }
            for report in given.ras
        ],
    }


def _summary(verdict: RankVerdict, groups: tuple[GroupView, ...], given: _Given, world_size: int, style: Style) -> str:
    told = len(given.flights.keys() | {report.rank for report in given.reports})
    parts = [f"{told} of {world_size} ranks"]
    stuck = [group for group in groups if group.seq is not None]
    if stuck:
        parts += ["", render(_COLUMNS, [_cells(group) for group in stuck], style)]
    who = ranks_word(verdict.suspect_ranks) if verdict.suspect_ranks else "no rank"
    where = f" on {', '.join(map(clean, verdict.hosts[:8]))}" if verdict.hosts else ""
    parts += [
        "",
        f"suspect:    {who}{where}",
        f"confidence: {verdict.confidence:.2f} ({verdict.rule.value})",
        f"because:    {clean(verdict.text)}",
    ]
    for report in given.ras[:16]:
        whose = "rank" if report.is_of_run else f"of a communicator of {report.size}, rank"
        parts.append(
            f"RAS:        {whose} {report.rank} on {clean(report.host) or 'no known host'}: {clean(report.text)}"
        )
    return "\n".join(parts)


def _cells(group: GroupView) -> tuple[object, ...]:
    return (
        clean(group.name),
        f"{len(group.members)}{'' if group.is_whole else '+'}",
        clean(f"{group.op} {group.seq}"),
        len(group.waiting),
        _listed(group.missing),
        _listed(group.mute),
        _listed(group.odd),
    )


def _listed(ranks: frozenset[int]) -> str:
    return ranks_word(ranks).partition(" ")[2] if ranks else "-"
