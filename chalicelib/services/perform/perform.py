"""Carrying out Actions. Each is idempotent: a crash between the effect and its record is healed by repeating it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from chalicelib.domain.decision.steps import ends_what_is_left
from chalicelib.domain.guards.holds import is_of_the_breaker
from chalicelib.domain.model.action import (
    Action,
    ActionResult,
    AdoptAttempt,
    AskApproval,
    CordonNode,
    Done,
    ExcludeNodes,
    Notify,
    QuarantineCheckpoint,
    ReportNode,
    RequestCheckpoint,
    ResizeJob,
    ResubmitJob,
    Severity,
    StopJob,
    action_name,
)
from chalicelib.domain.model.approvals import BREAKER_KEY
from chalicelib.domain.model.errors import Permanent, RecoveryError, Skip
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.node_actions import CheckNode, MoveRuns, RebootNode, ReplaceNode, UncordonNode
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.model.switches import Switches
from chalicelib.domain.model.urgency import sequence_of
from chalicelib.domain.policy.document import Policy
from chalicelib.domain.reporting.paste import needs_arn, paste_of
from chalicelib.ports.clock import Clock
from chalicelib.ports.jobs import JobRegistry
from chalicelib.ports.notices import Announcer, Notice, NoticeKind
from chalicelib.ports.platforms import HeadNodes, Mailbox, Schedulers
from chalicelib.services.intake.intake import Intake
from chalicelib.services.intake.node_map import NodeMap
from chalicelib.services.observe.breaker import held_at_last
from chalicelib.services.observe.nodes import Nodes
from chalicelib.services.perform.cluster_orders import HeadOrders
from chalicelib.services.perform.starts import AttemptStarter
from rekindle.protocol.signals import FaultClass

_LOG = logging.getLogger(__name__)
ALIKE_WITHIN: Final = timedelta(hours=1)  # a sweep of runs with one bug fails within minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionExecutor:
    """Does what was decided. Without `head_nodes` and `intake` nothing can be done about single nodes."""

    registry: JobRegistry
    scheduler: Schedulers
    mailbox: Mailbox
    announcer: Announcer
    clock: Clock
    head_nodes: HeadNodes | None = None
    intake: Intake | None = None
    nodes: Nodes | None = None
    changes: Announcer | None = None  # who keeps up to date what was shown of an Incident
    region: str = ""

    def tell_change(self, before: Incident, after: Incident, *, why: str, token: str) -> None:
        """Publish that the Incident has changed. Best effort: the next change publishes everything again."""
        if self.changes is None or not stands_elsewhere(before, after):
            return
        title = f"{after.job_id or after.node or after.cluster}: {after.phase}"
        notice = self._notice(after, token=f"{token}.change", severity=Severity.INFO, title=title, text=why)
        try:
            self.changes.announce(replace(notice, kind=NoticeKind.CHANGE))
        except RecoveryError as err:
            _LOG.warning(
                "a change was not published", extra={"incident_id": after.incident_id, "error": f"{err}"[:300]}
            )

    def tell_failing(self, incident_id: str, *, generation: int, why: str) -> None:
        """Page that an Incident's recovery fails again and again, without the Incident, which may be what fails."""
        self.announcer.announce(
            Notice(
                token=f"{incident_id}.failing.{generation}",
                sequence="",
                severity=Severity.PAGE,
                title=f"{incident_id}: its recovery fails, for the {generation}. time",
                text=f"Nothing is done about it meanwhile. Each minute it is begun again. The failure: {why[:1000]}",
                incident_id=incident_id,
                job_id=None,
                at=self.clock.now(),
            )
        )

    def act(self, action: Action, *, incident: Incident, policy: Policy, token: str) -> ActionResult:
        """Carry out one Action of `incident`; `token` is equal whenever the same Action is repeated.

        A Permanent refusal is an answer (REFUSED), which the next observation decides about.

        Raises:
            Retryable: may have taken effect or not; repeat with the same token.
        """
        try:
            job: Job | None = None
            if isinstance(action, ResubmitJob):
                standing = self.registry.standing(incident.job_id or "")
                stopped, job = _switched_off(action, incident, standing.switches), standing.job
            elif action.harmful:
                stopped = _switched_off(action, incident, self.registry.switches())
            else:
                stopped = None
            stopped = stopped or held_at_last(action, incident, policy, registry=self.registry, now=self.clock.now())
            if stopped is not None:
                return stopped
            return HANDLERS[type(action)](
                self, action, _ActionContext(incident=incident, policy=policy, token=token, job=job)
            )
        except Permanent as err:
            return ActionResult(action=action_name(action), done=Done.REFUSED, detail=f"{err}"[:400])

    def _job(self, context: _ActionContext) -> Job:
        return context.job or self.registry.get(context.incident.job_id or "")

    def _stop(self, action: StopJob, context: _ActionContext) -> ActionResult:
        scheduler = self.scheduler.of(self._job(context).platform)
        return scheduler.stop(action.attempt, hold=action.hold, incident_id=context.incident.incident_id)

    def _ask(self, action: RequestCheckpoint, context: _ActionContext) -> ActionResult:
        return self.mailbox.ask(
            self._job(context), action, incident_id=context.incident.incident_id, now=self.clock.now()
        )

    def _starter(self) -> AttemptStarter:
        return AttemptStarter(
            registry=self.registry,
            scheduler=self.scheduler,
            mailbox=self.mailbox,
            clock=self.clock,
            nodes=self.nodes,
        )

    def _resubmit(self, action: ResubmitJob, context: _ActionContext) -> ActionResult:
        return self._starter().resubmit(action, self._job(context), incident=context.incident, policy=context.policy)

    def _adopt(self, action: AdoptAttempt, context: _ActionContext) -> ActionResult:
        return self._starter().adopt(action, self._job(context))

    def _move(self, action: MoveRuns, context: _ActionContext) -> ActionResult:
        return move_runs(
            action,
            context.incident,
            registry=self.registry,
            head_nodes=self.head_nodes,
            intake=self.intake,
            clock=self.clock,
        )

    def _cordon(self, action: CordonNode, context: _ActionContext) -> ActionResult:
        """In a run's Incident an order to the cluster's agent; in the node's own by whatever repairs nodes."""
        return self._ordered(action, context) if context.incident.node is None else self._about_node(action, context)

    def _about_node(
        self, action: CordonNode | RebootNode | ReplaceNode | CheckNode | UncordonNode, context: _ActionContext
    ) -> ActionResult:
        if self.nodes is None:
            return ActionResult(action=action_name(action), done=Done.REFUSED, detail="nothing reaches nodes from here")
        return self.nodes.act(action, context.incident)

    def _ordered(self, action: CordonNode | ExcludeNodes | ResizeJob, context: _ActionContext) -> ActionResult:
        return HeadOrders(self.head_nodes, self.clock).give(action, context.incident)

    def _report(self, action: ReportNode, context: _ActionContext) -> ActionResult:
        """The fact is one per Incident and node, so that saying it twice is saying it once."""
        incident = context.incident
        if self.intake is None:
            return ActionResult(action=action_name(action), done=Done.REFUSED, detail="nothing takes nodes in here")
        is_lost = action.evidence.get("fault") == FaultClass.NODE_LOST
        signal = Signal(
            kind=SignalKind.NODE_SUSPECT,
            source=SignalSource.AGENT,
            occurred_at=self.clock.now(),
            dedupe_key=f"node-suspect:{action.cluster}/{action.node}:{incident.incident_id}"[:200],
            summary=f"{action.node} of {action.cluster}: {action.why}"[:400],
            cluster=action.cluster,
            node=action.node,
            fault=FaultClass.NODE_LOST if is_lost else FaultClass.NODE_HARDWARE,
            evidence={
                **action.evidence,
                "instance_id": action.instance_id,
                "job_id": incident.job_id,
                "incident_id": incident.incident_id,
            },
        )
        try:
            outcome = self.intake.receive(signal)
        except Skip as skipped:
            return ActionResult(action=action_name(action), done=Done.REFUSED, detail=f"{action.node}: {skipped}"[:400])
        text = f"{action.node}: {outcome.what} {outcome.incident_id or outcome.reason}"
        return ActionResult(action=action_name(action), done=Done.DONE, detail=text[:400])

    def _quarantine(self, action: QuarantineCheckpoint, context: _ActionContext) -> ActionResult:
        return self.mailbox.quarantine(
            self._job(context), action, by=context.incident.incident_id, now=self.clock.now()
        )

    def _notice(self, incident: Incident, *, token: str, severity: Severity, title: str, text: str) -> Notice:
        return Notice(
            token=token,
            sequence=sequence_of(token, incident.incident_id),
            severity=severity,
            title=title,
            text=text,
            incident_id=incident.incident_id,
            job_id=incident.job_id,
            at=self.clock.now(),
            fault=incident.fault.value,
            phase=incident.phase.value,
            cluster=incident.cluster or "",
            node=incident.node or "",
        )

    def _cluster_arn(self, incident: Incident) -> str:
        """For the address of a node's shell, where the Incident's own Signals do not name it."""
        if self.head_nodes is None or not incident.cluster or not needs_arn(incident):
            return ""
        try:
            agent = self.head_nodes.agent(incident.cluster)
        except RecoveryError:
            return ""
        return agent.value.cluster_arn if isinstance(agent, Known) else ""

    def _notify(self, action: Notify, context: _ActionContext) -> ActionResult:
        severity, text = action.severity, action.text
        if severity is Severity.PAGE and action.alike:
            count = self._count_alike(action.alike, context.incident)
            if count > 1:
                severity = Severity.WARNING
                text += f" {count} runs have come to this within an hour: one page was sent for all of them."
        notice = self._notice(context.incident, token=context.token, severity=severity, title=action.title, text=text)
        return self._announce(action, notice, context.incident)

    def _count_alike(self, alike: str, incident: Incident) -> int:
        """How many Incidents, this one included, had the same to say of late."""
        group = hashlib.sha256(alike.encode()).hexdigest()[:32]
        now = self.clock.now()
        return self.registry.will_act(incident.incident_id, now=now, since=now - ALIKE_WITHIN, group=group)

    def _ask_people(self, action: AskApproval, context: _ActionContext) -> ActionResult:
        incident = context.incident
        if is_of_the_breaker(incident, action.approval_id) and not self.registry.pages_for_breaker(
            incident.incident_id
        ):  # one page for the whole fleet; this question stands among the open ones all the same
            count = self._count_alike(BREAKER_KEY, incident)
            text = f"It waits, as nothing is done while the breaker is open; so do {count} runs. {action.text}"
            title = f"{incident.scope or incident.incident_id}: waits behind the open breaker"
            waits = self._notice(incident, token=context.token, severity=Severity.WARNING, title=title, text=text)
            self._announce(action, waits, incident)
            return ActionResult(action=action_name(action), done=Done.ALREADY, detail=action.approval_id)
        notice = replace(
            self._notice(incident, token=context.token, severity=Severity.PAGE, title=action.title, text=action.text),
            token=f"{incident.incident_id}.{action.approval_id}",  # the same question, whichever look asks it
            kind=NoticeKind.APPROVAL,
            approval_id=action.approval_id,
        )
        return self._announce(action, notice, incident)

    def _announce(self, action: Notify | AskApproval, notice: Notice, incident: Incident) -> ActionResult:
        paste = paste_of(incident, region=self.region, cluster_arn=self._cluster_arn(incident))
        self.announcer.announce(replace(notice, paste=paste))
        return ActionResult(action=action_name(action), done=Done.DONE, detail=notice.approval_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ActionContext:
    """What an Action is carried out for. `job`: the Incident's, where it has just been read."""

    incident: Incident
    policy: Policy
    token: str
    job: Job | None


# What carries out each type of Action; a test holds that no type is missing.
HANDLERS: Final[Mapping[type[Action], Callable[[ActionExecutor, Any, _ActionContext], ActionResult]]] = {
    RequestCheckpoint: ActionExecutor._ask,
    StopJob: ActionExecutor._stop,
    ResubmitJob: ActionExecutor._resubmit,
    AdoptAttempt: ActionExecutor._adopt,
    CordonNode: ActionExecutor._cordon,
    ExcludeNodes: ActionExecutor._ordered,
    ResizeJob: ActionExecutor._ordered,
    ReportNode: ActionExecutor._report,
    QuarantineCheckpoint: ActionExecutor._quarantine,
    Notify: ActionExecutor._notify,
    AskApproval: ActionExecutor._ask_people,
    RebootNode: ActionExecutor._about_node,
    ReplaceNode: ActionExecutor._about_node,
    CheckNode: ActionExecutor._about_node,
    UncordonNode: ActionExecutor._about_node,
    MoveRuns: ActionExecutor._move,
}


def _switched_off(action: Action, incident: Incident, switches: Switches) -> ActionResult | None:
    """The switches are read again right before anything that may do harm: they may have been set since the look.

    What was not done then is, for the next observation, an order that never arrived: it is given again, or never.
    """
    if ends_what_is_left(incident, action):
        return None
    shadow = switches.shadow_of(job_id=incident.job_id, cluster=incident.cluster)
    if not switches.paused and not shadow:
        return None
    text = f"paused by {switches.paused_by}" if switches.paused else f"shadow mode was switched on {shadow}"
    detail = f"{text} before it was carried out"
    return ActionResult(action=action_name(action), done=Done.UNAVAILABLE, detail=detail[:400])


def stands_elsewhere(before: Incident, after: Incident) -> bool:
    """What is shown of an Incident has changed."""
    return (before.phase, before.fault, before.approvals, before.holds) != (
        after.phase,
        after.fault,
        after.approvals,
        after.holds,
    )


def move_runs(
    action: MoveRuns,
    incident: Incident,
    *,
    registry: JobRegistry,
    head_nodes: HeadNodes | None,
    intake: Intake | None,
    clock: Clock,
) -> ActionResult:
    """Give each protected run on the node the order to save and go on elsewhere. The same order twice is one order.

    Raises:
        Retryable: some may have been notified; the report is idempotent.
    """
    if head_nodes is None or intake is None:
        return ActionResult(action=action_name(action), done=Done.REFUSED, detail="nothing reaches runs from here")
    order = Signal(
        kind=SignalKind.ORDER_RESUBMIT,
        source=SignalSource.OPERATOR,
        occurred_at=clock.now(),
        dedupe_key=f"move:{incident.incident_id}:{action.number}",
        summary=f"{action.who} ordered {action.node} to be repaired: save, and continue elsewhere"[:400],
        cluster=action.cluster,
        node=action.node,
        fault=FaultClass.OPERATOR_ORDER,
        evidence={"who": action.who, "move": action.node, "incident_id": incident.incident_id},
    )
    outcomes: list[str] = []
    for job, signal in NodeMap(head_nodes=head_nodes, registry=registry).for_runs(order, now=clock.now()):
        try:
            outcomes.append(f"{job.job_id}: {intake.receive(signal).what}")
        except Skip as skipped:
            outcomes.append(f"{job.job_id}: {skipped}")
    text = "; ".join(outcomes) or "no protected run is on it"
    return ActionResult(action=action_name(action), done=Done.DONE, detail=text[:400])
