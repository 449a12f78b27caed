"""Unprotected jobs that share a node with a protected run: cordoning such a node needs an approval. Pure.

A drain ends none of them, but the node gets no new work until they end, and is repaired then. Once they have ended, no
approval is needed.
"""

from __future__ import annotations

from typing import Final

from chalicelib.domain.decision.verdict import RuleContext
from chalicelib.domain.model.action import Action, CordonNode
from chalicelib.domain.node.memory import facts_of
from chalicelib.domain.run import bad_nodes
from rekindle.protocol.cluster.documents import NodeFacts

MAX_NAMED: Final = 8


def others_on(context: RuleContext, action: Action) -> tuple[int, ...]:
    """Those that a cordon is about; none where it is not known what is on the node, or for any other step."""
    if not isinstance(action, CordonNode):
        return ()
    facts = facts_of(context) if context.incident.node is not None else bad_nodes.facts_of(action.node, context.seen)
    return _others(facts)


def are_on_a_bad_node(context: RuleContext) -> bool:
    """A node that this run's Incident has not reported yet has some."""
    fresh = (bad_node.node for bad_node in context.incident.resubmission.bad_nodes if not bad_node.is_reported)
    return any(_others(bad_nodes.facts_of(node, context.seen)) for node in fresh)


def others_word(jobs: tuple[int, ...]) -> str:
    """What the question to a person says of them."""
    more = f" and {len(jobs) - MAX_NAMED} more" if len(jobs) > MAX_NAMED else ""
    listed = ", ".join(map(str, jobs[:MAX_NAMED]))
    return f"Jobs on it that Rekindle does not protect ({listed}{more}) keep running, but it gets no new ones"


def _others(facts: NodeFacts | None) -> tuple[int, ...]:
    return facts.others if facts is not None else ()
