"""Takes a Signal in: finds the Job that it is about, and opens or joins its Incident, or drops the Signal as news.

Called by every trigger (`ingress.py`), the sweep, and operators' orders. Signals about a node go through `node_intake`;
`incident_opener` opens and joins.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

from chalicelib.domain.faults.signal_facts import is_stale, of_newest_start
from chalicelib.domain.model.errors import NotOurs, RecoveryError, UnknownEntity
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.run.beside import beside_names, two_live_signal
from chalicelib.domain.run.ending import crashed, doubt, is_settled
from chalicelib.ports.clock import Clock
from chalicelib.ports.incidents import Executions, IncidentStore
from chalicelib.ports.jobs import JobRegistry
from chalicelib.ports.notices import Announcer
from chalicelib.ports.platforms import ClusterReader, DiscoveredJob, HeadNodes, Mailbox, Schedulers
from chalicelib.services.intake.ended_attempt import signal_from_state
from chalicelib.services.intake.incident_opener import IncidentOpener
from chalicelib.services.intake.known_trouble import is_in_hand, with_history
from chalicelib.services.intake.newest_save import note_reply
from chalicelib.services.intake.node_intake import NodeIntake
from chalicelib.services.intake.node_map import NodeMap
from chalicelib.services.intake.registration import PLATFORM_STATES, Registration
from chalicelib.services.intake.remembered_names import RegisteredNames, UnprotectedNames
from chalicelib.services.reporting.outcome import Outcome, OutcomeKind
from rekindle.protocol.signals import FaultClass

_ENDED_WELL = frozenset({"Completed", "Stopped"})  # by themselves or by an order: nothing to recover
_ENDED = _ENDED_WELL | {"Failed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """Takes Signals in. Every path is safe to repeat: events are at-least-once, unordered, sometimes missing."""

    store: IncidentStore
    registry: JobRegistry
    scheduler: Schedulers
    mailbox: Mailbox
    clusters: ClusterReader
    executions: Executions
    clock: Clock
    head_nodes: HeadNodes | None = None
    announcer: Announcer | None = None
    unprotected: UnprotectedNames = field(default_factory=UnprotectedNames)
    registered: RegisteredNames = field(default_factory=RegisteredNames)

    def receive(self, signal: Signal) -> Outcome:
        """Open or join the Incident that `signal` belongs to, and wake it.

        Raises:
            NotOurs: about a run or cluster that is not protected.
            Retryable: nothing is lost; the same event may come again.
        """
        if signal.kind is SignalKind.ORDER_ANSWERED:
            return self._receive_answer(signal)
        if signal.kind is SignalKind.AGENT_NEWS:
            return self._receive_agent_news(signal)
        if self.head_nodes is not None and signal.job_id is None and signal.attempt is None:
            taken = self._nodes.receive(signal, NodeMap(head_nodes=self.head_nodes, registry=self.registry))
            if taken is not None:
                return taken
        if self._is_dropped_unread(signal):
            return Outcome(what=OutcomeKind.DROPPED, reason="mere news", signal=signal.kind.value)
        job = self._registration.job_of(signal)
        if job is None:
            return self._receive_for_cluster(signal)
        return self._receive_for_job(signal, job)

    def _is_dropped_unread(self, signal: Signal) -> bool:
        """Mere news for which the Job need not be read, since it changes nothing, Incident or none: each state on the
        way to training of an attempt that is registered, and the start of its monitor.
        """
        if signal.attempt is None or not is_mere_news(signal):
            return False
        if signal.cluster is not None:
            return False  # the name may be another run's by now (Platform.names_recur)
        if signal.attempt in self.registered:
            return True
        if signal.kind not in PLATFORM_STATES or self.registry.job_of_attempt(signal.attempt) is None:
            return False
        self.registered.add(signal.attempt)
        return True

    def _receive_for_job(self, signal: Signal, job: Job) -> Outcome:
        signal = of_newest_start(replace(signal, job_id=job.job_id), job)
        if self._is_contradicted(signal, job):
            return _dropped(signal, "an event of the bus that the cluster's own document does not confirm", job)
        if self._lives_beside(signal, job):
            signal = two_live_signal(job, str(signal.attempt), now=self.clock.now())
        with suppress(RecoveryError):  # the sweep lists the manifests, too
            note_reply(self.registry, self.mailbox, job, signal)
        if job.open_incident is not None:
            is_dropped = is_mere_news(signal) and not self._is_of_a_sibling(signal, job)
            return _dropped(signal, "mere news", job) if is_dropped else self._join(signal, job)
        return self._without_incident(signal, job)

    def _is_contradicted(self, signal: Signal, job: Job) -> bool:
        """An agent's event says that a start is over, or names its successor, and its cluster's own document does not.

        Any head node may put events about any cluster on the bus, and write the documents of its own alone. An agent
        writes the document, and its heartbeat, before it sends the event.
        """
        is_agents = signal.kind is SignalKind.ATTEMPT_STATE and signal.source is SignalSource.AGENT
        if not is_agents or signal.attempt is None:
            return False
        scheduler = self.scheduler.of(job.platform)
        successor = signal.evidence.get("successor")
        if successor is not None:
            return bool(scheduler.describe(signal.attempt).successor != successor)
        if signal.fault is None and signal.evidence.get("status") not in _ENDED:
            return False
        return not scheduler.describe(signal.attempt).status.has_ended

    def _is_of_a_sibling(self, signal: Signal, job: Job) -> bool:
        """News of an attempt that is not the current one: it may be started by hand while ours waits, or lives."""
        name = signal.attempt
        if name is None or name == job.current_attempt:
            return False
        if signal.evidence.get("superseded_by"):
            return True  # its monitor saves no more; an earlier attempt of ours may live on like this, too
        is_state = signal.kind in (*PLATFORM_STATES, SignalKind.MONITOR_STARTED)
        return is_state and self.registry.job_of_attempt(name) is None

    def _lives_beside(self, signal: Signal, job: Job) -> bool:
        """A sign of life of an attempt of the Job that is not registered, while the Job's own attempt lives as well."""
        name = signal.attempt
        if name is None or not job.active or not self._is_of_a_sibling(signal, job):
            return False
        if signal.evidence.get("status") in _ENDED or signal.evidence.get("successor") is not None:
            return False
        if not self._registration.is_attempt_of(name, job) or not self._registration.lives(job):
            return False
        view = self.scheduler.of(job.platform).describe(name)
        return not (view.status.has_ended or (view.start is not None and view.start.is_queued))

    def _receive_answer(self, signal: Signal) -> Outcome:
        """An agent's answer: the Incident that gave the order reads it from the cluster state."""
        incident_id = signal.evidence.get("incident_id")
        if not isinstance(incident_id, str):
            return Outcome(what=OutcomeKind.DROPPED, reason="nothing waits for this answer", signal=signal.kind.value)
        try:
            return self.cancel(incident_id, signal)
        except UnknownEntity:
            raise NotOurs("an answer for an Incident that is not here") from None

    def _receive_agent_news(self, signal: Signal) -> Outcome:
        """An agent has started, and needs its queue; or it is silent, which the sweep says."""
        if signal.triggers:
            policy_name = self.clusters.policy_of(signal.cluster or "") or str(
                signal.evidence.get("policy") or "default"
            )
            incident = self._opener.new(signal, scope=signal.cluster or "", policy_name=policy_name)
            return self._opener.open(incident, signal)
        if self.head_nodes is not None and signal.cluster is not None:
            # An agent's event on the bus may name any cluster; only a cluster's own head node writes there.
            if signal.cluster not in self.head_nodes.clusters():
                raise NotOurs("no agent of this cluster has written anything")
            self.head_nodes.prepare(signal.cluster)
        return Outcome(what=OutcomeKind.DROPPED, reason="the agent has started", signal=signal.kind.value)

    def receive_for_node(self, signal: Signal, *, of_run: str | None = None) -> Outcome:
        return self._nodes.receive_for_node(signal, of_run=of_run)

    def cancel(self, incident_id: str, signal: Signal) -> Outcome:
        return self._opener.hand(incident_id, signal)

    def register(self, found: DiscoveredJob) -> Job:
        return self._registration.register(found)

    def adopt(self, job: Job, found: DiscoveredJob) -> Job:
        return self._registration.adopt(job, found)

    @property
    def _opener(self) -> IncidentOpener:
        return IncidentOpener(store=self.store, executions=self.executions, clock=self.clock)

    @property
    def _nodes(self) -> NodeIntake:
        return NodeIntake(
            store=self.store,
            registry=self.registry,
            clusters=self.clusters,
            clock=self.clock,
            opener=self._opener,
            receive_for_job=self._receive_for_job,
        )

    @property
    def _registration(self) -> Registration:
        return Registration(
            registry=self.registry,
            store=self.store,
            scheduler=self.scheduler,
            mailbox=self.mailbox,
            clock=self.clock,
            announcer=self.announcer,
            unprotected=self.unprotected,
        )

    # --- news and trouble ---

    def _without_incident(self, signal: Signal, job: Job) -> Outcome:
        if not signal.triggers:
            return self._news(signal, job)
        if job.halted_by and signal.source is not SignalSource.OPERATOR:
            return _dropped(signal, f"{job.halted_by} ordered the run stopped, and only an order starts it again", job)
        if is_stale(signal, current_attempt=job.current_attempt, attempt_started_at=job.attempt_started_at):
            if not self._is_news_of_a_lost_node(signal, job):
                return _dropped(signal, "stale: about an attempt that has been succeeded", job)
            # Its next start was heard of first. The node is to be mended, and the start to be watched, all the same.
            return self._open(signal, job, about=signal.attempt)
        return self._open(signal, job)

    def _is_news_of_a_lost_node(self, signal: Signal, job: Job) -> bool:
        """The attempt that the current one took the place of lost a node, and no Incident has dealt with that."""
        if signal.kind not in PLATFORM_STATES or signal.fault is not FaultClass.NODE_LOST:
            return False
        if job.current_attempt is None or signal.evidence.get("successor") != job.current_attempt:
            return False
        newest = self._newest_incident(job)
        dealt_with = () if newest is None else (newest.attempt, *(item.clone_of for item in newest.resubmission.tries))
        return signal.attempt not in dealt_with

    def _news(self, signal: Signal, job: Job) -> Outcome:
        """Nothing to recover. A run that is over is no longer looked after."""
        status = signal.evidence.get("status")
        if signal.kind in PLATFORM_STATES and signal.evidence.get("successor") is not None:
            return self._follow_successor(signal, job)
        is_over = signal.kind in PLATFORM_STATES and status in _ENDED_WELL and signal.attempt == job.current_attempt
        if is_over and job.active:
            doubtful = self._doubtful_success(signal, job) if status == "Completed" else None
            if doubtful is not None:
                return doubtful
            self._keep_end(job, AttemptStatus(str(status).lower()), signal.occurred_at)
            if (sibling := self._adopt_sibling(job)) is not None:
                return _dropped(signal, f"it is over ({status}), and {sibling}, which lived beside it, goes on", job)
            self.registry.deactivate(job.job_id, ended_at=min(signal.occurred_at, self.clock.now()))
            return _dropped(signal, f"the run is over: {status}", job)
        ended = self._missed_end(signal, job)
        if ended is not None:
            return self._without_incident(ended, job)
        return _dropped(signal, "news, not trouble", job)

    def _adopt_sibling(self, job: Job) -> str | None:
        """Adopt the attempt that its owner has started beside the one that is over, and that still lives. Its name."""
        newest = self._newest_incident(job)
        scheduler = self.scheduler.of(job.platform)
        for name in beside_names(newest.signals, besides=job.current_attempt) if newest is not None else ():
            with suppress(NotOurs):
                found = scheduler.discover(name)
                if found is None or scheduler.describe(name).status.has_ended:
                    continue
                if self._registration.adopt(job, found).current_attempt == name:
                    return name
        return None

    def _doubtful_success(self, signal: Signal, job: Job) -> Outcome | None:
        """An Incident for a run whose success is in doubt, once its last heartbeat has had time to come."""
        seen = self.mailbox.heartbeat(job, self.scheduler.of(job.platform).describe(str(signal.attempt)))
        why = doubt(seen)
        if not why:
            return None
        if not is_settled(seen, self.clock.now()):
            return _dropped(signal, "it has completed, and its last heartbeat is waited for", job)
        fault = FaultClass.SOFTWARE_CRASH if crashed(seen) else FaultClass.UNCLEAR
        summary = f"{seen.name} has completed: {why}"[:400]
        return self._without_incident(replace(signal, fault=fault, triggers=True, summary=summary), job)

    def _missed_end(self, signal: Signal, job: Job) -> Signal | None:
        """The end, by the loss of a node, of the attempt before the current one, where the event of it was lost."""
        if signal.kind not in PLATFORM_STATES or signal.attempt != job.current_attempt or job.attempt_number < 2:
            return None
        platform = self.scheduler.of(job.platform)
        if not platform.platform.restarts_by_itself:
            return None
        attempts = self.registry.attempts(job.job_id)
        previous = next((attempt for attempt in attempts if attempt.number == job.attempt_number - 1), None)
        if previous is None or previous.status:
            return None
        view = platform.describe(previous.name)
        ended = signal_from_state(job.job_id, view, now=self.clock.now())
        return ended if ended is not None and self._is_news_of_a_lost_node(ended, job) else None

    def _follow_successor(self, signal: Signal, job: Job) -> Outcome:
        """The platform, or a person at its console, has put the job back: its next start is the one to protect."""
        if signal.attempt == job.current_attempt:
            found = self.scheduler.of(job.platform).discover(str(signal.evidence["successor"]))
            if found is not None:
                self._keep_end(job, AttemptStatus.STOPPED, signal.occurred_at)
                job = self._registration.adopt(job, found)
        return _dropped(signal, f"the job was put back, and continues as {job.current_attempt}", job)

    def _keep_end(self, job: Job, status: AttemptStatus, ended_at: datetime) -> None:
        """Write down how the current attempt ended; no look at it will come to do that."""
        current = self._registration.current(job)
        if current is not None:
            self.registry.update_attempt(replace(current, status=status.value, ended_at=ended_at))

    def _receive_for_cluster(self, signal: Signal) -> Outcome:
        cluster = signal.cluster or ""
        policy_name = self.clusters.policy_of(cluster)
        if policy_name is None:
            raise NotOurs("the cluster has no rekindle:policy tag, or another stage's")
        if not signal.triggers:
            return Outcome(what=OutcomeKind.DROPPED, reason="news, not trouble", signal=signal.kind.value)
        return self._opener.open(self._opener.new(signal, scope=cluster, policy_name=policy_name), signal)

    # --- open, join ---

    def _open(self, signal: Signal, job: Job, *, about: str | None = None) -> Outcome:
        """`about`: the attempt, where that is not the current one."""
        if signal.source is not SignalSource.OPERATOR and self._is_withdrawn(job):
            self.registry.deactivate(job.job_id, ended_at=self.clock.now())
            return _dropped(signal, "its owner has withdrawn it: its tag rekindle:policy is gone", job)
        attempt, number = job.current_attempt, job.attempt_number
        if about is not None:
            numbers = {other.name: other.number for other in self.registry.attempts(job.job_id)}
            attempt, number = about, numbers.get(about, number)
        # A first attempt leaves no data out: only its successors were told to.
        current = self._registration.current(job) if job.attempt_number > 1 else None
        incident = self._opener.new(signal, scope=job.job_id, policy_name=job.policy_name).changed(
            job_id=job.job_id,
            attempt=attempt,
            attempt_number=number,
            cluster=signal.cluster or job.cluster or None,
            # Data once found poisonous stay skipped: a later Incident's clone must not meet them again.
            skips=current.skips if current is not None else (),
        )
        previous = self._newest_incident(job)
        if previous is not None:
            if is_in_hand(previous, signal, job, now=self.clock.now()):
                return _dropped(signal, f"a person has {previous.incident_id} about this very trouble in hand", job)
            incident = with_history(incident, previous, signal, job)
        return self._opener.open(incident, signal)

    def _newest_incident(self, job: Job) -> Incident | None:
        return next(iter(self.store.list_for_job(job.job_id, limit=1)), None)

    def _is_withdrawn(self, job: Job) -> bool:
        """Its current attempt is there, and asks for no protection any more. What cannot be read withdraws nothing."""
        platform = self.scheduler.of(job.platform)
        if platform.platform.checks_users:
            return False  # a cluster's agent tells of that as of an end
        try:
            found = platform.find(job.current_attempt)
        except RecoveryError:
            return False
        return found is not None and not (found.policy_name or found.job_id)

    def _join(self, signal: Signal, job: Job) -> Outcome:
        if job.open_incident is not None and (taken := self._opener.join(job.open_incident, signal)) is not None:
            return taken
        fresh = self.registry.get(job.job_id)
        if fresh.open_incident == job.open_incident:
            fresh = replace(fresh, open_incident=None)  # the pointer outlived its Incident; open() settles it
        return self._without_incident(signal, fresh)


def is_mere_news(signal: Signal) -> bool:
    """True for what every observation re-reads anyway and nothing waits for: a job on its way to training, a monitor
    that has begun.

    It is neither kept nor does it wake an execution: a busy run must not cost an open Incident writes and looks.
    """
    if signal.triggers:
        return False
    if signal.kind in PLATFORM_STATES:
        evidence = signal.evidence
        is_repair = (
            evidence.get("repairing") or evidence.get("platform_restarts") or evidence.get("successor") is not None
        )
        return evidence.get("status") not in _ENDED and not is_repair
    return signal.kind is SignalKind.MONITOR_STARTED


def _dropped(signal: Signal, reason: str, job: Job) -> Outcome:
    return Outcome(what=OutcomeKind.DROPPED, reason=reason, job_id=job.job_id, signal=signal.kind.value)
