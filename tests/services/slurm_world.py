"""One protected run on a modelled Slurm, driven by the real services and the real SlurmScheduler over the fakes.

The truth lives in `SlurmModel`; the service sees it through a whiteboard that may be old, and acts through orders that
may wait, arrive twice, or be answered without the answer being read.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from chalicelib.domain.decide import Decision
from chalicelib.domain.faults.slurm_states import failure_in, fault_of_end, status_of
from chalicelib.domain.model.action import AdoptAttempt, Notify, ResubmitJob, StopJob
from chalicelib.domain.model.errors import DependencyUnavailable
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import AttemptStatus, AttemptView, CheckpointView, ReplyView
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.platforms.schedulers import Schedulers
from chalicelib.platforms.slurm.scheduler import SlurmScheduler
from chalicelib.services.intake.intake import Intake
from chalicelib.services.observe.observer import Observer
from chalicelib.services.operator.orders import Orders
from chalicelib.services.perform.perform import ActionExecutor
from chalicelib.services.reporting.alarms import Alarms
from chalicelib.services.reporting.outcome import Outcome as Taken
from chalicelib.services.reporting.outcome import OutcomeKind
from localcloud.memory_tables import MemoryIncidents, MemoryJobs
from localcloud.slurm.job import ENDED, SimJob
from localcloud.slurm.model import SlurmModel
from localcloud.slurm.orders import SlurmOrders
from rekindle.protocol.cluster.documents import AgentDoc, AttemptDoc, EndedBy, NodesDoc, SlurmState
from rekindle.protocol.cluster.orders import Order, OrderResult
from rekindle.protocol.signals import FaultClass
from tests.fakes.executions import RememberedExecutions
from tests.fakes.watching import FakeAlarmStore
from tests.fakes.world import FakeAnnouncer, FakeClock, FakeClusterReader, FakeMailbox, FakePolicies
from tests.services.world import World

NODES = ("ip-1", "ip-2", "ip-3", "ip-4")
STEP_S = 10


class ModelHeadNodes:
    """ports.HeadNodes over a model: a whiteboard that is brought up to date by `publish`, and a queue of orders."""

    def __init__(self, model: SlurmModel, clock: FakeClock) -> None:
        self.model = model
        self.clock = clock
        self.is_silent = False
        self.is_lossy = False  # orders vanish on their way, once each
        self.lost: set[str] = set()
        self.first: dict[str, Order] = {}
        self.queue: list[Order] = []
        self.board: dict[str, AttemptDoc] = {}
        self.board_nodes: NodesDoc | None = None
        self.board_answers: dict[str, OrderResult] = {}

    def agent(self, cluster: str) -> Maybe[AgentDoc]:
        return Unknown("not asked for here")

    def attempt(self, name: str) -> AttemptDoc | None:
        if self.is_silent:
            raise DependencyUnavailable("the agent of ml is silent")
        return self.board.get(name)

    def newest_attempts(self, cluster: str, *, limit: int) -> tuple[str, ...]:
        if self.is_silent:
            raise DependencyUnavailable("the agent of ml is silent")
        return tuple(list(self.board)[::-1][:limit])

    def nodes(self, cluster: str) -> Maybe[NodesDoc]:
        if self.is_silent or self.board_nodes is None:
            return Unknown("the agent of ml is silent")
        return Known(self.board_nodes)

    def order(self, order: Order) -> OrderResult | None:
        first = self.first.setdefault(order.token, order)
        if order.token in self.board_answers:
            return self.board_answers[order.token]
        if self.is_lossy and order.token not in self.lost:
            self.lost.add(order.token)
        else:
            self.queue.append(Order.from_json(first.to_json()))
        return None

    def ordered(self, cluster: str, token: str) -> tuple[Order | None, OrderResult | None]:
        return self.first.get(token), self.board_answers.get(token)

    def prepare(self, cluster: str) -> None:
        return

    def clusters(self) -> tuple[str, ...]:
        return (self.model.cluster,)

    # ---- the agent's life

    def work(self, *, twice: bool = False) -> None:
        """The agent takes what waits in its queue; answers reach the whiteboard with the next `publish`."""
        waiting, self.queue = self.queue, []
        for order in waiting:
            for _ in range(2 if twice else 1):
                SlurmOrders(self.model).take(order)

    def publish(self) -> None:
        self.board = self.model.docs()
        self.board_nodes = self.model.nodes_doc()
        self.board_answers = dict(self.model.answers)


class TakenNodes:
    """Takes reports of nodes; what is repaired is another Incident's."""

    def __init__(self) -> None:
        self.signals: list[Signal] = []

    def receive(self, signal: Signal) -> Taken:
        self.signals.append(signal)
        return Taken(what=OutcomeKind.OPENED, incident_id=f"inc-{signal.node}")


