"""What the demo sees of the run and of its Incidents, as values; and the figures that follow from them.

Nothing here reads a clock, a file or AWS: `watch` gathers, `view` shows and `report` writes these.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class Fault(StrEnum):
    """What is done to the run."""

    NODE = "node"
    KILL = "kill"
    FREEZE = "freeze"
    NAN = "nan"


TITLES = {
    Fault.NODE: "a GPU fails",
    Fault.KILL: "a worker is killed",
    Fault.FREEZE: "a worker is frozen",
    Fault.NAN: "a poisoned batch",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeen:
    """One step as rank 0 of an attempt wrote it down. `exact` is the loss as float.hex(): every bit of it."""

    attempt: str
    number: int
    step: int
    exact: str
    at: datetime

    @property
    def loss(self) -> float:
        """The loss in nats; may be NaN."""
        return float.fromhex(self.exact)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSeen:
    """One attempt. `resumed_from` is None for the first; `status` is the platform's own word.

    `last_good_step` is the last one whose loss was finite.
    """

    name: str
    number: int
    status: str
    resumed_from: int | None
    skips: tuple[tuple[int, int], ...]
    first_step: int | None
    last_step: int | None
    last_good_step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of an Incident's timeline."""

    at: datetime
    phase: str
    rule: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentSeen:
    """An Incident as the registry holds it."""

    incident_id: str
    fault: str
    phase: str
    outcome: str
    opened_at: datetime
    closed_at: datetime | None
    ask: dict[str, Any] | None
    tries: tuple[str, ...]
    lines: tuple[Line, ...]
    mttd_s: float | None = None  # these are the ledger's; None where it does not know
    mttr_s: float | None = None
    steps_lost: int | None = None
    steps_saved: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """What was done to the run, when and at which step. `at` is the moment the harm was real."""

    fault: Fault
    at: datetime
    step: int
    attempt: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSaved:
    """Steps that an emergency checkpoint kept from being done again; None where none was made, and `why`."""

    steps: int | None
    why: str

    def __str__(self) -> str:
        return f"n/a: {self.why}" if self.steps is None else f"{self.steps} steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """One row of the table. Durations and lost steps are the ledger's; the resume step is of the last resubmission."""

    fault: Fault
    incident: IncidentSeen | None
    injection: Injection
    mttd_s: float | None
    mttr_s: float | None
    steps_lost: int | None
    resumed_at_step: int | None
    saved: WorkSaved
    attempts: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the Incident ended as recovered."""
        return self.incident is not None and self.incident.phase == "recovered"


def measure(injection: Injection, incident: IncidentSeen | None, attempts: Sequence[AttemptSeen]) -> Recovery:
    """One recovery, with the ledger's figures of it."""
    if incident is None:
        return Recovery(
            fault=injection.fault,
            incident=None,
            injection=injection,
            mttd_s=None,
            mttr_s=None,
            steps_lost=None,
            resumed_at_step=None,
            saved=WorkSaved(steps=None, why="no Incident was opened"),
            attempts=(injection.attempt,),
        )
    by_name = {attempt.name: attempt for attempt in attempts}
    chain = [by_name[name] for name in (injection.attempt, *incident.tries) if name in by_name]
    resumed_at = chain[-1].resumed_from if len(chain) > 1 else None
    return Recovery(
        fault=injection.fault,
        incident=incident,
        injection=injection,
        mttd_s=incident.mttd_s,
        mttr_s=incident.mttr_s,
        steps_lost=incident.steps_lost,
        resumed_at_step=resumed_at,
        saved=_saved(injection.fault, incident, resumed_at),
        attempts=tuple(attempt.name for attempt in chain),
    )


def _saved(fault: Fault, incident: IncidentSeen, resumed_at: int | None) -> WorkSaved:
    ask = incident.ask
    if ask is None:
        why = {
            Fault.KILL: "the run was dead at once",
            Fault.NAN: "a poisoned model is not worth saving",
        }.get(fault, "none was asked for")
        return WorkSaved(steps=None, why=why)
    if ask.get("outcome") != "saved" or resumed_at is None:
        return WorkSaved(steps=None, why=f"asked, answered “{ask.get('outcome') or 'nothing'}”")
    return WorkSaved(steps=incident.steps_saved, why=f"saved at step {resumed_at}, at the last moment")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Every finite loss of every attempt against the run that nothing happened to."""

    steps_compared: int
    first_difference: int | None
    last_step: int | None
    last_loss: float | None
    not_compared: tuple[int, ...]

    @property
    def equal(self) -> bool:
        """Whether there was something to compare and all of it was the same, bit for bit."""
        return self.steps_compared > 0 and self.first_difference is None


def compare(seen: Iterable[StepSeen], reference: dict[int, str]) -> Comparison:
    """Hold what the attempts trained against the undisturbed losses.

    Non-finite losses are left out (they were rolled back), and named in `not_compared`, as is a step the reference
    skipped. A step trained twice, before and after a recovery, is compared twice.
    """
    compared, first_difference, last, left_out = 0, None, None, set()
    for item in sorted(seen, key=lambda item: (item.number, item.step)):
        expected = reference.get(item.step)
        if expected is None or not math.isfinite(item.loss):
            left_out.add(item.step)
            continue
        compared += 1
        if item.exact != expected and (first_difference is None or item.step < first_difference):
            first_difference = item.step
        last = item
    return Comparison(
        steps_compared=compared,
        first_difference=first_difference,
        last_step=last.step if last else None,
        last_loss=last.loss if last else None,
        not_compared=tuple(sorted(left_out)),
    )
