"""Starts: two at once, after their owner's stop, from a bad or an old checkpoint, beyond the budget."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.policy.playbooks import Response
from chalicelib.domain.resume.resume_point import is_attempt_name
from chalicelib.domain.rules.run.opening import OTHER_CLOCK, SAME_CLOCK
from rekindle.protocol.signals import FaultClass
from simulation.judging.knowable import (
    fruitless_attempts,
    is_shown,
    looks_broken,
    looks_its_own,
    looks_poisoned,
    poison_could_be_known,
)
from simulation.judging.nodes import Nodes
from simulation.judging.scene import Part, Scene
from simulation.runs.truth import MISSES_NOTHING, Attempt, Saved, TrueRun

_GO_BACK: Final = (Response.ROLL_BACK, Response.WATCH_THEN_ROLL_BACK)


class Started(Part):
    """What the service submits, and the checkpoints that it calls bad."""

    def __init__(self, scene: Scene, nodes: Nodes) -> None:
        super().__init__(scene)
        self._nodes = nodes

    def submitted(self, attempt: Attempt) -> None:
        run = attempt.run
        self._scene.figures.submissions += 1
        if self._world.cluster is not None:
            own = sum(not (node.is_broken or self._nodes.just_repaired(node)) for node in attempt.nodes)
            self._nodes.spares[attempt.name] = self._nodes.idle_nodes(self._world.cluster) + own
        if run.spec.platform != "slurm":  # there an order comes first
            self._scene.acted(run, self._now)
        others = [
            other.name
            for other in run.live
            if other is not attempt and is_shown(other, self._world.source_faults, self._now)
        ]
        # A start that waited in the queue as its owner cancelled the recovery: the answer says that it is left there.
        ordered_at, cancelled_at = attempt.ordered_at, run.cancelled_at
        is_left = ordered_at is not None and cancelled_at is not None and ordered_at <= cancelled_at
        if others and not is_left and not self._scene.could_not_be_called_back(attempt):
            self._count(
                "two_live_attempts", run.name, f"{attempt.name} was submitted while {', '.join(others)} was live"
            )
        stopped_at = None if self._is_another_jobs_stop(attempt) else self._stopped_for_certain_at(run)
        if stopped_at is not None and stopped_at < (attempt.ordered_at or self._now):
            self._count("owner_undone", run.name, f"{attempt.name} was submitted after its owner had stopped the run")
        self._judge_resume_point(attempt, is_alone=not others)
        self._scene.judge_pause(f"{attempt.name} was submitted", run.name, attempt.ordered_at)
        if not run.is_ordered:
            self._scene.judge_denial(run, f"{attempt.name} was submitted")
        attempt.is_persons, run.is_ordered = run.is_ordered, False
        if not attempt.is_persons:
            self._judge_budget(attempt)

    def _stopped_for_certain_at(self, run: TrueRun) -> datetime | None:
        """When its owner stopped the run, None where that stop may be meant for something else."""
        stopped_at = run.owner_stopped_at
        if stopped_at is None or self._trains_another_submission(run, stopped_at):
            return None
        begun_at = self._scene.stops_begun.get(run.name)
        is_crossed = begun_at is not None and timedelta(0) <= stopped_at - begun_at < MISSES_NOTHING
        if is_crossed and run.spec.platform != "slurm":
            return None  # SageMaker does not say who stopped a job, and the service's own stop was on its way
        if run.stopped_job not in ("", run.name):
            return None  # a second start of its owner's is a Job of its own, and its stop says nothing of the first
        by_hand = (stopped_at - attempt.job.created_at for attempt in run.attempts.values() if attempt.is_by_hand)
        if any(timedelta(0) <= after < MISSES_NOTHING for after in by_hand):
            return None  # what a person submitted and stopped within a minute may be two people's
        if run.resubmission_ordered_at is not None:
            # Whose stop it is that follows an order to resubmit at once two clocks do not show.
            apart = OTHER_CLOCK if run.spec.platform == "slurm" else SAME_CLOCK
            if timedelta(0) <= stopped_at - run.resubmission_ordered_at <= apart:
                return None
        return stopped_at

    def _is_another_jobs_stop(self, attempt: Attempt) -> bool:
        """What its owner has stopped in the console was a start of its own, protected as another Job, and the attempts
        of this one were over by then.
        """
        run = attempt.run
        if run.spec.platform == "slurm" or run.is_stop_ordered or not run.stopped_by_hand:
            return False
        owners = {self._world.registry.job_of_attempt(name) for name in run.stopped_by_hand}
        return None not in owners and not any(is_attempt_name(attempt.name, owner or "") for owner in owners)

    def _trains_another_submission(self, run: TrueRun, stopped_at: datetime) -> bool:
        """What its owner had submitted as well waited in the queue as the order to stop came, which names another Job;
        it has trained since: the order is not about it.
        """
        return bool(run.stopped_job) and any(
            attempt.is_by_hand
            and attempt.trains_since is not None
            and attempt.job.created_at < stopped_at < attempt.trains_since
            and self._world.registry.job_of_attempt(attempt.name) != run.stopped_job
            for attempt in run.attempts.values()
        )

    def _judge_resume_point(self, attempt: Attempt, *, is_alone: bool) -> None:
        run, root = attempt.run, attempt.plan.uri
        saved = run.saved_at_root(root)
        if root is not None and saved is None:
            if looks_its_own(run, root, self._world.source_faults, self._now):
                return
            self._count("resumed_from_bad", run.name, f"{attempt.name} shall load {root}, which is none of the run's")
            return
        if saved is not None and not saved.is_whole:
            self._count("resumed_from_bad", run.name, f"{attempt.name} shall load {root}, which is not whole")
            return
        if (
            saved is not None
            and saved.is_poisoned
            and poison_could_be_known(attempt, saved.root, saved.step, self._world.source_faults, self._now)
        ):
            self._count("resumed_from_bad", run.name, f"{attempt.name} shall load {root}, which is poisoned")
            return
        if saved is not None and saved.is_spiking and self._is_spike_known(run, saved):
            self._count("resumed_in_spike", run.name, f"{attempt.name} shall load {root}, saved within a spike")
        if is_alone:  # where two live, what the other has saved meanwhile is no measure
            self._judge_progress(attempt, saved.step if saved is not None else 0)

    def _is_spike_known(self, run: TrueRun, saved: Saved) -> bool:
        """Its own report could arrive, and the policy's answer to a rise of the loss is to go back before it."""
        wrote = run.attempts.get(saved.attempt)
        goes_back = self._world.policy.playbook(FaultClass.LOSS_SPIKE).response in _GO_BACK
        is_old = wrote is not None and saved.at - (wrote.trains_since or saved.at) > MISSES_NOTHING
        told = self._world.source_faults.told_until(self._now)
        has_arrived = told is not None and told >= saved.at
        return goes_back and is_old and run.spec.watch == "monitor" and has_arrived

    def _is_a_twins(self, saved: Saved, attempt: Attempt) -> bool:
        """One that is protected as a Job of its own has saved it, and lived beside another attempt of the run. The new
        attempt is not registered yet.
        """
        run, owner_of, wrote = attempt.run, self._world.registry.job_of_attempt, attempt.run.attempts.get(saved.attempt)
        owner = owner_of(saved.attempt)
        if wrote is None or owner is None:
            return False

        def is_over(one: Attempt, other: Attempt) -> bool:
            return one.job.ended_at is not None and one.job.ended_at <= other.job.created_at

        others = [other for other in run.attempts.values() if owner_of(other.name) not in (None, owner)]
        return any(not is_over(wrote, other) and not is_over(other, wrote) for other in others)

    def _judge_progress(self, attempt: Attempt, step: int) -> None:
        run = attempt.run
        # Going back before a spike, or before the scale of the gradients collapsed, is what is wanted.
        bent = any(trouble.kind in ("spike", "skips") for trouble in run.spec.troubles)
        marked = any(other.first_bad_loss is not None for other in run.attempts.values())
        best = run.best(by=self._now - MISSES_NOTHING)
        while best is not None and looks_broken(run, best):  # two that loaded it died before a step: an older one tells
            best = run.best(before_step=best.step, by=self._now - MISSES_NOTHING)
        reached = run.furthest
        self._scene.figures.steps_lost += max(0, reached - step)
        if best is None or bent or step >= best.step or self._is_a_twins(best, attempt):
            return
        if marked:  # a poisoned run goes back before its onset; two saves may lie between, of which one is in doubt
            if best.step - step > 2 * run.spec.save_every:
                self._count("passed_over", run.name, f"{attempt.name} continues from {step}; {best.step} is good")
            return
        self._count("passed_over", run.name, f"{attempt.name} continues from {step}; {best.step} is good")

    def _judge_budget(self, attempt: Attempt) -> None:
        run = attempt.run
        in_vain, memory = fruitless_attempts(attempt, self._world.source_faults, self._now)
        if in_vain >= self._world.policy.budgets.max_no_progress + 1:
            self._count("budget_exceeded", run.name, f"{attempt.name} after {in_vain} attempts that gained nothing")
        if memory >= 3:
            self._count("budget_exceeded", run.name, f"{attempt.name} after {memory} deaths for lack of memory")

    def condemned(self, root: str) -> None:
        for run in self._world.runs.values():
            saved = run.saved_at_root(root)
            if saved is not None and saved.is_good and not (looks_poisoned(run, saved) or looks_broken(run, saved)):
                self._count("good_condemned", run.name, f"{root} is whole and not poisoned")
