"""A platform is one folder: the real services recover a crash, a hang and a bad node on one that they do not know.

Nothing outside tests/platforms/toy names it: its Scheduler is handed to the services, as bootstrap does with ours.
"""

from __future__ import annotations

import pytest

from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import AttemptStatus
from tests.platforms.toy.cluster import CLUSTER
from tests.platforms.toy.platform import TOY
from tests.platforms.toy.world import ToyWorld
from tests.services.world import JOB


@pytest.fixture
def w() -> ToyWorld:
    made = ToyWorld()
    made.tick(600)
    return made


def test_the_job_stores_where_it_runs(w: ToyWorld) -> None:
    job = w.registry.get(JOB)
    assert (job.platform, job.cluster) == (TOY.name, CLUSTER)


def test_a_crash_is_recovered_from_the_newest_checkpoint(w: ToyWorld) -> None:
    w.fail(JOB, "RuntimeError: boom")
    w.settle()
    assert w.last.phase is Phase.RECOVERED, w.story()
    assert w.current == "lm-r2"
    assert w.sims["lm-r2"].first == 60


def test_a_hang_is_stopped_once_and_recovered(w: ToyWorld) -> None:
    w.hang(JOB)
    w.settle()
    assert w.last.phase is Phase.RECOVERED, w.story()
    assert w.status(JOB) is AttemptStatus.STOPPED
    assert w.current == "lm-r2"


def test_a_bad_node_is_left_by_the_run_cordoned_and_reported(w: ToyWorld) -> None:
    bad = w.nodes_of(JOB)[1]
    w.break_node(bad, of=JOB)
    w.settle()
    assert w.last.phase is Phase.RECOVERED, w.story()
    assert w.current == "lm-r2"
    assert bad not in w.nodes_of("lm-r2")
    assert w.cluster.cordoned == {bad}
    assert [signal.node for signal in w.handed_on.signals] == [bad]
    saved = w.last.resubmission.tries[-1].resume_step
    assert isinstance(saved, Known)
    assert saved.value >= 60
