"""Orders to a cluster's agent that a Job's Incident gives besides stops and starts. Each is idempotent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from chalicelib.domain.model.action import (
    ActionResult,
    CaptureStacks,
    CordonNode,
    Done,
    ExcludeNodes,
    ResizeJob,
    action_name,
)
from chalicelib.domain.model.errors import RecoveryError
from chalicelib.domain.model.incident import Incident
from chalicelib.ports.clock import Clock
from chalicelib.ports.platforms import HeadNodes
from rekindle.protocol.cluster.orders import Order, OrderResult, Outcome, Signal, Verb, token_of

# An order that arrives later than this could meet a node that has been repaired, or a job that has moved on.
CORDON_VALID: Final = timedelta(minutes=10)
# Stacks that come later say nothing about what was waited for: the run has been stopped by then, or moves.
CAPTURE_VALID: Final = timedelta(minutes=2)
# The answer to an order that was carried out at the last moment may still be on its way.
ANSWER_LATE: Final = timedelta(minutes=5)
MAX_TRIES: Final = 5
_ANSWERS: Final = {
    Outcome.DONE: Done.DONE,
    Outcome.ALREADY: Done.ALREADY,
    Outcome.REFUSED: Done.REFUSED,
    Outcome.FAILED: Done.UNAVAILABLE,
}


@dataclass(frozen=True, slots=True)
class HeadOrders:
    """Without `head_nodes` every order is refused."""

    head_nodes: HeadNodes | None
    clock: Clock

    def give(self, action: CordonNode | ExcludeNodes | CaptureStacks | ResizeJob, incident: Incident) -> ActionResult:
        """One order per Incident and what it is about, however often it is asked for.

        Raises: Retryable, of a cordon and an exclusion. Stacks are good to have: an agent that is away, or a signal
        that cannot be sent, holds up no recovery.
        """
        match action:
            case CordonNode():
                return self._again(action, lambda turn: self._cordon(action, incident, turn), action.node)
            case ExcludeNodes():
                return self._again(action, lambda turn: self._exclude(action, incident, turn), action.attempt)
            case ResizeJob():
                if self._is_small(action, incident):
                    return _result(
                        action, Done.REFUSED, f"{action.attempt} is smaller than the Job's first start already"
                    )
                return self._again(action, lambda turn: self._resize(action, incident, turn), action.attempt)
            case CaptureStacks():
                if action.signal not in set(Signal):
                    return _result(action, Done.REFUSED, f"{action.signal[:16]} is no signal that may be sent")
                try:
                    return self._answered(action, self._once(self._capture(action, incident)), action.attempt)
                except RecoveryError as err:
                    return _result(action, Done.UNAVAILABLE, f"{action.attempt}: {err}")

    def _cordon(self, action: CordonNode, incident: Incident, turn: int) -> Order:
        now, bad = self.clock.now(), incident.resubmission.bad_nodes
        return Order(
            token=token_of(incident.incident_id, _numbered(Verb.DRAIN, turn), action.node),
            verb=Verb.DRAIN,
            cluster=action.cluster,
            issued_at=now,
            expires_at=now + CORDON_VALID,
            node=action.node,
            instance_id=next((bad_node.instance_id for bad_node in bad if bad_node.node == action.node), None),
            incident_id=incident.incident_id,
        )

    def _exclude(self, action: ExcludeNodes, incident: Incident, turn: int) -> Order:
        now = self.clock.now()
        return Order(
            token=token_of(incident.incident_id, _numbered(Verb.EXCLUDE, turn), _digest(action.attempt, *action.nodes)),
            verb=Verb.EXCLUDE,
            cluster=incident.cluster or "",
            issued_at=now,
            expires_at=now + CORDON_VALID,
            attempt=action.attempt,
            slurm_job=int(action.handle),
            exclude=action.nodes,
            incident_id=incident.incident_id,
        )

    def _is_small(self, action: ResizeJob, incident: Incident) -> bool:
        """The platform requeued a small start on its own: the policy's share is of the whole, and was used up then."""
        if self.head_nodes is None or incident.job_id is None or not incident.cluster:
            return False
        first = self.head_nodes.attempt(incident.job_id)
        return first is not None and action.nodes_max < first.node_count

    def _resize(self, action: ResizeJob, incident: Incident, turn: int) -> Order:
        now = self.clock.now()
        return Order(
            token=token_of(incident.incident_id, _numbered(Verb.SHRINK, turn), _digest(action.attempt)),
            verb=Verb.SHRINK,
            cluster=incident.cluster or "",
            issued_at=now,
            expires_at=now + CORDON_VALID,
            attempt=action.attempt,
            slurm_job=int(action.handle),
            nodes_min=action.nodes_min,
            nodes_max=action.nodes_max,
            incident_id=incident.incident_id,
        )

    def _capture(self, action: CaptureStacks, incident: Incident) -> Order:
        now = self.clock.now()
        return Order(
            token=token_of(incident.incident_id, Verb.STACKS.value, _digest(action.attempt)),
            verb=Verb.STACKS,
            cluster=incident.cluster or "",
            issued_at=now,
            expires_at=now + CAPTURE_VALID,
            attempt=action.attempt,
            slurm_job=int(action.handle),
            signal=Signal(action.signal),
            incident_id=incident.incident_id,
        )

    def _once(self, order: Order) -> OrderResult | None:
        if self.head_nodes is None:
            return _no_agent(order)
        return self.head_nodes.order(order)

    def _again(
        self, action: CordonNode | ExcludeNodes | ResizeJob, make: Callable[[int], Order], about: str
    ) -> ActionResult:
        """The order, or the one that was given before; under the next number where that one came to nothing."""
        if self.head_nodes is None:
            return self._answered(action, _no_agent(make(0)), about)
        answer: OrderResult | None = None
        for turn in range(MAX_TRIES):
            order = make(turn)
            given, answer = self.head_nodes.ordered(order.cluster, order.token)
            if given is None:
                return self._answered(action, self.head_nodes.order(order), about)
            if answer is None and self.clock.now() <= given.expires_at + ANSWER_LATE:
                return self._answered(action, self.head_nodes.order(given), about)
            if answer is not None and not _came_to_nothing(given, answer):
                break
        return self._answered(action, answer, about)

    def _answered(
        self, action: CordonNode | ExcludeNodes | CaptureStacks | ResizeJob, answer: OrderResult | None, about: str
    ) -> ActionResult:
        if answer is None:
            return _result(action, Done.PENDING, f"{about}: not answered yet")
        return _result(action, _ANSWERS[answer.outcome], f"{about}: {answer.detail}")


def _numbered(verb: Verb, turn: int) -> str:
    """In front of the name, which may end in a number itself."""
    return verb.value if turn == 0 else f"{verb.value}.{turn}"


def _came_to_nothing(order: Order, answer: OrderResult) -> bool:
    """Tried with an unknown end, or refused for coming too late. Both kinds may be carried out twice without harm."""
    return answer.outcome is Outcome.FAILED or (answer.outcome is Outcome.REFUSED and answer.at >= order.expires_at)


def _no_agent(order: Order) -> OrderResult:
    return OrderResult(
        token=order.token,
        verb=order.verb,
        cluster=order.cluster,
        outcome=Outcome.REFUSED,
        at=order.issued_at,
        detail="no agent can be reached from here",
    )


def _digest(*parts: str) -> str:
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:24]


def _result(action: CordonNode | ExcludeNodes | CaptureStacks | ResizeJob, done: Done, detail: str) -> ActionResult:
    return ActionResult(action=action_name(action), done=done, detail=detail[:400])
