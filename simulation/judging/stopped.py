"""Stops of attempts that were well, that had finished, or that were on their way."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from chalicelib.domain.policy.playbooks import Response
from localcloud.aws.sagemaker import Phase as JobPhase
from rekindle.protocol.signals import FaultClass
from simulation.judging.knowable import (
    began_over,
    fruitless_attempts,
    shown_until,
    without_gain,
)
from simulation.judging.nodes import Nodes
from simulation.judging.scene import Part, Scene
from simulation.runs.truth import MISSES_NOTHING, ActiveTrouble, Attempt, TrueRun

REWIND_STEPS: Final = 30  # fewer are no more than a save or two apart
FAR_OFF: Final = timedelta(hours=1)  # an end that is announced for later than this is no hurry


class Stopped(Part):
    """What the service stops."""

    def __init__(self, scene: Scene, nodes: Nodes) -> None:
        super().__init__(scene)
        self._nodes = nodes

    def stops(self, attempt: Attempt) -> None:
        job, run = attempt.job, attempt.run
        if job.is_terminal or job.phase is JobPhase.STOPPING or run.owner_stopped or self._is_stop_ordered(attempt):
            return
        self._scene.reckoning.stops(attempt)
        gives_way = self._gives_way(attempt)
        if attempt.waits_for_itself and run.ill is None and not (run.is_ordered or gives_way):
            self._count("healthy_stopped", run.name, f"{attempt.name} is started again by its own platform")
        is_node_bad = attempt.is_on_bad_node or any(self._nodes.just_repaired(node) for node in attempt.nodes)
        if gives_way:
            return
        if not is_node_bad and any(node.is_ordered for node in attempt.nodes):
            run.is_ordered = True  # it makes room for the repair, and starts elsewhere
        self._scene.acted(run, self._now)
        self._scene.judge_pause(f"{attempt.name} was stopped", run.name)
        if run.is_ordered:
            return
        self._scene.judge_denial(run, f"{attempt.name} was stopped")
        if not is_node_bad:
            self._judge_health(attempt)

    def _is_stop_ordered(self, attempt: Attempt) -> bool:
        """A person has ordered its Job stopped while it lived. That they have started the run again since, as another
        Job, does not take the order back.
        """
        run, at = attempt.run, attempt.run.stop_ordered_at
        if at is None or not run.is_stop_ordered or attempt.job.created_at > at:
            return False
        owner: str | None = self._world.registry.job_of_attempt(attempt.name)
        return owner == run.stopped_job

    def _judge_health(self, attempt: Attempt) -> None:
        """Count a stop of an attempt that was well, that had finished its work, or that was on its way."""
        run, ill = attempt.run, attempt.run.ill
        if ill is not None and ill.kind == "slow" and not self._restarts_what_is_slow:
            ill = None
        if ill is None and self._is_ill_itself(attempt) and (attempt.is_poisoned or not attempt.is_done):
            return
        if ill is None and not attempt.is_done and any(node.is_announced(self._now) for node in attempt.nodes):
            self._judge_notice(attempt)
        elif why := self._why_wrong(attempt, ill):
            self._count("healthy_stopped", run.name, f"{attempt.name} {why} {attempt.job.phase}")

    def _why_wrong(self, attempt: Attempt, ill: ActiveTrouble | None) -> str:
        """Why the attempt should not have been stopped; "" where a stop was right, or not known to be wrong."""
        if attempt.is_done and (ill is None or ill.kind not in ("poisoned", "spiking")):
            return "had finished, and was"
        if ill is None:
            return "" if self._just_healed(attempt.run) else "was well, and"
        is_relaunched = ill.kind == "dead" and not (self._is_of_a_loop(attempt) or self._just_changed(attempt))
        return "was on its way," if is_relaunched else ""

    def _is_ill_itself(self, attempt: Attempt) -> bool:
        """While another one of the run trains well beside it."""
        is_slow = bool(attempt.stretches) and attempt.stretches[-1].pace > 1.0
        return attempt.is_frozen or attempt.is_poisoned or (is_slow and self._restarts_what_is_slow)

    def _just_changed(self, attempt: Attempt) -> bool:
        """Its launcher has just ended processes that were ill, and has launched no others yet, or others of which no
        heartbeat can be read yet: no source shows it.
        """
        lost_at, ill = attempt.suspended_at, attempt.run.ill
        if attempt.life_since is not None and not attempt.waits_for_itself:
            seen_at = self._world.source_faults.seen_at(attempt.run.name, self._now)
            return seen_at is None or seen_at < attempt.life_since
        if not attempt.waits_for_itself or lost_at is None or ill is None:
            return False
        # Its platform shows Spot's interruption; what a launcher does only its events and its heartbeat show.
        shown_at = shown_until(attempt.run, self._world.source_faults, self._now) if attempt.is_training else self._now
        return ill.since < lost_at and shown_at - lost_at < MISSES_NOTHING

    def _gives_way(self, attempt: Attempt) -> bool:
        """It has not trained yet, and another attempt continues in its place; or it is a start of ours whose order was
        under way as a person started the run, and that has trained for less than a minute or could not be reached.
        """
        others = [other for other in attempt.run.attempts.values() if other is not attempt]
        if self._scene.could_not_be_called_back(attempt):
            return True
        if attempt.is_ours and any(other.is_by_hand and self._came_beside(attempt, other) for other in others):
            return True
        if attempt.trains_since is not None:
            has_just_begun = attempt.is_ours and self._now - attempt.trains_since < MISSES_NOTHING
            return has_just_begun and any(other.is_by_hand and self._seems_live(other) for other in others)
        return any(other.is_live or (other.is_by_hand and self._seems_live(other)) for other in others)

    def _came_beside(self, attempt: Attempt, other: Attempt) -> bool:
        """The owner has started `other` while `attempt` lived, and it lives: the later one is the owner's wish."""
        return other.job.created_at > attempt.job.created_at and self._seems_live(other)

    def _seems_live(self, attempt: Attempt) -> bool:
        return attempt.is_live or self._now - (attempt.job.ended_at or self._now) < MISSES_NOTHING

    def _judge_notice(self, attempt: Attempt) -> None:
        """A node that is announced to leave later leaves the time for a save of the run's own."""
        run = attempt.run
        leaving = [node for node in attempt.nodes if node.is_announced(self._now)]
        ends_at = min(node.leaves_at for node in leaving if node.leaves_at is not None)
        known_since = min(node.announced_at for node in leaving if node.announced_at is not None)
        between = timedelta(seconds=run.spec.save_every * run.spec.step_s) + MISSES_NOTHING
        has_saved = any(save.is_whole and save.at >= known_since for save in run.saved if save.attempt == attempt.name)
        has_room = ends_at - self._now > 2 * between + FAR_OFF
        if has_room and not has_saved and attempt.step_at(self._now) - attempt.first_step >= REWIND_STEPS // 2:
            left_s = (ends_at - self._now).total_seconds()
            why = f"{attempt.name} was well, its node stays for {left_s:.0f} s, and nothing was saved since the notice"
            self._count("healthy_stopped", run.name, why)

    @property
    def _restarts_what_is_slow(self) -> bool:
        return self._world.policy.playbook(FaultClass.THROUGHPUT_DROP).response is not Response.TELL

    def _is_of_a_loop(self, attempt: Attempt) -> bool:
        """Slurm restarted it without Rekindle and the run's budget is spent: nothing is saved any more, or the trainer
        begins at the same step each time, whatever is saved.
        """
        in_vain, _ = fruitless_attempts(attempt, self._world.source_faults, self._now)
        spent = max(in_vain, began_over(attempt), without_gain(attempt))
        return not attempt.is_ours and spent >= self._world.policy.budgets.max_no_progress

    def _just_healed(self, run: TrueRun) -> bool:
        until = run.ills[-1].until if run.ills else None
        return until is not None and shown_until(run, self._world.source_faults, self._now) - until < MISSES_NOTHING
