"""Which rank is to blame? Judged from each rank's own reports; pure.

A hang: thousands of ranks wait in a collective for one that does not come. That one is recognized by what it does *not*
do: it does not wait. It sits in other code, is a step behind, says nothing, or its flight recorder shows that it has
not entered the collective; `find_suspects` makes one verdict of all of that. A value that is not finite spreads to all
ranks with the next exchange of gradients. Where one rank had it first, its hardware is suspect; where all had it at
once, the data or the run is (`first_bad`).

"Unknown" is a verdict: no suspects, confidence 0. Confidences are judgements, not measured frequencies; a recovery
that costs a node should ask for `rank_rules.STRONG` or more.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from rekindle.detectors.flight import (
    MAX_NAMED_RANKS,
    OF_THE_CODE,
    ranks_word,
    who_is_missing,
)
from rekindle.detectors.frames import Frame, training_frames, waits_in
from rekindle.detectors.rank_rules import NOBODY_MISSING, STRONG, FlightRule, RankRule
from rekindle.protocol.flights import Flight, RasState, RasSuspect
from rekindle.protocol.reports import RankReport, ReportKind

KEY_FRAMES: Final = 6  # of the innermost: enough to tell loader from logger, few enough to be equal on equal ranks
SMALL: Final = 4  # a minority is at most a quarter as large as the group it is held against; or one beside three
ONE_HOST: Final = 8  # ranks on the common hosts (p4d, p5: eight GPUs)
NCCL_ONLY: Final = 0.7  # a process that RAS does not reach may be on a node that is well
STALE: Final = timedelta(minutes=15)  # ranks of one stall report within the differences of their learned limits


@dataclass(frozen=True, slots=True, kw_only=True)
class RankVerdict:
    """`hosts` are the suspects' own, as far as any report or the placing of their neighbours tells."""

    suspect_ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    confidence: float
    rule: RankRule
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stall:
    """A stalled run, as its ranks' reports show it. `frames`: where each reporting rank stands; `waiting`: the ranks in
    a collective; `silent`: those without a report.
    """

    world_size: int
    hosts: Mapping[int, str]
    stalls: Mapping[int, RankReport]
    flights: Mapping[int, Flight]
    ras: tuple[RasSuspect, ...]
    frames: Mapping[int, tuple[Frame, ...]]
    waiting: frozenset[int]
    silent: frozenset[int]

    @property
    def most_wait(self) -> bool:
        """Whether most ranks wait in a collective."""
        return _is_most(len(self.waiting), self.world_size)


def find_suspects(
    reports: Iterable[RankReport],
    world_size: int,
    *,
    flights: Mapping[int, Flight] | None = None,
    ras: Iterable[RasSuspect] = (),
) -> RankVerdict:
    """Who holds up a stalled run: the first of `_STALL_RULES` that knows, joined with what the flight recorders and
    NCCL's RAS show. Reports of other kinds than `stall` only help to name hosts. Never raises.

    flights, ras: what is known of these beside the reports.
    """
    given = [report for report in reports if 0 <= report.rank < world_size]
    stalls = stalled(given)
    # Ranks that wait for one stand in the same code: of 16,384 of them few texts differ.
    read = {text: training_frames(text) for text in {report.stacks for report in stalls.values()}}
    waits = {text for text, found in read.items() if waits_in(found) is not None}
    stall = _Stall(
        world_size=world_size,
        hosts=_hosts(given),
        stalls=stalls,
        flights={rank: report.flight for rank, report in stalls.items() if report.flight is not None}
        | dict(flights or {}),
        ras=(*ras, *(suspect for report in stalls.values() for suspect in report.ras)),
        frames={rank: read[report.stacks] for rank, report in stalls.items()},
        waiting=frozenset(rank for rank, report in stalls.items() if report.stacks in waits),
        silent=frozenset(range(world_size)) - stalls.keys(),
    )
    return _joined(stall, next(verdict for rule in _STALL_RULES if (verdict := rule(stall)) is not None))


