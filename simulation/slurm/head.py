"""The head node of a simulated cluster: when its agent reads Slurm, writes documents and carries out orders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from localcloud.aws.clock import Timer
from localcloud.slurm.agent import SlurmAgent
from rekindle.protocol.cluster.documents import AttemptDoc, NodeFacts, NodesDoc
from rekindle.protocol.cluster.orders import Order, Outcome, Verb
from simulation.runs.truth import TrueRun
from simulation.slurm.machines import Machines
from simulation.slurm.site import Site

NOTICED: Final = timedelta(seconds=4)  # from a change in Slurm to the agent's next reading
HEARTBEAT: Final = timedelta(seconds=30)  # rekindle.agent's heartbeat
TAKEN: Final = timedelta(seconds=2)  # from a message in the queue to its being carried out
_Doc = TypeVar("_Doc", AttemptDoc, NodeFacts)


class HeadNode:
    """`ordered_starts`: when the service ordered each start, by attempt. `copy_of`: the Slurm jobs that it submitted,
    each with the one that it was submitted in place of. `ordering`: the order being carried out.
    """

    def __init__(self, site: Site, machines: Machines) -> None:
        self._site, self._machines = site, machines
        site.soon = self.soon
        self._clock, self._faults, self._publish = site.clock, site.source_faults, site.publish
        self._model, self._objects, self._watcher = site.model, site.objects, site.watcher
        self.agent = SlurmAgent(self._model, now=self._clock.now, put=self._put, send=self._send_event)
        self.agent.cluster_arn = site.arn
        self.ordered_starts: dict[str, datetime] = {}
        self.copy_of: dict[int | None, int | None] = {}
        self.ordering: Order | None = None
        self._waiting: list[bytes] = []  # messages in the queue while the agent is away
        self._readings = self._written = 0
        self._written_as_of, self._is_behind = self._clock.now(), False
        self._pass: Timer | None = None

    def soon(self) -> None:
        """Slurm's scheduler passes, and the agent reads it, a moment from now."""
        if self._pass is None or not self._pass.is_live:
            self._pass = self._clock.after(NOTICED, self._turn, label="Slurm and its agent")

    def _turn(self) -> None:
        self._model.schedule()
        if self._faults.head_is_away():
            return
        docs = {name: doc for name, doc in self._model.docs().items() if doc.slurm_job not in self._model.unasked}
        nodes = self._machines.bent(self._model.nodes_doc())
        offset = self._faults.slurm_clock()
        if offset:
            docs = {name: _later(doc, offset, "submitted_at", "started_at", "ended_at") for name, doc in docs.items()}
            nodes = replace(nodes, nodes=tuple(_later(node, offset, "booted_at") for node in nodes.nodes))
        self._readings += 1
        number = self._readings
        read_at = self._clock.now()
        self._clock.after(
            self._faults.head_late(), lambda: self._write(number, read_at, docs, nodes), label="documents"
        )

    def _write(self, number: int, read_at: datetime, docs: Mapping[str, AttemptDoc], nodes: NodesDoc) -> None:
        """Write what was read, unless a later reading has been written."""
        if number > self._written:
            self._written, self._written_as_of, self._is_behind = number, read_at, False
            self.agent.publish(docs, nodes)

    def back_at_work(self) -> None:
        """The agent is back: it carries out the orders that have waited, and reads Slurm."""
        if not self._faults.head_is_away():
            waiting, self._waiting = self._waiting, []
            for body in waiting:
                self._take(body)
            self._is_behind = True
        self.soon()

    def heartbeat(self) -> tuple[bytes, datetime] | None:
        """The agent's newest heartbeat and when it was written; None before its first."""
        now = self._faults.head_seen(self._clock.now())
        if now < self.agent.started_at:
            return None
        at = self.agent.started_at + (now - self.agent.started_at) // HEARTBEAT * HEARTBEAT
        # The agent reports a reading once all of it is delivered (rekindle.slurm_agent.publishing.outbox).
        read_at = self._written_as_of if self._is_behind else at - self._faults.head_late()
        return self.agent.heartbeat(at=at, read_at=min(at, read_at)).to_json(), at

    def ordered(self, body: bytes) -> None:
        """A message has come into the cluster's queue."""
        self._clock.after(TAKEN, lambda: self._take(body), label="the agent takes an order")

    def _take(self, body: bytes) -> None:
        if self._faults.head_is_away():
            self._waiting.append(body)
            return
        order = self.ordering = Order.from_json(body)
        try:
            run = self._run_named(order)
            answer = self.agent.take(body)
        finally:
            self.ordering = None
        if answer.outcome is Outcome.DONE and run is not None:
            if order.verb in (Verb.SUBMIT, Verb.REQUEUE):
                self._watcher().acts(run, order.issued_at)
                self.ordered_starts[order.new_attempt or ""] = order.issued_at
            if order.verb is Verb.SUBMIT:
                run.job_ids.add(order.new_attempt or "")
                self.copy_of[answer.slurm_job] = order.slurm_job
        self.soon()

    def _run_named(self, order: Order) -> TrueRun | None:
        job = self._model.jobs.get(order.slurm_job or 0)
        return self._site.run_of(job) if job is not None else None

    def _put(self, key: str, body: bytes) -> None:
        self._objects.put(key, body)

    def _send_event(self, detail_type: str, detail: dict[str, Any]) -> None:
        self._publish("rekindle.agent", detail_type, detail, [])


def _later(doc: _Doc, by: timedelta, *times: str) -> _Doc:
    """The document with these of its times moved by `by`; times that are not set stay so."""
    moved = {name: getattr(doc, name) + by for name in times if getattr(doc, name) is not None}
    return replace(doc, **moved)
