"""Slurm's own chaos: signals late, twice and contradictory; restarts by Slurm, by people and by us; orders lost, late
and repeated; an agent that falls silent, a whiteboard that is old, a controller that forgets.

Whatever happens: never two runs of one Job, never a stop of a healthy run, a job that its user cancelled stays so, no
act in shadow mode or while paused, and every Incident ends.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from chalicelib.domain.model.errors import InvalidRequest, NotOurs
from chalicelib.domain.policy.document import Policy
from rekindle.protocol.cluster.documents import EndedBy, SlurmState
from rekindle.protocol.signals import FaultClass
from tests.services.slurm_world import NODES, SlurmWorld
from tests.sizes import examples


class SlurmChaos(RuleBasedStateMachine):
    """One Job on Slurm in a hostile world."""

    @initialize(
        shadow=st.sampled_from([False, False, False, True]),
        mailbox=st.sampled_from(["s3://box/lm", "s3://box/lm", ""]),
        requeueable=st.sampled_from([True, True, True, False]),
        auto_resume=st.sampled_from([False, False, True]),
        steps=st.integers(0, 40),
    )
    def begin(self, shadow: bool, mailbox: str, requeueable: bool, auto_resume: bool, steps: int) -> None:
        self.w = SlurmWorld(
            Policy(shadow=shadow), mailbox=mailbox, is_requeueable=requeueable, has_auto_resume=auto_resume
        )
        self.w.tick(10 * steps)
        self.w.head.publish()

    # --- time, the agent, the service

    @rule(seconds=st.sampled_from([5, 30, 60, 300, 1900]))
    def time_passes(self, seconds: int) -> None:
        self.w.tick(seconds)

    @rule(times=st.sampled_from([1, 3, 10]))
    def all_goes_well(self, times: int) -> None:
        for _ in range(times):
            self.w.breathe()

    @rule(twice=st.booleans())
    def the_agent_works_and_tells_nothing(self, twice: bool) -> None:
        self.w.head.work(twice=twice)

    @rule()
    def the_whiteboard_is_brought_up_to_date(self) -> None:
        self.w.head.publish()

    @rule(silent=st.booleans())
    def the_agent_is_silent(self, silent: bool) -> None:
        self.w.head.is_silent = silent

    @rule(lossy=st.booleans())
    def orders_get_lost(self, lossy: bool) -> None:
        self.w.head.is_lossy = lossy

    @rule(repeat=st.sampled_from([1, 1, 2]))
    def executions_work(self, repeat: int) -> None:
        self.w.work(repeat=repeat)

    @precondition(lambda self: self.w.workers)
    @rule()
    def what_the_actions_answered_is_lost(self) -> None:
        for worker in self.w.workers.values():
            worker.results = ()

    @precondition(lambda self: self.w.workers)
    @rule()
    def an_early_look(self) -> None:
        for worker in self.w.workers.values():
            worker.due_at = self.w.clock.now()
        self.w.work()

    # --- deliveries

    @precondition(lambda self: self.w.air)
    @rule(index=st.integers(0, 50), again=st.booleans())
    def a_signal_arrives(self, index: int, again: bool) -> None:
        at = index % len(self.w.air)
        self.w.deliver(self.w.air[at] if again else self.w.air.pop(at))

    @precondition(lambda self: self.w.air)
    @rule(index=st.integers(0, 50))
    def a_signal_is_lost(self, index: int) -> None:
        self.w.air.pop(index % len(self.w.air))

    @rule(
        fault=st.sampled_from([FaultClass.NODE_HARDWARE, FaultClass.NODE_LOST, FaultClass.SOFTWARE_CRASH]),
        node=st.sampled_from(NODES),
        old=st.booleans(),
    )
    def somebody_claims_a_fault(self, fault: FaultClass, node: str, old: bool) -> None:
        names = sorted(self.w.head.board)
        name = names[0] if old or not self.w.live else self.w.live[0]
        self.w.claim(name, fault, node=node)

    # --- what happens to the job

    @rule()
    def it_crashes(self) -> None:
        self.w.crash()

    @rule()
    def it_hangs(self) -> None:
        self.w.hang_run()

    @rule(node=st.sampled_from(NODES))
    def a_node_dies(self, node: str) -> None:
        self.w.lose(node)

    @rule(node=st.sampled_from(NODES), fresh=st.booleans())
    def a_node_is_back(self, node: str, fresh: bool) -> None:
        self.w.model.mend_node(node, instance_id=f"i-{len(self.w.model.answers):017x}" if fresh else None)

    @precondition(lambda self: self.w.running)
    @rule(
        state=st.sampled_from(
            [SlurmState.COMPLETED, SlurmState.TIMEOUT, SlurmState.PREEMPTED, SlurmState.OUT_OF_MEMORY]
        )
    )
    def it_ends(self, state: SlurmState) -> None:
        by = EndedBy.ITSELF if state is SlurmState.COMPLETED else EndedBy.SLURM
        for job in self.w.running:
            self.w.model.end(job, state, by=by)

    @rule()
    def slurmctld_forgets(self) -> None:
        for job in self.w.model.jobs.values():
            self.w.model.forget(job)

    @rule()
    def slurm_preempts_and_requeues(self) -> None:
        for job in self.w.running:
            if job.is_requeueable:
                self.w.sick.add(job.attempt)
                self.w.model.put_back(job, by=EndedBy.SLURM)

    # --- people

    @rule()
    def its_user_cancels_it(self) -> None:
        self.w.cancel_by_user()

    @rule()
    def its_user_requeues_or_releases_it(self) -> None:
        self.w.requeue_by_hand()

    @rule()
    def its_user_holds_it(self) -> None:
        for job in self.w.running:
            if job.is_requeueable:
                self.w.model.put_back(job, by=EndedBy.USER, held=True)

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.w.registry.set_paused(paused, who="ada", now=self.w.clock.now())

    @precondition(lambda self: self.w.open_incidents)
    @rule(key=st.integers())
    def cancel(self, key: int) -> None:
        self.w.orders.cancel(self.w.open_incidents[0].incident_id, who="ada", key=str(key))
        self.w.adopt()

    @rule(key=st.integers(), from_step=st.sampled_from([None, 0, 20]))
    def order_a_resubmission(self, key: int, from_step: int | None) -> None:
        try:
            self.w.orders.resubmit(self.w.job_id, who="ada", key=str(key), from_step=from_step, skip=[(5, 8)])
        except (NotOurs, InvalidRequest):  # a step to go back to, of a run whose checkpoints nobody knows
            return
        self.w.users.discard(self.w.lineage)  # whoever orders it, wants it to run
        self.w.adopt()

    # --- what must hold

    @invariant()
    def the_world_is_sound(self) -> None:
        if hasattr(self, "w"):
            self.w.check()

    def teardown(self) -> None:
        if not hasattr(self, "w"):
            return
        self.w.head.is_silent = self.w.head.is_lossy = False
        self.w.registry.set_paused(False, who="ada", now=self.w.clock.now())
        self.w.settle()
        self.w.check()


SlurmChaos.TestCase.settings = settings(
    max_examples=examples(60),
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestSlurmChaos = SlurmChaos.TestCase
