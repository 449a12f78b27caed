"""One start as its agent has written it down, as decisions read it. Pure.

Source of the states: squeue, JOB STATE CODES; what each means was tried on Slurm 22.05.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chalicelib.domain.faults.slurm_states import failure_in, lost_a_node, reason_of, status_of
from chalicelib.domain.model.observation import AttemptStatus, AttemptView
from chalicelib.domain.model.start_view import StartState, StartView
from chalicelib.platforms.slurm.pending_reasons import wait_of
from rekindle.protocol.cluster.documents import AttemptDoc, SlurmState

_STARTS: Final[Mapping[SlurmState, StartState]] = {
    SlurmState.PENDING: StartState.QUEUED,
    SlurmState.CONFIGURING: StartState.RUNNING,
    SlurmState.RUNNING: StartState.RUNNING,
    SlurmState.COMPLETING: StartState.RUNNING,
    SlurmState.STOPPED: StartState.RUNNING,
    SlurmState.SUSPENDED: StartState.SUSPENDED,
    SlurmState.REQUEUED: StartState.PUT_BACK,
    SlurmState.NODE_FAIL: StartState.LOST_NODE,
    SlurmState.BOOT_FAIL: StartState.LOST_NODE,
    SlurmState.PREEMPTED: StartState.PREEMPTED,
    SlurmState.REVOKED: StartState.WITHDRAWN,
    SlurmState.DEADLINE: StartState.PAST_DEADLINE,
    SlurmState.UNKNOWN: StartState.UNKNOWN,
}
"""The others have ended."""


def start_state(state: SlurmState) -> StartState:
    """What decisions tell apart. Total."""
    return _STARTS.get(state, StartState.ENDED)


def view_of(doc: AttemptDoc) -> AttemptView:
    """What the cluster state shows of a start. Raises: DependencyUnavailable for a state that cannot be read."""
    status = status_of(doc.state)
    about = doc.reason or doc.detail
    detail = f"{doc.state.value.upper()}{f': {about}' if about and about != 'None' else ''}"[:300]
    return AttemptView(
        name=doc.attempt,
        status=status,
        detail=detail,
        failure_reason=reason_of(doc)[:2000],
        failure=failure_in(doc),
        ended_at=(doc.ended_at or doc.seen_at) if status.has_ended else None,
        training_since=doc.started_at if doc.nodes else None,  # Slurm also dates what was cancelled in its queue
        successor=doc.successor,
        start=StartView(
            handle=str(doc.slurm_job),
            restart=doc.restart,
            state=start_state(doc.state),
            lost_node=lost_a_node(doc.state, doc.requeued_by, doc.lost_nodes),
            nodes=doc.nodes,
            is_requeueable=doc.is_requeueable,
            is_known=doc.is_known,
            held=doc.held,
            has_auto_resume=doc.has_auto_resume,
            cannot_resubmit=doc.cannot_resubmit,
            has_spec=doc.spec is not None,
            has_mailbox=bool(doc.mailbox),
            wait=wait_of(doc.reason if status is AttemptStatus.STARTING else ""),
            ended_by=doc.ended_by,
            cancelled_by=doc.cancelled_by,
            requeued_by=doc.requeued_by,
            dependents=len(doc.dependents),
            exclude=doc.exclude,
            submitted_at=doc.submitted_at,
            node_count=doc.node_count,
            min_nodes=doc.min_nodes,
            step_end=_step_end(doc),
        ),
    )


def _step_end(doc: AttemptDoc) -> str:
    if doc.step_exit_signal:
        return f"signal {doc.step_exit_signal}"
    return f"exit code {doc.step_exit_code}" if doc.step_exit_code else ""
