"""Whiteboards in memory, by the rules of ports.HeadNodes."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from chalicelib.domain.model.errors import DependencyUnavailable, Permanent
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.node.cluster_state import why_unknown
from chalicelib.ports.clock import Clock
from rekindle.protocol.cluster.documents import AgentDoc, AttemptDoc, NodesDoc
from rekindle.protocol.cluster.names import is_slurm, parse_attempt
from rekindle.protocol.cluster.orders import Order, OrderResult


class FakeHeadNodes:
    """Documents as the test writes them; `sent` is every message that went into a queue, repetitions included."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.agents: dict[str, AgentDoc] = {}
        self.attempts: dict[str, AttemptDoc] = {}
        self.node_docs: dict[str, NodesDoc] = {}
        self.orders: dict[str, Order] = {}
        self.answers: dict[str, OrderResult] = {}
        self.queues: set[str] = set()
        self.sent: list[Order] = []

    def heartbeat(
        self, cluster: str, *, at: datetime | None = None, read_at: datetime | None = None, **changes: Any
    ) -> None:
        """The agent lives, now or at `at`."""
        now = at or self._clock.now()
        self.queues.add(cluster)
        self.agents[cluster] = AgentDoc(
            **{"agent_id": "a-1", "version": "1"} | changes,
            cluster=cluster,
            at=now,
            started_at=now,
            read_at=read_at or now,
        )

    def show(self, doc: AttemptDoc) -> None:
        """The agent has written this."""
        self.attempts[doc.attempt] = doc

    def agent(self, cluster: str) -> Maybe[AgentDoc]:
        doc = self.agents.get(cluster)
        return Known(doc) if doc is not None else Unknown(f"no agent of {cluster} has ever reported")

    def attempt(self, name: str) -> AttemptDoc | None:
        if not is_slurm(name):
            raise Permanent(f"{name} is no name of an attempt on Slurm")
        if why := why_unknown(self.agent(parse_attempt(name).cluster), now=self._clock.now()):
            raise DependencyUnavailable(why)
        return self.attempts.get(name)

    def newest_attempts(self, cluster: str, *, limit: int) -> tuple[str, ...]:
        names = [name for name in reversed(self.attempts) if parse_attempt(name).cluster == cluster]
        return tuple(names[:limit])

    def nodes(self, cluster: str) -> Maybe[NodesDoc]:
        if why := why_unknown(self.agent(cluster), now=self._clock.now()):
            return Unknown(why)
        doc = self.node_docs.get(cluster)
        if doc is None:
            return Unknown(f"the agent of {cluster} has not reported its nodes yet")
        return Known(replace(doc, nodes=tuple(replace(node, seen_at=doc.seen_at) for node in doc.nodes)))

    def order(self, order: Order) -> OrderResult | None:
        answer = self.answers.get(order.token)
        if answer is not None:
            return answer
        first = self.orders.setdefault(order.token, order)
        if first.verb is not order.verb:
            raise Permanent("another order has this token")
        if order.cluster not in self.queues:
            raise DependencyUnavailable(f"{order.cluster} has no queue of orders")
        self.sent.append(first)
        return None

    def ordered(self, cluster: str, token: str) -> tuple[Order | None, OrderResult | None]:
        return self.orders.get(token), self.answers.get(token)

    def prepare(self, cluster: str) -> None:
        self.queues.add(cluster)

    def clusters(self) -> tuple[str, ...]:
        return tuple(sorted(self.agents))
