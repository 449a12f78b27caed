"""The owner's bill: what a service that does nothing unsafe still costs over the whole life of each run.

The counts of the judge say what must not happen once. The bill adds up: GPU-hours that were thrown away although the
same evidence allowed to keep them, hours in which a run was dead or doubled and no person had been told, runs that
could have been recovered and were left to people, and pages. Each row of ROWS has a bound; a service that never
resubmits anything does nothing unsafe, and is far beyond the bound of `curable_left`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.model.incident import Incident
from simulation.judging.excuses import TOLD_BY
from simulation.runs.truth import Attempt, TrueRun
from simulation.stages.world import World

MINUTE_H: Final = 1 / 60
GPUS: Final = 8  # of an instance: ml.p5.48xlarge, which the stories' training jobs ask for
UNSAID_AFTER: Final = timedelta(minutes=10)
NO_INCIDENT: Final = "no Incident"
FEWEST_INCIDENTS: Final = 150  # fewer say little about a share
NOT_WORKING: Final = ("dead", "hung", "poisoned")
# Troubles that end or spoil an attempt, and strike the next one as well while they have hits left.
STRIKES_AGAIN: Final = frozenset(
    {
        "crash",
        "silent",
        "oom",
        "hang",
        "nan",
        "quiet_nan",
        "node_dies",
        "node_sick",
        "node_hangs",
        "time_limit",
        "interrupted",
    }
)


def _hours_by_cause() -> defaultdict[str, float]:
    return defaultdict(float)


@dataclass(slots=True, kw_only=True)
class Bill:
    """Sums over everything played, by cause. `*_h`: GPU-hours."""

    trained_h: float = 0.0
    ill_h: defaultdict[str, float] = field(default_factory=_hours_by_cause)  # by what was wrong
    # Of these, ten minutes on and more, no person told.
    unsaid_h: defaultdict[str, float] = field(default_factory=_hours_by_cause)
    doubled_unsaid_h: defaultdict[str, float] = field(default_factory=_hours_by_cause)
    unsaved_h: defaultdict[str, float] = field(default_factory=_hours_by_cause)
    in_vain_h: defaultdict[str, float] = field(default_factory=_hours_by_cause)
    curable: int = 0  # troubles that a new attempt gets over
    curable_left: Counter[str] = field(default_factory=Counter)
    troubles: int = 0
    pages: int = 0
    incidents: int = 0
    excused_min: Counter[str] = field(default_factory=Counter)  # minutes of ill runs, by the excuse that covered them

    def add(self, other: Bill) -> None:
        """Add another one's sums."""
        for name in ("trained_h", "curable", "troubles", "pages", "incidents"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("ill_h", "unsaid_h", "doubled_unsaid_h", "unsaved_h", "in_vain_h", "curable_left", "excused_min"):
            for cause, amount in getattr(other, name).items():
                getattr(self, name)[cause] += amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the bill. `bound`: what `share` may come to at most."""

    name: str
    meaning: str
    share: Callable[[Bill], float]
    bound: float
    causes: Callable[[Bill], Mapping[str, float]]


def _of(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


ROWS: Final = (
    Row(
        name="unsaid",
        meaning="of the hours that a run was dead, hung or poisoned: no person was told, ten minutes on and more",
        share=lambda bill: _of(sum(bill.unsaid_h.values()), sum(bill.ill_h.values())),
        bound=0.40,
        causes=lambda bill: bill.unsaid_h,
    ),
    Row(
        name="doubled_unsaid",
        meaning="of the hours trained: two attempts of one run trained, and no person was told since the second came: "
        "ten minutes on and more, 40 while an Incident is open",
        share=lambda bill: _of(sum(bill.doubled_unsaid_h.values()), bill.trained_h),
        bound=0.001,
        causes=lambda bill: bill.doubled_unsaid_h,
    ),
    Row(
        name="unsaved",
        meaning="of the hours trained: the service stopped an attempt that could have saved first",
        share=lambda bill: _of(sum(bill.unsaved_h.values()), bill.trained_h),
        bound=0.02,
        causes=lambda bill: bill.unsaved_h,
    ),
    Row(
        name="in_vain",
        meaning="of the hours trained: an attempt of ours ended and had kept nothing, and no person was told",
        share=lambda bill: _of(sum(bill.in_vain_h.values()), bill.trained_h),
        bound=0.03,
        causes=lambda bill: bill.in_vain_h,
    ),
    Row(
        name="curable_left",
        meaning="of the troubles that a new attempt gets over: the run was left to people",
        share=lambda bill: _of(bill.curable_left.total(), bill.curable),
        bound=0.10,
        causes=lambda bill: bill.curable_left,
    ),
    Row(
        name="pages",
        meaning="pages for each trouble",
        share=lambda bill: _of(bill.pages, bill.troubles),
        bound=0.6,
        causes=lambda _: {},
    ),
)


def beyond_bounds(bill: Bill) -> tuple[Row, ...]:
    """The rows that are beyond their bounds; none where too little was played to say so."""
    if bill.incidents < FEWEST_INCIDENTS:
        return ()
    return tuple(row for row in ROWS if row.share(bill) > row.bound)


class Reckoning:
    """Reckons one world's bill, minute by minute."""

    def __init__(self, world: World) -> None:
        self.bill = Bill()
        self._world = world
        self._told_at: dict[str, datetime] = {}  # when people were last told something about a run
        self._doubled_since: dict[str, datetime] = {}
        self._weighed: set[str] = set()  # attempts whose end has been looked at

    @property
    def _now(self) -> datetime:
        return self._world.clock.now()

    def told(self, run: TrueRun) -> None:
        """A warning or a page about the run was sent."""
        self._told_at[run.name] = self._now

    def was_told_since(self, run: TrueRun, moment: datetime | None) -> bool:
        """A warning or a page about the run was sent then or later."""
        told_at = self._told_at.get(run.name)
        return told_at is not None and moment is not None and told_at >= moment

    def stops(self, attempt: Attempt) -> None:
        """The service stops it. What it had trained since its last save is lost, unless it could not have saved."""
        stretch = attempt.at(self._now)
        could_save = stretch is not None and stretch.moves and attempt.first_bad_loss is None
        if not could_save or attempt.run.spec.watch != "monitor" or attempt.is_done or attempt.run.owner_stopped:
            return
        kept = max((save.step for save in attempt.run.saved if save.attempt == attempt.name), default=0)
        lost = attempt.step_at(self._now) - max(kept, attempt.first_step - 1)
        self.bill.unsaved_h[_ill_of(attempt.run)] += _hours(attempt, lost)

    def minute(self) -> None:
        """A minute has passed."""
        for run in self._world.runs.values():
            self._of_run(run)

    def _of_run(self, run: TrueRun) -> None:
        gpus = run.spec.instances * GPUS
        training = [attempt for attempt in run.live if attempt.stretches and attempt.stretches[-1].moves]
        self.bill.trained_h += len(training) * gpus * MINUTE_H
        self._doubled(run, len(training), gpus)
        self._in_vain(run)
        ill = run.ill
        if ill is None or ill.kind not in NOT_WORKING or run.owner_stopped or run.is_finished:
            return
        self.bill.ill_h[ill.kind] += gpus * MINUTE_H
        if self._now - ill.since > UNSAID_AFTER and not ill.is_notified and not run.owner_took_it:
            self.bill.unsaid_h[f"{ill.kind}, {self._stands(run)}"] += gpus * MINUTE_H

    def _doubled(self, run: TrueRun, count: int, gpus: int) -> None:
        if count < 2 or self._world.is_unheard(run, "DescribeTrainingJob"):
            self._doubled_since.pop(run.name, None)
            return
        since = self._doubled_since.setdefault(run.name, self._now)
        told_at, came_at = self._told_at.get(run.name), max(attempt.job.created_at for attempt in run.live)
        told_by = UNSAID_AFTER if self._stands(run) == NO_INCIDENT else TOLD_BY  # what cannot be read is paged later
        if self._now - since > told_by and (told_at is None or told_at < min(since, came_at)):
            self.bill.doubled_unsaid_h["by hand" if run.owner_took_it else "by us"] += (count - 1) * gpus * MINUTE_H

    def _in_vain(self, run: TrueRun) -> None:
        """Attempts of ours that ended ten minutes ago, and left no good checkpoint."""
        for attempt in run.attempts.values():
            ended_at = attempt.job.ended_at
            if ended_at is None or attempt.name in self._weighed or self._now - ended_at < UNSAID_AFTER:
                continue
            self._weighed.add(attempt.name)
            is_ours = attempt.is_ours and not attempt.is_persons and not attempt.is_done
            if not is_ours or any(save.attempt == attempt.name and save.is_good for save in run.saved):
                continue
            told_at = self._told_at.get(run.name)
            if attempt.trains_since is not None and (told_at is None or told_at < attempt.trains_since):
                made = attempt.step_at(self._now) - attempt.first_step + 1
                self.bill.in_vain_h[_ill_of(run)] += _hours(attempt, max(0, made))

    def _stands(self, run: TrueRun) -> str:
        """Where its newest open Incident stands."""
        about = [incident for incident, _ in self._world.store.list_open() if self._is_about(incident, run)]
        return about[-1].phase.value if about else NO_INCIDENT

    def _is_about(self, incident: Incident, run: TrueRun) -> bool:
        return self._world.run_of_job(incident.job_id) is run

    def close(self, *, pages: int, incidents: int) -> Bill:
        """The story is over."""
        self.bill.pages, self.bill.incidents = pages, incidents
        closed = list(self._world.store.list_closed(limit=10_000).incidents)
        for run in self._world.runs.values():
            self.bill.troubles += len(run.ills)
            for ill in run.ills:
                if ill.kind in NOT_WORKING and (ill.until is not None or self._was_curable(run)):
                    self.bill.curable += 1
            left = run.ill
            about = [incident for incident in closed if self._is_about(incident, run)]
            if left is not None and left.kind in NOT_WORKING and about and self._was_curable(run):
                last = max(about, key=lambda incident: incident.closed_at or incident.opened_at)
                if last.phase.value == "handed_over":
                    self.bill.curable_left[f"{left.kind}, {last.outcome}"] += 1
        return self.bill

    def _was_curable(self, run: TrueRun) -> bool:
        """A new attempt from what it has saved would have trained on, its owner did not want otherwise, and its trainer
        does as it is told.
        """
        is_people_s = (
            run.owner_stopped or run.owner_took_it or run.is_unprotected or run.is_another_stages or run.denied_at
        )
        as_it_likes = run.spec.plan != "obeyed" or run.spec.watch == "metrics" or run.refused or not run.best()
        strikes_again = any(
            trouble.kind in STRIKES_AGAIN and 0 < run.struck.get(trouble, 0) < trouble.hits and not trouble.in_data
            for trouble in run.spec.troubles
        )
        return not (is_people_s or as_it_likes or strikes_again or self._world.paused_at is not None)


def _ill_of(run: TrueRun) -> str:
    return run.ill.kind if run.ill is not None else "well"


def _hours(attempt: Attempt, steps: int) -> float:
    spec = attempt.run.spec
    return steps * spec.step_s / 3600 * spec.instances * GPUS