def _joined(stall: _Stall, seen: RankVerdict) -> RankVerdict:
    """`seen`, by stacks, steps and silence, together with what the recorders show, and then RAS: one verdict."""
    flight = who_is_missing(stall.flights, stall.world_size)
    if stall.flights and flight.rule is not FlightRule.UNKNOWN:
        shown = _verdict(
            frozenset(flight.ranks), stall.hosts, flight.confidence, RankRule(flight.rule.value), flight.text
        )
        seen = _together(seen, shown, stall.hosts)
    elif stall.flights and not stall.stalls:
        seen = _unknown(flight.text)
    told = _by_ras(stall)
    return seen if told is None else _together(seen, told, stall.hosts)


def _together(seen: RankVerdict, shown: RankVerdict, hosts: Mapping[int, str]) -> RankVerdict:
    """Two sources that name the same ranks make each other stronger. One that contradicts the other makes it weak: a
    recorder does not see every wait, and a stack does not tell for whom.
    """
    if shown.rule.value in NOBODY_MISSING:
        if seen.rule in (RankRule.UNKNOWN, RankRule.ODD_ONE):
            return shown
        return replace(seen, confidence=min(seen.confidence, 0.6), text=f"{seen.text}; but {shown.text}")
    both = frozenset(shown.suspect_ranks) & frozenset(seen.suspect_ranks)
    if not seen.suspect_ranks:
        return shown
    if not both:
        return replace(shown, confidence=0.4, text=f"{shown.text}; but {seen.text}")
    confidence = round(min(0.95, 1 - (1 - seen.confidence) * (1 - shown.confidence)), 2)
    rule = shown.rule if shown.rule.value in OF_THE_CODE else seen.rule
    return _verdict(both, hosts, confidence, rule, f"{seen.text}; {shown.text}")


def _by_ras(stall: _Stall) -> RankVerdict | None:
    """Who is dead, silent or behind in the communicator of all ranks, as RAS says. An error that a rank has is seldom
    that rank's own.
    """
    of_run = [suspect for suspect in stall.ras if suspect.is_of_run and suspect.size == stall.world_size]
    for states, rule in _RAS_RULES:
        texts = {suspect.rank: suspect.text for suspect in of_run if suspect.state in states}
        if texts:
            ranks = frozenset(texts)
            confidence = NCCL_ONLY if _is_few(len(ranks), stall.world_size) else 0.4
            text = f"{ranks_word(ranks)}, says NCCL's RAS: {texts[min(ranks)]}"
            return _verdict(ranks, stall.hosts, confidence, rule, text)
    return None


_RAS_RULES: Final = (
    (frozenset({RasState.DEAD, RasState.UNRESPONSIVE}), RankRule.RAS_SILENT),
    (frozenset({RasState.BEHIND}), RankRule.RAS_BEHIND),
)


def _too_little_is_known(stall: _Stall) -> RankVerdict | None:
    if stall.world_size < 2:
        return _unknown("there is only one rank")
    if not stall.most_wait and 2 * len(stall.stalls) <= stall.world_size:
        return _unknown(f"only {len(stall.stalls)} of {stall.world_size} ranks have reported")
    return None


def _some_are_behind(stall: _Stall) -> RankVerdict | None:
    behind = _behind(stall.stalls, stall.world_size)
    if not behind:
        return None
    detail = f"{ranks_word(behind)} finished step {stall.stalls[min(behind)].step}, the others a later one"
    return _verdict(behind, stall.hosts, 0.9 if stall.most_wait else 0.6, RankRule.BEHIND, detail)


def _some_do_not_wait(stall: _Stall) -> RankVerdict | None:
    busy = frozenset(rank for rank, found in stall.frames.items() if found) - stall.waiting
    if not busy or not stall.most_wait:
        return None
    waiting = f"{len(stall.waiting)} of {stall.world_size} ranks wait in a collective"
    detail = f"{ranks_word(busy)}: {_where(stall.frames, busy)}; {waiting}"
    if stall.silent:
        detail = f"{detail}; {ranks_word(stall.silent)}: no report"
        return _verdict(busy | stall.silent, stall.hosts, 0.6, RankRule.NOT_WAITING, detail)
    confidence = 0.9 if _is_few(len(busy), stall.world_size) else 0.6
    return _verdict(busy, stall.hosts, confidence, RankRule.NOT_WAITING, detail)


