"""Which nodes a Job's Incident holds to be broken, and what it does about them: cordon, report, at worst exclude. Pure.

A cordoned node gets no job, so that a new attempt needs no list of nodes to stay away from: it starts on spares, or
waits in the platform's own queue for the repaired node. The repair itself is the node's own Incident's business.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from chalicelib.domain.decision.verdict import Decision
from chalicelib.domain.fault_specs.faults import NODE_FAULTS
from chalicelib.domain.faults.failure_reasons import failure_of
from chalicelib.domain.faults.stalls import stuck_at
from chalicelib.domain.model.action import Action, CordonNode, Done, ReportNode
from chalicelib.domain.model.evidence import Suspicion
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.node import is_in_service
from chalicelib.domain.model.node_findings import CLEARED_AT, OF_PLATFORM, PLATFORM_KINDS, REPORTED_AT, cleared_at
from chalicelib.domain.model.observation import AttemptStatus, AttemptView, Observation
from chalicelib.domain.model.repair import Allowed
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.domain.model.start_view import BadNode, StartState
from chalicelib.domain.node.claims import is_over
from chalicelib.domain.policy.document import Policy
from chalicelib.domain.run.alerts import PASSED_ON, only_alerts
from rekindle.detectors.rank_rules import ACCUSES_NO_NODE, STRONG, RankRule
from rekindle.protocol.cluster.documents import NodeFacts
from rekindle.protocol.signals import FaultClass

MAX_BAD: Final = 8  # more broken nodes at a time than these are no node's fault: a switch, a file system, a mistake
MAX_LEFT: Final = 512
REPORT_FOR: Final = timedelta(minutes=30)
GIVEN_BACK: Final = timedelta(minutes=2)  # an order to cordon is answered within one
# Phases in which something has been done about the run: what it ran on is cordoned with the first such step.
ACTING: Final = frozenset({Phase.CHECKPOINTING, Phase.STOPPING, Phase.RESUBMITTING, Phase.VERIFYING})


def with_bad_nodes(incident: Incident, seen: Observation) -> Incident:
    """The Incident with the nodes that this observation holds to be broken."""
    view = seen.attempt.value if isinstance(seen.attempt, Known) else None
    if incident.attempt is None or not seen.platform.can_exclude_nodes:
        return incident
    incident = _without_those_back(_to_report_again(incident, seen), seen)
    found = [*_named(incident, seen), *_down(incident, view, seen), *_suspected(incident, view)]
    known = {item.node for item in incident.resubmission.bad_nodes}
    fresh: list[BadNode] = []
    for item in found:
        if item.node not in known:
            known.add(item.node)
            fresh.append(item)
    if not fresh:
        return incident
    return incident.changed(bad_nodes=(*incident.resubmission.bad_nodes, *fresh)[:MAX_BAD])


def _to_report_again(incident: Incident, seen: Observation) -> Incident:
    """Repeat a report that was not delivered, for a bounded time. A report is idempotent."""
    lost = any(result.action == ReportNode.__name__ and result.done is Done.UNAVAILABLE for result in seen.results)
    if not lost or seen.observed_at - incident.phase_entered_at >= REPORT_FOR:
        return incident
    again = tuple(dataclasses.replace(item, is_reported=False) for item in incident.resubmission.bad_nodes)
    return incident.changed(bad_nodes=again)


def _without_those_back(incident: Incident, seen: Observation) -> Incident:
    """A node is no broken one whose trouble is over: it was away and is back, or every finding against it holds no
    more. One that was reported must be in service again as well.
    """
    bad = incident.resubmission.bad_nodes
    kept = tuple(bad_node for bad_node in bad if not _is_over(bad_node, incident, seen))
    return incident if kept == bad else incident.changed(bad_nodes=kept)


def _is_over(item: BadNode, incident: Incident, seen: Observation) -> bool:
    if not _has_recovered(item, incident, seen):
        return False
    if not item.is_reported:
        return True
    facts = facts_of(item.node, seen)
    # Its own Incident has given it back; before that was long enough for a cordon, it shows nothing.
    is_old = item.reported_at is not None and seen.observed_at - item.reported_at >= GIVEN_BACK
    return is_old and facts is not None and is_in_service(facts)


def _has_recovered(item: BadNode, incident: Incident, seen: Observation) -> bool:
    if item.is_away:
        return _is_back(item.node, seen)
    claims = [signal for signal in incident.signals if signal.node == item.node and signal.summary[:200] == item.why]
    return bool(claims) and all(is_claim_over(claim, incident, seen) for claim in claims)


def replaced_since(incident: Incident, seen: Observation) -> frozenset[str]:
    """Nodes of which the machine was reported as broken that is there no more."""
    claims = [signal for signal in incident.signals if signal.triggers and signal.fault in NODE_FAULTS]
    reported = {(signal.node or "", signal.evidence.get("instance_id")) for signal in claims}

    def is_another(node: str) -> bool:
        machine = _machine(facts_of(node, seen))
        return machine is not None and (node, machine) not in reported

    return frozenset(node for node, machine in reported if isinstance(machine, str) and is_another(node))


def _is_back(node: str, seen: Observation) -> bool:
    """The cluster reaches it now; False while that is not known."""
    facts = facts_of(node, seen)
    return facts is not None and not is_lost(facts)


def _named(incident: Incident, seen: Observation) -> Iterable[BadNode]:
    """Signals about an attempt of this Incident that name its node."""
    ours = {
        incident.attempt,
        *(item.name for item in incident.resubmission.tries),
        *(item.clone_of for item in incident.resubmission.tries),
    }
    for signal in incident.signals:
        if signal.fault not in NODE_FAULTS or signal.node is None or signal.attempt not in ours or not signal.triggers:
            continue
        facts = facts_of(signal.node, seen)
        is_away = signal.fault is FaultClass.NODE_LOST
        if is_claim_over(signal, incident, seen) or (is_away and _is_back(signal.node, seen)):
            continue
        named = signal.evidence.get("instance_id")
        machine = named if isinstance(named, str) else None
        yield BadNode(
            node=signal.node,
            why=signal.summary[:200],
            instance_id=machine or _machine(facts),
            is_away=is_away,
            reported_at=signal.occurred_at,
        )


def _down(incident: Incident, view: AttemptView | None, seen: Observation) -> Iterable[BadNode]:
    """The nodes of an attempt that has ended, or of the one before that lost one: those out of reach."""
    if not isinstance(seen.nodes, Known):
        return
    ran_on = set(incident.resubmission.tries[-1].left_nodes) if incident.resubmission.tries else set()
    if view is not None and view.start is not None and (view.status.has_ended or view.successor is not None):
        ran_on |= set(view.start.nodes)
    for facts in seen.nodes.value.facts:
        if facts.name in ran_on and is_lost(facts):
            why = f"{seen.platform.title} says {facts.state}: {facts.reason}"[:200]
            yield BadNode(
                node=facts.name, why=why, instance_id=_machine(facts), is_away=True, reported_at=facts.seen_at
            )


def _suspected(incident: Incident, view: AttemptView | None) -> Iterable[BadNode]:
    """One host that its own ranks strongly accuse by what they say, or accuse in two attempts, by silence as well.

    What only the flight recorders or NCCL's RAS show, or what the code leads to on any node, accuses none.
    """
    if view is None or view.start is None:
        return
    accusing = [item for item in incident.evidence.suspicions if item.rule not in ACCUSES_NO_NODE]
    for suspicion in accusing:
        if len(suspicion.hosts) != 1:
            continue
        node = _node_of(suspicion.hosts[0], view.start.nodes)
        again = {item.attempt for item in accusing if item.hosts == suspicion.hosts}
        is_strong = suspicion.attempt == view.name and suspicion.confidence >= STRONG and bool(suspicion.ranks)
        # Reports may be lost: a missing one counts from the second attempt on, and what few ranks report never does.
        if suspicion.rule == RankRule.SILENT:
            counts = len(again) > 1 and not _is_one_step(again, incident)
        else:
            counts = 2 * suspicion.reports > suspicion.world_size and (is_strong or len(again) > 1)
        if node is not None and counts:
            yield BadNode(node=node, why=_grounds(suspicion, len(again)))


def _is_one_step(attempts: Iterable[str], incident: Incident) -> bool:
    """All of them were reported stuck at one step, after steps that went well: its data and code are what they share,
    not only a node. One that was stuck at its very first step says nothing of that.
    """
    resumed = {attempt.name: attempt.resume_step for attempt in incident.resubmission.tries}
    steps: set[int] = set()
    for attempt in attempts:
        at = stuck_at(
            signal for signal in incident.signals if signal.kind is SignalKind.STALL and signal.attempt == attempt
        )
        began = resumed.get(attempt)
        if not isinstance(at, Known) or (isinstance(began, Known) and at.value <= began.value + 1):
            return False
        steps.add(at.value)
    return len(steps) == 1


def broken_one_of(incident: Incident, view: AttemptView) -> tuple[str, ...]:
    """The nodes of an attempt that ended because one of them was lost or broken, whatever else was wrong with it, or
    that hung, as on a broken one.
    """
    if view.start is None:
        return ()
    died_of = failure_of(view).fault if view.status is AttemptStatus.FAILED else incident.fault
    is_lost = view.start.state is StartState.LOST_NODE
    is_suspect = is_lost or not NODE_FAULTS.isdisjoint((died_of, incident.fault)) or incident.fault is FaultClass.HANG
    return view.start.nodes[:MAX_LEFT] if is_suspect else ()


def _fault_of(item: BadNode, incident: Incident) -> FaultClass:
    """What cannot be reached is away, whatever else the run has died of."""
    return FaultClass.NODE_LOST if item.is_away else incident.fault


def _passed_on(item: BadNode, incident: Incident) -> dict[str, bool | str]:
    """A report that rests on an alert of other monitoring, or on HyperPod's own agents, names that source: it is no
    better known, and what they take back is taken back. Whatever it rests on, it is no newer than that.
    """
    newest = {} if item.reported_at is None else {REPORTED_AT: item.reported_at.isoformat()}
    return newest | _source(item, incident)


def _source(item: BadNode, incident: Incident) -> dict[str, bool | str]:
    named = [signal for signal in incident.signals if signal.node == item.node and _is_about_health(signal)]
    is_named = item.why in {signal.summary[:200] for signal in named}
    if is_named and only_alerts(named):
        return {PASSED_ON: True}
    if not is_named or not all(signal.kind in PLATFORM_KINDS for signal in named):
        return {}
    reported_at = max(signal.occurred_at for signal in named if signal.fault is not None)
    cleared = [at for signal in named if (at := cleared_at(signal)) is not None and at > reported_at]
    passed_on: dict[str, bool | str] = {OF_PLATFORM: True, REPORTED_AT: reported_at.isoformat()}
    return passed_on | ({CLEARED_AT: max(cleared).isoformat()} if cleared else {})


def _is_about_health(signal: Signal) -> bool:
    """Not the answer to an order about the node, for example."""
    return signal.fault is not None or cleared_at(signal) is not None


def _grounds(suspicion: Suspicion, attempts: int) -> str:
    in_how_many = f" (in {attempts} attempts)" if attempts > 1 else ""
    return f"suspected by its ranks{in_how_many}: {suspicion.text}"[:200]


def _node_of(host: str, nodes: tuple[str, ...]) -> str | None:
    """A rank calls its machine by hostname, the cluster by its own name; on HyperPod both are ip-a-b-c-d."""
    short = host.partition(".")[0]
    return next((node for node in nodes if node in (host, short) or node.partition(".")[0] == short), None)


def is_lost(facts: NodeFacts) -> bool:
    """The cluster cannot use it: what ran there may live on, unseen."""
    return facts.state in ("down", "error") or "not_responding" in facts.flags


def is_claim_over(signal: Signal, incident: Incident, seen: Observation) -> bool:
    """What the Signal says against its node holds no more, by what the cluster shows, what was heard since, or what the
    node's own Incident has heard.
    """
    if signal.node is None:
        return False
    cleared_at = seen.nodes.value.cleared.get(signal.node) if isinstance(seen.nodes, Known) else None
    if signal.kind in PLATFORM_KINDS and cleared_at is not None and cleared_at > signal.occurred_at:
        return True
    return is_over(signal, facts_of(signal.node, seen), incident.signals)


def facts_of(node: str, seen: Observation) -> NodeFacts | None:
    """What the cluster shows of it; None while that is not known."""
    if not isinstance(seen.nodes, Known):
        return None
    return next((item for item in seen.nodes.value.facts if item.name == node), None)


def _machine(facts: NodeFacts | None) -> str | None:
    return facts.instance_id if facts is not None else None


def to_exclude(incident: Incident, seen: Observation) -> tuple[str, ...]:
    """What an order names, and bad nodes that might still be given a job: their cordon is not confirmed."""
    ordered = ordered_exclusion(incident)
    doubtful = (item.node for item in incident.resubmission.bad_nodes if not is_out(item, seen))
    return tuple(dict.fromkeys((*ordered, *doubtful)))


def ordered_exclusion(incident: Incident) -> tuple[str, ...]:
    """Nodes that the resubmission order excludes; they are excluded from every attempt of the Incident."""
    named = (incident.order or {}).get("exclude") or ()
    return tuple(str(name) for name in named)


def is_out(bad: BadNode, seen: Observation) -> bool:
    """The cluster gives it no job, or it is another machine by now."""
    facts = facts_of(bad.node, seen)
    if facts is None:
        return False
    is_another = bad.instance_id is not None and facts.instance_id not in (None, bad.instance_id)
    return is_another or not is_in_service(facts)


def with_node_reports(
    decision: Decision, *, ran: str | None, cluster: str, policy: Policy, may_cordon: bool = True
) -> Decision:
    """The Decision about `ran`, which cordons and reports bad nodes with the first step that does anything about it.

    Under a policy that leaves nodes alone none is cordoned, because none would be returned to service: the next start
    is kept away from it by name. So it is where a guard would hold the cordon (`may_cordon`): the node's own Incident
    waits then.
    """
    incident = decision.incident
    fresh = [item for item in incident.resubmission.bad_nodes if not item.is_reported]
    if not fresh or incident.phase not in ACTING or policy.shadow or ran is None:
        return decision
    repairs = policy.nodes.repair not in (Allowed.OFF, Allowed.TELL)
    cordons = repairs and may_cordon
    actions: list[Action] = []
    for item in fresh:
        if cordons:
            actions.append(CordonNode(cluster=cluster, node=item.node, why=item.why))
        actions.append(
            ReportNode(
                cluster=cluster,
                node=item.node,
                instance_id=item.instance_id,
                why=item.why,
                evidence={"attempt": ran, "fault": _fault_of(item, incident).value} | _passed_on(item, incident),
            )
        )
    reported = tuple(
        item if item.is_reported else dataclasses.replace(item, is_reported=True, is_cordoned=cordons)
        for item in incident.resubmission.bad_nodes
    )
    names = ", ".join(item.node for item in fresh)
    text = "cordoned, and reported for repair" if cordons else "reported; the policy leaves nodes in service"
    if repairs and not cordons:
        text = "reported for repair; a guard holds its cordon back for now"
    return dataclasses.replace(
        decision,
        incident=incident.changed(bad_nodes=reported),
        actions=(*actions, *decision.actions),
        reason=f"{decision.reason} {names}: {text}.",
    )
