"""One observation of the world for an Incident, and the record of what was decided. Called from durable steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from chalicelib.domain.decide import Decision
from chalicelib.domain.decision.steps import new_steps
from chalicelib.domain.faults.slurm_states import count_lost
from chalicelib.domain.guards.guards import was_ordered
from chalicelib.domain.model.action import ActionResult
from chalicelib.domain.model.approvals import BREAKER_KEY
from chalicelib.domain.model.errors import RecoveryError, UnknownEntity, VersionConflict
from chalicelib.domain.model.evidence import Need, Suspicion, SuspicionKind
from chalicelib.domain.model.incident import STOPPED_BY_ORDER, Incident, Phase, TimelineEntry
from chalicelib.domain.model.job import Attempt, Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.node import NodesSeen, NodeView, is_in_service
from chalicelib.domain.model.node_findings import PLATFORM_KINDS
from chalicelib.domain.model.observation import (
    NO_SIBLING,
    AttemptStatus,
    AttemptView,
    CheckpointView,
    Observation,
    ReplyView,
    node_count,
)
from chalicelib.domain.model.signal import Signal
from chalicelib.domain.model.start_view import is_another_run
from chalicelib.domain.policy.document import Policy, readable
from chalicelib.domain.rules.run.orders import who_ordered
from chalicelib.domain.run.bad_nodes import MAX_BAD
from chalicelib.domain.run.beside import beside_names
from chalicelib.domain.run.earlier_attempts import (
    updated_by,
    with_end,
    with_last_step,
)
from chalicelib.domain.run.ending import judged
from chalicelib.domain.run.job_record import job_record
from chalicelib.domain.run.rank_reports import suspicion_of, with_rank_zero
from chalicelib.domain.run.resume_point import goes_back_to
from chalicelib.ports.clock import Clock
from chalicelib.ports.incidents import IncidentStore
from chalicelib.ports.jobs import JobRegistry
from chalicelib.ports.operator import Policies
from chalicelib.ports.platforms import HeadNodes, Mailbox, Schedulers
from chalicelib.services.observe.breaker import one_too_many
from chalicelib.services.observe.nodes import Nodes
from chalicelib.services.observe.part import part_of
from chalicelib.services.observe.policy import incident_policy
from chalicelib.services.observe.run_checkpoints import RunCheckpoints
from chalicelib.services.observe.siblings import (
    ended_at_of,
    is_another_stages,
    reported_attempts,
    unprotected,
)
from chalicelib.services.observe.timeline import entry_of
from rekindle.protocol.reports import ReportKind
from rekindle.protocol.signals import FaultClass

MAX_NODES_SEEN = 64  # an observation is a durable step's result (256 KB at most); a fact is about half a kilobyte
OVERDUE_SLACK = timedelta(seconds=90)  # a look later than this past its time is not slow, it is lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """Reads the world; writes decisions. Failing to read one thing, even by a defect, makes that thing Unknown."""

    store: IncidentStore
    registry: JobRegistry
    scheduler: Schedulers
    mailbox: Mailbox
    policies: Policies
    clock: Clock
    head_nodes: HeadNodes | None = None

    nodes: Nodes | None = None

    def policy_for(self, incident_id: str) -> Policy:
        """The policy that counts for the Incident (observe/policy.py)."""
        return incident_policy(self.store.load(incident_id).incident, self.policies)

    def observe(
        self, incident_id: str, *, generation: int, callback_id: str, quiet_limit: timedelta
    ) -> tuple[Incident, Observation]:
        """Publish the wake-up callback, then read everything the next decision needs.

        `quiet_limit` is the longest until the next observation unless `record` says later.

        Raises:
            VersionConflict: a newer generation has taken over.
        """
        now = self.clock.now()
        looked = self.store.look(
            incident_id, generation=generation, callback_id=callback_id, look_by=now + quiet_limit + OVERDUE_SLACK
        )
        incident = looked.incident
        standing = self.registry.standing(incident.job_id if incident.node is None else None)
        switches = standing.switches
        at_once: dict[str, Any] = {
            "paused": switches.paused,
            "shadow": switches.shadow_of(job_id=incident.job_id, cluster=incident.cluster),
            "breaker": switches.breaker if switches.breaker.is_open else None,
            "breaker_lifted_at": switches.breaker.lifted_at,
        }
        if incident.node is not None:
            node: Maybe[NodeView] = Unknown("nothing reaches nodes from here")
            if self.nodes is not None:
                node = part_of(incident_id, "the node", partial(self.nodes.view, incident))
            return incident, Observation(observed_at=now, has_job=False, new_signals=looked.inbox, node=node, **at_once)
        job = standing.job
        if job is None:
            return incident, Observation(observed_at=now, has_job=False, new_signals=looked.inbox, **at_once)
        part = partial(part_of, incident_id)
        attempt = part("the attempt", partial(self._attempt, job, incident.attempt or job.current_attempt))
        attempts = self._earlier(job, incident, attempt)
        ended = with_end(attempts, attempt)
        attempts = with_last_step(attempts, attempt)
        sibling = part("other attempts", partial(self._sibling, job, incident, attempt, looked.inbox))
        return incident, Observation(
            observed_at=now,
            has_job=True,
            job_name=job.name,
            attempt=attempt,
            record=job_record(job, attempts, incident, attempt, now=now),
            checkpoints=part("the checkpoints", partial(self._checkpoints, job, incident, attempt, ended)),
            reply=part("the reply", partial(self._reply, job, incident)),
            suspicion=part("the ranks' reports", partial(self._suspicion, job, incident, attempt)),
            new_signals=looked.inbox,
            next_number=job.attempt_number + 1,
            current=job.current_attempt,
            successor=part("the successor", partial(self._successor, job, attempt)),
            sibling=sibling,
            is_ours=isinstance(sibling, Known) and self._is_ours(job, incident),
            nodes=part("the nodes", partial(self._nodes, job, incident, attempt, looked.inbox)),
            gpus=job.size.gpus,
            node_count=node_count(job, attempt),
            platform=self.scheduler.of(job.platform).platform,
            cluster=job.cluster,
            **at_once,
        )

    def _attempt(self, job: Job, name: str) -> Maybe[AttemptView]:
        try:
            view = self.scheduler.of(job.platform).describe(name)
        except RecoveryError as err:
            return Unknown(f"{name} cannot be described: {err}"[:200])
        submitted_at = view.start.submitted_at if view.start is not None else None
        if is_another_run(name, submitted_at, job_id=job.job_id, created_at=job.created_at):
            gone = f"it is gone: its number was given to another job, submitted at {submitted_at:%Y-%m-%d %H:%M} UTC"
            return Known(AttemptView(name=name, status=AttemptStatus.GONE, detail=gone))
        try:
            beat = part_of(job.job_id, "the heartbeat", lambda: Known(self.mailbox.heartbeat(job, view)))
        except RecoveryError as err:
            beat = Unknown(f"the heartbeat cannot be read: {err}"[:200])
        if not isinstance(beat, Known):
            return Known(replace(view, last_step=beat, is_heartbeat_unread=True))
        return Known(judged(beat.value, now=self.clock.now()))

    def _successor(self, job: Job, seen: Maybe[AttemptView]) -> Maybe[AttemptView]:
        """What has taken the attempt's place in its submission: held, begun, or over already."""
        if not isinstance(seen, Known) or seen.value.successor is None:
            return Unknown("none that is known")
        return self._attempt(job, seen.value.successor)

    def _sibling(self, job: Job, incident: Incident, seen: Maybe[AttemptView], inbox: Sequence[Signal]) -> Maybe[str]:
        """An attempt that was started by hand while ours waits, to be sent or in the platform's queue, or is stopped
        for its sake; right before ours is sent it is looked for again.

        Only what no Job has registered, and no other stage protects: that is not this Incident's to take over.
        """
        makes_way = incident.phase is Phase.STOPPING and incident.halt.for_sibling is not None
        is_sent = makes_way or _waits_in_queue(incident, seen)
        if not is_sent and incident.phase is not Phase.RESUBMITTING:
            return self._beside(job, beside_names((*incident.signals, *inbox), besides=incident.attempt))
        if not is_sent and incident.resubmission.pending is not None:
            return Unknown("nothing waits to start")
        has_ended = isinstance(seen, Known) and seen.value.status.has_ended
        if makes_way and not has_ended and incident.halt.for_sibling is not None:
            beside = self._beside(job, (incident.halt.for_sibling,))
            if isinstance(beside, Known):
                return beside
        besides = {incident.attempt or job.current_attempt, job.current_attempt}
        # An attempt of ours would be described for nothing, and one that lives would hide another that is told of.
        ours = besides | {name for attempt in incident.resubmission.tries for name in (attempt.name, attempt.clone_of)}
        reported = reported_attempts((*incident.signals, *inbox), besides=ours)
        try:
            for name in self.scheduler.of(job.platform).siblings(job, besides=besides, reported=reported):
                if self.registry.job_of_attempt(name) is None and not is_another_stages(name, job, self.scheduler):
                    return Known(name)
            if is_sent:  # before ours is sent, the act itself looks for heartbeats
                own = {attempt.name for attempt in self.registry.attempts(job.job_id)} | besides
                other = unprotected(job, self.mailbox, own=own, ended_at=ended_at_of(incident), now=self.clock.now())
                return Known(other) if other is not None else NO_SIBLING
        except RecoveryError as err:
            return Unknown(f"whether another attempt lives is not known: {err}"[:200])
        return NO_SIBLING

    def _beside(self, job: Job, names: Sequence[str]) -> Maybe[str]:
        """The first of these that lives, by the platform's own word."""
        try:
            living = (name for name in names if not self.scheduler.of(job.platform).describe(name).status.has_ended)
            name = next(living, None)
        except RecoveryError as err:
            return Unknown(f"whether another attempt lives is not known: {err}"[:200])
        return NO_SIBLING if name is None else Known(name)

    def _is_ours(self, job: Job, incident: Incident) -> bool:
        tried = next((item for item in incident.resubmission.tries if item.name == incident.attempt), None)
        if tried is not None:
            return not tried.is_theirs
        return any(
            attempt.name == incident.attempt and attempt.incident_id is not None
            for attempt in self.registry.attempts(job.job_id)
        )

    def _nodes(
        self, job: Job, incident: Incident, seen: Maybe[AttemptView], inbox: Sequence[Signal]
    ) -> Maybe[NodesSeen]:
        """The nodes that matter to the Incident, read once one of them may be to blame: a report about a node is
        decided by what the platform shows of it now."""
        if self.head_nodes is None or incident.attempt is None or not job.cluster:
            return Unknown("not on a cluster")
        wanted = names_of_interest(incident, seen, inbox)
        if not wanted:
            return Unknown("not needed")
        nodes = self.head_nodes.nodes(job.cluster)
        if not isinstance(nodes, Known):
            return nodes
        found = sorted((facts for facts in nodes.value.nodes if facts.name in wanted), key=is_in_service)
        return Known(
            NodesSeen(
                facts=tuple(found[:MAX_NODES_SEEN]),  # those out of service first: they are what is looked for
                total=len(nodes.value.nodes),
                down=count_lost(nodes.value.nodes),
                idle=sum(is_in_service(facts) and facts.state == "idle" for facts in nodes.value.nodes),
                cleared=self._cleared(incident, inbox),
            )
        )

    def _cleared(self, incident: Incident, inbox: Sequence[Signal]) -> dict[str, datetime]:
        """When HyperPod's agents withdrew reports about nodes that this Incident holds broken, by the nodes' own
        Incidents: the withdrawal may not have reached this one.
        """
        accused = {
            (signal.cluster, signal.node)
            for signal in (*incident.signals, *inbox)
            if signal.kind in PLATFORM_KINDS and signal.fault is not None and signal.node is not None
        }
        found: dict[str, datetime] = {}
        for cluster, node in sorted(accused, key=str)[:MAX_BAD]:
            newest = next(iter(self.store.list_for_node(cluster or "", node or "", limit=1)), None)
            repair = newest.repair if newest is not None else None
            if repair is not None and repair.cleared_at is not None:
                found[node or ""] = repair.cleared_at
        return found

    def _earlier(self, job: Job, incident: Incident, seen: Maybe[AttemptView]) -> tuple[Attempt, ...]:
        """The Job's attempts, read where one has ended or is about to be started, or its checkpoints are wanted.

        With those that the Incident adopted and could not register yet: what they saved is the Job's.
        """
        if not _wants_checkpoints(incident, seen):
            return ()
        registered = tuple(self.registry.attempts(job.job_id))
        names = {attempt.name for attempt in registered}
        adopted = (
            Attempt(
                job_id=job.job_id,
                number=attempt.number,
                name=attempt.name,
                submitted_at=attempt.at,
                resume_step=attempt.resume_step,
            )
            for attempt in incident.resubmission.tries
            if attempt.is_theirs and attempt.name not in names
        )
        return (*registered, *adopted)

    def _checkpoints(
        self, job: Job, incident: Incident, attempt: Maybe[AttemptView], attempts: tuple[Attempt, ...]
    ) -> Maybe[tuple[CheckpointView, ...]]:
        if not _wants_checkpoints(incident, attempt):
            return Unknown("not needed yet")
        reader = RunCheckpoints(
            registry=self.registry, scheduler=self.scheduler, mailbox=self.mailbox, store=self.store
        )
        try:
            return Known(reader.read(job, attempts, seen=lambda: attempt, near=_goes_back_to(incident)))
        except RecoveryError as err:
            return Unknown(str(err)[:200])

    def _reply(self, job: Job, incident: Incident) -> Maybe[ReplyView | None]:
        if incident.halt.ask is None or incident.halt.ask.outcome is not None:
            return Unknown("nothing asked")
        try:
            return self.mailbox.reply(job, incident.halt.ask.request_id)
        except RecoveryError as err:
            return Unknown(str(err)[:200])

    def _suspicion(self, job: Job, incident: Incident, attempt: Maybe[AttemptView]) -> Maybe[Suspicion]:
        """What the ranks' own reports say, while the Incident wants to know and not all of them have spoken."""
        if Need.REPORTS not in incident.evidence.needs or not isinstance(attempt, Known):
            return Unknown("not asked for")
        name = attempt.value.name
        is_nan = incident.fault is FaultClass.NON_FINITE
        kind = SuspicionKind.NON_FINITE if is_nan else SuspicionKind.HANG
        if any(
            suspicion.is_complete and (suspicion.attempt, suspicion.kind) == (name, kind)
            for suspicion in incident.evidence.suspicions
        ):
            return Unknown("all ranks have spoken")
        try:
            of_kind = ReportKind.NON_FINITE if is_nan else ReportKind.STALL
            reports = self.mailbox.reports(job, name, of_kind, life=attempt.value.life)
        except RecoveryError as err:
            return Unknown(str(err)[:200])
        if not isinstance(reports, Known):
            return reports
        since = (
            incident.tracking.repaired_at
        )  # the platform has started the container anew: older words are of another life
        heard = [report for report in reports.value if since is None or report.at >= since]
        return suspicion_of(name, kind, with_rank_zero(heard, attempt.value) if is_nan else heard, kept_in=job.mailbox)

    def record(self, before: Incident, decision: Decision, seen: Observation, *, token: str) -> Incident:
        """Write the decision before it is carried out, fenced by the Incident's version.

        Raises:
            VersionConflict: another writer came in between, or the breaker has tripped; observe again.
        """
        self._count_in(before, decision, seen)
        look_by = None
        if decision.look_again_in is not None:
            look_by = seen.observed_at + decision.look_again_in + OVERDUE_SLACK
        attempt = seen.attempt.value if isinstance(seen.attempt, Known) else None
        after = decision.incident
        if attempt is not None and after.job_id is not None:
            self._keep_attempt(after.job_id, before, attempt, closing=not after.is_open)
        if (
            after.node is not None
            and not after.is_open
            and self.nodes is not None
            and self.nodes.hardware_ledgers is not None
        ):
            self.nodes.hardware_ledgers.keep(after)
        if not after.is_open and any(approval.key == BREAKER_KEY for approval in after.approvals):
            self.registry.release_breaker_page(after.incident_id)
        if after.job_id is not None and after.outcome == STOPPED_BY_ORDER:
            ended_at = attempt.ended_at if attempt is not None else None
            self.registry.deactivate(
                after.job_id, ended_at=ended_at or self.clock.now(), halted_by=who_ordered(after)[:128]
            )
        return self.store.record(
            decision.incident,
            expected_version=before.version,
            token=token,
            absorbed=len(seen.new_signals),
            entry=entry_of(decision, seen),
            look_by=look_by,
        )

    def _count_in(self, before: Incident, decision: Decision, seen: Observation) -> None:
        """Before the first step of anything: how many act now, over all Jobs? The one too many trips the breaker.

        Noted first and counted then, so that of any number at once no more get through than may. A breaker that this
        look saw open has been judged by the guards already. What people order is theirs, however much of it: it neither
        counts nor trips.
        """
        policy = readable(decision.incident.policy_document)
        if seen.breaker is not None or not new_steps(before, decision) or policy is None:
            return
        if was_ordered(before, decision.incident):
            return
        tripped = one_too_many(
            self.registry, before.incident_id, policy, now=self.clock.now(), lifted_at=seen.breaker_lifted_at
        )
        if tripped is not None:
            raise VersionConflict(f"the fleet-wide breaker has tripped: {tripped}")

    def _keep_attempt(self, job_id: str, before: Incident, view: AttemptView, *, closing: bool) -> None:
        """Bring the registry's record of the attempt up to date at the moments that end something."""
        if not (view.status.has_ended or closing):
            return
        if view.name == before.attempt:
            known = Attempt(job_id=job_id, number=before.attempt_number, name=view.name, submitted_at=before.opened_at)
            try:
                self.registry.update_attempt(updated_by(known, before, view))
            except UnknownEntity:  # it was registered under another number, or not at all
                self._keep_by_name(job_id, before, view)
        else:
            self._keep_by_name(job_id, before, view)
        if closing and view.status.has_ended:
            self.registry.deactivate(job_id, ended_at=view.ended_at or self.clock.now())

    def _keep_by_name(self, job_id: str, before: Incident, view: AttemptView) -> None:
        for attempt in self.registry.attempts(job_id):
            if attempt.name == view.name:
                self.registry.update_attempt(updated_by(attempt, before, view))

    def answered(self, incident_id: str, phase: Phase, results: Sequence[ActionResult], *, token: str) -> None:
        """Put what the last Actions of a closed Incident answered into its timeline."""
        facts = {"results": [result.to_wire(defaults=True) for result in results]}
        entry = TimelineEntry(
            at=self.clock.now(), phase=phase, rule="notified", text="people were notified", facts=facts
        )
        self.store.append(incident_id, token=token, entry=entry)


