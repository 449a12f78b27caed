"""After slurmctld has lost its state on a real Slurm: its numbers begin anew, and no order finds the wrong job."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from rekindle.protocol.cluster.documents import AttemptDoc, SlurmState
from rekindle.protocol.cluster.names import attempt_key
from rekindle.protocol.cluster.orders import Order, Outcome, Verb
from rekindle.slurm_agent.base.ports import Reading
from rekindle.slurm_agent.copies.reads import CopyReads
from rekindle.slurm_agent.files.user_files import UserFiles
from rekindle.slurm_agent.orders.job_verbs import JobVerbs
from rekindle.slurm_agent.orders.verbs import OrderTry, Result
from rekindle.slurm_agent.privileged.submissions import Captures
from rekindle.slurm_agent.reading.nodemap import NodeMap
from rekindle.slurm_agent.reading.run import Runner
from rekindle.slurm_agent.slurm.commands import Commands
from rekindle.slurm_agent.watching.followed_jobs import FollowedJobs
from rekindle.slurm_agent.watching.joining import Joining
from rekindle.slurm_agent.watching.owners import Owners
from rekindle.slurm_agent.watching.watcher import Watch
from tests.agent_slurm.conftest import Journal, Kept
from tests.agent_slurm.gates import parts
from tests.slurm.lab.lab import SlurmLab


class HeadNode:
    """The agent's own parts on a real Slurm, with a whiteboard that is a dict. A new one has lost its memory."""

    def __init__(self, lab: SlurmLab, board: dict[str, bytes]) -> None:
        runner = Runner(environ=lab.environ())
        self.reads = reads = CopyReads(runner, lambda: datetime.now(UTC))
        self.owners = owners = Owners("lab", board.get)
        node_map = NodeMap("/nonexistent")
        self.board = board
        self.watch_roster = FollowedJobs()
        self.watch = Watch(
            cluster="lab",
            reads=reads,
            node_map=node_map,
            memory=Kept(),
            own_actions=Journal(),
            followed_jobs=self.watch_roster,
            published=board.get,
            owners=owners,
            joining=Joining(reads),
            files=UserFiles(),
            captures=Captures(reads),
        )
        self.commands = Commands(
            cluster="lab",
            reads=reads,
            **parts(runner, reads, self.watch.current_settings),
            node_map=node_map,
            now=lambda: datetime.now(UTC),
            owners=owners,
            watch=self.watch,
        )
        self.hands = JobVerbs(self.commands, None)  # type: ignore[arg-type]  # nothing is submitted

    def look(self) -> Reading:
        reading = self.watch.read(datetime.now(UTC))
        self.board |= reading.documents
        return reading

    def doc(self, attempt: str) -> AttemptDoc:
        return AttemptDoc.from_json(self.board[attempt_key(attempt)])

    def order_try(self, verb: Verb, number: int, **more: Any) -> OrderTry:
        now = datetime.now(UTC)
        order = Order(
            token="t",
            verb=verb,
            cluster="lab",
            issued_at=now,
            expires_at=now,
            attempt=f"slurm.lab.{number}",
            slurm_job=number,
            **more,
        )
        return OrderTry(order=order, begun_at=None, tried_at=None, now=now, begin=lambda: None)

    def release(self, number: int) -> Result:
        return self.hands.requeue(self.order_try(Verb.REQUEUE, number, new_attempt=f"slurm.lab.{number}.r1"))


@pytest.mark.versions
def test_a_wiped_slurmctld_and_an_agent_without_memory_harm_no_job(  # one lab for both: each takes seconds
) -> None:
    board: dict[str, bytes] = {}
    with SlurmLab(nodes=("n1", "n2")) as lab:
        script = lab.folder / "work" / "job.sh"
        script.write_text("#!/bin/sh\nsleep 600\n")
        ours = ("-N1", "--exclusive", "--comment=rekindle")
        one, two = lab.submit(script, *ours), lab.submit(script, *ours)
        lab.wait(lambda: {lab.job_state(one), lab.job_state(two)} == {"RUNNING"}, "both to run")
        first = HeadNode(lab, board)
        first.look()
        assert first.hands.hold(first.order_try(Verb.HOLD, two)).outcome is Outcome.DONE
        lab.wait(lambda: lab.job_state(two) == "PENDING", "the second to wait, held")

        second = HeadNode(lab, board)  # the state directory is lost
        reading = second.look()
        assert "2 starts were read back" in reading.problems[0]
        assert second.doc(f"slurm.lab.{two}.r1").held
        assert second.doc(f"slurm.lab.{two}").successor == f"slurm.lab.{two}.r1"
        assert second.release(two).outcome is Outcome.DONE
        lab.wait(lambda: lab.job_state(two) == "RUNNING", "what was held to run again")
        assert not [line for line in second.look().problems if "number" in line], "a later start is the same job"

        lab.lose_slurmctld_state()
        assert lab.submit(script, *ours) == one
        third = HeadNode(lab, board)
        for head in (second, third):
            for act in (head.hands.cancel, head.hands.hold):
                result = act(head.order_try(Verb.CANCEL if act == head.hands.cancel else Verb.HOLD, one))
                assert (result.outcome, "another job has its number" in result.detail) == (Outcome.REFUSED, True)
        assert lab.job_state(one) in ("PENDING", "RUNNING")
        problems = third.look().problems
        assert any("numbers have begun again" in line for line in problems)
        assert any("another job has its number" in line for line in problems)
        assert any("numbers have begun again" in one.text for one in third.watch.advice(datetime.now(UTC)))
        closed = third.doc(f"slurm.lab.{one}")
        assert (closed.state, closed.is_known) == (SlurmState.GONE, False)
