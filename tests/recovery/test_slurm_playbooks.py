"""The playbooks of a Slurm Job, end to end in virtual time: events, orders in the queue, the whiteboard, the mailbox.

Slurm is a model (localcloud/slurm/model.py); tests/slurm plays the same on a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.model.incident import Incident, Phase
from localcloud.cloud import STACK
from localcloud.worlds.recoveries import World, world
from rekindle.protocol.cluster.documents import SlurmState
from rekindle.protocol.cluster.orders import Verb
from tests.fakes.slurm_simulated import SlurmSimulated

pytestmark = pytest.mark.long

JOB = "slurm.ml.1"
HOUR = timedelta(hours=1)


class Slurm:
    """A world with one protected Slurm job in it, at step 40 or so."""

    def __init__(
        self,
        w: World,
        *,
        nodes: tuple[str, ...] = ("ip-1", "ip-2", "ip-3"),
        peer: Callable[[Any], Any] = lambda client: client,
        **job: Any,
    ) -> None:
        """peer: what stands between the run's monitor and agent and their clients."""
        self.w = w
        self.sim = SlurmSimulated(
            clock=w.cloud.clock,
            client=lambda service: peer(w.cloud.client(service)),
            cluster="ml",
            bucket=f"{STACK}-mailbox",
            bus=STACK,
            stack=STACK,
            nodes=nodes,
        )
        self.job = self.sim.submit(mailbox=f"s3://{STACK}-mailbox/jobs/lm", **job)
        self.sim.open()
        self.until(lambda: self.step(JOB) > 40)

    def until(self, predicate: Callable[[], bool]) -> None:
        self.w.run_until(predicate, limit=HOUR)

    def step(self, attempt: str) -> int:
        run = self.sim.runs.get(attempt)
        return run.step if run is not None else 0

    def incidents(self) -> list[Incident]:
        return [incident for incident in self.w.incidents() if incident.job_id == JOB]

    def recovered(self) -> Incident:
        """The Job's Incident, once it is closed; a node's own may stay open longer."""
        self.until(lambda: any(not incident.is_open for incident in self.incidents()))
        (incident,) = self.incidents()
        assert incident.phase is Phase.RECOVERED, self.w.story()
        return incident

    def verbs(self) -> list[Verb]:
        return [order.verb for order in self.sim.model.executed]

    def starts(self) -> list[str]:
        """Every start that ever ran, in order."""
        return list(self.sim.runs)


@contextmanager
def slurm(policies: dict[str, Any] | None = None, **more: Any) -> Iterator[Slurm]:
    with world(policies=policies) as w:
        made = Slurm(w, **more)
        try:
            yield made
        finally:
            made.sim.close()


def test_slurms_own_restart_is_watched_and_no_other_is_made() -> None:
    with slurm() as s:
        lost = s.job.nodes[0]
        s.sim.model.lose_node(lost)
        incident = s.recovered()
        rules = s.w.rules(incident)
        assert rules[0] == "adopt.platform_restart"
        assert not {Verb.REQUEUE, Verb.SUBMIT, Verb.HOLD, Verb.CANCEL} & set(s.verbs())
        assert Verb.DRAIN in s.verbs()
        (theirs,) = incident.resubmission.tries
        assert (theirs.name, theirs.is_theirs) == (f"{JOB}.r1", True)
        assert lost not in s.job.nodes
        assert sorted(s.starts()) == [JOB, f"{JOB}.r1"]
        job = s.w.service.look.registry.get(JOB)
        assert job.current_attempt == f"{JOB}.r1"
        assert any(incident.node == lost for incident in s.w.incidents()), "the node has an Incident of its own"


def test_a_stuck_run_is_held_and_requeued_with_a_plan() -> None:
    with slurm() as s:
        before = s.step(JOB)
        s.sim.freeze(JOB)
        incident = s.recovered()
        assert s.verbs() == [Verb.HOLD, Verb.REQUEUE]
        run = s.sim.runs[f"{JOB}.r1"]
        assert (run.first_step, s.job.attempt) == (41, f"{JOB}.r1")
        assert run.step > before
        assert "keeps its id" in "".join(entry.text for entry in s.w.service.look.store.timeline(incident.incident_id))


def test_a_job_that_may_not_be_requeued_is_submitted_anew() -> None:
    with slurm(is_requeueable=False) as s:
        s.sim.model.end(s.job, SlurmState.FAILED, reason="NonZeroExitCode", code=1, detail="RuntimeError: boom")
        incident = s.recovered()
        assert s.verbs() == [Verb.SUBMIT]
        assert incident.attempt == f"{JOB}-a2"
        run = s.sim.runs[f"{JOB}-a2"]
        assert (run.first_step, s.sim.model.jobs[2].attempt) == (41, f"{JOB}-a2")


