"""decide(): the pure verdict on one observation of an Incident.

Total: every phase x observation gives a Decision, and the Decision names the rule that made it. Nothing here reads a
clock, the environment or the network; the same inputs give the same verdict, so an operator can re-derive it.

A decision has four steps:

1. Notes: what the observation adds to the Incident (`_noted`, then a diagnosis).
2. Rules common to all phases (rules/common.py): cancel, pause, no Job. Where one decides, the phase is not asked.
3. The rules of the Incident's phase, one tuple that reads from top to bottom: the first that decides wins
   (rules/tuples.py names the tuples; decision/rule.py says what a rule is).
4. Changes (rules/changes.py): guards that hold a step back, reports of nodes, answers to orders, the account.

So a new rule is one function and one row. The row's place in its tuple is its precedence: it is asked only where no row
above it has decided. A rule about a new attempt under care belongs in VERIFYING; one that must apply in every phase of
a run belongs in FIRST (rules/tuples.py), as "two attempts of the run are live" does; one for any Incident in COMMON.
A rule's name is stable: the timeline, `rekindle replay` and the tests use it.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime

from chalicelib.domain.decision.rule import changed_by, decided_by, first_decision
from chalicelib.domain.decision.verdict import Decision, RuleContext
from chalicelib.domain.faults.diagnosis import diagnose
from chalicelib.domain.faults.heartbeat_claims import as_of_newest_life
from chalicelib.domain.guards.holds import with_answers
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.observation import Observation
from chalicelib.domain.node.remembering import remember
from chalicelib.domain.policy.document import Policy, readable
from chalicelib.domain.rules.changes import AFTER_ALL, AFTER_COMMON, AFTER_NODE, AFTER_PHASE
from chalicelib.domain.rules.common import COMMON, UNKNOWN, UNTOUCHED
from chalicelib.domain.rules.node.hardware import with_suspect_hardware
from chalicelib.domain.rules.tuples import NODE_PHASES, RUN_PHASES
from chalicelib.domain.run.bad_nodes import with_bad_nodes
from chalicelib.domain.run.liveness import turned_to_stall

__all__ = ["Decision", "decide"]


def decide(incident: Incident, seen: Observation, *, now: datetime, policy: Policy) -> Decision:
    """What to do about `incident`, given what was seen at `now`, as far as `policy` allows.

    Pure and total. A closed Incident stays closed, as it is.
    """
    recorded = RuleContext.of(incident, seen, now=now, policy=policy)
    closed = first_decision(UNTOUCHED, recorded)
    return closed or changed_by(AFTER_ALL, recorded, _decided(_noted(recorded)))


def _decided(context: RuleContext) -> Decision:
    unknown = first_decision(UNKNOWN, context)
    if unknown is not None:
        return changed_by(AFTER_COMMON, context, unknown)
    return _of_a_run(context) if context.incident.node is None else _of_a_node(context)


def _of_a_run(context: RuleContext) -> Decision:
    context = dataclasses.replace(context, seen=as_of_newest_life(context.incident, context.seen))
    judged = with_bad_nodes(diagnose(context.incident, context.seen), context.seen)
    context = _unheld(context, turned_to_stall(dataclasses.replace(context, incident=judged)))
    common = first_decision(COMMON, context)
    if common is not None:
        return changed_by(AFTER_COMMON, context, common)
    return changed_by(AFTER_PHASE, context, decided_by(RUN_PHASES[context.incident.phase], context))


def _of_a_node(context: RuleContext) -> Decision:
    context = _unheld(context, remember(context).incident)
    # Noted again, which is idempotent: the guards need the Incident as it is without the ledger's finding.
    judged = with_suspect_hardware(remember(context))
    return changed_by(AFTER_NODE, context, decided_by(NODE_PHASES[context.incident.phase], judged))


def _unheld(context: RuleContext, incident: Incident) -> RuleContext:
    """The context of `incident`, as the rules see it: without the time in which a guard has held it."""
    return dataclasses.replace(context, base=incident, incident=incident.unheld(now=context.now))


def _noted(context: RuleContext) -> RuleContext:
    """What arrived is on the Incident: Signals, its policy, answers to questions, the end of a pause; shadow mode."""
    incident, seen, policy = context.incident.absorb(context.seen.new_signals), context.seen, context.policy
    if readable(incident.policy_document) is None:
        incident = dataclasses.replace(
            incident, policy_name=policy.name, policy_version=policy.version, policy_document=policy.to_wire()
        )
    incident = with_answers(incident, seen)
    if not seen.paused:
        incident = incident.unpaused(now=context.now)
    if seen.shadow and not policy.shadow:
        policy = dataclasses.replace(policy, shadow=True)
    return dataclasses.replace(context, incident=incident, base=incident, policy=policy)