class SlurmWorld(World):
    """Hands for a test; looks, records and acts are `World`'s."""

    def __init__(self, policy: Policy = DEFAULT_POLICY, *, mailbox: str = "s3://box/lm", **job: Any) -> None:
        # Not World's own __init__: it builds the other platform.
        self.clock = FakeClock()
        self.registry = MemoryJobs()
        self.store = MemoryIncidents(self.registry)
        self.model = SlurmModel(cluster="ml", nodes=NODES, now=self.clock.now)
        self.head = ModelHeadNodes(self.model, self.clock)
        self.mailbox = FakeMailbox()
        self.executions = RememberedExecutions()
        self.announcer = FakeAnnouncer()
        self.clusters = FakeClusterReader()
        self.policies = FakePolicies(policy)
        self.policy = policy
        self.slurm = SlurmScheduler(self.head, self.mailbox, clock=self.clock, bucket="stack")
        common: dict[str, Any] = {"registry": self.registry, "scheduler": Schedulers(self.slurm), "clock": self.clock}
        self.intake = Intake(
            store=self.store, mailbox=self.mailbox, clusters=self.clusters, executions=self.executions, **common
        )
        self.look = Observer(
            store=self.store, mailbox=self.mailbox, policies=self.policies, head_nodes=self.head, **common
        )
        self.handed_on = TakenNodes()
        self.perform = ActionExecutor(
            mailbox=self.mailbox,
            announcer=self.announcer,
            head_nodes=self.head,
            intake=self.handed_on,
            **common,
        )
        self.alarms = Alarms(alarm_store=FakeAlarmStore(), mailbox=self.mailbox, **common)
        self.orders = Orders(
            intake=self.intake,
            registry=self.registry,
            scheduler=common["scheduler"],
            policies=self.policies,
            alarms=self.alarms,
            clock=self.clock,
        )
        self.air, self.taken, self.zombies, self.decisions = [], [], [], []
        self.workers, self.closed, self.transitions, self.at_once = {}, {}, set(), 0
        self.steps: dict[str, int] = {}
        self.firsts: dict[str, int] = {}
        self.hung: set[str] = set()
        self.sick: set[str] = set()  # starts that something is wrong with, or was said to be
        self.users: set[str] = set()  # lineages that their user has cancelled
        self.revived: list[str] = []
        self.model.on_start.append(self._began)
        self.job = self.model.submit(mailbox=mailbox, **job)
        self.lineage = self.job.lineage
        self.model.schedule()
        self.head.publish()
        found = self.slurm.find(self.job.attempt)
        assert found is not None
        self.intake.register(replace(found, mailbox=mailbox))
        self.job_id = self.job.attempt

    # ---- the platform

    @property
    def running(self) -> list[SimJob]:
        return [
            job for job in self.model.jobs.values() if job.state is SlurmState.RUNNING and job.lineage == self.lineage
        ]

    @property
    def live(self) -> list[str]:
        return [job.attempt for job in self.running]

    @property
    def current(self) -> str | None:
        return self.live[0] if self.live else None

    def status(self, name: str) -> AttemptStatus:
        return status_of(self.model.docs()[name].state)

    def _began(self, job: SimJob) -> None:
        if job.lineage in self.users:
            self.revived.append(job.attempt)
        plan = self.mailbox.plans.get(job.attempt)
        first = plan.resume.step if plan is not None and plan.resume.step is not None else self._newest()
        self.steps[job.attempt] = self.firsts[job.attempt] = first

    def _newest(self) -> int:
        return max((item.step for item in self.mailbox.stored if not item.problems), default=0)

    def tick(self, seconds: float) -> None:
        """Time passes for Slurm, its nodes and the run; nobody hears of it before `publish`."""
        self.clock.advance(timedelta(seconds=seconds))
        if seconds:
            self.model.schedule()
        for job in self.running:
            if job.attempt in self.hung:
                self._answer(job.attempt, hung=True)
                continue
            for step in range(self.steps[job.attempt] + 1, self.steps[job.attempt] + 1 + int(seconds // STEP_S)):
                self.steps[job.attempt] = step
                if step % 10 == 0:
                    self._save(job.attempt, step, "periodic")
            if seconds:
                self._heartbeat_of(job.attempt)
            self._answer(job.attempt, hung=False)

    def _heartbeat_of(self, name: str) -> None:
        if self.steps[name] == self.firsts[name]:
            return
        self.mailbox.heartbeats[name] = AttemptView(
            name=name,
            status=AttemptStatus.RUNNING,
            first_step=Known(self.firsts[name] + 1),
            last_step=Known(self.steps[name]),
            heartbeat_at=self.clock.now(),
            loss_state="finite",
        )

    def _answer(self, name: str, *, hung: bool) -> None:
        for request_id, request in self.mailbox.requests.items():
            if request.attempt != name or request_id in self.mailbox.replies:
                continue
            outcome, step, why = ("cannot", None, "stuck") if hung else ("saved", self.steps[name], "")
            if not hung:
                self._save(name, self.steps[name], "emergency")
            self.mailbox.replies[request_id] = ReplyView(request_id=request_id, outcome=outcome, step=step, why=why)

    def _save(self, name: str, step: int, kind: str) -> None:
        manifest = f"s3://box/lm/rekindle/manifests/step-{step:012d}-{name}.json"
        if any(item.manifest == manifest for item in self.mailbox.stored):
            return
        self.mailbox.stored.append(
            CheckpointView(
                step=step,
                root=f"s3://box/lm/{name}/{step}",
                manifest=manifest,
                attempt=name,
                kind=kind,
                saved_at=self.clock.now(),
            )
        )

    # ---- what goes wrong

    def news(self, name: str) -> None:
        """The agent tells of a start, as it is on its whiteboard."""
        doc = self.head.board.get(name)
        if doc is None:
            return
        fault = fault_of_end(
            doc.state,
            failure_in(doc),
            has_successor=doc.successor is not None,
            requeued_by=doc.requeued_by,
            lost_nodes=doc.lost_nodes,
        )
        self._tell(
            SignalKind.ATTEMPT_STATE,
            name,
            fault,
            key=f"{name}:{doc.state}:{doc.successor}",
            evidence={"status": doc.state.value},
        )

    def claim(
        self, name: str, fault: FaultClass, *, node: str | None = None, kind: SignalKind = SignalKind.NODE_STATE
    ) -> None:
        """Somebody says that something is wrong."""
        self.sick.add(name)
        step = {"step": self.steps.get(name, 0)} if kind is SignalKind.STALL else {}
        self._tell(kind, name, fault, node=node, evidence=step)

    def _tell(
        self,
        kind: SignalKind,
        name: str,
        fault: FaultClass | None,
        *,
        node: str | None = None,
        key: str | None = None,
        evidence: dict[str, Any] | None = None,
    ) -> None:
        self.air.append(
            Signal(
                kind=kind,
                source=SignalSource.AGENT,
                occurred_at=self.clock.now(),
                dedupe_key=key or f"{kind}:{name}:{fault}:{self.clock.now().isoformat()}:{len(self.air)}",
                summary=f"{kind} about {name}",
                attempt=name,
                cluster="ml",
                node=node,
                fault=fault,
                triggers=fault is not None,
                evidence=evidence or {},
            )
        )

    def lose(self, node: str) -> None:
        self.sick |= {job.attempt for job in self.running if node in job.nodes}
        hit = [job.attempt for job in self.running if node in job.nodes]
        self.model.lose_node(node)
        for name in hit:
            self.claim(name, FaultClass.NODE_LOST, node=node)

    def hang_run(self) -> None:
        for job in self.running:
            self.hung.add(job.attempt)
            self.claim(job.attempt, FaultClass.HANG, kind=SignalKind.STALL)

    def crash(self) -> None:
        for job in self.running:
            self.sick.add(job.attempt)
            self.model.end(job, SlurmState.FAILED, reason="NonZeroExitCode", code=1, detail="RuntimeError: boom")

    def cancel_by_user(self) -> None:
        for job in self.model.jobs.values():
            if job.lineage == self.lineage and job.state not in ENDED:
                self.users.add(self.lineage)
                self.model.cancel_by_user(job)

    def requeue_by_hand(self) -> None:
        """`scontrol requeue` by its user, or `scontrol release` of one that we hold."""
        self.users.discard(self.lineage)
        ours = [job for job in self.model.jobs.values() if job.lineage == self.lineage and job.is_known]
        if not ours:
            return
        job = ours[-1]
        if job.state is SlurmState.PENDING:
            job.held = False
        elif job.is_requeueable:
            self.model.put_back(job, by=EndedBy.USER)

    # ---- time goes on

    def breathe(self, seconds: float = 30) -> None:
        """A fair stretch: the agent works and tells, deliveries arrive, executions take their turns."""
        self.tick(seconds)
        before = {name: (doc.state, doc.successor) for name, doc in self.head.board.items()}
        if not self.head.is_silent:
            self.head.work()
            self.head.publish()
            for name, doc in self.head.board.items():
                if before.get(name) != (doc.state, doc.successor):
                    self.news(name)
        self.deliver_all()
        self.work()

    def settle(self, *, hours: float = 40) -> None:
        """Nothing new goes wrong from here on. Every Incident must end."""
        for index in range(int(hours * 60)):
            if index % 20 == 19:
                for name, facts in self.model.node_facts.items():
                    if facts.state != "idle" or facts.flags:
                        self.model.mend_node(name)
            self.breathe(60)
            if not self.open_incidents and not self.air:
                return
        raise AssertionError(f"never ends: {self.story()}")

    # ---- what must always hold

    def check(self) -> None:
        assert len(self.running) <= 1, f"two runs {self.live}: {self.story()}"
        assert len(self.open_incidents) <= 1
        assert not self.revived, f"{self.revived} was started although its user had cancelled it: {self.story()}"
        for incident in self.incidents:
            assert len(incident.resubmission.tries) <= self.policy.budgets.max_attempts + 1
            if not incident.is_open:
                wire = incident.to_wire()
                assert self.closed.setdefault(incident.incident_id, wire) == wire, "a closed Incident moved"

    def _check_decision(self, before: Any, paused: bool, decision: Decision) -> None:
        doing = [action for action in decision.actions if not isinstance(action, Notify)]
        assert not (doing and paused), f"{decision.rule} acts while paused"
        assert not (doing and self.policy.shadow), f"{decision.rule} acts in shadow mode"
        assert not (doing and not decision.incident.is_open), f"{decision.rule} acts on closing"
        starts = [action for action in doing if isinstance(action, ResubmitJob | AdoptAttempt)]
        stops = [action for action in doing if isinstance(action, StopJob)]
        assert len(starts) <= 1
        for stop in stops:
            is_left = any(stop.attempt == item.leaves for item in before.resubmission.tries)
            is_ordered = before.order is not None or decision.rule.startswith("order.stop")
            is_loop = decision.rule == "adopt.loop"
            assert stop.attempt in self.sick or is_left or is_ordered or is_loop, (
                f"stops a healthy run: {decision.rule}: {decision.reason}"
            )
        if decision.incident.phase is Phase.RECOVERED and decision.rule not in ("order.checkpoint", "stop.completed"):
            name = decision.incident.attempt or ""
            board = self.head.board.get(name)
            assert board is not None
            assert board.state in (SlurmState.RUNNING, SlurmState.COMPLETED), (
                f"{decision.rule} calls {board.state} recovered"
            )


__all__ = ["NODES", "SlurmWorld"]
