"""A small cluster in memory for nodes' Incidents: Slurm with its agent, HyperPod behind it, one worker per Incident.

The agent and HyperPod keep their contracts (docs/agent.md, docs/facts-sagemaker.md#node-repair): an order is done
once, a drain is lifted only by whom it belongs to, a replaced instance has another id, and both views lag the truth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from chalicelib.domain.decide import Decision, decide
from chalicelib.domain.model.action import ActionResult, Done
from chalicelib.domain.model.errors import DependencyUnavailable, NotAuthorized, Throttled
from chalicelib.domain.model.incident import Incident, Phase, incident_id_for, node_scope
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.node import ClusterView, GroupRole, InstanceState, InstanceView, NodeRecovery
from chalicelib.domain.model.node_actions import RebootNode, ReplaceNode
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.ports.incidents import JoinOutcome
from chalicelib.services.observe.nodes import Nodes
from chalicelib.services.observe.observer import Observer
from chalicelib.services.observe.timeline import needs_record
from chalicelib.services.perform.perform import ActionExecutor
from chalicelib.services.reporting.hardware_ledger import HardwareLedgers
from localcloud.memory_tables import MemoryIncidents, MemoryJobs
from rekindle.protocol.cluster.documents import AgentDoc, AttemptDoc, NodeFacts, NodesDoc
from rekindle.protocol.cluster.orders import Order, OrderResult, Outcome, Verb
from rekindle.protocol.signals import FaultClass
from tests.fakes.hardware import FakeHardwareLedger
from tests.fakes.world import FakeAnnouncer, FakeClock, FakeMailbox, FakePolicies, FakeScheduler

CLUSTER = "pretrain"
ARN = "arn:aws:sagemaker:us-west-2:111122223333:cluster/k3v9m2x7q1ab"


@dataclass
class Machine:
    """What is true of one node, whatever anybody sees of it."""

    name: str
    instance_id: str
    group: str = "gpu"
    state: InstanceState = InstanceState.RUNNING
    until: datetime | None = None  # when the operation under way ends
    message: str = ""
    drain: str = ""  # the reason; empty: in service
    jobs: tuple[int, ...] = ()
    mapped: str = ""  # what the head node's map says; it lags
    gpus: tuple[str, ...] = ()  # what the node itself has told of its hardware

    @property
    def is_up(self) -> bool:
        return self.state is InstanceState.RUNNING


@dataclass
class Site:
    """Slurm's head node and HyperPod's API, both as the service meets them."""

    clock: FakeClock
    machines: dict[str, Machine] = field(default_factory=dict)
    recovery: NodeRecovery = NodeRecovery.NONE
    silent: bool = False
    role: GroupRole = GroupRole.COMPUTE
    is_plain: bool = False
    down: Exception | None = None  # what HyperPod's API answers to everything
    named: str = CLUSTER  # by HyperPod
    tagged: str = ""  # by the cluster's owner: what its head nodes call it
    lost_answer: bool = False  # the next call takes effect, and its answer is lost
    next_failure: str = ""
    orders: dict[str, Order] = field(default_factory=dict)
    answers: dict[str, OrderResult] = field(default_factory=dict)
    deaf: bool = False  # the agent takes no orders for now
    calls: list[tuple[str, str]] = field(default_factory=list)  # (reboot or replace, instance id) that took effect
    replaced: int = 0
    spares: list[tuple[str, ...]] = field(default_factory=list)  # GPUs of the machines that come next

    # ---- ports.HeadNodes -------------------------------------------------------------------------------------------

    def agent(self, cluster: str) -> Maybe[AgentDoc]:
        arn = "" if self.is_plain else ARN
        now = self.clock.now()
        return Known(AgentDoc(cluster=cluster, agent_id="a1", at=now, started_at=now, read_at=now, cluster_arn=arn))

    def attempt(self, name: str) -> AttemptDoc | None:
        raise DependencyUnavailable("not asked for here")

    def nodes(self, cluster: str) -> Maybe[NodesDoc]:
        if self.silent:
            return Unknown("the agent is silent")
        return Known(
            NodesDoc(cluster=cluster, seen_at=self.clock.now(), nodes=tuple(map(self._facts, self.machines.values())))
        )

    def _facts(self, machine: Machine) -> NodeFacts:
        state = "mixed" if machine.jobs and machine.is_up else "idle" if machine.is_up else "down"
        flags = () if machine.is_up else ("not_responding",)
        if machine.drain:
            flags = ("drain", *flags)
        return NodeFacts(
            name=machine.name,
            state=state,
            flags=flags,
            reason=machine.drain or ("" if machine.is_up else "Not responding"),
            instance_id=None if self.is_plain else machine.mapped or machine.instance_id,
            group=None if self.is_plain else machine.group,
            jobs=machine.jobs,
            gpus=machine.gpus,
        )

    def order(self, order: Order) -> OrderResult | None:
        first = self.orders.setdefault(order.token, order)
        if self.deaf or order.token in self.answers:
            return self.answers.get(order.token)
        self.answers[order.token] = self._carry_out(first)
        return self.answers[order.token]

    def _carry_out(self, order: Order) -> OrderResult:
        now = self.clock.now()
        if now >= order.expires_at:
            return self._answer(order, Outcome.REFUSED, "expired")
        machine = self.machines[order.node or ""]
        ours = f"rekindle:{order.incident_id}"
        match order.verb:
            case Verb.DRAIN if machine.drain:
                return self._answer(order, Outcome.ALREADY, f"out of service: {machine.drain}")
            case Verb.DRAIN:
                machine.drain = ours
            case Verb.RESUME if not machine.drain:
                return self._answer(order, Outcome.ALREADY, "in service")
            case Verb.RESUME if not machine.drain.startswith("rekindle:"):
                return self._answer(order, Outcome.REFUSED, f"not taken out by us: {machine.drain}")
            case Verb.RESUME:
                machine.drain = ""
            case Verb.REBOOT:
                self._away(machine, "reboot", timedelta(minutes=2))
            case _:
                return self._answer(order, Outcome.REFUSED, "not here")
        return self._answer(order, Outcome.DONE, "done")

    def _answer(self, order: Order, outcome: Outcome, detail: str) -> OrderResult:
        return OrderResult(
            token=order.token, verb=order.verb, cluster=CLUSTER, outcome=outcome, at=self.clock.now(), detail=detail
        )

    def ordered(self, cluster: str, token: str) -> tuple[Order | None, OrderResult | None]:
        return self.orders.get(token), self.answers.get(token)

    def prepare(self, cluster: str) -> None:
        return

    def clusters(self) -> tuple[str, ...]:
        return (CLUSTER,)

    # ---- ports.ClusterNodes ----------------------------------------------------------------------------------------

    def cluster(self, cluster: str) -> ClusterView | None:
        self._fail()
        roles = {machine.group: self.role for machine in self.machines.values()}
        return ClusterView(status="InService", recovery=self.recovery, roles=roles, name=self.named)

    def alias(self, arn: str) -> str:
        assert arn == ARN
        return self.tagged

    def instance(
        self, cluster: str, *, node: str, instance_id: str | None, logical_id: str | None
    ) -> InstanceView | None:
        self._fail()
        machine = self.machines[node]
        if machine.state is InstanceState.NOT_FOUND:
            return None
        return InstanceView(
            instance_id=machine.instance_id,
            state=machine.state,
            group=machine.group,
            message=machine.message,
            logical_id=node,
        )

    def reboot(self, cluster: str, instance_ids: Sequence[str]) -> Mapping[str, ActionResult]:
        return {instance_id: self._ordered("reboot", instance_id, timedelta(minutes=2)) for instance_id in instance_ids}

    def replace(self, cluster: str, instance_ids: Sequence[str]) -> Mapping[str, ActionResult]:
        return {
            instance_id: self._ordered("replace", instance_id, timedelta(minutes=25)) for instance_id in instance_ids
        }

    def check(self, cluster: str, *, group: str, instance_ids: Sequence[str]) -> ActionResult:
        return ActionResult(action="CheckNode", done=Done.REFUSED, detail="not here")

    def _ordered(self, what: str, instance_id: str, span: timedelta) -> ActionResult:
        self._fail()
        action = "RebootNode" if what == "reboot" else "ReplaceNode"
        machine = next((machine for machine in self.machines.values() if machine.instance_id == instance_id), None)
        if machine is None or machine.until is not None:
            return ActionResult(action=action, done=Done.ALREADY, detail="gone, or at work")
        self._away(machine, what, span)
        if self.lost_answer:
            self.lost_answer = False
            raise DependencyUnavailable("no answer")
        return ActionResult(action=action, done=Done.DONE)

    def _fail(self) -> None:
        if self.down is not None:
            raise self.down

    # ---- what happens ----------------------------------------------------------------------------------------------

    def _away(self, machine: Machine, what: str, span: timedelta) -> None:
        assert not machine.jobs, "a node was repaired with jobs on it"
        self.calls.append((what, machine.instance_id))
        machine.state = InstanceState.PENDING if what == "reboot" else InstanceState.SHUTTING_DOWN
        machine.until = self.clock.now() + span

    def tick(self) -> None:
        """Let what is due happen: reboots end, instances go and come under another id."""
        for machine in self.machines.values():
            if machine.until is None:
                machine.mapped = machine.instance_id
                continue
            left = machine.until - self.clock.now()
            if machine.state is InstanceState.SHUTTING_DOWN and left <= timedelta(minutes=20):
                machine.mapped = machine.mapped or machine.instance_id
                machine.state = InstanceState.NOT_FOUND
            if left > timedelta(0):
                continue
            if machine.state is not InstanceState.PENDING:
                self.replaced += 1
                machine.instance_id = f"i-f{self.replaced:016x}"
                machine.gpus = self.spares.pop(0) if self.spares else ()
            machine.until = None
            machine.state, machine.message = InstanceState.RUNNING, ""
            if self.next_failure:
                machine.state, machine.message, self.next_failure = InstanceState.FAILURE, self.next_failure, ""

    def theirs(self, name: str) -> None:
        """HyperPod replaces it by itself."""
        machine = self.machines[name]
        machine.jobs = ()
        if machine.until is None:
            machine.state = InstanceState.SHUTTING_DOWN
            machine.until = self.clock.now() + timedelta(minutes=25)


class NodeWorld:
    """The service's own look, decide, record and act, over the site."""

    def __init__(self, policy: Policy = DEFAULT_POLICY, *, nodes: int = 4) -> None:
        self.clock = FakeClock()
        self.site = Site(clock=self.clock)
        for number in range(nodes):
            name = f"ip-10-1-0-{number}"
            self.site.machines[name] = Machine(name=name, instance_id=f"i-0{number:016x}")
        self.registry = MemoryJobs()
        self.store = MemoryIncidents(self.registry)
        self.announcer = FakeAnnouncer()
        self.policy = policy
        self.ledger = FakeHardwareLedger()
        self.nodes = heads = Nodes(
            head_nodes=self.site,
            cluster_nodes=self.site,
            store=self.store,
            clock=self.clock,
            hardware_ledgers=HardwareLedgers(ledger=self.ledger, clock=self.clock),
        )
        scheduler = FakeScheduler(self.clock)
        self.look = Observer(
            store=self.store,
            registry=self.registry,
            scheduler=scheduler,
            mailbox=FakeMailbox(),
            policies=FakePolicies(policy),
            clock=self.clock,
            nodes=heads,
        )
        self.perform = ActionExecutor(
            registry=self.registry,
            scheduler=scheduler,
            mailbox=FakeMailbox(),
            announcer=self.announcer,
            clock=self.clock,
            nodes=heads,
        )
        self.results: dict[str, tuple[ActionResult, ...]] = {}
        self.due: dict[str, datetime] = {}
        self.decisions: list[Decision] = []
        self.turns = 0

    def report(
        self,
        node: str = "ip-10-1-0-0",
        key: str = "f1",
        *,
        kind: SignalKind = SignalKind.NODE_HEALTH,
        fault: FaultClass | None = FaultClass.NODE_HARDWARE,
        late: timedelta = timedelta(0),
        **evidence: object,
    ) -> str:
        """A Signal about a node opens or joins its Incident, as Intake does it; its id."""
        signal = Signal(
            kind=kind,
            source=SignalSource.LOGS,
            occurred_at=self.clock.now() - late,
            dedupe_key=f"{node}:{key}",
            summary=f"{kind} about {node}: {evidence}",
            cluster=CLUSTER,
            node=node,
            fault=fault,
            triggers=fault is not None,
            evidence={"instance_id": self.site.machines[node].instance_id} | evidence,
        )
        now = self.clock.now()
        fresh = Incident(
            incident_id=incident_id_for(signal, scope=node_scope(CLUSTER, node)),
            job_id=None,
            cluster=CLUSTER,
            node=node,
            opened_at=now,
            phase=Phase.OPEN,
            phase_entered_at=now,
        )
        entry = self.store.open(fresh, signal, now=now)
        if entry.outcome is not JoinOutcome.CLOSED:
            self.due[entry.incident_id] = now
        return entry.incident_id

    def work(self, incident_id: str, *, dies_after: int | None = None) -> Decision | None:
        """One turn. `dies_after`: killed after so many Actions; the next pass knows none of their answers."""
        self.turns += 1
        incident, seen = self.look.observe(
            incident_id, generation=1, callback_id=f"c{self.turns}", quiet_limit=timedelta(minutes=1)
        )
        if not incident.is_open:
            self.due.pop(incident_id, None)
            return None
        seen = dataclasses.replace(seen, results=self.results.pop(incident_id, ()))
        decision = decide(incident, seen, now=seen.observed_at, policy=self.policy)
        if needs_record(incident, decision, seen, quiet_limit=timedelta(minutes=1)):
            stored = self.look.record(incident, decision, seen, token=f"t{self.turns}")
        else:
            stored = incident
        self.decisions.append(decision)
        answers: list[ActionResult] = []
        for number, action in enumerate(decision.actions):
            if dies_after is not None and number >= dies_after:
                return decision
            answers.append(self._act(action, stored, number))
        if dies_after is None:
            self.results[incident_id] = tuple(answers)
        if decision.look_again_in is None:
            self.due.pop(incident_id, None)
        else:
            self.due[incident_id] = self.clock.now() + max(decision.look_again_in, timedelta(seconds=1))
        return decision

    def _act(self, action: object, incident: Incident, number: int) -> ActionResult:
        name = type(action).__name__
        for _ in range(3):  # as the durable step does
            try:
                return self.perform.act(
                    action,  # type: ignore[arg-type]
                    incident=incident,
                    policy=self.policy,
                    token=f"{incident.incident_id}.{self.turns}.{number}",
                )
            except (DependencyUnavailable, Throttled):
                continue
        return ActionResult(action=name, done=Done.UNAVAILABLE)

    def run(self, span: timedelta) -> None:
        """Let time pass; every Incident is looked at when it is due."""
        end = self.clock.now() + span
        while self.clock.now() < end:
            for incident_id, due in list(self.due.items()):
                if due <= self.clock.now():
                    self.work(incident_id)
            ahead = min((due for due in self.due.values()), default=end)
            self.clock.advance(min(max(ahead - self.clock.now(), timedelta(seconds=10)), timedelta(seconds=60)))
            self.site.tick()

    def settle(self, *, days: float = 4) -> None:
        """Until every Incident is closed."""
        for _ in range(int(days * 24)):
            self.run(timedelta(hours=1))
            if not self.due:
                return
        raise AssertionError(f"never ends: {[one.rule for one in self.decisions[-5:]]}")

    def incident(self, incident_id: str) -> Incident:
        return self.store.load(incident_id).incident

    def rules(self, incident_id: str) -> list[str]:
        return [line.rule for line in self.store.timeline(incident_id)]

    def acts(self) -> list[object]:
        """Every order to repair that was decided."""
        return [
            action for step in self.decisions for action in step.actions if isinstance(action, RebootNode | ReplaceNode)
        ]


DENIED = NotAuthorized("not authorized to perform sagemaker:DescribeCluster")
THROTTLED = Throttled("slow down")
