"""The agent on the head node of a modelled Slurm: writes the cluster state, reports changes and carries out orders.

Documents and events use the shared wire formats. The caller supplies the time, the destination of the bytes and the
schedule: `tests/fakes/slurm_simulated.py` on the embedded cloud, `simulation` in the proving ground.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from localcloud.slurm.model import SlurmModel
from localcloud.slurm.orders import SlurmOrders
from rekindle.protocol.cluster.documents import AgentDoc, AttemptDoc, NodesDoc
from rekindle.protocol.cluster.names import answer_key, attempt_key, nodes_key
from rekindle.protocol.cluster.orders import Order, OrderResult


class SlurmAgent:
    """`put` writes an object of the stack's bucket, `send` sends an event to its bus."""

    def __init__(
        self,
        model: SlurmModel,
        *,
        now: Callable[[], datetime],
        put: Callable[[str, bytes], None],
        send: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self._model = model
        self.orders = SlurmOrders(model)
        self._now = now
        self._put = put
        self._send = send
        self._answers: dict[str, OrderResult] = {}
        self._written: dict[str, str] = {}
        self.cluster_arn = ""  # set on HyperPod
        self.started_at = now()

    def start(self) -> None:
        """It says that it is there."""
        self._send_event("Rekindle Agent Started", {"agent_id": "head", "at": self._now().isoformat()})

    def take(self, body: bytes) -> OrderResult:
        """Carry out one message of the queue; its answer is written and reported once."""
        answer = self.orders.take(Order.from_json(body))
        if answer.token not in self._answers:
            self._answers[answer.token] = answer
            self._put(answer_key(self._model.cluster, answer.token), answer.to_json())
            self._send_event("Rekindle Order Answered", answer.to_wire())
        return answer

    def publish(self, docs: Mapping[str, AttemptDoc] | None = None, nodes: NodesDoc | None = None) -> None:
        """Write and send what has changed since the last time: of what Slurm shows, which is the model's where nothing
        else is given.
        """
        now = self._now()
        for name, doc in (self._model.docs() if docs is None else docs).items():
            shown = json.dumps(doc.to_wire() | {"seen_at": ""}, sort_keys=True)
            if self._written.get(name) == shown:
                continue
            self._written[name] = shown
            self._put(attempt_key(name), doc.to_json())
            wire = {key: value for key, value in doc.to_wire().items() if value not in (None, "", [])}
            self._send_event("Rekindle Slurm Job", wire | {"at": now.isoformat()})
        nodes = nodes or self._model.nodes_doc()
        for facts in nodes.nodes:
            shown = json.dumps(facts.to_wire() | {"jobs": []}, sort_keys=True)
            before = self._written.get(f"node {facts.name}")
            self._written[f"node {facts.name}"] = shown
            if before is not None and before != shown:
                wire = {key: value for key, value in facts.to_wire().items() if key not in ("name", "jobs", "gpus")}
                news = {key: value for key, value in wire.items() if value not in (None, "", [])}
                self._send_event("Rekindle Slurm Node", news | {"node": facts.name, "at": now.isoformat()})
        shown = json.dumps(nodes.to_wire() | {"seen_at": ""}, sort_keys=True)
        if self._written.get("nodes") != shown:
            self._written["nodes"] = shown
            self._put(nodes_key(self._model.cluster), nodes.to_json())

    def heartbeat(self, *, at: datetime, read_at: datetime) -> AgentDoc:
        """Its heartbeat of that moment."""
        return AgentDoc(
            cluster=self._model.cluster,
            agent_id="head",
            at=at,
            started_at=self.started_at,
            read_at=read_at,
            version="1",
            cluster_arn=self.cluster_arn,
        )

    def _send_event(self, detail_type: str, detail: dict[str, Any]) -> None:
        body = {key: value for key, value in detail.items() if value is not None}
        self._send(detail_type, {"v": 1, "cluster": self._model.cluster} | body)