def _waits_in_queue(incident: Incident, seen: Maybe[AttemptView]) -> bool:
    """An attempt of ours that is submitted and has not begun, where the platform holds a queue."""
    if (
        incident.phase is not Phase.VERIFYING
        or not incident.resubmission.tries
        or incident.resubmission.tries[-1].is_theirs
    ):
        return False
    return isinstance(seen, Known) and seen.value.start is not None and seen.value.start.is_queued


def _wants_checkpoints(incident: Incident, seen: Maybe[AttemptView]) -> bool:
    has_ended = isinstance(seen, Known) and seen.value.status.has_ended
    return incident.phase is Phase.RESUBMITTING or has_ended or Need.CHECKPOINTS in incident.evidence.needs


def _goes_back_to(incident: Incident) -> tuple[int, ...]:
    """The steps at or below which a resume point may be wanted, under the policy that the Incident keeps to."""
    policy = readable(incident.policy_document)
    return goes_back_to(incident, policy) if policy is not None else ()


def names_of_interest(incident: Incident, seen: Maybe[AttemptView], inbox: Sequence[Signal]) -> frozenset[str]:
    """Nodes held or reported to be broken, and those of an attempt that has ended."""
    names = {item.node for item in incident.resubmission.bad_nodes}
    names |= {signal.node for signal in (*incident.signals, *inbox) if signal.node is not None}
    if incident.resubmission.tries:
        names |= {*incident.resubmission.tries[-1].exclude, *incident.resubmission.tries[-1].left_nodes}
    view = seen.value if isinstance(seen, Known) else None
    if view is not None and view.start is not None and (view.status.has_ended or view.successor is not None):
        names |= set(view.start.nodes)
    return frozenset(names)
