"""Incidents as they are recorded and closed: a run that is called recovered and is not."""

from __future__ import annotations

from typing import Final

from chalicelib.domain.model.incident import Incident, Phase
from localcloud.aws.sagemaker import Phase as JobPhase
from rekindle.protocol.mailbox import RunPhase
from rekindle.protocol.signals import FaultClass
from simulation.judging.knowable import (
    has_collapsed,
    has_confirmed,
    shown_late,
    shows_after,
)
from simulation.judging.nodes import Nodes
from simulation.judging.scene import Part, Scene
from simulation.runs.truth import MISSES_NOTHING, ActiveTrouble, TrueRun

_TRAINS: Final = (RunPhase.TRAINING, RunPhase.EVALUATION, RunPhase.SAVING)  # a run that rests between steps is well


class Closings(Part):
    """What the service writes down."""

    def __init__(self, scene: Scene, nodes: Nodes) -> None:
        super().__init__(scene)
        self._nodes = nodes
        self._detected: set[int] = set()
        # Called recovered since the last minute, with a bad loss.
        self._unconfirmed: list[tuple[TrueRun, ActiveTrouble]] = []

    def recorded(self, before: Incident | None, after: Incident) -> None:
        run = self._world.run_of_job(after.job_id)
        self._scene.figures.incidents += before is None
        if after.node is not None:
            (self._nodes.open_nodes.add if after.is_open else self._nodes.open_nodes.discard)(after.incident_id)
        if run is None:
            return
        if before is None:
            self._scene.open[after.incident_id] = run.name
            ill = run.ill
            if ill is not None and id(ill) not in self._detected:
                self._detected.add(id(ill))
                self._scene.figures.detections_s.append((self._now - ill.since).total_seconds())
        self._scene.stops_begun[run.name] = after.halt.stop_begun_at
        if any(approval.is_pending for approval in after.approvals):
            self._scene.waits.pop(after.incident_id, None)  # a person was asked, who may take their time
        elif after.phase is Phase.RESUBMITTING:
            self._scene.waits.setdefault(after.incident_id, (run, self._now))
        if not after.is_open:
            self._closed(run, after, is_new=before is None or before.is_open)

    def _closed(self, run: TrueRun, after: Incident, *, is_new: bool) -> None:
        self._scene.open.pop(after.incident_id, None)
        self._scene.waits.pop(after.incident_id, None)
        is_stopping = any(attempt.job.phase is JobPhase.STOPPING for attempt in run.live)
        if after.phase is Phase.HANDED_OVER and after.order is not None and run.live and not is_stopping:
            run.is_not_stopped_after_all(self._now)  # people are paged that the order is not carried out
        if after.phase is Phase.HANDED_OVER:
            self._nodes.judge_nodes(run)
        if after.phase is Phase.HANDED_OVER and after.is_poisoned and after.attempt is not None:
            self._scene.called_bad.add(after.attempt)
        if after.phase is Phase.RECOVERED and is_new:
            self._judge_recovery(run, after)

    def _judge_recovery(self, run: TrueRun, incident: Incident) -> None:
        """Count an Incident that closes as recovered while its run is not."""
        if run.owner_stopped or len(run.live) > 1:
            return
        if run.ill is not None:
            self._judge_ill_as_recovered(run, run.ill, incident)
        elif run.live and not run.is_finished and not self._makes_steps(run):
            self._count("false_recovery", run.name, "no attempt makes steps")

    def _makes_steps(self, run: TrueRun) -> bool:
        """An attempt trains, or evaluates or saves between its steps, or has made all its steps."""
        is_training = any(
            attempt.trains_since is not None and attempt.stretches and attempt.stretches[-1].phase in _TRAINS
            for attempt in run.live
        )
        return is_training or any(attempt.is_done for attempt in run.attempts.values())

    def _judge_ill_as_recovered(self, run: TrueRun, ill: ActiveTrouble, incident: Incident) -> None:
        if ill.kind == "slow" and incident.fault is not FaultClass.THROUGHPUT_DROP:
            return  # it is over what it was about
        if run.spec.watch == "metrics" and (ill.kind == "poisoned" or has_collapsed(run)):
            return  # no source shows it (`excuses.shows_no_loss`)
        patience = MISSES_NOTHING + shows_after(run, ill)
        if ill.kind == "spiking":
            if self._now - shown_late(run, self._world.source_faults, self._now) - ill.since > patience:
                self._unconfirmed.append((run, ill))  # the closing notice, which follows, may say so
        elif ill.is_notified and not has_confirmed(run, self._now):
            return  # a person has it; what is over may be another trouble
        elif self._now - ill.turned_at > patience:
            if self._scene.disturbed_at is not None and self._now - self._scene.disturbed_at <= MISSES_NOTHING:
                self._unconfirmed.append((run, ill))  # what waited for the end of the outage arrives in these moments
            else:
                self._count("false_recovery", run.name, f"it is {ill.kind}")

    def judge_spikes(self) -> None:
        """Of runs called recovered a minute ago at most: it is bad, and neither a person nor an Incident knows."""
        watched = set(self._scene.open.values())
        for run, ill in self._unconfirmed:
            is_known = ill.is_notified or (ill.kind != "spiking" and run.name in watched)
            if run.ill is ill and not is_known and not run.owner_stopped:
                self._count("false_recovery", run.name, f"it is {ill.kind}")
        self._unconfirmed.clear()
