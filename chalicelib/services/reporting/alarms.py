"""CloudWatch alarms of ours: made with a Job, brought up to date with its attempts, removed with it; and what an alarm
that rings means.

An alarm is a claim. A hang alarm rings as well while a run starts, between two attempts and after the end, because no
step is made then either: before such a claim opens an Incident, the platform and the heartbeat are asked.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.model.errors import (
    CapacityUnavailable,
    Noise,
    NotAuthorized,
    NotOurs,
    RecoveryError,
    Retryable,
    UnknownEntity,
)
from chalicelib.domain.model.job import AlarmMode, Job, WatchPlan
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import STALLED, AttemptStatus
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.ports.clock import Clock
from chalicelib.ports.jobs import JobRegistry
from chalicelib.ports.platforms import Mailbox, Schedulers
from chalicelib.ports.sweep import AlarmStore
from rekindle.protocol.signals import FaultClass

_LOG = logging.getLogger(__name__)

HEARTBEAT_IS_FRESH = timedelta(minutes=2)  # eight heartbeats of 15 s
_TAGS_KEPT: Final = 512
_TAGS_FOR = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarms:
    """Keeps the alarms, and weighs what they say."""

    alarm_store: AlarmStore
    registry: JobRegistry
    scheduler: Schedulers
    mailbox: Mailbox
    clock: Clock
    _tags: OrderedDict[str, tuple[datetime, Mapping[str, str]]] = field(default_factory=OrderedDict)

    # ---- keeping ---------------------------------------------------------------------------------------------------

    def ensure(self, job: Job) -> Job:
        """Make the alarms that the Job asks for, where that is not done yet; the Job with what came of it.

        A platform job's metrics carry its name, so that with a new attempt the alarms move to the new name. A quota
        that is used up is recorded and notified once; asking again (`change`) tries again. Raises nothing: a run is
        protected with or without its alarms.
        """
        wanted = job.current_attempt if job.watch.has_own_metrics else "job"
        state = job.watch.alarms_state
        if job.watch.alarms is AlarmMode.NONE or state == f"made:{wanted}" or state.startswith("refused:"):
            return job
        try:
            if job.watch.alarms is AlarmMode.JOB:
                self.alarm_store.put(job)
            else:
                self.alarm_store.put_shared()
            return self._noted(job, f"made:{wanted}")
        except Retryable as err:
            if not isinstance(err, CapacityUnavailable):
                _LOG.info("alarms are not made yet", extra={"job_id": job.job_id, "error": str(err)[:300]})
                return job  # the next sweep tries again
            return self._refused(job, f"the account's quota of alarms is used up: {err}")
        except RecoveryError as err:
            return self._refused(job, str(err))

    def change(self, job: Job, watch: WatchPlan) -> Job:
        """The Job asks to be watched in another way: old alarms go, new ones are made."""
        had_own = job.watch.alarms is AlarmMode.JOB
        job = replace(job, watch=replace(watch, alarms_state=""))
        self.registry.set_watch(job.job_id, job.watch)
        if had_own and watch.alarms is not AlarmMode.JOB:
            try:
                self.alarm_store.remove([job.job_id])
            except RecoveryError as err:  # the sweep finds them as alarms without an owner
                _LOG.info("old alarms are still there", extra={"job_id": job.job_id, "error": str(err)[:300]})
        return self.ensure(job)

    def _refused(self, job: Job, why: str) -> Job:
        _LOG.warning("alarms were refused", extra={"job_id": job.job_id, "why": why[:300]})
        return self._noted(job, f"refused:{why}"[:300])

    def _noted(self, job: Job, state: str) -> Job:
        job = replace(job, watch=replace(job.watch, alarms_state=state))
        try:
            self.registry.set_watch(job.job_id, job.watch)
        except RecoveryError as err:  # done again by the next sweep, which is the same call
            _LOG.info("what came of the alarms is not written", extra={"error": str(err)[:300]})
        return job

    def tidy(self, token: str, *, has_shared: bool) -> str:
        """Remove alarms of Jobs that are over, a page at a time; the token of the next page, empty after the last.

        `has_shared`: some active Job still asks for the shared alarm.
        """
        try:
            listed, after = self.alarm_store.listed(token)
            over = [job_id for job_id in sorted(listed) if not self._wants_own(job_id)]
            if over:
                self.alarm_store.remove(over)
            if not token and not has_shared:
                self.alarm_store.remove_shared()
        except RecoveryError as err:
            _LOG.warning("alarms cannot be tidied up", extra={"error": str(err)[:300]})
            return ""  # begun anew in a later round
        return after

    def _wants_own(self, job_id: str) -> bool:
        try:
            job = self.registry.get(job_id)
        except UnknownEntity:
            return False
        return job.active and job.watch.alarms is AlarmMode.JOB

    # ---- what an alarm says ----------------------------------------------------------------------------------------

    def tags_of(self, arn: str) -> Mapping[str, str]:
        """The tags of an alarm that names no run itself; remembered for a few minutes, since alarms flap.

        Raises:
            NotOurs: the tags may not be read.
            Retryable: not now; the event shall come again.
        """
        now = self.clock.now()
        known = self._tags.get(arn)
        if known is not None and now - known[0] < _TAGS_FOR:
            return known[1]
        try:
            tags = self.alarm_store.tags_of(arn)
        except NotAuthorized as err:
            _LOG.warning("an alarm's tags cannot be read", extra={"error": str(err)[:300]})
            raise NotOurs("alarm names no run, and its tags cannot be read") from err
        self._tags[arn] = (now, tags)
        while len(self._tags) > _TAGS_KEPT:
            self._tags.popitem(last=False)
        return tags

    def weighed(self, signal: Signal) -> Signal:
        """The Signal of an alarm, tied to the attempt it speaks of; others come back as they are.

        Raises:
            Noise: a hang alarm about a run that is not training, or whose own monitor lives and sees no stall.
            Retryable: the platform cannot be asked now.
        """
        if signal.kind is not SignalKind.ALARM or signal.fault is not FaultClass.HANG or not signal.triggers:
            return signal
        job = self._job_of(signal)
        if job is None:
            return signal  # the intake finds out whose it is
        if not job.active:
            raise Noise("hang alarm of a run that is over")
        view = self.scheduler.of(job.platform).describe(job.current_attempt)
        if view.status is not AttemptStatus.RUNNING:
            raise Noise(f"hang alarm of a run that is {view.status}")
        now = self.clock.now()
        if job.mailbox:
            view = self.mailbox.heartbeat(job, view)
        if view.heartbeat_at is not None and now - view.heartbeat_at <= HEARTBEAT_IS_FRESH and view.work != STALLED:
            raise Noise("hang alarm of a run whose own monitor reports and sees no stall")
        if now - job.attempt_started_at < timedelta(minutes=job.watch.hang_minutes):
            raise Noise("hang alarm about the time before this attempt")
        evidence = dict(signal.evidence)
        if isinstance(view.last_step, Known):
            evidence["step"] = view.last_step.value
        return replace(signal, job_id=job.job_id, attempt=job.current_attempt, evidence=evidence)

    def _job_of(self, signal: Signal) -> Job | None:
        job_id = signal.job_id
        if job_id is None and signal.attempt is not None:
            job_id = self.registry.job_of_attempt(signal.attempt)
        if job_id is None:
            return None
        try:
            job = self.registry.get(job_id)
        except UnknownEntity:
            return None
        # An alarm on an earlier attempt's own metrics: old news, which the intake puts aside as such.
        return None if signal.attempt not in (None, job.current_attempt) else job
