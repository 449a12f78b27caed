"""A small world model: one protected run on a simulated platform, driven by the real services over the fakes.

The platform's truth lives in `Sim`; the service sees it only through the ports. Looks, records and acts are separate
moves, so that a test can die between any two of them, repeat them, or do them late.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from chalicelib.domain.decide import Decision, decide
from chalicelib.domain.faults.failure_reasons import classify_failure_reason
from chalicelib.domain.model.action import Action, ActionResult, Done, Notify, ResubmitJob, action_name
from chalicelib.domain.model.errors import DependencyUnavailable, NotOurs, VersionConflict
from chalicelib.domain.model.incident import Incident, Phase, execution_name
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import FINISHED, AttemptStatus, AttemptView, CheckpointView, ReplyView
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource, ended_job_key
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.services.intake.intake import Intake
from chalicelib.services.observe.observer import Observer
from chalicelib.services.observe.timeline import needs_record
from chalicelib.services.operator.orders import Orders
from chalicelib.services.perform.perform import ActionExecutor
from chalicelib.services.reporting.alarms import Alarms
from chalicelib.services.sweep.job_check import JobCheck
from chalicelib.services.sweep.sweep import Sweep
from chalicelib.services.sweep.unheard import UnheardAttempts
from localcloud.memory_ports import MemoryMarks
from localcloud.memory_tables import MemoryIncidents, MemoryJobs
from rekindle.protocol.signals import FaultClass
from tests.fakes.executions import RememberedExecutions
from tests.fakes.watching import FakeAlarmStore, FakeListing, FakeMetrics, FakeSaves
from tests.fakes.world import (
    FakeAnnouncer,
    FakeClock,
    FakeClusterReader,
    FakeMailbox,
    FakePolicies,
    FakeScheduler,
)

JOB = "lm"
SAVE_EVERY = 10
STEP_S = 10
TRIGGERS = {"transient": "RuntimeError: NCCL timeout", "oom": "RuntimeError: CUDA out of memory", "unclear": "exit 1"}


@dataclass
class Sim:
    """The truth about one attempt."""

    step: int = 0
    first: int = 0
    since_s: float = 0
    hung: bool = False
    onset: int | None = None
    visible: bool = True
    answers: bool = True


@dataclass
class Worker:
    """One durable execution: what it holds between two operations."""

    incident_id: str
    generation: int
    policy: Policy
    turn: int = 0
    callback: str = ""
    due_at: Any = None
    results: tuple[ActionResult, ...] = ()
    to_act: list[tuple[Action, Incident, str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return execution_name(self.incident_id, self.generation)


class CarefulScheduler(FakeScheduler):
    """May be unreadable, and counts every call that changes the world."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.dark = False
        self.hides: set[str] = set()

    def describe(self, attempt: str) -> AttemptView:
        if self.dark:
            raise DependencyUnavailable("throttled")
        if attempt in self.hides:
            return AttemptView(name=attempt, status=AttemptStatus.GONE)
        return super().describe(attempt)

    def siblings(self, job: Job, *, besides: Collection[str], reported: Sequence[str] = ()) -> tuple[str, ...]:
        if self.dark:
            raise DependencyUnavailable("throttled")
        return super().siblings(job, besides=besides, reported=reported)

    def missed(self, job: Job, *, besides: Collection[str]) -> str | None:
        if self.dark:
            raise DependencyUnavailable("throttled")
        return super().missed(job, besides=besides)

    def stop(self, attempt: str, *, hold: bool = False, incident_id: str | None = None) -> ActionResult:
        if self.dark:
            raise DependencyUnavailable("throttled")
        return super().stop(attempt)

    def resubmit(self, action: ResubmitJob, *, job: Job, policy: Policy, incident_id: str) -> ActionResult:
        if self.dark:
            raise DependencyUnavailable("throttled")
        return super().resubmit(action, job=job, policy=policy, incident_id=incident_id)


