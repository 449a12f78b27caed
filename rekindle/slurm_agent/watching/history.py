"""What became of a start that is over: who ended it, what took its place, which node was down. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from rekindle.protocol.cluster.documents import AttemptDoc, EndedBy, SlurmState
from rekindle.protocol.cluster.names import SlurmAttempt
from rekindle.protocol.cluster.node_states import StateMeaning, that_say
from rekindle.slurm_agent.base.ports import OwnActions
from rekindle.slurm_agent.reading import text
from rekindle.slurm_agent.reading.jobs import ENDED, PastStart, canceller_of, state_of
from rekindle.slurm_agent.reading.nodes import Node
from rekindle.slurm_agent.watching.attempt_docs import STARTED, ShownJob, cancelled, clip, doc_of

MAX_FORERUNNERS: Final = 50  # starts before the first look that get a document each
_LOST: Final = that_say(StateMeaning.DOWN, StateMeaning.SILENT, StateMeaning.FAILING, StateMeaning.INVALID) | {
    "reboot_issued",
    "powering_down",
}
# States whose end is worth reading the output for.
FAILED: Final = frozenset(
    {SlurmState.FAILED, SlurmState.NODE_FAIL, SlurmState.OUT_OF_MEMORY, SlurmState.BOOT_FAIL, SlurmState.TIMEOUT}
)
_STARTS_LATER: Final = frozenset({SlurmState.PENDING, SlurmState.CONFIGURING})


def now_of(
    cluster: str, shown: ShownJob, before: AttemptDoc | None, own_actions: OwnActions, now: datetime
) -> AttemptDoc:
    """The start as it is, with what an earlier look saw of it and Slurm no longer shows. Raises: Unreadable."""
    doc = doc_of(cluster, shown, now)
    if shown.job.is_taken_down:  # the record speaks of the next start already; this one is ending
        doc = replace(doc, state=SlurmState.COMPLETING, started_at=None, submitted_at=None, held=False, reason="")
    if before is None:
        return _by_us(doc, own_actions)
    if before.started_at is not None and doc.state is SlurmState.PENDING:
        doc = replace(doc, state=SlurmState.COMPLETING, held=False)  # it ran: it does not wait again under its own name
    if doc.state in ENDED or doc.state is SlurmState.COMPLETING:
        doc = replace(
            doc,
            nodes=before.nodes if len(before.nodes) > len(doc.nodes) else doc.nodes,  # a node that is down is taken out
            started_at=before.started_at or doc.started_at,
            submitted_at=before.submitted_at or doc.submitted_at,
            detail=doc.detail or before.detail,
            cause=doc.cause or before.cause,
        )
    return _by_us(doc, own_actions)


def _by_us(doc: AttemptDoc, own_actions: OwnActions) -> AttemptDoc:
    if doc.state is SlurmState.CANCELLED and own_actions.has_ended(doc.attempt):
        return replace(doc, ended_by=EndedBy.AGENT)
    return doc


def replaced(
    before: AttemptDoc,
    successor: SlurmAttempt,
    *,
    at: datetime | None,
    by: EndedBy,
    lost: tuple[str, ...],
    why: str,
    now: datetime,
) -> AttemptDoc:
    """The document of a start whose job went back into the queue."""
    is_ours = by is EndedBy.AGENT
    kept = before.state in ENDED and before.state is not SlurmState.REQUEUED
    return replace(
        before,
        state=SlurmState.REQUEUED,
        seen_at=now,
        ended_at=(before.ended_at if kept else None) or at or now,
        ended_by=before.ended_by if kept else (EndedBy.AGENT if is_ours else by),
        requeued_by=by,
        lost_nodes=lost,
        successor=successor.name,
        held=False,
        is_ready=None,
        dependents=(),
        detail=clip(" ".join(part for part in (before.detail, why) if part)),
    )


def unseen_start(shown: ShownJob, restart: int, doc: AttemptDoc) -> AttemptDoc:
    """A start that was over before the agent's first look: nothing is known of it but that it was."""
    return replace(
        doc,
        attempt=shown.base.restarted(restart).name,
        restart=restart,
        state=SlurmState.REQUEUED,
        nodes=(),
        started_at=None,
        ended_at=None,
        submitted_at=None,
        reason="",
        held=False,
        is_ready=None,
        exit_code=None,
        exit_signal=None,
        ended_by=EndedBy.UNKNOWN,
        detail="This start was over before the agent first looked.",
    )


