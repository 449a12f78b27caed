"""Event chaos: deliver, repeat, reorder, delay, drop; die anywhere; lose the fence; cancel; faults at any time.

Whatever happens: at most one live attempt per Job, at most one open Incident, budgets kept, a closed Incident stays
closed, nothing acts in shadow mode or while paused, nothing resumes from a
poisoned checkpoint, and every Incident ends.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from chalicelib.domain.model.action import ActionResult, Done
from chalicelib.domain.model.errors import InvalidRequest, NotOurs
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.domain.model.signal import SignalKind
from chalicelib.domain.policy.document import Policy
from rekindle.protocol.signals import FaultClass
from tests.services.world import JOB, World
from tests.sizes import examples

pytestmark = pytest.mark.long

REASONS = st.sampled_from(
    [
        "",
        "AlgorithmError: RuntimeError: boom",
        "AlgorithmError: torch.cuda.OutOfMemoryError: CUDA out of memory",
        "InternalServerError: We encountered an internal error. Please try again.",
        "CapacityError: Unable to provision requested ML compute capacity.",
        "AlgorithmError: ValueError: Loss is nan, stopping training, exit code: 1",
        "AlgorithmError: RuntimeError: PytorchStreamReader failed reading zip archive",
    ]
)
CLAIMS = st.sampled_from(
    [
        (SignalKind.AGENT_LOG_FAULT, FaultClass.NODE_HARDWARE),
        (SignalKind.AGENT_LOG_FAULT, FaultClass.SOFTWARE_CRASH),
        (SignalKind.JOB_MISSING, FaultClass.JOB_MISSING),
        (SignalKind.ALARM, FaultClass.LOSS_SPIKE),
        (SignalKind.ALARM, FaultClass.DIVERGENCE),
        (SignalKind.SPOT_INTERRUPTION, FaultClass.PLANNED_END),
        (SignalKind.ATTEMPT_STATE, FaultClass.NODE_LOST),
    ]
)


class EventChaos(RuleBasedStateMachine):
    """One Job in a hostile world."""

    @initialize(
        shadow=st.sampled_from([False, False, False, True]),
        mailbox=st.sampled_from(["s3://box/lm", "s3://box/lm", ""]),
        steps=st.integers(0, 40),
    )
    def begin(self, shadow: bool, mailbox: str, steps: int) -> None:
        self.w = World(Policy(shadow=shadow), mailbox=mailbox)
        self.w.sims[JOB].visible = bool(mailbox)
        self.w.tick(10 * steps)

    # --- time and work ---

    @rule(seconds=st.sampled_from([5, 30, 60, 60, 300, 1900]))
    def time_passes(self, seconds: int) -> None:
        self.w.tick(seconds)

    @rule(minutes=st.sampled_from([1, 5, 20]))
    def all_goes_well(self, minutes: int) -> None:
        if not self.w.registry.is_paused():
            self.w.run(minutes)

    @rule(repeat=st.sampled_from([1, 1, 2]))
    def executions_work(self, repeat: int) -> None:
        self.w.work(repeat=repeat)

    @rule()
    def the_sweep_passes(self) -> None:
        self.w.sweep.run()
        self.w.adopt()

    @precondition(lambda self: self.w.workers)
    @rule(acted=st.sampled_from(["no", "yes", "lost"]), early=st.booleans())
    def an_execution_dies_in_its_turn(self, acted: str, early: bool) -> None:
        worker = next(iter(self.w.workers.values()))
        if early:  # a look at any time is allowed
            worker.due_at = self.w.clock.now()
        if self.w.look_and_record(worker) is None:
            return
        waiting = list(worker.to_act)
        if acted != "no":
            self.w.act(worker)
        if acted == "lost":
            worker.to_act = waiting  # the effect is there, its record is not
        self.w.die(worker)

    @precondition(lambda self: self.w.zombies)
    @rule(index=st.integers(0, 50))
    def a_dead_executions_order_arrives_late(self, index: int) -> None:
        self.w.zombie_acts(-1 - index % min(2, len(self.w.zombies)))

    # --- deliveries ---

    @precondition(lambda self: self.w.air)
    @rule(index=st.integers(0, 50), again=st.booleans())
    def a_signal_arrives(self, index: int, again: bool) -> None:
        at = index % len(self.w.air)
        self.w.deliver(self.w.air[at] if again else self.w.air.pop(at))

    @precondition(lambda self: self.w.air)
    @rule(index=st.integers(0, 50))
    def a_signal_is_lost(self, index: int) -> None:
        self.w.air.pop(index % len(self.w.air))

    @rule(claim=CLAIMS, named=st.booleans())
    def somebody_claims_a_fault(self, claim: tuple[SignalKind, FaultClass], named: bool) -> None:
        kind, fault = claim
        name = self.w.current or JOB
        self.w.deliver(self.w.say(kind, name if named else None, fault))

    # --- faults ---

    @precondition(lambda self: self.w.current)
    @rule(reason=REASONS)
    def the_run_dies(self, reason: str) -> None:
        self.w.fail(self.w.current, reason)

    @precondition(lambda self: self.w.current)
    @rule()
    def the_run_hangs(self) -> None:
        self.w.hang(self.w.current)

    @precondition(lambda self: self.w.current)
    @rule()
    def the_run_moves_again(self) -> None:
        self.w.sims[self.w.current].hung = False

    @precondition(lambda self: self.w.current and self.w.status(self.w.current) is AttemptStatus.RUNNING)
    @rule()
    def the_run_is_poisoned(self) -> None:
        self.w.poison(self.w.current)

    @precondition(lambda self: self.w.current and self.w.status(self.w.current) is AttemptStatus.RUNNING)
    @rule()
    def the_platform_repairs(self) -> None:
        self.w.repair(self.w.current)

    @precondition(lambda self: self.w.current and self.w.status(self.w.current) is AttemptStatus.REPAIRING)
    @rule()
    def the_repair_ends(self) -> None:
        self.w.repaired(self.w.current)

    @precondition(lambda self: self.w.current)
    @rule(status=st.sampled_from([AttemptStatus.COMPLETED, AttemptStatus.STOPPED, AttemptStatus.EXPIRED]))
    def the_run_ends_otherwise(self, status: AttemptStatus) -> None:
        self.w.end(self.w.current, status)

    @rule(count=st.integers(1, 3))
    def capacity_is_gone(self, count: int) -> None:
        refusal = ActionResult(action="ResubmitJob", done=Done.CAPACITY, detail="no room")
        self.w.scheduler.refuse_with.extend([refusal] * count)

    @rule(number=st.integers(2, 4), status=st.sampled_from([AttemptStatus.RUNNING, AttemptStatus.FAILED]))
    def a_stranger_takes_the_name(self, number: int, status: AttemptStatus) -> None:
        if f"{JOB}-r{number}" not in self.w.scheduler.runs:
            self.w.scheduler.put(f"{JOB}-r{number}", status, policy_name="")

    @rule(dark=st.booleans())
    def the_platform_does_not_answer(self, dark: bool) -> None:
        self.w.scheduler.dark = dark

    @precondition(lambda self: self.w.current)
    @rule()
    def the_platform_forgets_a_run_for_a_moment(self) -> None:
        self.w.scheduler.hides = {self.w.current}
        self.w.work()
        self.w.sweep.run()
        self.w.work()
        self.w.scheduler.hides = set()

    # --- people ---

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.w.registry.set_paused(paused, who="ada", now=self.w.clock.now())

    @precondition(lambda self: self.w.open_incidents)
    @rule(key=st.integers())
    def cancel(self, key: int) -> None:
        self.w.orders.cancel(self.w.open_incidents[0].incident_id, who="ada", key=str(key))
        self.w.adopt()

    @rule(key=st.integers())
    def order_a_checkpoint(self, key: int) -> None:
        self.w.orders.checkpoint(JOB, who="ada", key=str(key))
        self.w.adopt()

    @rule(key=st.integers(), from_step=st.sampled_from([None, 0, 20]))
    def order_a_resubmission(self, key: int, from_step: int | None) -> None:
        try:
            self.w.orders.resubmit(JOB, who="ada", key=str(key), from_step=from_step, skip=[(5, 8)])
        except (NotOurs, InvalidRequest):  # a step to go back to, of a run whose checkpoints nobody knows
            return
        self.w.adopt()

    # --- what must hold ---

    @invariant()
    def the_world_is_sound(self) -> None:
        if hasattr(self, "w"):
            self.w.check()

    def teardown(self) -> None:
        if not hasattr(self, "w"):
            return
        self.w.scheduler.dark = False
        self.w.scheduler.refuse_with.clear()
        self.w.registry.set_paused(False, who="ada", now=self.w.clock.now())
        self.w.settle()
        job = self.w.registry.get(JOB)
        if self.w.status(job.current_attempt) is AttemptStatus.FAILED and self.w.incidents:
            last = self.w.last
            assert last.phase is not Phase.RECOVERED, f"a dead run was forgotten: {self.w.story()}"
        self.w.clock.advance(timedelta(days=1))
        self.w.sweep.run()
        self.w.check()


EventChaos.TestCase.settings = settings(
    max_examples=examples(120),
    stateful_step_count=35,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestEventChaos = EventChaos.TestCase
