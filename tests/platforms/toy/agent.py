"""ports.HeadNodes of the toy cluster: it shows the machines and cordons them at once; it takes no other order."""

from __future__ import annotations

from chalicelib.domain.model.known import Known, Maybe, Unknown
from rekindle.protocol.cluster.documents import AgentDoc, AttemptDoc, NodeFacts, NodesDoc
from rekindle.protocol.cluster.orders import Order, OrderResult, Outcome, Verb
from tests.platforms.toy.cluster import CLUSTER, NODES, ToyCluster


class ToyAgent:
    def __init__(self, cluster: ToyCluster) -> None:
        self.cluster = cluster
        self.given: dict[str, tuple[Order, OrderResult]] = {}

    def agent(self, cluster: str) -> Maybe[AgentDoc]:
        return Unknown("not asked for here")

    def attempt(self, name: str) -> AttemptDoc | None:
        return None

    def newest_attempts(self, cluster: str, *, limit: int) -> tuple[str, ...]:
        return tuple(self.cluster.runs)[::-1][:limit]

    def nodes(self, cluster: str) -> Maybe[NodesDoc]:
        facts = tuple(
            NodeFacts(name=node, state="idle", flags=("drain",) if node in self.cluster.cordoned else ())
            for node in NODES
        )
        return Known(NodesDoc(cluster=cluster, seen_at=self.cluster.clock.now(), nodes=facts))

    def order(self, order: Order) -> OrderResult | None:
        if order.token not in self.given:
            is_cordon = order.verb is Verb.DRAIN and order.node is not None
            if is_cordon:
                self.cluster.cordoned.add(order.node or "")
            self.given[order.token] = (
                order,
                OrderResult(
                    token=order.token,
                    verb=order.verb,
                    cluster=order.cluster,
                    outcome=Outcome.DONE if is_cordon else Outcome.REFUSED,
                    at=self.cluster.clock.now(),
                ),
            )
        return self.given[order.token][1]

    def ordered(self, cluster: str, token: str) -> tuple[Order | None, OrderResult | None]:
        return self.given.get(token, (None, None))

    def prepare(self, cluster: str) -> None:
        return

    def clusters(self) -> tuple[str, ...]:
        return (CLUSTER,)