class World:
    """Hands for a test, and what must always hold."""

    def __init__(
        self,
        policy: Policy = DEFAULT_POLICY,
        *,
        mailbox: str = "s3://box/lm",
        clock: FakeClock | None = None,
        platform: Any = None,
        schedulers: Any = None,
        head_nodes: Any = None,
        takes_nodes: Any = None,
    ) -> None:
        """`platform` is the truth of another one than training jobs, with the run on it, and `schedulers` reach it."""
        self.clock = clock or FakeClock()
        self.registry = MemoryJobs()
        self.store = MemoryIncidents(self.registry)
        self.scheduler: Any = platform or CarefulScheduler(self.clock)
        schedulers = schedulers or self.scheduler
        self.mailbox = FakeMailbox()
        self.executions = RememberedExecutions()
        self.announcer = FakeAnnouncer()
        self.clusters = FakeClusterReader()
        self.policies = FakePolicies(policy)
        self.policy = policy
        common: dict[str, Any] = {"registry": self.registry, "scheduler": schedulers, "clock": self.clock}
        self.intake = Intake(
            store=self.store, mailbox=self.mailbox, clusters=self.clusters, executions=self.executions, **common
        )
        self.look = Observer(
            store=self.store, mailbox=self.mailbox, policies=self.policies, head_nodes=head_nodes, **common
        )
        self.perform = ActionExecutor(
            mailbox=self.mailbox, announcer=self.announcer, head_nodes=head_nodes, intake=takes_nodes, **common
        )
        self.metrics, self.saves, self.marks, self.alarm_store = (
            FakeMetrics(),
            FakeSaves(),
            MemoryMarks(),
            FakeAlarmStore(),
        )
        self.listing = FakeListing(self.scheduler)
        self.alarms = Alarms(alarm_store=self.alarm_store, mailbox=self.mailbox, **common)
        self.sweep = Sweep(
            store=self.store,
            registry=self.registry,
            listing=self.listing,
            check=JobCheck(store=self.store, mailbox=self.mailbox, saves=self.saves, **common),
            metrics=self.metrics,
            marks=self.marks,
            alarms=self.alarms,
            executions=self.executions,
            intake=self.intake,
            unheard=UnheardAttempts(**common),
            clock=self.clock,
        )
        self.orders = Orders(
            intake=self.intake,
            registry=self.registry,
            scheduler=schedulers,
            policies=self.policies,
            alarms=self.alarms,
            clock=self.clock,
        )
        if platform is None:
            self.scheduler.put(JOB, AttemptStatus.RUNNING, policy_name=policy.name, mailbox=mailbox)
        self.intake.register(schedulers.of_name(JOB).find(JOB))
        self.sims: dict[str, Sim] = {JOB: Sim()}
        self.air: list[Signal] = []
        self.taken: list[Signal] = []
        self.workers: dict[str, Worker] = {}
        self.zombies: list[tuple[Action, Incident, str, Policy]] = []
        self.closed: dict[str, dict[str, Any]] = {}
        self.decisions: list[Decision] = []
        self.transitions: set[tuple[Phase, Phase]] = set()
        self.at_once = 0
        self.theirs: set[str] = set()  # what others have started beside ours: two live then, and that is not ours

    # --- the platform ---

    @property
    def live(self) -> list[str]:
        return [name for name in self.sims if not self.status(name).has_ended]

    def status(self, name: str) -> AttemptStatus:
        return self.scheduler.runs[name].view.status

    @property
    def current(self) -> str | None:
        return self.live[-1] if self.live else None

    def tick(self, seconds: float) -> None:
        """Time passes for the platform: runs start, step, save, answer and stop."""
        self.clock.advance(timedelta(seconds=seconds))
        for name, run in self.scheduler.runs.items():
            if run.action is not None and name not in self.sims:
                resumed = run.action.resume_step
                begin = resumed.value if isinstance(resumed, Known) else 0
                self.sims[name] = Sim(step=begin, first=begin)
        for name in self.live:
            self._run(name, self.sims[name], seconds)

    def _run(self, name: str, sim: Sim, seconds: float) -> None:
        sim.since_s += seconds
        status = self.status(name)
        if status is AttemptStatus.STARTING and sim.since_s >= 60:
            self._set(name, AttemptStatus.RUNNING)
        elif status is AttemptStatus.STOPPING and sim.since_s >= 60:
            self.end(name, AttemptStatus.STOPPED)
        elif status is AttemptStatus.RUNNING and not sim.hung:
            for step in range(sim.step + 1, sim.step + 1 + int(seconds // STEP_S)):
                sim.step = step
                if step % SAVE_EVERY == 0 and sim.visible:
                    self._save(name, step, "periodic")
            self._heartbeat(name, sim)
        if status is AttemptStatus.RUNNING and sim.visible and sim.answers:
            self._answer(name, sim)

    def _answer(self, name: str, sim: Sim) -> None:
        for request_id, request in self.mailbox.requests.items():
            if request.attempt != name or request_id in self.mailbox.replies:
                continue
            if sim.hung:
                self.mailbox.replies[request_id] = ReplyView(
                    request_id=request_id, outcome="cannot", step=None, why="the main thread is stuck"
                )
                continue
            self._save(name, sim.step, "emergency")
            self.mailbox.replies[request_id] = ReplyView(request_id=request_id, outcome="saved", step=sim.step, why="")

    def _save(self, name: str, step: int, kind: str) -> None:
        manifest = f"s3://box/lm/rekindle/manifests/step-{step:012d}-{name}.json"
        if all(item.manifest != manifest for item in self.mailbox.stored):
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

    def _heartbeat(self, name: str, sim: Sim) -> None:
        if not sim.visible or sim.step == sim.first:
            return
        bad = sim.onset is not None and sim.step >= sim.onset
        self.mailbox.heartbeats[name] = AttemptView(
            name=name,
            status=self.status(name),
            first_step=Known(sim.first + 1),
            last_step=Known(sim.step),
            heartbeat_at=self.clock.now(),
            loss_state="nan" if bad else "finite",
        )

    def _set(self, name: str, status: AttemptStatus) -> None:
        view = self.scheduler.runs[name].view
        self.scheduler.runs[name].view = replace(view, status=status)
        self.sims[name].since_s = 0

    def end(self, name: str, status: AttemptStatus, reason: str = "") -> None:
        self.scheduler.put(name, status, failure_reason=reason)
        if status is AttemptStatus.COMPLETED and (last := self.mailbox.heartbeats.get(name)) is not None:
            self.mailbox.heartbeats[name] = replace(last, work=FINISHED)
        word = {"failed": "Failed", "completed": "Completed"}.get(status.value, "Stopped")
        fault = classify_failure_reason(reason).fault if status is AttemptStatus.FAILED else None
        if status is AttemptStatus.EXPIRED:
            fault = FaultClass.PLANNED_END
        self.say(SignalKind.ATTEMPT_STATE, name, fault, key=ended_job_key(name, word), evidence={"status": word})

    def fail(self, name: str, reason: str) -> None:
        self.end(name, AttemptStatus.FAILED, reason)

    def hang(self, name: str) -> None:
        sim = self.sims[name]
        sim.hung = True
        self.say(SignalKind.STALL, name, FaultClass.HANG, evidence={"step": sim.step})

    def poison(self, name: str) -> None:
        sim = self.sims[name]
        if sim.onset is None:
            sim.onset = sim.step + 1
            sim.step += 1
            self._heartbeat(name, sim)
            self.say(SignalKind.NON_FINITE, name, FaultClass.NON_FINITE, evidence={"step": sim.onset})

    def repair(self, name: str) -> None:
        self._set(name, AttemptStatus.REPAIRING)

    def repaired(self, name: str) -> None:
        """SageMaker restarts the container: it goes on from its newest good checkpoint."""
        sim = self.sims[name]
        mine = [
            item.step
            for item in self.mailbox.stored
            if item.attempt == name and (sim.onset is None or item.step < sim.onset)
        ]
        sim.step, sim.hung, sim.onset = max(mine, default=sim.first), False, None
        self._set(name, AttemptStatus.RUNNING)
        self._heartbeat(name, sim)

    def say(
        self,
        kind: SignalKind,
        name: str | None,
        fault: FaultClass | None,
        *,
        key: str | None = None,
        evidence: dict[str, Any] | None = None,
        cluster: str | None = None,
        node: str | None = None,
    ) -> Signal:
        """A Signal takes to the air; whether, when and how often it arrives is for the test."""
        signal = Signal(
            kind=kind,
            source=SignalSource.MONITOR,
            occurred_at=self.clock.now(),
            dedupe_key=key or f"{kind}:{name}:{self.clock.now().isoformat()}:{len(self.air)}",
            summary=f"{kind} about {name}",
            job_id=JOB,
            attempt=name,
            cluster=cluster,
            node=node,
            fault=fault,
            triggers=fault is not None,
            evidence=evidence or {},
        )
        self.air.append(signal)
        return signal

    # --- the service ---

    def deliver(self, signal: Signal) -> None:
        try:
            self.intake.receive(signal)
        except (NotOurs, DependencyUnavailable):
            return
        self.taken.append(signal)
        self.adopt()

    def deliver_all(self) -> None:
        waiting, self.air = self.air, []
        for signal in waiting:
            self.deliver(signal)

    def adopt(self) -> None:
        """Executions that were started begin; those that were woken are due."""
        for name in self.executions.started:
            if name not in self.executions.live or name in self.workers:
                continue
            incident_id, _, generation = name.rpartition("-g")
            self.workers[name] = Worker(
                incident_id=incident_id,
                generation=int(generation),
                policy=self.look.policy_for(incident_id),
                due_at=self.clock.now(),
            )
        for worker in self.workers.values():
            if worker.callback in self.executions.gone:
                worker.due_at = self.clock.now()

    def look_and_record(self, worker: Worker) -> Decision | None:
        """One turn as far as the record; the Actions wait in `to_act`. None: the execution has ended."""
        worker.turn += 1
        worker.callback = f"{worker.name}.{worker.turn}"
        try:
            before, seen = self.look.observe(
                worker.incident_id,
                generation=worker.generation,
                callback_id=worker.callback,
                quiet_limit=worker.policy.timing.look_max,
            )
        except VersionConflict:
            self.die(worker)
            return None
        seen = replace(seen, results=worker.results)
        now = seen.observed_at
        decision = decide(before, seen, now=now, policy=worker.policy)
        assert decision == decide(before, seen, now=now, policy=worker.policy), "not deterministic"
        self._check_decision(before, seen.paused, decision)
        token = f"{worker.name}.{worker.turn}"
        if needs_record(before, decision, seen, quiet_limit=worker.policy.timing.look_max):
            try:
                stored = self.look.record(before, decision, seen, token=token)
            except VersionConflict:
                worker.due_at = now
                return decision
            assert stored.version == before.version + 1
            self.decisions.append(decision)
            if before.phase is not decision.incident.phase:
                self.transitions.add((before.phase, decision.incident.phase))
        worker.results = ()
        worker.to_act = [
            (action, decision.incident, f"{token}.{index}") for index, action in enumerate(decision.actions)
        ]
        if decision.look_again_in is None:
            worker.due_at = None
        else:
            worker.due_at = now + decision.look_again_in
            self.at_once = self.at_once + 1 if not decision.look_again_in else 0
            assert self.at_once <= 20, "looks at once without an end"
        return decision

    def act(self, worker: Worker, *, repeat: int = 1) -> None:
        results = []
        for action, incident, token in worker.to_act:
            answer = ActionResult(action=action_name(action), done=Done.UNAVAILABLE)
            for _ in range(repeat):
                try:
                    answer = self.perform.act(action, incident=incident, policy=worker.policy, token=token)
                except (DependencyUnavailable, VersionConflict):
                    answer = ActionResult(action=action_name(action), done=Done.UNAVAILABLE)
            results.append(answer)
        worker.results, worker.to_act = tuple(results), []
        self.tick(0)
        if worker.due_at is None:
            self.die(worker)

    def die(self, worker: Worker) -> None:
        """The execution is gone; what it had recorded and not done may still be done by a copy that wakes up late."""
        self.zombies += [(action, incident, token, worker.policy) for action, incident, token in worker.to_act]
        self.workers.pop(worker.name, None)
        self.executions.live.discard(worker.name)

    def zombie_acts(self, index: int) -> None:
        action, incident, token, policy = self.zombies[index % len(self.zombies)]
        try:
            self.perform.act(action, incident=incident, policy=policy, token=token)
        except (DependencyUnavailable, VersionConflict):
            return
        finally:
            self.tick(0)

    def work(self, *, repeat: int = 1) -> None:
        """Every execution that is due takes its pass, until none is due now."""
        for _ in range(60):
            self.adopt()
            due = [
                worker
                for worker in self.workers.values()
                if worker.due_at is not None and worker.due_at <= self.clock.now()
            ]
            if not due:
                return
            for worker in due:
                if self.look_and_record(worker) is not None:
                    self.act(worker, repeat=repeat)
            self.check()
        raise AssertionError("work without an end at one moment")

    def run(self, minutes: float, *, step_s: float = 30) -> None:
        """Everything goes its way: deliveries arrive, the sweep sweeps, executions work."""
        for index in range(int(minutes * 60 / step_s)):
            self.tick(step_s)
            self.deliver_all()
            if index % 2:
                self.sweep.run()
            self.work()

    def settle(self, *, hours: float = 40) -> None:
        """Fair from here on: nothing new goes wrong, everything arrives. Every Incident must end."""
        for _ in range(int(hours * 60)):
            self.tick(60)
            for name in self.live:
                if self.status(name) is AttemptStatus.REPAIRING and self.sims[name].since_s > 600:
                    self.repaired(name)
            self.deliver_all()
            self.sweep.run()
            self.work()
            if not self.open_incidents and not self.air:
                return
        raise AssertionError(f"never ends: {self.story()}")

    # --- what must always hold ---

    @property
    def open_incidents(self) -> list[Incident]:
        return [incident for incident, _ in self.store.list_open()]

    @property
    def incidents(self) -> list[Incident]:
        return self.open_incidents + list(self.store.list_closed(limit=1000).incidents)

    @property
    def last(self) -> Incident:
        return max(self.incidents, key=lambda item: (item.opened_at, item.incident_id))

    def rules(self) -> list[str]:
        return [decision.rule for decision in self.decisions]

    def story(self) -> str:
        return "\n".join(
            f"{decision.incident.phase}: {decision.rule}: {decision.reason}" for decision in self.decisions[-40:]
        )

    def check(self) -> None:
        ours = [name for name in self.live if name not in self.theirs]
        assert len(ours) <= 1, f"two live attempts {self.live}: {self.story()}"
        assert len(self.open_incidents) <= 1, "two open Incidents"
        for incident in self.incidents:
            ran = [item for item in incident.resubmission.tries if not item.no_room]
            assert len(ran) <= self.policy.budgets.max_attempts
            assert incident.loss.rollbacks <= self.policy.budgets.max_rollbacks + 1
            by_owner = sum(item.is_theirs for item in incident.resubmission.tries)  # counted, and no budget's
            assert incident.resubmission.no_progress <= self.policy.budgets.max_no_progress + by_owner
            assert incident.version == len(self.store._records[incident.incident_id].recorded)
            if not incident.is_open:
                wire = incident.to_wire()
                assert self.closed.setdefault(incident.incident_id, wire) == wire, "a closed Incident moved"

    def _check_decision(self, before: Incident, paused: bool, decision: Decision) -> None:
        doing = [action for action in decision.actions if not isinstance(action, Notify)]
        assert not (doing and paused), f"{decision.rule} acts while paused"
        assert not (doing and self.policy.shadow), f"{decision.rule} acts in shadow mode"
        assert not (doing and not decision.incident.is_open), f"{decision.rule} acts on closing"
        assert decision.incident.version == before.version
        for action in doing:
            if isinstance(action, ResubmitJob):
                self._check_resume(action, decision)
        if decision.incident.phase is Phase.RECOVERED and decision.rule != "order.checkpoint":
            self._check_recovered(decision)

    def _check_resume(self, action: ResubmitJob, decision: Decision) -> None:
        # Beside what others have started the act itself starts nothing (test_siblings.py, test_two_live.py).
        assert [name for name in self.live if name not in {action.name, *self.theirs}] == [], (
            f"resubmits beside {self.live}"
        )
        if action.resume_manifest is None:
            return
        view = next(item for item in self.mailbox.stored if item.manifest == action.resume_manifest)
        told = [
            signal.evidence["step"]
            for signal in self.taken
            if signal.kind is SignalKind.NON_FINITE and signal.attempt == view.attempt
        ]
        assert all(view.step < onset for onset in told), f"resumes from a poisoned checkpoint: {decision.reason}"
        assert not view.problems

    def _check_recovered(self, decision: Decision) -> None:
        incident = decision.incident
        name = incident.attempt or ""
        status, sim = self.status(name), self.sims[name]
        if status is AttemptStatus.COMPLETED:
            return
        assert not status.has_ended, f"{decision.rule} calls a dead run recovered"
        if isinstance(incident.target_step, Known):
            assert sim.step > incident.target_step.value, decision.reason
        else:
            assert sim.step > sim.first
