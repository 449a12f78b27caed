"""How a verdict about ranks was reached: what a Suspicion keeps of it, and its readers ask. Pure."""

from __future__ import annotations

from typing import Final

from rekindle.compat import StrEnum

STRONG: Final = 0.8  # a confidence from which on the suspects' nodes are accused


class FlightRule(StrEnum):
    """By the flight recorders: see `rekindle.detectors.flight`."""

    NOT_ENTERED = "not_entered"  # the others wait in a collective that these have not entered
    MISMATCHED = "mismatched"  # these have entered another operation, or one with another size
    ELSEWHERE = "elsewhere"  # these wait in one group, the others in another one for them
    NOT_STARTED = "not_started"  # all have entered; on these ranks' devices it has not begun
    ALL_ENTERED = "all_entered"  # no rank is missing: all have entered, and it does not end
    NOBODY_WAITS = "nobody_waits"  # no rank is missing: none waits in a collective
    UNKNOWN = "unknown"


NOBODY_MISSING: Final = frozenset({FlightRule.ALL_ENTERED, FlightRule.NOBODY_WAITS})


class RankRule(StrEnum):
    """By the ranks' own reports: see `rekindle.detectors.ranks`."""

    BEHIND = "behind"  # others have finished a step that these have not
    NOT_WAITING = "not_waiting"  # the others wait in collectives, these are in other code
    SILENT = "silent"  # the others have reported, these have not
    ODD_ONE = "odd_one"  # in other code than a clear majority, none of it known as a wait
    ALONE_FIRST = "alone_first"  # had the bad value first
    ONE_HOST_FIRST = "one_host_first"  # several had it first, all on one host
    ALL_AT_ONCE = "all_at_once"  # no rank is to blame
    # By the flight recorders alone, or what the run's code leads to: see FlightRule.
    NOT_ENTERED = "not_entered"
    MISMATCHED = "mismatched"
    ELSEWHERE = "elsewhere"
    NOT_STARTED = "not_started"
    ALL_ENTERED = "all_entered"
    NOBODY_WAITS = "nobody_waits"
    # By NCCL's RAS alone.
    RAS_SILENT = "ras_silent"  # their processes are dead, or do not answer it
    RAS_BEHIND = "ras_behind"  # have launched fewer operations than most
    UNKNOWN = "unknown"


# By NCCL's own books alone, or what the run's code leads to on any node: no node is accused by these. A verdict that is
# joined with another source keeps that one's rule.
ACCUSES_NO_NODE: Final = frozenset({*map(RankRule, FlightRule), RankRule.RAS_SILENT, RankRule.RAS_BEHIND})
