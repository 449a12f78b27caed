"""One observation of the world for an Incident, and the record of what was decided. Called from durable steps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from chalicelib.domain.decide import Decision
from chalicelib.domain.decision.steps import new_steps
from chalicelib.domain.guards.guards import was_ordered
from chalicelib.domain.model.approvals import BREAKER_KEY
from chalicelib.domain.model.errors import RecoveryError, UnknownEntity, VersionConflict
from chalicelib.domain.model.evidence import Need, Suspicion, SuspicionKind
from chalicelib.domain.model.incident import STOPPED_BY_ORDER, Incident, Phase
from chalicelib.domain.model.job import Attempt, Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.node import NodeView
from chalicelib.domain.model.observation import (
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
from chalicelib.domain.resume.earlier_attempts import (
    updated_by,
    with_end,
    with_last_step,
)
from chalicelib.domain.resume.resume_point import goes_back_to
from chalicelib.domain.rules.run.orders import who_ordered
from chalicelib.domain.run.ending import judged
from chalicelib.domain.run.job_record import job_record
from chalicelib.ports.clock import Clock
from chalicelib.ports.incidents import IncidentStore
from chalicelib.ports.jobs import JobRegistry
from chalicelib.ports.platforms import HeadNodes, Mailbox, Schedulers
from chalicelib.services.observe.breaker import one_too_many
from chalicelib.services.observe.living_siblings import LivingSiblings
from chalicelib.services.observe.nodes import Nodes
from chalicelib.services.observe.policy import incident_policy
from chalicelib.services.observe.run_checkpoints import RunCheckpoints
from chalicelib.services.observe.run_nodes import RunNodes
from chalicelib.services.observe.timeline import entry_of
from rekindle.protocol.signals import FaultClass

if TYPE_CHECKING:
    from chalicelib.ports.operator import Policies

_LOG = logging.getLogger(__name__)

T = TypeVar("T")
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
        return looked.incident, self.read(looked.incident, looked.inbox, now=now)

    def read(self, incident: Incident, inbox: tuple[Signal, ...], *, now: datetime) -> Observation:
        """What the next decision about `incident` needs. Reads only: drills use it, too."""
        incident_id = incident.incident_id
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
            return Observation(observed_at=now, has_job=False, new_signals=inbox, node=node, **at_once)
        job = standing.job
        if job is None:
            return Observation(observed_at=now, has_job=False, new_signals=inbox, **at_once)
        part = partial(part_of, incident_id)
        attempt = part("the attempt", partial(self._attempt, job, incident.attempt or job.current_attempt))
        attempts = self._earlier(job, incident, attempt)
        ended = with_end(attempts, attempt)
        attempts = with_last_step(attempts, attempt)
        siblings = LivingSiblings(
            registry=self.registry, scheduler=self.scheduler, mailbox=self.mailbox, clock=self.clock
        )
        sibling = part("other attempts", partial(siblings.living, job, incident, attempt, inbox))
        nodes = RunNodes(store=self.store, head_nodes=self.head_nodes)
        return Observation(
            observed_at=now,
            has_job=True,
            job_name=job.name,
            attempt=attempt,
            record=job_record(job, attempts, incident, attempt, now=now),
            checkpoints=part("the checkpoints", partial(self._checkpoints, job, incident, attempt, ended)),
            reply=part("the reply", partial(self._reply, job, incident)),
            suspicion=part("the ranks' reports", partial(self._suspicion, job, incident, attempt)),
            new_signals=inbox,
            next_number=job.attempt_number + 1,
            current=job.current_attempt,
            successor=part("the successor", partial(self._successor, job, attempt)),
            sibling=sibling,
            is_ours=isinstance(sibling, Known) and siblings.is_ours(job, incident),
            next_link=part("the next link", partial(siblings.next_link, job, incident, attempt)),
            nodes=part("the nodes", partial(nodes.read, job, incident, attempt, inbox)),
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
        now = self.clock.now()
        if view.ended_at is not None and view.ended_at > now:  # its clock is ahead
            view = replace(view, seen_ended_at=now)
        try:
            beat = part_of(job.job_id, "the heartbeat", lambda: Known(self.mailbox.heartbeat(job, view)))
        except RecoveryError as err:
            beat = Unknown(f"the heartbeat cannot be read: {err}"[:200])
        if not isinstance(beat, Known):
            return Known(replace(view, last_step=beat, is_heartbeat_unread=True))
        return Known(judged(beat.value, now=now))

    def _successor(self, job: Job, seen: Maybe[AttemptView]) -> Maybe[AttemptView]:
        """What has taken the attempt's place in its submission: held, begun, or over already."""
        if not isinstance(seen, Known) or seen.value.successor is None:
            return Unknown("none that is known")
        return self._attempt(job, seen.value.successor)

    def _earlier(self, job: Job, incident: Incident, seen: Maybe[AttemptView]) -> tuple[Attempt, ...]:
        """The Job's attempts, read where one has ended, was started again in its place, or is about to be started, and
        where its checkpoints are wanted.

        With those that the Incident adopted and could not register yet: what they saved is the Job's.
        """
        is_later_life = isinstance(seen, Known) and seen.value.life > 0
        if not is_later_life and not _wants_checkpoints(incident, seen):
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
        from chalicelib.domain.run.rank_reports import suspicion_of, with_rank_zero  # loaded by who asks the ranks
        from rekindle.protocol.reports import ReportKind

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


def _wants_checkpoints(incident: Incident, seen: Maybe[AttemptView]) -> bool:
    has_ended = isinstance(seen, Known) and seen.value.status.has_ended
    return incident.phase is Phase.RESUBMITTING or has_ended or Need.CHECKPOINTS in incident.evidence.needs


def _goes_back_to(incident: Incident) -> tuple[int, ...]:
    """The steps at or below which a resume point may be wanted, under the policy that the Incident keeps to."""
    policy = readable(incident.policy_document)
    return goes_back_to(incident, policy) if policy is not None else ()


DEFECT: Final = "a defect of Rekindle"  # the first words of the reason


def part_of(subject: str, what: str, read: Callable[[], Maybe[T]]) -> Maybe[T]:
    """What `read` answers; Unknown where it raises what no code foresaw, which is logged as an error.

    Documents beside a run may hold anything, and each is read in a place of its own: one that trips a defect harms the
    part that it belongs to, never the whole observation, without which nothing would be decided or told again.

    Raises:
        RecoveryError: `read` raised it: the observation is tried again, or ends, on purpose.
    """
    try:
        return read()
    except RecoveryError:
        raise
    except Exception as err:
        _LOG.exception("a part of an observation cannot be read", extra={"subject": subject, "part": what})
        return Unknown(f"{DEFECT} keeps {what} from being read: {type(err).__name__}: {err}"[:200])