def test_a_broken_node_is_left_for_a_spare_after_an_emergency_checkpoint() -> None:
    with slurm() as s:
        bad = s.job.nodes[1]
        s.sim.model.mark_failing(bad)
        at = s.step(JOB)
        incident = s.recovered()
        assert s.verbs()[:1] == [Verb.DRAIN]
        assert [verb for verb in s.verbs() if verb is not Verb.DRAIN] == [Verb.HOLD, Verb.REQUEUE]
        assert bad not in s.job.nodes
        run = s.sim.runs[f"{JOB}.r1"]
        assert run.first_step > at, "it continues from the emergency checkpoint, not from the periodic one"
        assert incident.resubmission.bad_nodes[0].node == bad


def test_a_job_that_its_user_cancels_is_left_alone() -> None:
    with slurm() as s:
        s.sim.model.cancel_by_user(s.job)
        s.until(lambda: not s.w.service.look.registry.get(JOB).active)
        assert s.incidents() == []
        assert s.verbs() == []


def test_a_job_that_its_user_cancels_while_we_stop_it_is_left_alone() -> None:
    with slurm() as s:
        s.sim.freeze(JOB)
        s.until(lambda: any(incident.phase is Phase.CHECKPOINTING for incident in s.incidents()))
        s.sim.model.cancel_by_user(s.job)
        s.until(lambda: all(not incident.is_open for incident in s.incidents()))
        (incident,) = s.incidents()
        assert incident.phase is Phase.STOPPED, s.w.story()
        assert s.starts() == [JOB]


def test_an_agent_that_falls_silent_in_the_middle_costs_time_and_nothing_else() -> None:
    with slurm() as s:
        s.sim.freeze(JOB)
        s.until(lambda: any(incident.phase is Phase.STOPPING for incident in s.incidents()))
        s.sim.is_silent = True
        quiet_since = s.w.cloud.clock.now()
        s.until(lambda: s.w.cloud.clock.now() - quiet_since > timedelta(minutes=10))
        assert s.starts() == [JOB]
        s.sim.is_silent = False
        s.recovered()
        assert s.verbs() == [Verb.HOLD, Verb.REQUEUE]
        assert sorted(s.starts()) == [JOB, f"{JOB}.r1"]


SMALLER = {"default": {"name": "default", "resubmission": {"min_nodes_percent": 50}, "timing": {"start_limit_s": 1200}}}
FOUR = ("ip-1", "ip-2", "ip-3", "ip-4")


def test_a_job_that_can_runs_on_fewer_nodes_when_it_has_waited_for_all_and_on_all_again_later() -> None:
    with slurm(SMALLER, nodes=FOUR, wants=4, min_nodes=1) as s:
        s.sim.model.lose_node("ip-4")
        began = s.w.cloud.clock.now()
        s.until(lambda: Verb.SHRINK in s.verbs())
        assert s.w.cloud.clock.now() - began >= timedelta(seconds=600)
        s.until(lambda: s.job.state is SlurmState.RUNNING)
        (order,) = [order for order in s.sim.model.executed if order.verb is Verb.SHRINK]
        assert (order.attempt, order.nodes_min, order.nodes_max) == (f"{JOB}.r1", 2, 4)
        assert s.job.nodes == ("ip-1", "ip-2")
        s.until(lambda: any(not incident.is_open for incident in s.incidents()))
        assert s.w.rules(s.incidents()[0]).count("verify.smaller") == 1
        s.sim.model.mend_node("ip-4")
        s.sim.freeze(f"{JOB}.r1")
        s.until(lambda: f"{JOB}.r2" in s.starts())
        (again,) = [order for order in s.sim.model.executed if order.verb is Verb.REQUEUE]
        assert (again.nodes_min, again.nodes_max) == (4, 4)
        assert len(s.job.nodes) == 4


def test_a_policy_alone_makes_no_job_smaller() -> None:
    with slurm(SMALLER, nodes=FOUR, wants=4) as s:
        s.sim.model.lose_node("ip-4")
        began = s.w.cloud.clock.now()
        s.until(lambda: s.w.cloud.clock.now() - began > timedelta(minutes=40))
        assert Verb.SHRINK not in s.verbs()
        assert s.job.state is SlurmState.PENDING
