"""The judge: reads the simulated truth and the service's effects on it, and counts unsafe outcomes. It reads no source
that the service reads.

Each count is one row of COUNTS. What a count is about has a module of its own (`stopped`, `started`, `nodes`, `pages`,
`closings`); what a run comes to from minute to minute stands here. What the service could not have known yet
(`MISSES_NOTHING`) is not counted; what a source hid from it for longer is.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.incident import Incident
from chalicelib.ports.notices import Notice
from simulation.judging.bill import Bill
from simulation.judging.closings import Closings
from simulation.judging.excuses import TOLD_BY, UNWATCHED_AFTER, Expiring, Minute
from simulation.judging.knowable import (
    is_unseen,
    lives_shown_in_vain,
    tells_nothing,
)
from simulation.judging.nodes import Nodes
from simulation.judging.pages import Pages
from simulation.judging.scene import Scene
from simulation.judging.started import Started
from simulation.judging.stopped import REWIND_STEPS, Stopped
from simulation.runs.memory import Watcher
from simulation.runs.saves import Saves
from simulation.runs.truth import MISSES_NOTHING, ActiveTrouble, Attempt, TrueNode, TrueRun
from simulation.stages.world import World

SILENCE: Final = timedelta(minutes=30)  # more until a run of which nothing else can tell is known to be silent
RHYTHM: Final = 3  # and this many times as long as the longest hole that its data had while it was well
MINUTE: Final = timedelta(minutes=1)
_ILLS_SEEN: Final = ("dead", "hung", "poisoned")


class Judge(Scene, Watcher):
    """Counts for one world; it is that world's watcher."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        world.watcher = self
        self.bill = Bill()
        self._excuses = Expiring()
        self._blind_at: dict[str, datetime] = {}  # when a run's only source was away last
        self._looping: dict[str, datetime] = {}  # attempts that gain nothing, and since when beyond the budget
        self._current_since: dict[tuple[str, str], datetime] = {}  # by Job and attempt: since when it is the Job's
        self.nodes = Nodes(self)
        self.stopped = Stopped(self, self.nodes)
        self.started = Started(self, self.nodes)
        self.pages = Pages(self)
        self.closings = Closings(self, self.nodes)

    # ---- what the service does -------------------------------------------------------------------------------------

    def acts(self, run: TrueRun, at: datetime) -> None:
        self.acted(run, at)

    def stops(self, attempt: Attempt) -> None:
        self.stopped.stops(attempt)

    def submitted(self, attempt: Attempt) -> None:
        self.started.submitted(attempt)

    def condemned(self, root: str) -> None:
        self.started.condemned(root)

    def repairs(self, node: TrueNode, how: str) -> None:
        self.nodes.repairs(node, how)

    def notified(self, notice: Notice) -> None:
        self.pages.notified(notice)

    def recorded(self, before: Incident | None, after: Incident) -> None:
        self.closings.recorded(before, after)

    def _judge_rewinds(self, run: TrueRun) -> None:
        """Count runs that begin far behind their plan without a notification. Skips runs that a person has taken over:
        cancelling while the new attempt starts leaves it as it is, and its first steps are no longer watched.
        """
        if run.owner_took_it:
            return
        for attempt in run.live:
            began_at, resume_step = attempt.trains_since, attempt.plan.step or 0
            if (
                not attempt.is_ours
                or began_at is None
                or attempt.is_counted
                or attempt.first_step - 1 > resume_step - REWIND_STEPS
            ):
                continue
            began_at = max(began_at, self.disturbed_at or began_at)
            was_notified = any(
                notice.at >= attempt.trains_since and notice.severity is not Severity.INFO
                for notice in self.world.people.notices
                if self.world.run_of_job(notice.job_id) is run and attempt.trains_since is not None
            )
            if self.now - began_at > UNWATCHED_AFTER + MISSES_NOTHING and not was_notified:
                attempt.is_counted = True
                self.count(
                    "rewound_silently",
                    run.name,
                    f"{attempt.name} began at {attempt.first_step}, not after {resume_step}",
                )

    def _judge_waits(self) -> None:
        """Count Incidents that want a new attempt for longer than the policy waits for one. What is told later than it
        is decided (TOLD_BY), and the time of an outage, are no part of it.
        """
        limit = self.world.policy.resubmission.capacity_limit + TOLD_BY
        for incident_id, (run, since) in list(self.waits.items()):
            if run.ill is None or run.owner_stopped:
                del self.waits[incident_id]
            elif self.now - max(since, self.disturbed_at or since) > limit:
                del self.waits[incident_id]
                self.count("waited_on", run.name, f"it has been {run.ill.kind} for {self._age(run.ill):.0f} s")

    def _judge_superseded(self, run: TrueRun) -> None:
        """Count an attempt that saves beside the later one that its Job has now, once, where the fence could be
        written.
        """
        registry = self.world.registry
        for name in run.attempts if len(run.attempts) > 1 else ():
            owner = registry.job_of_attempt(name)
            if owner is not None:
                self._current_since.setdefault((owner, registry.get(owner).current_attempt), self.now)
        for save in run.saved:
            wrote = run.attempts.get(save.attempt)
            if self.now - save.at > MINUTE or wrote is None or wrote.is_counted or run.spec.watch != "monitor":
                continue
            owner = registry.job_of_attempt(wrote.name)
            current = run.attempts.get(registry.get(owner).current_attempt) if owner is not None else None
            is_later = current is not None and current.job.created_at > wrote.job.created_at
            since = current.trains_since if current is not None and is_later else None
            if current is None or owner is None or since is None:
                continue
            since = max(since, self._current_since[owner, current.name], self.disturbed_at or since)
            if save.at - since > UNWATCHED_AFTER:
                wrote.is_counted = True
                self.count("superseded_saves", run.name, f"{wrote.name} saved step {save.step}")

    def _judge_loops(self, run: TrueRun) -> None:
        """Count a launcher that starts a run again in its place in vain, beyond the budget, while no person knows."""
        limit = max(self.world.policy.budgets.max_no_progress, 2)
        for attempt in run.live:
            in_vain = lives_shown_in_vain(attempt, self.world.source_faults, self.now)
            if in_vain <= limit or Saves.has_gained(attempt) or run.owner_took_it or run.owner_stopped:
                self._looping.pop(attempt.name, None)
                continue
            since = self._looping.setdefault(attempt.name, self.now)
            since = max(since, self.disturbed_at or since)
            if self.now - since > UNWATCHED_AFTER + MISSES_NOTHING and not attempt.is_counted:
                attempt.is_counted = True
                if not self.reckoning.was_told_since(run, attempt.trains_since):
                    self.count("looped_silently", run.name, f"{attempt.name} has had {attempt.life + 1} lives")

    def minute(self) -> None:
        if self.world.source_faults.outage_until() is not None or self.world.paused_at is not None:
            self.disturbed_at = self.now
        self.closings.judge_spikes()
        self.reckoning.minute()
        minute = Minute(
            world=self.world,
            now=self.now,
            open_runs=set(self.open.values()),
            has_open_node=bool(self.nodes.open_nodes),
            called_bad=self.called_bad,
        )
        self._judge_waits()
        for run in self.world.runs.values():
            self._judge_rewinds(run)
            self._judge_loops(run)
            self._judge_superseded(run)
            self.pages.note_strange(run)
            self._judge_chain(run)
            ill = run.ill
            if ill is None or ill.kind not in _ILLS_SEEN or ill.is_counted or ill.is_notified:
                continue
            excused = self._excuses.covering(minute, run, ill)
            self.reckoning.bill.excused_min[excused or "none"] += 1
            if excused is None:
                self._judge_unwatched(run, ill)

    def _judge_chain(self, run: TrueRun) -> None:
        """Count a link that trains beside a start of ours, once."""
        training = [attempt for attempt in run.live if attempt.trains_since is not None and not attempt.is_done]
        links = [attempt for attempt in training if attempt.is_link and not attempt.is_counted]
        ours = next((attempt for attempt in training if attempt.is_ours), None)
        if links and ours is not None and ours is not links[0]:
            links[0].is_counted = True
            self.count("chain_trained_twice", run.name, f"{ours.name} and {links[0].name}")

    def _judge_unwatched(self, run: TrueRun, ill: ActiveTrouble) -> None:
        """Count a run without a working watch, once it could have been noticed for long enough."""
        is_blind = ill.kind != "dead" and is_unseen(run, self.world.source_faults, self.now)
        if is_blind or self.world.is_unheard(run, "ListTrainingJobs"):
            self._blind_at[run.name] = self.now
        since = max(ill.turned_at, self.disturbed_at or ill.since, self._blind_at.get(run.name, ill.since))
        is_mute = run.spec.watch == "metrics" or tells_nothing(run, ill, self.world.source_faults, self.now)
        tells_by_silence = ill.kind == "hung" and is_mute
        silence = max(SILENCE, RHYTHM * self.world.points.longest_hole(run)) if tells_by_silence else timedelta(0)
        if self.now - since > UNWATCHED_AFTER + MISSES_NOTHING + silence:
            ill.is_counted = True
            self.count("dead_unwatched", run.name, f"{ill.kind} since {self._age(ill):.0f} s")

    def _judge_what_waits(self, run: TrueRun) -> None:
        """Count links that wait for what a start of ours has taken the place of. What a person has submitted anew is
        not what a link of before waits for, nor is a start of ours in place of that.
        """
        cluster = self.world.cluster
        if cluster is None or not run.is_finished:
            return
        completed = [attempt.name for attempt in run.attempts.values() if attempt.is_ours and attempt.is_done]
        for job in cluster.waits_in_vain(run):
            if not job.dependency.startswith("afterok"):  # what waits for a failure is not wanted any more
                continue
            if any(cluster.waits_for(job, name) for name in completed):
                self.count("chain_left_waiting", run.name, f"job {job.slurm_job} waits with {job.dependency}")

    def _age(self, ill: ActiveTrouble) -> float:
        return (self.now - ill.since).total_seconds()

    def close(self) -> None:
        """The story is over."""
        for run in self.world.runs.values():
            for ill in run.ills:
                if ill.until is not None:
                    self.figures.recoveries_s.append((ill.until - ill.since).total_seconds())
            self._judge_what_waits(run)
        for defect in self.world.defects:
            self.count("service_defect", "", defect[:300])
        self.bill = self.reckoning.close(pages=self.figures.pages, incidents=self.figures.incidents)
