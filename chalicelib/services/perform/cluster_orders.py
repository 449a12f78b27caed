"""Orders to a cluster's agent that a Job's Incident gives besides stops and starts. Each is idempotent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from chalicelib.domain.model.action import (
    ActionResult,
    CordonNode,
    Done,
    ExcludeNodes,
    ResizeJob,
    action_name,
)
from chalicelib.domain.model.incident import Incident
from chalicelib.ports.clock import Clock
from chalicelib.ports.platforms import HeadNodes
from rekindle.protocol.cluster.orders import Order, OrderResult, Outcome, Verb, token_of

# An order that arrives later than this could meet a node that has been repaired, or a job that has moved on.
CORDON_VALID: Final = timedelta(minutes=10)
# An order that has expired unanswered was not carried out; the answer to one carried out at the last moment may still
# be on its way.
ANSWER_LATE: Final = timedelta(minutes=5)
MAX_TRIES: Final = 5
DONE: Final = {
    Outcome.DONE: Done.DONE,
    Outcome.ALREADY: Done.ALREADY,
    Outcome.REFUSED: Done.REFUSED,
    Outcome.FAILED: Done.UNAVAILABLE,
}
_ClusterAction = CordonNode | ExcludeNodes | ResizeJob


@dataclass(frozen=True, slots=True)
class HeadOrders:
    """Without `head_nodes` every order is refused."""

    head_nodes: HeadNodes | None
    clock: Clock

    def give(self, action: _ClusterAction, incident: Incident) -> ActionResult:
        """One order per Incident and what it is about, however often it is asked for.

        Raises: Retryable, of a cordon and an exclusion.
        """
        match action:
            case CordonNode():
                bad = incident.resubmission.bad_nodes
                instance = next((node.instance_id for node in bad if node.node == action.node), None)
                make = self._order(
                    Verb.DRAIN, incident, action.node, cluster=action.cluster, node=action.node, instance_id=instance
                )
                return self._again(action, make, action.node)
            case ExcludeNodes():
                about = _digest(action.attempt, *action.nodes)
                make = self._order(Verb.EXCLUDE, incident, about, **_start(action), exclude=action.nodes)
                return self._again(action, make, action.attempt)
            case ResizeJob():
                if self._is_small(action, incident):
                    return _result(
                        action, Done.REFUSED, f"{action.attempt} is smaller than the Job's first start already"
                    )
                low, high = action.nodes_min, action.nodes_max
                about = _digest(action.attempt)
                make = self._order(Verb.SHRINK, incident, about, **_start(action), nodes_min=low, nodes_max=high)
                return self._again(action, make, action.attempt)

    def _order(self, verb: Verb, incident: Incident, about: str, **what: Any) -> Callable[[int], Order]:
        """The order of each turn; it is known by the Incident, its number and what it is `about`."""

        def make(turn: int) -> Order:
            # The number in front of the name, which may end in one itself.
            numbered = verb.value if turn == 0 else f"{verb.value}.{turn}"
            now = self.clock.now()
            return Order(
                token=token_of(incident.incident_id, numbered, about),
                verb=verb,
                issued_at=now,
                expires_at=now + CORDON_VALID,
                incident_id=incident.incident_id,
                **({"cluster": incident.cluster or ""} | what),
            )

        return make

    def _is_small(self, action: ResizeJob, incident: Incident) -> bool:
        """The platform requeued a small start on its own: the policy's share is of the whole, and was used up then."""
        if self.head_nodes is None or incident.job_id is None or not incident.cluster:
            return False
        first = self.head_nodes.attempt(incident.job_id)
        return first is not None and action.nodes_max < first.node_count

    def _again(
        self, action: CordonNode | ExcludeNodes | ResizeJob, make: Callable[[int], Order], about: str
    ) -> ActionResult:
        if self.head_nodes is None:
            return _no_agent(action, about)
        return _answered(action, give(self.head_nodes, make, now=self.clock.now()), about)


def give(head_nodes: HeadNodes, make: Callable[[int], Order], *, now: datetime) -> OrderResult | None:
    """The answer to an order: give it, or send the one again that was given before; a new one, of the next number,
    where that came to nothing: it expired, or it cannot be told whether it took effect, and what it is about was read
    before, and still shows none. None: not answered yet.
    """
    answer: OrderResult | None = None
    for turn in range(MAX_TRIES):
        order = make(turn)
        given, answer = head_nodes.ordered(order.cluster, order.token)
        if given is None:
            return head_nodes.order(order)
        if answer is None and now <= given.expires_at + ANSWER_LATE:
            return head_nodes.order(given)
        if answer is not None and not _came_to_nothing(given, answer):
            return answer
    return answer


def _came_to_nothing(order: Order, answer: OrderResult) -> bool:
    """Tried with an unknown end, or refused for coming too late."""
    return answer.outcome is Outcome.FAILED or (answer.outcome is Outcome.REFUSED and answer.at >= order.expires_at)


def _start(action: ExcludeNodes | ResizeJob) -> dict[str, Any]:
    return {"attempt": action.attempt, "slurm_job": int(action.handle)}


def _answered(action: _ClusterAction, answer: OrderResult | None, about: str) -> ActionResult:
    if answer is None:
        return _result(action, Done.PENDING, f"{about}: not answered yet")
    return _result(action, DONE[answer.outcome], f"{about}: {answer.detail}")


def _no_agent(action: _ClusterAction, about: str) -> ActionResult:
    return _result(action, Done.REFUSED, f"{about}: no agent can be reached from here")


def _digest(*parts: str) -> str:
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:24]


def _result(action: _ClusterAction, done: Done, detail: str) -> ActionResult:
    return ActionResult(action=action_name(action), done=done, detail=detail[:400])