def _some_are_silent(stall: _Stall) -> RankVerdict | None:
    silent = stall.silent
    if not silent:
        return None
    if not _is_few(len(silent), stall.world_size):
        return _unknown(f"{len(silent)} of {stall.world_size} ranks have not reported")
    detail = f"{ranks_word(silent)}: no report, while {len(stall.stalls)} of {stall.world_size} ranks have one"
    # More than one host's ranks at once: rather the way to the mailbox than the ranks.
    confidence = 0.5 if len(silent) > ONE_HOST else STRONG if stall.most_wait else 0.6
    return _verdict(silent, stall.hosts, confidence, RankRule.SILENT, detail)


def _one_stands_elsewhere(stall: _Stall) -> RankVerdict:
    return _odd_one(stall.frames, stall.hosts, stall.world_size)


_STALL_RULES: Final[tuple[Callable[[_Stall], RankVerdict | None], ...]] = (
    _too_little_is_known,
    _some_are_behind,
    _some_do_not_wait,
    _some_are_silent,
    _one_stands_elsewhere,  # always has a verdict
)


def stalled(reports: Iterable[RankReport]) -> dict[int, RankReport]:
    """What each rank that stands still says of that. Never raises."""
    return _newest(list(reports), ReportKind.STALL)


def _is_most(count: int, world_size: int) -> bool:
    """More than half; of two ranks, one: where one waits, it waits for the other."""
    return 2 * count > world_size or (world_size == 2 and count == 1)


def _is_few(count: int, world_size: int) -> bool:
    """At most a quarter, but always one."""
    return count * SMALL <= world_size or count == 1


def first_bad(reports: Iterable[RankReport], world_size: int) -> RankVerdict:
    """Who had the value that is not finite first. Never raises."""
    given = [report for report in reports if 0 <= report.rank < world_size]
    hosts = _hosts(given)
    bad = {r: report for r, report in _newest(given, ReportKind.NON_FINITE).items() if report.step is not None}
    if not bad:
        return _unknown("no rank has reported a value that is not finite")
    if world_size < 2:
        return _unknown("there is only one rank")
    step = min(report.step for report in bad.values() if report.step is not None)
    first = frozenset(rank for rank, report in bad.items() if report.step == step)
    later = len(bad) - len(first)
    if len(first) == world_size:
        everyone = "both" if world_size == 2 else f"all {world_size}"
        text = f"{everyone} ranks have it at step {step}"
        return RankVerdict(suspect_ranks=(), hosts=(), confidence=0.9, rule=RankRule.ALL_AT_ONCE, text=text)
    text = f"{ranks_word(first)} first, at step {step}; {later} of {world_size} ranks later"
    if len(first) == 1:
        # The others have it only from the next exchange on, or not at all: either way it began here.
        return _verdict(first, hosts, 0.9 if 2 * later >= world_size - 1 else 0.8, RankRule.ALONE_FIRST, text)
    host = _only_host(first, hosts)
    if host is not None and 2 * len(first) < world_size:
        return _verdict(first, hosts, 0.7, RankRule.ONE_HOST_FIRST, f"{text}; all on {host}")
    return _unknown(f"{text}: neither one rank nor all")


def _only_host(ranks: frozenset[int], hosts: Mapping[int, str]) -> str | None:
    """The host that all of `ranks` are on, where others are known to be elsewhere; None otherwise."""
    named = {hosts.get(rank, "") for rank in ranks}
    elsewhere = {host for rank, host in hosts.items() if rank not in ranks} - named
    return next(iter(named)) or None if len(named) == 1 and elsewhere else None


