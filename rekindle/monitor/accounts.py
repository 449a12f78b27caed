"""What the monitor reports of its run, from what its parts know: heartbeats, manifests, progress, events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rekindle.detectors.health import Health
from rekindle.detectors.nonfinite import classify
from rekindle.detectors.points import Severity, Verdict
from rekindle.monitor.base.run import Run
from rekindle.monitor.base.trouble import logger
from rekindle.monitor.liveness.stall import StallWatch
from rekindle.monitor.loss.judge import number, plain
from rekindle.monitor.loss.losses import SETTLE_S, Losses
from rekindle.monitor.mail.outbox import Outbox
from rekindle.monitor.saving.saved import SaveJob, samples_at
from rekindle.protocol.mailbox import CheckpointReply, Heartbeat, LossState, RunPhase
from rekindle.protocol.manifests import Manifest, ManifestFile
from rekindle.protocol.reports import RankReport
from rekindle.protocol.signals import EventType


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Called on the background threads."""

    run: Run
    stall: StallWatch
    losses: Losses
    outbox: Outbox

    def heartbeat(self) -> Heartbeat:
        state, identity = self.run.state, self.run.identity
        remote = None if self.losses.judging_rank.is_mine else self.losses.judging_rank.remote
        news = self.losses.judge.news if remote is None else remote.news
        loss, loss_state = state.newest_loss() if remote is None else (remote.loss, remote.loss_state)
        health, onset = news.health, news.onset_step
        fallen = self.losses.scale.no_update_since
        if fallen is not None and loss_state is LossState.FINITE:  # the loss is a number, and nothing is learnt from it
            loss, loss_state, health, onset = None, LossState.INF, Health.NON_FINITE, fallen
        phase = RunPhase.STALLED if self.stall.is_stalled else self.stall.phase
        return Heartbeat(
            job_id=identity.job_id,
            attempt=identity.attempt,
            attempt_number=identity.attempt_number,
            step=state.step,
            first_step=state.first_step,
            loss=loss,
            loss_state=loss_state,
            phase=RunPhase.FINISHED if state.is_complete else phase,
            step_s_median=state.step_s,
            rank=identity.rank,
            world_size=identity.world_size,
            at=self.run.clock.now(),
            loss_health=health.value,
            onset_step=onset,
            healed_step=news.healed_step,
            loss_baseline=news.baseline,
            judged_step=news.judged_step,
            is_last=state.is_finished,
            life=identity.life,
            died_of=state.died_of[:128],
        )

    def position(self) -> str:
        step = self.run.state.step
        silent_s = self.run.clock.monotonic() - self.stall.marked_at
        where = "before the first step" if step is None else f"after step {step}"
        what = "is stuck" if self.stall.is_stalled else "did not get to a save in time"
        return f"the training thread {what}: in {self.stall.phase}, {silent_s:.1f} s {where}"

    def objection(self, since: float) -> str:
        """What this process does, for one that would hold the run; empty where it has not moved since."""
        phase = self.stall.phase
        if self.run.state.is_finished or self.stall.is_stalled:
            return ""
        if phase is not RunPhase.TRAINING:
            return f"is in {phase.value}"
        return f"is at step {self.run.state.step}" if self.stall.marked_at > since else ""

    def manifest(self, job: SaveJob, root: str, files: tuple[ManifestFile, ...]) -> Manifest:
        """As of now, for the sealing thread: waits until the loss of the saved step is read, within bounds.

        A loss that was read since the save may have shown that its weights are poisoned.
        """
        self.losses.settle(SETTLE_S)
        remote = None if self.losses.judging_rank.is_mine else self.losses.judging_rank.remote
        is_bad_elsewhere = remote is not None and remote.bad_step is not None and remote.bad_step <= job.step + 1
        poisoned = job.poisoned or is_bad_elsewhere or self.run.state.may_be_poisoned_at(job.step)
        samples, per_step = samples_at(job.step)
        loss = self.run.state.loss_at(job.step)  # of exactly that step; unknown rather than an older one
        return Manifest(
            job_id=self.run.identity.job_id,
            attempt=self.run.identity.attempt,
            attempt_number=self.run.identity.attempt_number,
            step=job.step,
            kind=job.kind,
            request_id=job.request_id,
            root=root,
            files=files,
            world_size=self.run.identity.world_size,
            data=job.result.data,
            loss=loss if classify(loss) is LossState.FINITE and not poisoned else None,
            poisoned=poisoned,
            loss_unread=job.is_loss_unread,
            life=self.run.identity.life,
            samples=samples,
            samples_per_step=per_step,
            saved_at=job.saved_at,
        )

    def on_reply(self, reply: CheckpointReply) -> None:
        self.outbox.push(EventType.REPLY, at_step=reply.step, reply={"v": 1, **reply.to_wire()})

    def on_superseded(self, by: str | None) -> None:
        if by is None:
            logger.warning("This attempt may save again: the fence names it now")
            self.outbox.unmute_metrics()
            return
        logger.warning("This attempt was superseded by %s: its checkpoints no longer count, the run should end", by)
        self._is_over(by, superseded_by=by)

    def on_lost(self, to: str) -> None:
        """A newer life of this attempt holds the run."""
        logger.warning("This process was superseded by %s: its checkpoints no longer count, it should end", to)
        self._is_over(to)

    def _is_over(self, by: str, **more: Any) -> None:
        self.outbox.mute_metrics()
        self.outbox.push(EventType.FINISHED, why=f"superseded by {by}", **more)

    def on_straggler(self, verdict: Verdict, paces: Mapping[int, RankReport]) -> None:
        if verdict.severity is not Severity.ACT:
            return
        evidence = plain(verdict.evidence)
        rank = evidence.get("rank")
        report = paces.get(rank) if isinstance(rank, int) else None
        self.outbox.push(
            EventType.STRAGGLER,
            at_step=verdict.step,
            straggler=report.rank if report is not None else None,
            host=report.host if report is not None else None,
            step_s=report.step_s if report is not None else None,
            baseline_s=number(evidence.get("baseline_s")),
            rule=verdict.rule,
            evidence=evidence,
        )
        logger.warning("Rank %s is slower than the others: %s", rank, verdict.rule)
