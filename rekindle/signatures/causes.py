"""Which of many findings the others follow from.

One dead GPU lets 511 ranks time out, breaks the NVLink of its neighbours and ends in a traceback on every node. So
findings are compared by what can cause what (`CausalClass`) first: the clocks of two hosts differ, and logs arrive when
they like. Inside one class the earliest is the cause. Where the order is certain, in one log or on one host, a finding
is not the cause of echoes that came long before it: with more of those before it than after it, it is another story.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rekindle.protocol.signals import FaultClass
from rekindle.signatures.classifier import Verdict
from rekindle.signatures.labels import LABELS, CausalClass, Label
from rekindle.signatures.responses import FirstResponse

LINES_APART: Final = 1000  # in one log: many ranks print at once, and what they print arrives unsorted
SECONDS_APART: Final = 60.0  # on one host: its own clock, but buffered output
_DEPENDENT: Final = (CausalClass.NETWORK, CausalClass.ECHO, CausalClass.ENDED)
MAX_NAMED: Final = 3  # nodes that a sentence names; the rest is counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One excerpt's verdict, with its source and time.

    `at` is any number that grows with time (epoch seconds, a line number), of one clock for all findings; None where
    nothing is known. `count` is how often the same was logged.
    """

    verdict: Verdict
    node: str | None = None
    rank: int | None = None
    at: float | None = None
    text: str = ""
    count: int = 1

    @property
    def place(self) -> str | None:
        """Its source, in words."""
        parts = [self.node] if self.node else []
        if self.rank is not None:
            parts.append(f"rank {self.rank}")
        return " ".join(parts) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo:
    """What else was logged, and by how many."""

    label: Label
    count: int
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The root cause: `finding` is None where no line reported a fault. `text` explains it in one sentence.

    `suspects` are the nodes of the cause alone; a node that only reported consequences is none. `unexplained` are
    findings that came too early to be a consequence of the cause, or too late to be the cause of it.
    """

    label: Label
    fault: FaultClass | None
    first_response: FirstResponse
    finding: Finding | None
    suspects: tuple[str, ...]
    echoes: tuple[Echo, ...]
    text: str
    unexplained: tuple[Echo, ...] = ()


def root_cause(findings: Iterable[Finding], *, is_one_log: bool = False) -> Cause:
    """The cause among these findings, and the others as its echoes. Total; benign findings are left out.

    is_one_log: the findings' `at` are the numbers of lines in one log, not seconds.
    """
    bad = [finding for finding in findings if finding.verdict.label is not Label.BENIGN]
    if not bad:
        row = LABELS[Label.BENIGN]
        return Cause(
            label=Label.BENIGN,
            fault=None,
            first_response=row.response,
            finding=None,
            suspects=(),
            echoes=(),
            text="Nothing wrong was reported.",
        )
    ranked = sorted(bad, key=_rank)
    dependents = [finding for finding in bad if finding.verdict.order in _DEPENDENT]
    first = next((finding for finding in ranked if _explains(finding, dependents, is_one_log)), ranked[0])
    verdict = first.verdict
    same: list[Finding] = []
    followers: list[Finding] = []
    strangers: list[Finding] = []
    for finding in bad:
        if (finding.verdict.label, finding.verdict.order) == (verdict.label, verdict.order):
            same.append(finding)
        elif finding.verdict.order < verdict.order or _is_long_before(finding, first, is_one_log):
            strangers.append(finding)
        else:
            followers.append(finding)
    suspects = tuple(dict.fromkeys(finding.node for finding in same if finding.node))
    echoes, unexplained = _echoes(followers), _echoes(strangers)
    return Cause(
        label=verdict.label,
        fault=verdict.fault,
        first_response=verdict.first_response,
        finding=first,
        suspects=suspects,
        echoes=echoes,
        text=_sentence(first, same, echoes, unexplained),
        unexplained=unexplained,
    )


def _explains(cause: Finding, dependents: list[Finding], is_one_log: bool) -> bool:
    """Whether at most half of the consequences were logged long before this finding."""
    if cause.verdict.order in _DEPENDENT or cause.verdict.order is CausalClass.NEWS:
        return True
    early = sum(other.count for other in dependents if _is_long_before(other, cause, is_one_log))
    return 2 * early <= sum(other.count for other in dependents)


def _is_long_before(earlier: Finding, later: Finding, is_one_log: bool) -> bool:
    """Whether `earlier` was certainly logged before `later` and cannot be its consequence."""
    if earlier.at is None or later.at is None or not (is_one_log or (earlier.node and earlier.node == later.node)):
        return False
    return earlier.at < later.at - (LINES_APART if is_one_log else SECONDS_APART)


def _rank(finding: Finding) -> tuple[CausalClass, float]:
    """Sorts by causal class, then by time; what has no time comes last."""
    return finding.verdict.order, float("inf") if finding.at is None else finding.at


def _echoes(others: list[Finding]) -> tuple[Echo, ...]:
    """The other labels, the likeliest to matter first."""
    labels = dict.fromkeys(finding.verdict.label for finding in sorted(others, key=_rank))
    found = []
    for label in labels:
        own = [finding for finding in others if finding.verdict.label is label]
        places = tuple(dict.fromkeys(place for finding in own if (place := finding.place)))
        found.append(Echo(label=label, count=sum(finding.count for finding in own), places=places))
    return tuple(found)


def _sentence(first: Finding, same: list[Finding], echoes: tuple[Echo, ...], unexplained: tuple[Echo, ...]) -> str:
    verdict = first.verdict
    where = tuple(dict.fromkeys(place for finding in same if (place := finding.place)))
    if verdict.order is CausalClass.ECHO:
        head = f"Only echoes were seen, the first of them {verdict.label}{_on(where)}: the cause is elsewhere"
    elif verdict.order is CausalClass.ENDED:
        head = f"Only how it ended was seen, {verdict.label}{_on(where)} (rule {verdict.rule}): not of what"
    elif verdict.order is CausalClass.NEWS:
        head = f"Nothing but {verdict.label}{_on(where)} was recorded, which asks for nothing yet"
    else:
        head = f"{verdict.label}{_on(where)} is the cause (rule {verdict.rule})"
    if echoes:
        head = f"{head}; its echoes: {_counted(echoes)}"
    if unexplained:
        head = f"{head}; another cause, by its time: {_counted(unexplained)}"
    return f"{head}."


def _counted(echoes: tuple[Echo, ...]) -> str:
    return ", ".join(f"{echo.label} ({echo.count}{_from(echo.places)})" for echo in echoes)


def _on(places: tuple[str, ...]) -> str:
    return f" on {_names(places)}" if places else ""


def _from(places: tuple[str, ...]) -> str:
    return f", {_names(places)}" if places else ""


def _names(places: tuple[str, ...]) -> str:
    rest = len(places) - MAX_NAMED
    return ", ".join(places[:MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")