def requeued_by(
    before: AttemptDoc,
    successor: SlurmAttempt,
    own_actions: OwnActions,
    lost: Sequence[str],
    past: Sequence[PastStart],
) -> EndedBy:
    """Who put the job back. `past`: its starts as sacct tells them, in order; empty where there is no history."""
    if own_actions.has_requeued(successor.name) or own_actions.has_ended(before.attempt):
        return EndedBy.AGENT
    if before.state in ENDED:  # it had ended: only a person puts such a job back into the queue
        return EndedBy.USER
    word = past[before.restart].word.upper() if before.restart < len(past) else ""
    if word.startswith(("NODE_FAIL", "PREEMPTED", "BOOT_FAIL")):
        return EndedBy.SLURM
    if word.startswith(("REQUEUED", "PENDING", "CANCELLED")):
        return EndedBy.USER
    if lost:
        return EndedBy.SLURM
    if before.state in _STARTS_LATER or before.state not in STARTED:
        return EndedBy.UNKNOWN
    return EndedBy.USER


def lost_nodes(doc: AttemptDoc, nodes: Mapping[str, Node]) -> tuple[str, ...]:
    """Which of a start's nodes are down or do not answer now."""
    found = (nodes.get(name) for name in doc.nodes)
    return tuple(node.name for node in found if node is not None and _LOST & {node.state, *node.flags})


def lost_sentence(names: Sequence[str], nodes: Mapping[str, Node]) -> str:
    """`Down: node3 (Not responding).`"""
    if not names:
        return ""
    lines = [f"{name} ({nodes[name].reason or nodes[name].state})" for name in names[:8]]
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"Down: {', '.join(lines)}{more}."


def taken_over(doc: AttemptDoc, why: str, own_actions: OwnActions, now: datetime) -> AttemptDoc:
    """A start whose number another job has now. Nothing tells how it ended."""
    closed = forgotten_start(doc, (), own_actions, now)
    return closed if doc.state in ENDED else replace(closed, detail=clip(f"{why}. {closed.detail}"))


def unprotected(doc: AttemptDoc, now: datetime) -> AttemptDoc:
    """A start whose owner wants no protection any more. It continues; for the service it has ended, by its user."""
    if doc.state in ENDED:
        return doc
    return replace(
        doc,
        state=SlurmState.CANCELLED,
        ended_by=EndedBy.USER,
        seen_at=now,
        ended_at=now,
        held=False,
        is_ready=None,
        detail="Its owner ended its protection (norekindle); the job itself continues.",
    )


def with_step_status(doc: AttemptDoc, start: PastStart) -> AttemptDoc:
    """With how its steps ended, where accounting tells."""
    code, number = text.exit_status(start.step_status)
    return replace(doc, step_exit_code=code, step_exit_signal=number)


def forgotten_start(
    doc: AttemptDoc,
    past: Sequence[PastStart],
    own_actions: OwnActions,
    now: datetime,
    slurm_uid: int | None = None,
) -> AttemptDoc:
    """A start that slurmctld has forgotten. How it ended is known by what was seen, else by sacct, else not at all."""
    if doc.state in ENDED:
        return replace(doc, is_known=False, seen_at=now)
    code: int | None = None
    number: int | None = None
    state = SlurmState.GONE
    detail = "slurmctld no longer knows the job, and how it ended is not known."
    if doc.restart < len(past):
        start = past[doc.restart]
        reported = state_of(start.word)
        if reported in ENDED:
            state, (code, number) = reported, text.exit_status(start.status)
            doc = with_step_status(doc, start)
            detail = f"slurmctld no longer knows the job; sacct says {start.word} {start.status}."
    by = EndedBy.AGENT if own_actions.has_ended(doc.attempt) else EndedBy.UNKNOWN
    if by is EndedBy.UNKNOWN and state in (SlurmState.COMPLETED, SlurmState.FAILED, SlurmState.OUT_OF_MEMORY):
        by = EndedBy.ITSELF
    elif by is EndedBy.UNKNOWN and state is SlurmState.CANCELLED:
        doc = cancelled(doc, canceller_of(past[doc.restart].word), slurm_uid)
        by = doc.ended_by
    elif by is EndedBy.UNKNOWN and state is not SlurmState.GONE:
        by = EndedBy.SLURM
    return replace(
        doc,
        state=state,
        is_known=False,
        seen_at=now,
        held=False,
        is_ready=None,
        ended_at=doc.ended_at or now,
        exit_code=code,
        exit_signal=number,
        ended_by=by,
        detail=clip(" ".join(part for part in (doc.detail, detail) if part)),
    )
