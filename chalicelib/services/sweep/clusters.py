"""What the sweep re-reads of clusters: whether their agents live, and the nodes. One GET a minute and cluster."""

from __future__ import annotations

import hashlib
import logging
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from chalicelib.domain.faults.slurm_states import fault_of_node
from chalicelib.domain.model.errors import RecoveryError, Skip
from chalicelib.domain.model.known import Known, Maybe
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.node.cluster_state import why_unknown
from chalicelib.ports.clock import Clock
from chalicelib.ports.platforms import HeadNodes
from chalicelib.services.intake.intake import Intake
from chalicelib.services.reporting.hardware_ledger import HardwareLedgers
from chalicelib.services.reporting.outcome import Outcome
from chalicelib.services.sweep.unheard import UnheardAttempts
from rekindle.protocol.cluster.documents import AgentDoc, NodeFacts
from rekindle.protocol.cluster.node_states import trouble_of
from rekindle.protocol.signals import FaultClass

_LOG = logging.getLogger(__name__)

# A cluster state is Unknown from 180 s on (domain/node/cluster_state.py). People are notified later than that: a
# restart or an update of the agent takes minutes.
TELL_AFTER: Final = timedelta(minutes=10)
ASK_NODES_EVERY: Final = 10  # so are the starts that the agent has written of last
NEWEST_STARTS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepClusters:
    """Looks at the clusters on which protected runs are; with `unheard` also for starts that no event has shown."""

    head_nodes: HeadNodes
    intake: Intake
    clock: Clock
    hardware_ledgers: HardwareLedgers | None = None
    unheard: UnheardAttempts | None = None

    def run(self, policies: Mapping[str, str], *, number: int) -> tuple[list[Outcome], int]:
        """What came of it, and how many clusters could not be looked at.

        `policies`: the clusters, each with the policy of a run on it, for a cluster without a tag of its own.
        """
        outcomes: list[Outcome] = []
        unread = 0
        looks = {cluster: partial(self._signals, cluster, policy, number) for cluster, policy in policies.items()}
        if number % ASK_NODES_EVERY == 0:
            looks = {cluster: partial(self._unheard_starts, cluster) for cluster in self._all_clusters()} | looks
        for cluster, look in sorted(looks.items()):
            try:
                for signal in look():
                    outcome = self._received(signal)
                    outcomes += [outcome] if outcome is not None else []
            except RecoveryError as err:
                unread += 1
                _LOG.info("a cluster cannot be swept", extra={"cluster": cluster, "error": str(err)[:300]})
            except Exception:  # whatever is wrong with one, even a defect of ours, must not leave all others
                unread += 1
                _LOG.exception("a cluster cannot be swept", extra={"cluster": cluster})
        return outcomes, unread

    def _all_clusters(self) -> tuple[str, ...]:
        """Those whose agents write, whether or not a protected run is there; none where that cannot be read now."""
        try:
            return self.head_nodes.clusters()
        except RecoveryError as err:
            _LOG.info("the clusters cannot be listed", extra={"error": str(err)[:300]})
            return ()

    def _signals(self, cluster: str, policy: str, number: int) -> Iterator[Signal]:
        now = self.clock.now()
        agent = self.head_nodes.agent(cluster)
        silent = signal_from_agent(cluster, agent, policy=policy, now=now)
        if silent is not None:
            yield silent
        elif zlib.crc32(cluster.encode()) % ASK_NODES_EVERY == number % ASK_NODES_EVERY:
            nodes = self.head_nodes.nodes(cluster)
            yield from self._unheard_starts(cluster)
            if isinstance(nodes, Known):
                for facts in nodes.value.nodes:
                    signal = signal_from_node(cluster, facts, now=nodes.value.seen_at)
                    if signal is not None:
                        yield signal
                if self.hardware_ledgers is not None:
                    yield from self.hardware_ledgers.come_back(cluster, nodes.value)

    def _unheard_starts(self, cluster: str) -> Iterator[Signal]:
        """Of the starts that the agent has written of last."""
        if self.unheard is not None:
            yield from self.unheard.signals(self.head_nodes.newest_attempts(cluster, limit=NEWEST_STARTS))

    def _received(self, signal: Signal) -> Outcome | None:
        try:
            return self.intake.receive(signal)
        except Skip:
            return None


def signal_from_agent(cluster: str, agent: Maybe[AgentDoc], *, policy: str, now: datetime) -> Signal | None:
    """The agent is silent, or cannot read its cluster; None while all is well, or for too short a time to be reported.

    One fact per silence: the key holds when it began.
    """
    why = why_unknown(agent, now=now)
    if not why:
        return None
    since: datetime | None = None
    if isinstance(agent, Known):
        doc = agent.value
        since = doc.at if now - doc.at > TELL_AFTER else (doc.read_at or doc.started_at)
        if now - since <= TELL_AFTER:
            return None
    mark = f"{since:%Y%m%dT%H%M%S}" if since is not None else "never"
    return Signal(
        kind=SignalKind.AGENT_NEWS,
        source=SignalSource.SWEEP,
        occurred_at=since or now,
        dedupe_key=f"agent-silent:{cluster}:{mark}"[:200],
        summary=f"{why}; runs there are neither seen nor helped until it is back"[:400],
        cluster=cluster,
        fault=FaultClass.UNCLEAR,
        evidence={"found_by": "sweep", "why": why[:300], "policy": policy},
    )


def signal_from_node(cluster: str, facts: NodeFacts, *, now: datetime) -> Signal | None:
    """The Signal that the event of a bad node would have been; None for a node that works.

    Without a time in its key: a node that stays as it is is one fact, whenever it is seen.
    """
    fault = fault_of_node(facts.state, facts.flags, facts.reason)
    trouble = trouble_of(facts.state, facts.flags, facts.reason, facts.ending_since)
    if fault is None and not trouble:
        return None
    words = "+".join((facts.state, *sorted(facts.flags)))
    mark = hashlib.sha256(f"{words}|{facts.reason}|{facts.ending_since or ''}".encode()).hexdigest()[:12]
    evidence: dict[str, object] = {
        "state": facts.state,
        "flags": list(facts.flags)[:16],
        "reason": facts.reason[:300],
        "trouble": trouble or None,
        "instance_id": facts.instance_id,
        "group": facts.group,
        "found_by": "sweep",
    }
    return Signal(
        kind=SignalKind.NODE_STATE,
        source=SignalSource.SWEEP,
        occurred_at=now,
        dedupe_key=f"node-seen:{cluster}:{facts.name}:{facts.instance_id}:{mark}"[:200],
        summary=f"node {facts.name} of {cluster} is {words.upper()}: {trouble or facts.reason}"[:400],
        cluster=cluster,
        node=facts.name,
        fault=fault,
        evidence={name: value for name, value in evidence.items() if value is not None},
    )
