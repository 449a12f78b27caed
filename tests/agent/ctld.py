"""A slurmctld in this process, as the agent's core sees one through `Commands`: it keeps jobs and nodes, changes
them as Slurm does, counts what it was asked, and can be away, lose its answers, or refuse.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import UTC, datetime

from rekindle.protocol.cluster.documents import AttemptDoc, JobSpec, NodeFacts, SlurmState
from rekindle.protocol.cluster.names import parse_attempt
from rekindle.protocol.cluster.node_states import is_ours
from rekindle.protocol.cluster.orders import Order, Repair, RunTie, Sibling, Signal, Standing, Verb
from rekindle.protocol.cluster.queue_place import QueueLoss
from rekindle.slurm_agent.base.ports import (
    NodeNow,
    QueuePlace,
    Repointed,
    Size,
    SlurmRefused,
    SlurmUnavailable,
    UnknownJob,
)
from rekindle.slurm_agent.orders.verbs import ENDED
from rekindle.slurm_agent.slurm.queue_place import losses

START = datetime(2035, 1, 1, tzinfo=UTC)


def job(slurm_job: int = 7, restart: int = 0, state: SlurmState = SlurmState.RUNNING, **changes: object) -> AttemptDoc:
    """A job of cluster `lab` under its plain name."""
    name = f"slurm.lab.{slurm_job}" + (f".r{restart}" if restart else "")
    doc = AttemptDoc(
        attempt=name, cluster="lab", slurm_job=slurm_job, restart=restart, state=state, seen_at=START, is_ready=True
    )
    return replace(doc, **changes)  # type: ignore[arg-type]


class Ctld:
    """As `Commands`. `commands` are those that changed something."""

    def __init__(self) -> None:
        self.jobs: dict[int, AttemptDoc] = {}
        self.nodes: dict[str, NodeNow] = {}
        self.running_steps: dict[int, int] = {}
        self.submitted: dict[str, int] = {}
        self.waiting_for: dict[int, tuple[int, ...]] = {}
        self.commands: list[str] = []
        self.is_away = False
        self.noted: list[tuple[int, Verb, str | None]] = []
        self.held_by_admin: set[int] = set()
        self.tells_no_holder = False
        self.priorities: dict[int, int] = {}  # by job, of the start before
        self.named: dict[int, frozenset[str]] = {}  # by job: the nodes that it was submitted for
        self.loses_answers = 0  # so many commands take effect and then seem to have failed
        self.refuses: str | None = None
        self.fixed = ""  # why no job can be made smaller
        self.requeue_completes = True
        self.written: dict[str, AttemptDoc] = {}  # what an agent wrote down of a start
        self.differs: tuple[str, ...] = ()  # in what a copy is not its original

    def put(self, doc: AttemptDoc, steps: int = 1) -> AttemptDoc:
        self.jobs[doc.slurm_job] = doc
        self.running_steps[doc.slurm_job] = steps
        return doc

    def put_node(
        self, name: str, state: str = "idle", *flags: str, reason: str = "", jobs: tuple[int, ...] = (), is_: str = ""
    ) -> None:
        """is_: the node's present instance; "" where that is not known."""
        facts = NodeFacts(name=name, state=state, flags=flags, reason=reason, jobs=jobs, instance_id=is_ or None)
        self.nodes[name] = NodeNow(facts=facts)

    # ---- reads

    def check(self, order: Order) -> None:
        """Nothing is barred here."""

    def barred_here(self) -> tuple[str, ...]:
        return ()

    def _look(self) -> None:
        if self.is_away:
            raise SlurmUnavailable("Unable to contact slurm controller")

    def job(self, slurm_job: int) -> AttemptDoc | None:
        self._look()
        return self.jobs.get(slurm_job)

    def start(self, attempt: str) -> AttemptDoc | None:
        return self.written.get(attempt)

    def steps(self, slurm_job: int) -> int:
        self._look()
        return self.running_steps.get(slurm_job, 0)

    def find_by_attempt(self, attempt: str) -> AttemptDoc | None:
        self._look()
        found = self.submitted.get(attempt)
        return None if found is None else self.jobs.get(found)

    def sibling(self, old: AttemptDoc, *, besides: Collection[int]) -> Sibling | None:
        self._look()
        alike = (
            Sibling(slurm_job=doc.slurm_job, standing=Standing.HAS_NODES, tie=RunTie.MAILBOX, attempt=doc.attempt)
            for doc in self.jobs.values()
            if doc.slurm_job not in besides and not doc.held and doc.state in (SlurmState.RUNNING, SlurmState.PENDING)
            if old.mailbox and doc.mailbox == old.mailbox
        )
        return next(alike, None)

    def is_held_by_admin(self, slurm_job: int) -> bool:
        self._look()
        if self.tells_no_holder:
            raise SlurmRefused("squeue: unrecognized option '--json'")
        return slurm_job in self.held_by_admin

    def waiting(self) -> tuple[AttemptDoc, ...]:
        self._look()
        return tuple(doc for doc in self.jobs.values() if doc.state is SlurmState.PENDING and doc.held)

    def held_unprotected(self) -> tuple[int, ...]:
        return ()

    def refusals_of_copies(self) -> tuple[str, ...]:
        return ()

    def late_copies(self) -> tuple[int, ...]:
        return ()

    def cancel_copy(self, slurm_job: int) -> None:
        self._change(f"cancel_copy {slurm_job}")
        self._set(slurm_job, state=SlurmState.CANCELLED)
        self._answered()

    def nodes_out_by_us(self) -> tuple[NodeFacts, ...]:
        self._look()
        return tuple(now.facts for now in self.nodes.values() if is_ours(now.facts.reason))

    def node(self, name: str) -> NodeNow | None:
        self._look()
        return self.nodes.get(name)

    # ---- changes

    def _change(self, command: str) -> None:
        self._look()
        if self.refuses is not None:
            raise SlurmRefused(self.refuses)
        self.commands.append(command)

    def _answered(self) -> None:
        if self.loses_answers:
            self.loses_answers -= 1
            raise SlurmUnavailable("Socket timed out on send/recv operation")

    def _set(self, slurm_job: int, **changes: object) -> None:
        if slurm_job not in self.jobs:
            raise UnknownJob("Invalid job id specified")
        self.jobs[slurm_job] = replace(self.jobs[slurm_job], **changes)  # type: ignore[arg-type]

    def note(self, slurm_job: int, order: Order, did: Verb | None = None) -> None:
        self.noted.append((slurm_job, did or order.verb, order.incident_id))

    def signal(self, slurm_job: int, signal: Signal) -> None:
        self._change(f"signal {slurm_job} {signal}")
        self._answered()

    def cancel(self, slurm_job: int) -> None:
        if self.jobs[slurm_job].state in ENDED:
            raise SlurmRefused("Job/step already completing or completed")
        self._change(f"cancel {slurm_job}")
        self._set(slurm_job, state=SlurmState.CANCELLED)
        self._answered()

    def hold(self, slurm_job: int) -> None:
        self._change(f"hold {slurm_job}")
        self._set(slurm_job, held=True)
        self._answered()

    def requeue_hold(self, slurm_job: int) -> None:
        self._change(f"requeue_hold {slurm_job}")
        restart = self.jobs[slurm_job].restart + 1
        name = parse_attempt(self.jobs[slurm_job].attempt).restarted(restart).name
        self._set(slurm_job, state=SlurmState.PENDING, held=True, restart=restart, attempt=name)
        self._answered()

    def release(self, slurm_job: int) -> None:
        self._change(f"release {slurm_job}")
        self._set(slurm_job, held=False)
        self._answered()

    def release_unprotected(self, slurm_job: int) -> None:
        self.release(slurm_job)

    def queue_place(self, slurm_job: int) -> QueuePlace:
        self._look()
        return QueuePlace(priority=self.priorities.get(slurm_job))

    def restore_place(self, slurm_job: int, before: QueuePlace) -> tuple[QueueLoss, ...]:
        self._look()
        return tuple(losses(before, QueuePlace(priority=1)))

    def start_now(self, slurm_job: int) -> None:
        self._change(f"start_now {slurm_job}")
        self._answered()

    def exclude(self, slurm_job: int, nodes: Iterable[str]) -> None:
        listed = tuple(nodes)
        self._change(f"exclude {slurm_job} {','.join(listed)}")
        self._set(slurm_job, exclude=listed)
        self._answered()

    def needs_one_of(self, slurm_job: int, nodes: Collection[str]) -> str:
        self._look()
        both = self.named.get(slurm_job, frozenset()) & set(nodes)
        return f"it was submitted for node {min(both)}" if both else ""

    def size(self, slurm_job: int) -> Size:
        self._look()
        return Size(low=self.jobs[slurm_job].node_count, fixed=self.fixed)

    def resize(self, slurm_job: int, low: int, high: int) -> None:
        self._change(f"resize {slurm_job} {low}-{high}")
        self._set(slurm_job, node_count=low)
        self._answered()

    def submit(self, spec: JobSpec, order: Order) -> int:
        self._change(f"submit {order.new_attempt}")
        assert order.new_attempt is not None
        new = max(self.jobs, default=100) + 1
        self.jobs[new] = replace(job(new), attempt=order.new_attempt, state=SlurmState.PENDING, held=True)
        self.submitted[order.new_attempt] = new
        self._answered()
        return new

    def differences(self, slurm_job: int, spec: JobSpec, order: Order) -> tuple[str, ...]:
        self._look()
        return self.differs

    def other_secrets(self, slurm_job: int, spec: JobSpec, order: Order) -> tuple[str, ...]:
        return ()

    def repoint(self, slurm_job: int, new_job: int, *, others: bool) -> Repointed:
        self._look()
        moved = self.waiting_for.pop(slurm_job, ())
        if moved:
            self.waiting_for[new_job] = moved
        return Repointed(changed=moved)

    def drain(self, node: str, reason: str) -> None:
        self._change(f"drain {node} {reason}")
        self.put_node(node, "idle", "drain", reason=reason)
        self._answered()

    def resume(self, node: str) -> None:
        self._change(f"resume {node}")
        self.put_node(node)
        self._answered()

    def mark(self, node: str, repair: Repair) -> None:
        self._change(f"mark {node} {repair}")
        self.put_node(node, "idle", "fail", reason=repair.value)
        self._answered()

    def reboot(self, node: str, reason: str) -> None:
        self._change(f"reboot {node} {reason}")
        self.put_node(node, "idle", "reboot_requested", reason=reason)
        self._answered()