def _newest(reports: Sequence[RankReport], kind: ReportKind) -> dict[int, RankReport]:
    """One report per rank: of a bad value the earliest, else the latest."""
    kept: dict[int, RankReport] = {}
    reports = [report for report in reports if report.kind is kind]
    if kind is ReportKind.STALL and reports:  # what lies in the mailbox may be left from an earlier stall
        since = max(report.at for report in reports) - STALE
        reports = [report for report in reports if report.at >= since]
    for report in sorted(reports, key=_order):
        if kind is not ReportKind.NON_FINITE or report.rank not in kept:
            kept[report.rank] = report
    return kept


def _order(report: RankReport) -> tuple[datetime, str, str, int]:
    """By time; the rest only makes the verdict independent of the order in which reports were read."""
    return (report.at, report.host, report.stacks, -1 if report.step is None else report.step)


def _behind(stalls: Mapping[int, RankReport], world_size: int) -> frozenset[int]:
    """Ranks whose last finished step is lower than what most ranks have finished."""
    steps = Counter(-1 if report.step is None else report.step for report in stalls.values())
    common, count = max(steps.items(), key=lambda item: (item[1], item[0]))
    lower = frozenset(r for r, report in stalls.items() if (-1 if report.step is None else report.step) < common)
    return lower if lower and _is_most(count, world_size) and _is_few(len(lower), world_size) else frozenset()


def _odd_one(frames: Mapping[int, tuple[Frame, ...]], hosts: Mapping[int, str], world_size: int) -> RankVerdict:
    """All have reported, none is behind, and waiting does not tell them apart: compare where they stand."""
    groups: dict[tuple[Frame, ...], set[int]] = defaultdict(set)
    for rank, found in frames.items():
        groups[found[-KEY_FRAMES:]].add(rank)
    sizes = sorted((len(ranks) for ranks in groups.values()), reverse=True)
    # Pipeline and expert parallelism make several large groups: the small ones are held against the smallest large one.
    large = [size for size in sizes if size * 2 >= sizes[0]]
    odd = frozenset(rank for ranks in groups.values() if _is_small(len(ranks), large[-1]) for rank in ranks)
    if not odd or not _is_few(len(odd), world_size) or sum(large) + len(odd) < world_size:
        held = ", ".join(map(str, sizes[:MAX_NAMED_RANKS]))
        return _unknown(f"{len(groups)} places hold {held} ranks: no clear minority")
    text = f"{ranks_word(odd)}: {_where(frames, odd)}; {sum(large)} other ranks stand elsewhere"
    return _verdict(odd, hosts, 0.6 if len(large) == 1 else 0.5, RankRule.ODD_ONE, text)


def _is_small(group: int, beside: int) -> bool:
    return group * SMALL <= beside or (group == 1 and beside >= SMALL - 1)


def _where(frames: Mapping[int, tuple[Frame, ...]], ranks: Iterable[int]) -> str:
    found = Counter(frames[rank][-1].short for rank in ranks if frames.get(rank))
    return f"in {found.most_common(1)[0][0]}" if found else "nowhere known"


def _hosts(reports: Sequence[RankReport]) -> dict[int, str]:
    return {report.rank: report.host for report in sorted(reports, key=_order) if report.host}


def _host_of(rank: int, hosts: Mapping[int, str], known: Sequence[int]) -> str | None:
    """A rank's host; of a silent rank the one whose known ranks stand on both sides of it (ranks fill host by host).

    known: the ranks of `hosts`, sorted.
    """
    if rank in hosts:
        return hosts[rank]
    place = bisect(known, rank)
    if place in (0, len(known)) or hosts[known[place - 1]] != hosts[known[place]]:
        return None
    return hosts[known[place]]


def _verdict(
    ranks: frozenset[int], hosts: Mapping[int, str], confidence: float, rule: RankRule, text: str
) -> RankVerdict:
    known = sorted(hosts)
    named = {_host_of(rank, hosts, known) for rank in ranks}
    return RankVerdict(
        suspect_ranks=tuple(sorted(ranks)),
        hosts=tuple(sorted(host for host in named if host)),
        confidence=confidence,
        rule=rule,
        text=text,
    )


def _unknown(text: str) -> RankVerdict:
    return RankVerdict(suspect_ranks=(), hosts=(), confidence=0.0, rule=RankRule.UNKNOWN, text=text)
