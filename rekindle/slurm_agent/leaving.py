"""What an agent that leaves its cluster gives back: jobs that it holds, copies not let go, nodes that it drained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rekindle.protocol.cluster.documents import AttemptDoc, EndedBy, NodeFacts
from rekindle.protocol.cluster.names import parse_attempt
from rekindle.protocol.cluster.node_states import StateMeaning, meanings_of, words_of
from rekindle.protocol.wire import MailboxError
from rekindle.slurm_agent.base.ports import Slurm, SlurmError


class Holds(Protocol):
    """What the journal knows of holds."""

    def holds(self, attempt: str) -> bool | None:
        """Whether the last order that held or let go this start held it; None: there was none."""
        ...

    def is_unproven(self, new_attempt: str) -> bool:
        """See `ports.OwnActions`."""
        ...

    def copy_of(self, new_attempt: str) -> int | None:
        """See `ports.OwnActions`."""
        ...


def give_back(slurm: Slurm, holds: Holds, say: Callable[[str], None], *, is_dry: bool) -> bool:
    """One line for each thing; True where nothing of ours is left. `is_dry`: say what would be done, and do nothing.

    Idempotent: what was given back is not found again. What others held or drained is not touched.
    """
    try:
        waiting, taken_out = slurm.waiting(), slurm.taken_out()
    except SlurmError as err:
        say(f"MISSING  Slurm: {err}")
        return False
    left = 0
    for doc in waiting:
        left += not _job(slurm, holds, doc, say, is_dry=is_dry)
    for node in taken_out:
        left += not _node(slurm, node, say, is_dry=is_dry)
    if not waiting and not taken_out:
        say("nothing of ours waits held, and no node is drained by us")
    return left == 0


def _job(slurm: Slurm, holds: Holds, doc: AttemptDoc, say: Callable[[str], None], *, is_dry: bool) -> bool:
    name = f"job {doc.slurm_job} ({doc.attempt})"
    if doc.restart == 0 and holds.is_unproven(doc.attempt):
        return _done(say, f"cancel {name}: a copy that was not found equal to its original", is_dry, slurm.cancel, doc)
    if doc.restart == 0 and holds.copy_of(doc.attempt) not in (None, doc.slurm_job):
        return _done(say, f"cancel {name}: a copy too many", is_dry, slurm.take_back, doc)
    ours = holds.holds(doc.attempt)
    if ours is None:
        ours = _was_put_back_by_us(slurm, doc)
    if not ours:
        say(f"note     {name} waits held, not by us: it is left so")
        return True
    return _done(say, f"release {name}", is_dry, slurm.release, doc)


def _done(say: Callable[[str], None], what: str, is_dry: bool, act: Callable[[int], None], doc: AttemptDoc) -> bool:
    if is_dry:
        say(f"would    {what}")
        return True
    try:
        act(doc.slurm_job)
    except SlurmError as err:
        say(f"LEFT     {what}: {err}")
        return False
    say(f"done     {what}")
    return True


def _was_put_back_by_us(slurm: Slurm, doc: AttemptDoc) -> bool:
    """Where the journal is lost: what the cluster state shows of the start before this one."""
    if doc.restart == 0:
        return False
    try:
        before = slurm.start(parse_attempt(doc.attempt).restarted(doc.restart - 1).name)
    except (SlurmError, MailboxError):
        return False
    return before is not None and before.requeued_by is EndedBy.AGENT


def _node(slurm: Slurm, node: NodeFacts, say: Callable[[str], None], *, is_dry: bool) -> bool:
    what = f"resume node {node.name} ({node.reason})"
    if StateMeaning.INVALID in meanings_of(words_of(node.state, node.flags)):
        say(f"note     {what}: slurmctld keeps it out, it has less than slurm.conf says")
        return True
    if is_dry:
        say(f"would    {what}")
        return True
    try:
        slurm.resume(node.name)
    except SlurmError as err:
        say(f"LEFT     {what}: {err}")
        return False
    say(f"done     {what}")
    return True
