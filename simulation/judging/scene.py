"""What the judge's subjects share: one world, its bill, and how is counted."""

from __future__ import annotations

from datetime import datetime

from simulation.judging.bill import Reckoning
from simulation.judging.counts import Figures, Unsafe
from simulation.runs.truth import MISSES_NOTHING, Attempt, TrueRun
from simulation.stages.world import World


class Scene:
    """Of one world, for as long as it is played."""

    def __init__(self, world: World) -> None:
        self.world, self.reckoning = world, Reckoning(world)
        self.unsafe: list[Unsafe] = []
        self.figures = Figures()
        self.open: dict[str, str] = {}  # open Incidents, each with its run
        self.called_bad: set[str] = set()  # attempts that were left to a person because of what they had loaded
        self.waits: dict[str, tuple[TrueRun, datetime]] = {}  # Incidents, and since when each wants a new attempt
        self.stops_begun: dict[str, datetime | None] = {}  # when a stop of a run's newest attempt was decided last
        self.disturbed_at: datetime | None = None  # when anything last kept the service from seeing or acting
        self._acted: list[tuple[datetime, str, bool]] = []  # when, which run, by another stage

    @property
    def now(self) -> datetime:
        return self.world.clock.now()

    def count(self, kind: str, run: str, detail: str) -> None:
        at_s = (self.now - self.world.began_at).total_seconds()
        self.unsafe.append(Unsafe(kind=kind, at_s=round(at_s, 1), run=run, detail=detail))

    def judge_pause(self, what: str, name: str, decided_at: datetime | None = None) -> None:
        """An order that was on its way when it was paused is carried out."""
        run = self.world.runs.get(name)
        if run is not None and run.is_another_stages:  # which is not paused
            return
        paused_at = self.world.paused_at
        if paused_at is not None and (decided_at or self.now) - paused_at >= MISSES_NOTHING:
            self.count("acted_while_paused", name, what)

    def could_not_be_called_back(self, attempt: Attempt) -> bool:
        """It is ours, and was ordered before anything showed that a person was about to start the run, which lives; and
        the head node has been away since.
        """
        ordered_at = attempt.ordered_at or attempt.job.created_at
        others = (other for other in attempt.run.attempts.values() if other.is_by_hand and other.is_live)
        was_under_way = any(other.job.created_at + MISSES_NOTHING >= ordered_at for other in others)
        return attempt.is_ours and was_under_way and self.world.source_faults.was_away(attempt.job.created_at)

    def judge_denial(self, run: TrueRun, what: str) -> None:
        """A person was asked about it and did not allow it; what is wrong with the run is still the same."""
        ill, denied_at = run.ill, run.denied_at
        if denied_at is None or run.owner_took_it:
            return
        if ill is not None and ill.since <= denied_at and ill.became_at <= denied_at:
            self.count("owner_undone", run.name, f"{what}, which a person had not allowed")

    def acted(self, run: TrueRun, at: datetime) -> None:
        policy = self.world.policy
        if run.is_ordered:  # what people order is theirs, however much of it
            return
        stage = run.is_another_stages  # each has a breaker of its own
        self._acted.append((at, run.name, stage))
        since = at - policy.breaker.window
        acted = {name for moment, name, by in self._acted if since < moment <= at and by is stage}
        active = sum(not other.is_finished and other.is_another_stages is stage for other in self.world.runs.values())
        limit = policy.breaker.incidents
        if limit and len(acted) > limit and len(acted) * 100 > policy.breaker.percent * active:
            self.count("too_many_at_once", run.name, f"{len(acted)} runs within the window; {limit} are allowed")


class Part:
    """One subject of the judge's."""

    def __init__(self, scene: Scene) -> None:
        self._scene, self._world, self._count = scene, scene.world, scene.count

    @property
    def _now(self) -> datetime:
        return self._scene.now
