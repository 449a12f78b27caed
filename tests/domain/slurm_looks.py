"""Makers for Slurm's decision tables: a start, what Slurm shows of it, its nodes."""

from __future__ import annotations

import dataclasses
from typing import Any

from chalicelib.domain.decide import Decision
from chalicelib.domain.model.incident import Incident, Phase, Try
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.node import NodesSeen
from chalicelib.domain.model.observation import AttemptStatus, AttemptView, Observation
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.model.start_view import StartState, StartView, Submission
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.platforms.slurm.pending_reasons import wait_of
from chalicelib.platforms.slurm.platform import SLURM
from chalicelib.platforms.slurm.view import start_state
from rekindle.protocol.cluster.documents import EndedBy, NodeFacts, SlurmState
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import MINUTE, NOW, decide, incident

R0 = "slurm.ml.7"
R1 = "slurm.ml.7.r1"
R2 = "slurm.ml.7.r2"
NEW = "slurm.ml.7-a2"
NODES = ("ip-1", "ip-2")

STATES = {
    AttemptStatus.STARTING: SlurmState.PENDING,
    AttemptStatus.RUNNING: SlurmState.RUNNING,
    AttemptStatus.REPAIRING: SlurmState.RUNNING,
    AttemptStatus.STOPPING: SlurmState.COMPLETING,
    AttemptStatus.STOPPED: SlurmState.CANCELLED,
    AttemptStatus.EXPIRED: SlurmState.TIMEOUT,
    AttemptStatus.FAILED: SlurmState.FAILED,
    AttemptStatus.COMPLETED: SlurmState.COMPLETED,
    AttemptStatus.GONE: SlurmState.GONE,
}
OF_ATTEMPT = {spec.name for spec in dataclasses.fields(AttemptView)}


def start(
    status: AttemptStatus = AttemptStatus.RUNNING, name: str = R0, *, step: int | None = 100, **more: Any
) -> AttemptView:
    """One start; what an attempt has no field for goes to its StartView."""
    own = {key: more.pop(key) for key in list(more) if key in OF_ATTEMPT}
    base: dict[str, Any] = {
        "handle": "7",
        "restart": 1 if name == R1 else 2 if name == R2 else 0,
        "state": STATES[status],
        "nodes": () if status is AttemptStatus.STARTING else NODES,
        "is_requeueable": True,
        "has_spec": True,
        "has_mailbox": True,
    }
    last = Unknown("no heartbeat") if step is None or status is AttemptStatus.STARTING else Known(step)
    told = base | more
    told["state"] = start_state(told["state"])
    told["wait"] = wait_of(told.pop("pending_reason", ""))
    told.setdefault("lost_node", told["state"] is StartState.LOST_NODE)
    return AttemptView(name=name, status=status, last_step=last, start=StartView(**told), **own)


def put_back(by: EndedBy = EndedBy.SLURM, *, name: str = R0, after: str = R1, **more: Any) -> AttemptView:
    """A start that is over because the job went back into the queue."""
    base: dict[str, Any] = {"state": SlurmState.REQUEUED, "requeued_by": by, "successor": after}
    return start(AttemptStatus.STOPPED, name, **(base | more))


def sees(view: AttemptView | Unknown, **more: Any) -> Observation:
    """A look at a Job on Slurm."""
    after = more.pop("after", None)
    nodes = more.pop("nodes", None)
    total, down = more.pop("total", 0), more.pop("down", 0)
    return Observation(
        platform=SLURM,
        cluster="ml",
        observed_at=NOW,
        has_job=True,
        paused=False,
        job_name="lm",
        attempt=view if isinstance(view, Unknown) else Known(view),
        next_number=more.pop("next_number", 2),
        current=more.pop("current", ""),
        successor=Unknown("none that is known") if after is None else Known(after),
        nodes=Unknown("not needed") if nodes is None else Known(NodesSeen(facts=tuple(nodes), total=total, down=down)),
        **more,
    )


def case(phase: Phase = Phase.OPEN, fault: FaultClass = FaultClass.UNCLEAR, **more: Any) -> Incident:
    """An Incident of the Job on Slurm."""
    base: dict[str, Any] = {"job_id": R0, "attempt": R0, "attempt_number": 1}
    if phase is Phase.STOPPING:
        base |= {"stopped_attempts": (R0,), "stop_hold": True, "target_step": Known(100)}
    if phase is Phase.VERIFYING:
        base |= {"attempt": R1, "attempt_number": 2, "tries": (try_of(),), "target_step": Known(100)}
    made = incident(phase, fault, **(base | more))
    if made.halt.ask is not None and made.halt.ask.attempt == "lm":
        made = dataclasses.replace(
            made, halt=dataclasses.replace(made.halt, ask=dataclasses.replace(made.halt.ask, attempt=R0))
        )
    return made


def try_of(name: str = R1, **more: Any) -> Try:
    base: dict[str, Any] = {
        "number": 2,
        "name": name,
        "clone_of": R0,
        "at": NOW - MINUTE,
        "resume_step": Known(90),
        "resume_manifest": "s3://b/m/90",
        "resume_root": "s3://b/90",
        "how": Submission.SUBMIT if name == NEW else Submission.REQUEUE,
    }
    return Try(**(base | more))


def node(name: str, state: str = "idle", *flags: str, **more: Any) -> NodeFacts:
    return NodeFacts(name=name, state=state, flags=flags, **more)


def node_signal(fault: FaultClass, node_name: str | None = "ip-2", attempt: str | None = R0, **more: Any) -> Signal:
    return Signal(
        kind=more.pop("kind", SignalKind.NODE_STATE),
        source=SignalSource.AGENT,
        occurred_at=more.pop("at", NOW),
        dedupe_key=f"{fault}:{node_name}:{attempt}",
        summary=f"{node_name} is broken",
        job_id=R0,
        attempt=attempt,
        cluster="ml",
        node=node_name,
        fault=fault,
        triggers=True,
        **more,
    )


def decided(made: Incident, what: Observation, policy: Policy = DEFAULT_POLICY) -> Decision:
    return decide(made, what, now=NOW, policy=policy)
