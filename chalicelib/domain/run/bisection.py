"""Which nodes the next start leaves out where attempts die of hardware and nothing names the node. Pure.

A death by hardware after another of the same day, or after a hang: of its nodes those that most of these deaths share
are left out, half of its nodes at most, as far as spare nodes allow. What hung may well have had another reason: where
its nodes share any with attempts of the Incident that failed, these alone count. Where the next attempt dies the same
way, its own nodes tell which were innocent. One of several failures may have had another reason as well: none clears a
node by itself. One on a node that was named, and whose machine is another one since, is explained. What the newest
start of the day has left out, and has not died of hardware without, the next one leaves out too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from chalicelib.domain.decision.verdict import RuleContext
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.known import Known
from chalicelib.domain.run.bad_nodes import replaced_since
from rekindle.protocol.signals import FaultClass


def half_left_out(context: RuleContext) -> tuple[str, ...]:
    """Names for the next start to stay away from; none where one of its nodes is named, no spares are seen, or it died
    once. A node that is named and that it did not run on explains nothing.
    """
    incident, view, nodes = context.incident, context.attempt, context.seen.nodes
    if incident.fault is not FaultClass.NODE_HARDWARE:
        return context.seen.record.left_out
    if view is None or view.start is None:
        return ()
    if not isinstance(nodes, Known) or any(bad.node in view.start.nodes for bad in incident.resubmission.bad_nodes):
        return ()
    replaced = replaced_since(incident, context.seen)
    tried = [item for item in incident.resubmission.tries if item.left_nodes and replaced.isdisjoint(item.left_nodes)]
    earlier = [*map(set, context.seen.record.died_on), *(set(item.left_nodes) for item in tried)]
    failed = {item.attempt for item in incident.resubmission.failures if item.signature}
    failed_on = [item.left_nodes for item in tried if item.clone_of in failed]
    suspects = _most_shared(view.start.nodes, earlier, failed_on)
    return tuple(suspects[: min(max(len(view.start.nodes) // 2, 1), nodes.value.idle)])


def _most_shared(
    ran_on: Sequence[str], earlier: Sequence[Collection[str]], failed_on: Sequence[Collection[str]]
) -> list[str]:
    """Of the nodes `ran_on` those that most of the deaths share, what the newest deaths share first.

    `earlier`: the nodes of each earlier death, oldest first. `failed_on`: those of attempts of the Incident that
    failed; where they share any with `ran_on`, they alone count.
    """
    shared_by = {name: [name in nodes for nodes in reversed(earlier)] for name in ran_on}
    weights = {name: sum(name in nodes for nodes in failed_on) for name in ran_on}
    if not any(weights.values()):
        weights = {name: sum(shared) for name, shared in shared_by.items()}
    most = max(weights.values(), default=0)
    if most == 0:
        return []
    suspects = [name for name in ran_on if weights[name] == most]
    return sorted(suspects, key=lambda name: shared_by[name], reverse=True)


def unnamed(incident: Incident, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Those that no finding and no order names."""
    named = {item.node for item in incident.resubmission.bad_nodes} | set((incident.order or {}).get("exclude") or ())
    return tuple(name for name in nodes if name not in named)


def unexplained(incident: Incident, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """`nodes`, unless one of them is named: then the others are no suspects."""
    return () if any(bad.node in nodes for bad in incident.resubmission.bad_nodes) else nodes


def left_out_word(incident: Incident) -> str:
    """For people, once the run is back: the nodes that its last start was kept away from, none of which is named."""
    nodes = incident.resubmission.tries[-1].left_out if incident.resubmission.tries else ()
    if not nodes:
        return ""
    return f". It left out {', '.join(nodes[:8])}: attempts died of hardware there, so have them checked"
