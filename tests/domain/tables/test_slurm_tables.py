"""What only Slurm does, one row per rule; each negative row is one fact away from its positive."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.decision.verdict import RuleContext
from chalicelib.domain.model.action import (
    ActionResult,
    AdoptAttempt,
    CordonNode,
    Done,
    ReportNode,
    ResubmitJob,
    StopJob,
    action_name,
    read_action,
)
from chalicelib.domain.model.evidence import Suspicion, SuspicionKind
from chalicelib.domain.model.incident import CheckpointAsk, Incident, Phase
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import AttemptStatus as S
from chalicelib.domain.model.observation import AttemptView, JobRecord, Observation, ReplyView
from chalicelib.domain.model.start_view import BadNode, Submission
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.domain.run.first_response import begin_stop
from rekindle.protocol.cluster.documents import EndedBy, SlurmState
from rekindle.protocol.signals import FaultClass as F
from tests.domain.looks import MINUTE, NOW, checkpoint, signal
from tests.domain.slurm_looks import (
    NEW,
    R0,
    R1,
    R2,
    case,
    decided,
    node,
    node_signal,
    put_back,
    sees,
    start,
    try_of,
)

P = DEFAULT_POLICY
SHADOW = dataclasses.replace(P, shadow=True)
SILENT = Unknown("the agent of ml is silent")
POINTS = {"checkpoints": Known((checkpoint(90, attempt=R0), checkpoint(80, attempt=R0)))}
CRASH = "Slurm FAILED: NonZeroExitCode: exit code: 1: RuntimeError: boom"
HARD = (node_signal(F.NODE_HARDWARE),)
DOWN = {"nodes": (node("ip-1", "allocated"), node("ip-2", "down", "not_responding", reason="Not responding"))}
FROZEN = {
    "signals": (node_signal(F.NODE_LOST, at=NOW - timedelta(minutes=9)),),
    "phase_entered_at": NOW - timedelta(minutes=9),
    "target_step": Known(100),
    "watch_at": NOW - timedelta(minutes=9),
    "watch_step": Known(100),
}
BEATING = {"heartbeat_at": NOW, "work": "training", "step_s": 1.0}
THEIRS = try_of(
    is_theirs=True,
    resume_step=Unknown("it continues from where its script finds"),
    resume_manifest=None,
    resume_root=None,
)
EXCLUDED = try_of(exclude=("ip-2",))
BAD = (BadNode(node="ip-2", why="broken", is_reported=True),)
PENDING = {"tries": (try_of(),), "attempt": R1, "attempt_number": 2}
SUBMITTED = {"tries": (try_of(NEW),), "attempt": NEW, "attempt_number": 2}
LOOP = {
    "tries": tuple(
        try_of(f"slurm.ml.7.r{n}", number=n + 1, is_theirs=True, ended=n < 4, gained=False if n < 4 else None)
        for n in range(1, 5)
    ),
    "attempt": "slurm.ml.7.r4",
    "attempt_number": 5,
}
R4 = "slurm.ml.7.r4"


def look_at(incident: Incident, view: AttemptView) -> RuleContext:
    return RuleContext.of(incident, sees(view), now=NOW, policy=P)


def result(action: str, done: Done) -> tuple[ActionResult, ...]:
    return (ActionResult(action=action, done=done, detail="because"),)


def since(span: timedelta, status: S = S.STARTING, name: str = R1) -> dict[str, Any]:
    return {"seen_as": f"{name}:{status}", "seen_since": NOW - span}


def queued(reason: str, name: str = R1, **more: Any) -> Any:
    return start(S.STARTING, name, pending_reason=reason, **more)


ORDER = {"order": {"do": "checkpoint", "who": "ada"}, "fault": F.OPERATOR_ORDER}
RESUBMIT = {"order": {"do": "resubmit", "who": "ada"}, "fault": F.OPERATOR_ORDER}
Row = tuple[str, Incident, Observation, Policy, str, Phase, tuple[str, ...]]
SLURM_TABLE: list[Row] = [
    # --- the platform's own restart, in each phase
    (
        "Slurm has put it back: adopted",
        case(),
        sees(put_back()),
        P,
        "adopt.platform_restart",
        Phase.VERIFYING,
        ("AdoptAttempt",),
    ),
    (
        "also where the start is said to have failed",
        case(),
        sees(start(S.FAILED, state=SlurmState.NODE_FAIL, successor=R1, requeued_by=EndedBy.SLURM)),
        P,
        "adopt.platform_restart",
        Phase.VERIFYING,
        ("AdoptAttempt",),
    ),
    (
        "a person has put it back",
        case(Phase.HOLDING),
        sees(put_back(EndedBy.USER)),
        P,
        "adopt.platform_restart",
        Phase.VERIFYING,
        ("AdoptAttempt",),
    ),
    (
        "while it is watched",
        case(Phase.WATCHING, F.LOSS_SPIKE),
        sees(put_back()),
        P,
        "adopt.platform_restart",
        Phase.VERIFYING,
        ("AdoptAttempt",),
    ),
    (
        "while it is asked to save",
        case(Phase.CHECKPOINTING, F.HANG),
        sees(put_back()),
        P,
        "adopt.platform_restart",
        Phase.VERIFYING,
        ("AdoptAttempt",),
    ),
    (
        "while we stop it: Slurm was quicker",
        case(Phase.STOPPING, F.HANG),
        sees(put_back()),
        P,
        "adopt.platform_restart",
        Phase.VERIFYING,
        ("AdoptAttempt",),
    ),
    (
        "before we have ordered a start",
        case(Phase.RESUBMITTING, F.SOFTWARE_CRASH),
        sees(put_back(EndedBy.USER), **POINTS),
        P,
        "adopt.platform_restart",
        Phase.VERIFYING,
        ("AdoptAttempt",),
    ),
    (
        "after we have ordered one: ours is settled first",
        case(Phase.RESUBMITTING, F.SOFTWARE_CRASH, **SUBMITTED),
        sees(put_back(EndedBy.USER), **POINTS),
        P,
        "resubmit.again",
        Phase.RESUBMITTING,
        ("ResubmitJob",),
    ),
    (
        "the new start is put back again",
        case(Phase.VERIFYING, F.NODE_LOST),
        sees(put_back(name=R1, after=R2)),
        P,
        "adopt.platform_restart",
        Phase.VERIFYING,
        ("AdoptAttempt",),
    ),
    ("shadow mode only tells", case(), sees(put_back()), SHADOW, "guard.shadow", Phase.HANDED_OVER, ("Notify",)),
    (
        "paused: nothing",
        case(),
        dataclasses.replace(sees(put_back()), paused=True),
        P,
        "guard.paused",
        Phase.OPEN,
        ("Notify",),
    ),
    (
        "an ordered checkpoint of a run that is gone",
        case(**ORDER),
        sees(put_back()),
        P,
        "order.checkpoint_no_run",
        Phase.STOPPED,
        ("Notify",),
    ),
    (
        "an ordered resubmission came too late, and that is told",
        case(**RESUBMIT),
        sees(put_back()),
        P,
        "adopt.platform_restart",
        Phase.VERIFYING,
        ("AdoptAttempt", "Notify"),
    ),
    (
        "its successor was cancelled by its user: left alone",
        case(),
        sees(put_back(), after=start(S.STOPPED, R1, ended_by=EndedBy.USER)),
        P,
        "adopt.owner_stopped",
        Phase.STOPPED,
        ("Notify",),
    ),
    # --- put back by us
    (
        "held by us: the stop is done",
        case(Phase.STOPPING, F.HANG),
        sees(put_back(EndedBy.AGENT)),
        P,
        "resubmit.prepare",
        Phase.RESUBMITTING,
        (),
    ),
    (
        "held by us, the answer was lost",
        case(Phase.STOPPING, F.HANG),
        sees(put_back(EndedBy.UNKNOWN)),
        P,
        "resubmit.prepare",
        Phase.RESUBMITTING,
        (),
    ),
    (
        "put back by nobody knows whom, and not stopped by us",
        case(),
        sees(put_back(EndedBy.UNKNOWN)),
        P,
        "adopt.platform_restart",
        Phase.VERIFYING,
        ("AdoptAttempt",),
    ),
    (
        "held by us, but somebody let it go",
        case(Phase.STOPPING, F.HANG),
        sees(put_back(EndedBy.AGENT), after=start(S.RUNNING, R1)),
        P,
        "adopt.platform_restart",
        Phase.VERIFYING,
        ("AdoptAttempt",),
    ),
    (
        "held by us and still waiting: not let go",
        case(Phase.STOPPING, F.HANG),
        sees(put_back(EndedBy.AGENT), after=queued("JobHeldUser", held=True)),
        P,
        "resubmit.prepare",
        Phase.RESUBMITTING,
        (),
    ),
    (
        "an earlier order of ours put it back: nobody's fault",
        case(),
        sees(put_back(EndedBy.AGENT)),
        P,
        "open.owner_stopped",
        Phase.STOPPED,
        ("Notify",),
    ),
    # --- an adopted start under watch
    (
        "adopted: watched",
        case(Phase.VERIFYING, F.NODE_LOST, tries=(THEIRS,)),
        sees(start(S.RUNNING, R1, step=50), current=R1, next_number=3),
        P,
        "verify.waiting",
        Phase.VERIFYING,
        (),
    ),
    (
        "adopted and past the old end",
        case(Phase.VERIFYING, F.NODE_LOST, tries=(THEIRS,)),
        sees(start(S.RUNNING, R1, step=101), current=R1, next_number=3),
        P,
        "verify.passed",
        Phase.RECOVERED,
        ("Notify",),
    ),
    (
        "the adoption could not be written",
        case(Phase.VERIFYING, F.NODE_LOST, tries=(THEIRS,)),
        sees(start(S.RUNNING, R1, step=50), current=R0, results=result("AdoptAttempt", Done.UNAVAILABLE)),
        P,
        "adopt.again",
        Phase.VERIFYING,
        ("AdoptAttempt",),
    ),
    (
        "the adoption was never carried out",
        case(Phase.VERIFYING, F.NODE_LOST, tries=(THEIRS,)),
        sees(start(S.RUNNING, R1, step=50), current=R0),
        P,
        "adopt.again",
        Phase.VERIFYING,
        ("AdoptAttempt",),
    ),
    (
        "another attempt is the Job's newest",
        case(Phase.VERIFYING, F.NODE_LOST, tries=(THEIRS,)),
        sees(start(S.RUNNING, R1, step=50), current=NEW, results=result("AdoptAttempt", Done.REFUSED)),
        P,
        "adopt.refused",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "it is protected as a Job of its own by now",
        case(Phase.VERIFYING, F.NODE_LOST, tries=(THEIRS,)),
        sees(start(S.RUNNING, R1, step=50), current=R0, results=result("AdoptAttempt", Done.SIBLING)),
        P,
        "adopt.goes_on",
        Phase.STOPPED,
        ("Notify",),
    ),
    (
        "put back again and again without a gain: held",
        case(Phase.VERIFYING, F.NODE_LOST, **LOOP),
        sees(start(S.RUNNING, R4, step=50), current=R4, next_number=6),
        P,
        "adopt.loop",
        Phase.STOPPING,
        ("StopJob",),
    ),
    (
        "a loop that was held is handed over",
        case(Phase.STOPPING, F.NODE_LOST, **(LOOP | {"stopped_attempts": (R4,)})),
        sees(put_back(EndedBy.AGENT, name=R4, after="slurm.ml.7.r5", step=60)),
        P,
        "budget.no_progress",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "it goes on from what had gone bad",
        case(Phase.VERIFYING, F.NON_FINITE, tries=(THEIRS,), onset_attempt=R1, onset_step=Known(85)),
        sees(start(S.RUNNING, R1, step=92, first_step=Known(91)), current=R1, **POINTS),
        P,
        "adopt.poisoned",
        Phase.STOPPING,
        ("StopJob",),
    ),
    (
        "where it began is not known yet",
        case(Phase.VERIFYING, F.NON_FINITE, tries=(THEIRS,), onset_attempt=R1, onset_step=Known(85)),
        sees(start(S.RUNNING, R1, step=None), current=R1, **POINTS),
        P,
        "adopt.unseen",
        Phase.VERIFYING,
        (),
    ),
    (
        "where it began cannot be known for long",
        case(
            Phase.VERIFYING,
            F.NON_FINITE,
            tries=(THEIRS,),
            onset_attempt=R1,
            onset_step=Known(85),
            seen_as=f"{R1}:{S.RUNNING}",
            seen_since=NOW - P.timing.silent_limit,
        ),
        sees(start(S.RUNNING, R1, step=None), current=R1, **POINTS),
        P,
        "adopt.poisoned",
        Phase.STOPPING,
        ("StopJob",),
    ),
    (
        "a spike is watched again where it had begun, from the checkpoint just before",
        case(
            Phase.VERIFYING,
            F.LOSS_SPIKE,
            tries=(THEIRS,),
            onset_attempt=R1,
            onset_step=Known(85),
            onset_fault=F.LOSS_SPIKE,
        ),
        sees(start(S.RUNNING, R1, step=85, first_step=Known(85), loss_state="finite"), current=R1, **POINTS),
        P,
        "adopt.clean",
        Phase.VERIFYING,
        (),
    ),
    (
        "it has begun before what had gone bad, and is well past there",
        case(Phase.VERIFYING, F.NON_FINITE, tries=(THEIRS,), onset_attempt=R1, onset_step=Known(85)),
        sees(start(S.RUNNING, R1, step=90, first_step=Known(61), loss_state="finite"), current=R1, **POINTS),
        P,
        "adopt.clean",
        Phase.VERIFYING,
        (),
    ),
    (
        "weights that are not finite give no finite loss, and it has trained on for long enough",
        case(Phase.VERIFYING, F.NON_FINITE, tries=(THEIRS,), onset_attempt=R1, onset_step=Known(85)),
        sees(start(S.RUNNING, R1, step=94, first_step=Known(91), loss_state="finite"), current=R1, **POINTS),
        P,
        "adopt.clean",
        Phase.VERIFYING,
        (),
    ),
    (
        "too few of its steps are seen to tell",
        case(Phase.VERIFYING, F.NON_FINITE, tries=(THEIRS,), onset_attempt=R1, onset_step=Known(85)),
        sees(start(S.RUNNING, R1, step=93, first_step=Known(91), loss_state="finite"), current=R1, **POINTS),
        P,
        "adopt.poisoned",
        Phase.STOPPING,
        ("StopJob",),
    ),
    # --- stopping
    (
        "the stop is not answered: the same order again",
        case(Phase.STOPPING, F.HANG),
        sees(start(), results=result("StopJob", Done.PENDING)),
        P,
        "stop.pending",
        Phase.STOPPING,
        ("StopJob",),
    ),
    (
        "the stop is answered: waiting",
        case(Phase.STOPPING, F.HANG),
        sees(start(), results=result("StopJob", Done.DONE)),
        P,
        "stop.waiting",
        Phase.STOPPING,
        (),
    ),
    (
        "not answered for long",
        case(Phase.STOPPING, F.HANG, phase_entered_at=NOW - timedelta(minutes=31)),
        sees(start(), results=result("StopJob", Done.PENDING)),
        P,
        "stop.stuck",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "refused once: the picture may be old",
        case(Phase.STOPPING, F.HANG, phase_entered_at=NOW - MINUTE / 2),
        sees(start(), results=result("StopJob", Done.REFUSED)),
        P,
        "stop.refused_once",
        Phase.STOPPING,
        (),
    ),
    (
        "refused for good",
        case(Phase.STOPPING, F.HANG),
        sees(start(), results=result("StopJob", Done.REFUSED)),
        P,
        "stop.refused",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "its user cancelled it first",
        case(Phase.STOPPING, F.HANG),
        sees(start(S.STOPPED, ended_by=EndedBy.USER)),
        P,
        "stop.owner_stopped",
        Phase.STOPPED,
        ("Notify",),
    ),
    (
        "cancelled by our own order",
        case(Phase.STOPPING, F.HANG),
        sees(start(S.STOPPED, ended_by=EndedBy.AGENT)),
        P,
        "resubmit.prepare",
        Phase.RESUBMITTING,
        (),
    ),
    (
        "it completed first",
        case(Phase.STOPPING, F.HANG),
        sees(start(S.COMPLETED)),
        P,
        "stop.completed",
        Phase.RECOVERED,
        ("Notify",),
    ),
    (
        "the agent is silent while it stops",
        case(Phase.STOPPING, F.HANG),
        sees(SILENT),
        P,
        "stop.unseen",
        Phase.STOPPING,
        (),
    ),
    (
        "a run that nobody could start again is not stopped",
        case(Phase.HOLDING, F.OPERATOR_ORDER),
        sees(start(is_requeueable=False, has_spec=False, cannot_resubmit=("an array job",))),
        P,
        "playbook.checkpoint",
        Phase.CHECKPOINTING,
        ("RequestCheckpoint",),
    ),
    (
        "nor after it has saved",
        case(Phase.CHECKPOINTING, F.NODE_HARDWARE),
        sees(
            start(is_requeueable=False, cannot_resubmit=("an array job",)),
            reply=Known(ReplyView(request_id="inc-lm-1-c1", outcome="saved", step=100, why="")),
        ),
        P,
        "submission.no_way",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "a silent agent's run is not stopped blindly",
        case(Phase.CHECKPOINTING, F.NODE_HARDWARE, ask=None),
        sees(SILENT),
        P,
        "stop.blind",
        Phase.CHECKPOINTING,
        (),
    ),
    (
        "for ever neither",
        case(Phase.CHECKPOINTING, F.NODE_HARDWARE, ask=None, unseen_since=NOW - timedelta(hours=7)),
        sees(SILENT),
        P,
        "stop.blind_limit",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    # --- starting
    (
        "a crash is requeued",
        case(),
        sees(start(S.FAILED, failure_reason=CRASH), **POINTS),
        P,
        "resubmit.now",
        Phase.RESUBMITTING,
        ("ResubmitJob",),
    ),
    (
        "cancelled by its user: left alone",
        case(),
        sees(start(S.STOPPED, ended_by=EndedBy.USER), **POINTS),
        P,
        "open.owner_stopped",
        Phase.STOPPED,
        ("Notify",),
    ),
    (
        "its time limit",
        case(),
        sees(start(S.EXPIRED), **POINTS),
        P,
        "resubmit.now",
        Phase.RESUBMITTING,
        ("ResubmitJob",),
    ),
    (
        "preempted",
        case(),
        sees(start(S.EXPIRED, state=SlurmState.PREEMPTED), **POINTS),
        P,
        "resubmit.now",
        Phase.RESUBMITTING,
        ("ResubmitJob",),
    ),
    (
        "its own deadline is past",
        case(),
        sees(start(S.EXPIRED, state=SlurmState.DEADLINE), **POINTS),
        P,
        "start.deadline",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "another cluster of the federation runs it",
        case(),
        sees(start(S.FAILED, state=SlurmState.REVOKED), **POINTS),
        P,
        "start.revoked",
        Phase.STOPPED,
        ("Notify",),
    ),
    (
        "out of memory, once",
        case(),
        sees(start(S.FAILED, failure_reason="Slurm OUT_OF_MEMORY: OutOfMemory"), **POINTS),
        P,
        "resubmit.now",
        Phase.RESUBMITTING,
        ("ResubmitJob",),
    ),
    (
        "out of memory, again",
        case(Phase.VERIFYING, F.OUT_OF_MEMORY),
        sees(start(S.FAILED, R1, step=95, failure_reason="Slurm OUT_OF_MEMORY: OutOfMemory"), **POINTS),
        P,
        "budget.no_progress",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "slurmctld has forgotten it, and how it ended",
        case(),
        sees(start(S.GONE, step=None), **POINTS),
        P,
        "attempt.not_listed",
        Phase.OPEN,
        (),
    ),
    (
        "and still has",
        case(**since(2 * MINUTE, S.GONE, R0)),
        sees(start(S.GONE, step=None), **POINTS),
        P,
        "job.gone",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "nobody can start it again",
        case(),
        sees(
            start(S.FAILED, failure_reason=CRASH, is_known=False, has_spec=False, cannot_resubmit=("salloc",)), **POINTS
        ),
        P,
        "submission.no_way",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "the agent falls silent before the start",
        case(Phase.RESUBMITTING, F.NODE_LOST),
        sees(SILENT, **POINTS),
        P,
        "resubmit.old_unseen",
        Phase.RESUBMITTING,
        (),
    ),
    (
        "and stays so",
        case(Phase.RESUBMITTING, F.NODE_LOST, phase_entered_at=NOW - timedelta(hours=7)),
        sees(SILENT, **POINTS),
        P,
        "resubmit.old_unseen_limit",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "nothing at all is known of it",
        case(Phase.RESUBMITTING, F.NODE_LOST, **since(2 * MINUTE, S.GONE, R0)),
        sees(dataclasses.replace(start(S.GONE), start=None), **POINTS),
        P,
        "job.gone",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    # --- the order to start is not answered yet
    (
        "ordered: the same order again at each look",
        case(Phase.RESUBMITTING, F.NODE_LOST, **PENDING),
        sees(start(S.STARTING, R1), results=result("ResubmitJob", Done.PENDING)),
        P,
        "resubmit.again",
        Phase.RESUBMITTING,
        ("ResubmitJob",),
    ),
    (
        "recorded, and perhaps never sent",
        case(Phase.RESUBMITTING, F.NODE_LOST, **PENDING),
        sees(SILENT),
        P,
        "resubmit.again",
        Phase.RESUBMITTING,
        ("ResubmitJob",),
    ),
    (
        "not answered for long",
        case(Phase.RESUBMITTING, F.NODE_LOST, **(PENDING | {"tries": (try_of(at=NOW - timedelta(minutes=31)),)})),
        sees(start(S.STARTING, R1), results=result("ResubmitJob", Done.PENDING)),
        P,
        "resubmit.unanswered",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "the agent cannot be reached",
        case(Phase.RESUBMITTING, F.NODE_LOST, **PENDING),
        sees(SILENT, results=result("ResubmitJob", Done.UNAVAILABLE)),
        P,
        "resubmit.unavailable",
        Phase.RESUBMITTING,
        (),
    ),
    (
        "answered",
        case(Phase.RESUBMITTING, F.NODE_LOST, **PENDING),
        sees(start(S.STARTING, R1), results=result("ResubmitJob", Done.DONE)),
        P,
        "resubmit.started",
        Phase.VERIFYING,
        (),
    ),
    (
        "a submission is answered: the held old job is cancelled",
        case(Phase.RESUBMITTING, F.NODE_LOST, **(SUBMITTED | {"tries": (try_of(NEW, leaves=R1),)})),
        sees(start(S.STARTING, NEW), results=result("ResubmitJob", Done.DONE)),
        P,
        "resubmit.started",
        Phase.VERIFYING,
        ("StopJob",),
    ),
    (
        "the requeue is refused: read again first",
        case(Phase.RESUBMITTING, F.NODE_LOST, **PENDING),
        sees(start(S.STARTING, R1), results=result("ResubmitJob", Done.REFUSED)),
        P,
        "resubmit.requeue_refused",
        Phase.RESUBMITTING,
        (),
    ),
    (
        "then submitted again",
        case(Phase.RESUBMITTING, F.NODE_LOST, requeue_refused=True),
        sees(start(S.FAILED, failure_reason=CRASH), **POINTS),
        P,
        "resubmit.now",
        Phase.RESUBMITTING,
        ("ResubmitJob",),
    ),
    (
        "or not at all, where that would not be faithful",
        case(Phase.RESUBMITTING, F.NODE_LOST, requeue_refused=True),
        sees(start(S.FAILED, failure_reason=CRASH, has_spec=False), **POINTS),
        P,
        "submission.no_way",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "a submission is refused",
        case(Phase.RESUBMITTING, F.NODE_LOST, **SUBMITTED),
        sees(start(S.STARTING, NEW), results=result("ResubmitJob", Done.REFUSED)),
        P,
        "resubmit.refused",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "its name is somebody else's",
        case(Phase.RESUBMITTING, F.NODE_LOST, **SUBMITTED),
        sees(start(S.FAILED, failure_reason=CRASH), results=result("ResubmitJob", Done.NAME_TAKEN), **POINTS),
        P,
        "resubmit.now",
        Phase.RESUBMITTING,
        ("ResubmitJob",),
    ),
    # --- the queue
    (
        "it waits its turn",
        case(Phase.VERIFYING, F.NODE_LOST, **since(timedelta(hours=2))),
        sees(queued("Resources")),
        P,
        "verify.queued",
        Phase.VERIFYING,
        (),
    ),
    (
        "its user has as many jobs as the association may",
        case(Phase.VERIFYING, F.NODE_LOST, **since(timedelta(hours=2))),
        sees(queued("AssocMaxJobsLimit")),
        P,
        "verify.queued",
        Phase.VERIFYING,
        (),
    ),
    (
        "for too long",
        case(Phase.VERIFYING, F.NODE_LOST, **since(timedelta(hours=7))),
        sees(queued("Resources")),
        P,
        "verify.queue_limit",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "it can never start",
        case(Phase.VERIFYING, F.NODE_LOST, **since(3 * MINUTE)),
        sees(queued("QOSMaxNodePerJobLimit")),
        P,
        "verify.pending_for_ever",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "one such word is not believed",
        case(Phase.VERIFYING, F.NODE_LOST, **since(MINUTE)),
        sees(queued("QOSMaxNodePerJobLimit")),
        P,
        "verify.queued",
        Phase.VERIFYING,
        (),
    ),
    (
        "a user or an administrator holds it",
        case(Phase.VERIFYING, F.NODE_LOST, **since(3 * MINUTE)),
        sees(queued("JobHeldUser")),
        P,
        "verify.held",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "held says the flag",
        case(Phase.VERIFYING, F.NODE_LOST, **since(3 * MINUTE)),
        sees(queued("Priority", held=True)),
        P,
        "verify.held",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "nodes are away: as long as a start may take",
        case(Phase.VERIFYING, F.NODE_LOST, **since(3 * MINUTE)),
        sees(queued("PartitionNodeLimit")),
        P,
        "verify.queued",
        Phase.VERIFYING,
        (),
    ),
    (
        "and no longer",
        case(Phase.VERIFYING, F.NODE_LOST, **since(timedelta(hours=2))),
        sees(queued("PartitionNodeLimit")),
        P,
        "verify.queue_limit",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "a word that nobody knows",
        case(Phase.VERIFYING, F.NODE_LOST, **since(timedelta(hours=2))),
        sees(queued("Whatever")),
        P,
        "verify.queue_limit",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "it is being configured: no queue",
        case(Phase.VERIFYING, F.NODE_LOST, **since(3 * MINUTE)),
        sees(queued("", state=SlurmState.CONFIGURING)),
        P,
        "verify.starting",
        Phase.VERIFYING,
        (),
    ),
    (
        "a fault is told of a job that waits: nothing runs that could be stopped",
        case(Phase.OPEN, F.NODE_LOST),
        sees(queued("Priority", R0), new_signals=(node_signal(F.NODE_LOST),)),
        P,
        "open.queued",
        Phase.HOLDING,
        (),
    ),
    (
        "it waits for what never comes",
        case(Phase.HOLDING, F.JOB_MISSING, **since(3 * MINUTE, name=R0)),
        sees(queued("DependencyNeverSatisfied", R0)),
        P,
        "open.pending_for_ever",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "its user holds it",
        case(Phase.HOLDING, F.JOB_MISSING, **since(3 * MINUTE, name=R0)),
        sees(queued("JobHeldUser", R0)),
        P,
        "open.held",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    # --- suspended
    (
        "suspended is not stuck",
        case(),
        sees(start(state=SlurmState.SUSPENDED), new_signals=(signal(F.HANG, attempt=R0),)),
        P,
        "start.suspended",
        Phase.HOLDING,
        (),
    ),
    (
        "running is",
        case(),
        sees(start(), new_signals=(signal(F.HANG, attempt=R0),)),
        P,
        "playbook.checkpoint",
        Phase.CHECKPOINTING,
        ("RequestCheckpoint",),
    ),
    (
        "suspended for too long",
        case(Phase.HOLDING, F.HANG, seen_as=f"{R0}:suspended", seen_since=NOW - timedelta(hours=7)),
        sees(start(state=SlurmState.SUSPENDED)),
        P,
        "start.suspended_limit",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "suspended while it is verified",
        case(Phase.VERIFYING, F.HANG),
        sees(start(S.RUNNING, R1, step=95, state=SlurmState.SUSPENDED)),
        P,
        "start.suspended",
        Phase.VERIFYING,
        (),
    ),
    # --- its own auto-resume
    (
        "its step is gone: srun --auto-resume gets its time",
        case(Phase.HOLDING, F.NODE_LOST, phase_entered_at=NOW - timedelta(minutes=5)),
        sees(start(has_auto_resume=True)),
        P,
        "defer.auto_resume",
        Phase.HOLDING,
        (),
    ),
    (
        "also the step of a start that a person had ordered",
        case(
            Phase.HOLDING, F.NODE_LOST, phase_entered_at=NOW - timedelta(minutes=5), order={"do": "resubmit"}, **PENDING
        ),
        sees(start(name=R1, has_auto_resume=True)),
        P,
        "defer.auto_resume",
        Phase.HOLDING,
        (),
    ),
    (
        "but not where a person orders it stopped",
        case(Phase.HOLDING, F.NODE_LOST, phase_entered_at=NOW - 5 * MINUTE, order={"do": "stop"}, **PENDING),
        sees(start(name=R1, has_auto_resume=True)),
        P,
        "order.stop_now",
        Phase.STOPPING,
        ("StopJob",),
    ),
    (
        "without auto-resume it is stopped",
        case(Phase.HOLDING, F.NODE_LOST, phase_entered_at=NOW - timedelta(minutes=5)),
        sees(start()),
        P,
        "playbook.restart",
        Phase.STOPPING,
        ("StopJob",),
    ),
    (
        "its time is over",
        case(
            Phase.HOLDING,
            F.NODE_LOST,
            phase_entered_at=NOW - timedelta(minutes=40),
            deferred_since=NOW - timedelta(minutes=31),
        ),
        sees(start(has_auto_resume=True)),
        P,
        "playbook.restart",
        Phase.STOPPING,
        ("StopJob",),
    ),
    (
        "its step runs again: watched",
        case(
            Phase.HOLDING,
            F.NODE_LOST,
            phase_entered_at=NOW - timedelta(minutes=40),
            deferred_since=NOW - timedelta(minutes=31),
            target_step=Known(100),
        ),
        sees(start(step=95, has_auto_resume=True, heartbeat_at=NOW)),
        P,
        "defer.auto_resume",
        Phase.HOLDING,
        (),
    ),
    (
        "and passes the old end: healed by its own hand",
        case(
            Phase.HOLDING,
            F.NODE_HARDWARE,
            phase_entered_at=NOW - timedelta(minutes=40),
            deferred_since=NOW - timedelta(minutes=31),
            target_step=Known(100),
        ),
        sees(start(step=101, has_auto_resume=True, heartbeat_at=NOW)),
        P,
        "healed",
        Phase.RECOVERED,
        ("Notify",),
    ),
    (
        "after the save it still gets its time",
        case(Phase.CHECKPOINTING, F.NODE_HARDWARE),
        sees(
            start(has_auto_resume=True),
            reply=Known(ReplyView(request_id="inc-lm-1-c1", outcome="cannot", step=None, why="")),
        ),
        P,
        "defer.auto_resume",
        Phase.CHECKPOINTING,
        (),
    ),
    (
        "its step lives: what it waits for has not come",
        case(Phase.CHECKPOINTING, F.NODE_HARDWARE),
        sees(
            start(has_auto_resume=True, heartbeat_at=NOW),
            reply=Known(ReplyView(request_id="inc-lm-1-c1", outcome="saved", step=100, why="")),
        ),
        P,
        "checkpoint.saved",
        Phase.STOPPING,
        ("StopJob",),
    ),
    # --- nodes
    (
        "a broken node is cordoned and handed on with the first step",
        case(),
        sees(start(), new_signals=HARD),
        P,
        "playbook.checkpoint",
        Phase.CHECKPOINTING,
        ("CordonNode", "ReportNode", "RequestCheckpoint"),
    ),
    (
        "once",
        case(Phase.CHECKPOINTING, F.NODE_HARDWARE, signals=HARD, bad_nodes=BAD),
        sees(start(), reply=Known(ReplyView(request_id="inc-lm-1-c1", outcome="saved", step=100, why=""))),
        P,
        "checkpoint.saved",
        Phase.STOPPING,
        ("StopJob",),
    ),
    (
        "a claim about a moving run touches no node yet",
        case(),
        sees(start(step=100), new_signals=(node_signal(F.NODE_LOST),)),
        P,
        "defer.confirm",
        Phase.HOLDING,
        (),
    ),
    (
        "Slurm calls a node lost and its job running, and no heartbeat tells which",
        case(
            Phase.HOLDING,
            F.NODE_LOST,
            signals=(node_signal(F.NODE_LOST, at=NOW - timedelta(minutes=9)),),
            phase_entered_at=NOW - timedelta(minutes=9),
            target_step=100,
        ),
        sees(start(step=100, heartbeat_at=NOW - timedelta(minutes=10))),
        P,
        "defer.platform_says_both",
        Phase.HOLDING,
        (),
    ),
    (
        "and that for too long",
        case(
            Phase.HOLDING,
            F.NODE_LOST,
            signals=(node_signal(F.NODE_LOST, at=NOW - timedelta(hours=2)),),
            phase_entered_at=NOW - timedelta(hours=2),
            target_step=100,
        ),
        sees(start(step=100, heartbeat_at=NOW - timedelta(hours=3))),
        P,
        "defer.platform_says_both_limit",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "Slurm reaches few of its nodes, and the heartbeats come without a new step",
        case(Phase.HOLDING, F.NODE_LOST, **FROZEN),
        sees(start(step=100, **BEATING), down=3, total=4, nodes=()),
        P,
        "defer.platform_says_both",
        Phase.HOLDING,
        (),
    ),
    (
        "and so for too long",
        case(Phase.HOLDING, F.NODE_LOST, **(FROZEN | {"phase_entered_at": NOW - timedelta(hours=2)})),
        sees(start(step=100, **BEATING), down=3, total=4, nodes=()),
        P,
        "defer.platform_says_both_limit",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "one of its nodes is down, and the heartbeats come without a new step: two sources say the same",
        case(Phase.HOLDING, F.NODE_LOST, **FROZEN),
        sees(start(step=100, **BEATING), down=1, total=4, nodes=()),
        P,
        "playbook.restart",
        Phase.STOPPING,
        ("CordonNode", "ReportNode", "StopJob"),
    ),
    (
        "Slurm reaches few of its nodes, and the run's own monitor calls it stalled",
        case(Phase.HOLDING, F.NODE_LOST, **FROZEN),
        sees(start(step=100, **(BEATING | {"work": "stalled"})), down=3, total=4, nodes=()),
        P,
        "playbook.restart",
        Phase.STOPPING,
        ("CordonNode", "ReportNode", "StopJob"),
    ),
    (
        "the node that a lost start ran on",
        case(),
        sees(put_back(), **DOWN),
        P,
        "adopt.platform_restart",
        Phase.VERIFYING,
        ("CordonNode", "ReportNode", "AdoptAttempt"),
    ),
    (
        "shadow mode touches no node",
        case(),
        sees(start(), new_signals=HARD),
        SHADOW,
        "guard.shadow",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "recovered, but the node is not handed on yet",
        case(Phase.VERIFYING, F.NODE_LOST, tries=(dataclasses.replace(THEIRS, left_nodes=("ip-1", "ip-2")),)),
        sees(start(S.RUNNING, R1, step=101), current=R1, next_number=3, **DOWN),
        P,
        "nodes.first",
        Phase.VERIFYING,
        ("CordonNode", "ReportNode"),
    ),
    (
        "and then it closes",
        case(Phase.VERIFYING, F.NODE_LOST, tries=(THEIRS,), bad_nodes=BAD),
        sees(start(S.RUNNING, R1, step=101), current=R1, next_number=3, **DOWN),
        P,
        "verify.passed",
        Phase.RECOVERED,
        ("Notify",),
    ),
    (
        "the exclusion is lifted once the cordon is seen",
        case(Phase.VERIFYING, F.NODE_LOST, tries=(EXCLUDED,), bad_nodes=BAD),
        sees(
            queued("Resources", exclude=("ip-2", "ip-9")),
            nodes=(node("ip-2", "idle", "drain", reason="rekindle:inc-lm-1"),),
        ),
        P,
        "verify.exclusion_lifted",
        Phase.VERIFYING,
        ("ExcludeNodes",),
    ),
    (
        "so is what only an earlier start was kept away from",
        case(Phase.VERIFYING, F.NODE_HARDWARE, tries=(try_of(exclude=("ip-3", "ip-4")), try_of(R1, exclude=("ip-2",)))),
        sees(queued("Resources", exclude=("ip-2", "ip-3", "ip-4", "ip-9")), nodes=(node("ip-2"),)),
        P,
        "verify.exclusion_lifted",
        Phase.VERIFYING,
        ("ExcludeNodes",),
    ),
    (
        "and not before",
        case(Phase.VERIFYING, F.NODE_LOST, tries=(EXCLUDED,), bad_nodes=BAD),
        sees(queued("Resources", exclude=("ip-2",)), nodes=(node("ip-2"),)),
        P,
        "verify.queued",
        Phase.VERIFYING,
        (),
    ),
]


@pytest.mark.parametrize("row", SLURM_TABLE, ids=[row[0] for row in SLURM_TABLE])
def test_the_table(row: Row) -> None:
    _, before, what, policy, rule, phase, actions = row
    decision = decided(before, what, policy)
    assert (decision.rule, decision.incident.phase, tuple(map(action_name, decision.actions))) == (
        rule,
        phase,
        actions,
    ), decision.reason
    for action in decision.actions:
        assert read_action(action.to_wire()) == action
    assert Incident.from_wire(decision.incident.to_wire()) == decision.incident
    assert "SageMaker" not in decision.reason


def one(decision: Any, kind: type) -> Any:
    found = [action for action in decision.actions if isinstance(action, kind)]
    assert len(found) == 1, decision
    return found[0]


def test_an_adopted_start_is_theirs_and_takes_the_next_number() -> None:
    decision = decided(case(), sees(put_back(step=120), **DOWN))
    assert one(decision, AdoptAttempt) == AdoptAttempt(name=R1, number=2, clone_of=R0, why="Slurm put the job back")
    after = decision.incident
    assert (after.attempt, after.attempt_number, after.resubmission.tries[-1].is_theirs, after.target_step) == (
        R1,
        2,
        True,
        Known(120),
    )
    assert "ip-2 may live on" in decision.reason
    assert "Slurm has put the job back automatically" in decision.reason


def test_what_the_registry_knows_already_keeps_its_number() -> None:
    decision = decided(case(), sees(put_back(), current=R1, next_number=3))
    assert one(decision, AdoptAttempt).number == 2


def test_a_requeue_that_was_refused_is_not_ordered_a_second_time() -> None:
    refused = sees(start(S.STARTING, R1), results=result("ResubmitJob", Done.REFUSED))
    after = decided(case(Phase.RESUBMITTING, F.NODE_LOST, **PENDING), refused).incident
    assert after.resubmission.requeue_refused
    assert after.resubmission.not_before == NOW + P.timing.look_max


def test_a_poisoned_start_hands_its_poison_on_to_the_one_that_slurm_made_of_it() -> None:
    before = case(Phase.STOPPING, F.NON_FINITE, onset_attempt=R0, onset_step=Known(85))
    after = decided(before, sees(put_back())).incident
    assert (after.loss.onset_attempt, after.loss.onset_step, after.is_poisoned) == (R1, Known(85), True)


def test_attempts_of_earlier_incidents_count_towards_a_requeue_loop() -> None:
    record = JobRecord(best_before=Known(100), fruitless_before=2, started_by_others=1)
    first = decided(case(fault=F.NODE_LOST), sees(put_back(step=90), record=record))
    assert first.incident.resubmission.fruitless_before == 3
    stop = one(first, StopJob)
    assert (first.rule, first.incident.phase, stop.attempt, stop.hold) == ("adopt.loop", Phase.STOPPING, R1, True)


@pytest.mark.parametrize(
    ("began_ago", "seen_ago", "rule"),
    [
        (1 * MINUTE, None, "adopt.loop"),
        (4 * MINUTE, None, "adopt.platform_restart"),
        (4 * MINUTE, 3 * MINUTE, "adopt.platform_restart"),
        (4 * MINUTE, MINUTE / 4, "adopt.loop"),
    ],
    ids=str,
)
def test_a_start_that_has_run_for_minutes_is_no_loop_while_no_heartbeat_of_now_shows_its_steps(
    began_ago: timedelta, seen_ago: timedelta | None, rule: str
) -> None:
    record = JobRecord(best_before=Known(100), fruitless_before=2, started_by_others=1)
    seen_at = None if seen_ago is None else NOW - seen_ago
    lives = start(name=R1, step=85, training_since=NOW - began_ago, heartbeat_at=seen_at)
    first = decided(case(fault=F.NODE_LOST), sees(put_back(step=90), after=lives, record=record))
    assert first.rule == rule


def test_the_first_start_of_slurm_s_own_after_ours_in_vain_is_watched_and_not_held() -> None:
    ours_in_vain = JobRecord(best_before=Known(100), fruitless_before=2)
    adopted = decided(case(fault=F.NODE_LOST), sees(put_back(step=90), record=ours_in_vain))
    assert (adopted.rule, adopted.incident.phase) == ("adopt.platform_restart", Phase.VERIFYING)
    registered = dataclasses.replace(ours_in_vain, started_by_others=1)
    again = decided(adopted.incident, sees(start(name=R1, step=60), current=R1, record=registered))
    assert not any(isinstance(action, StopJob) for action in again.actions), again.rule


def test_a_loop_that_is_faster_than_our_looks_is_chased_and_then_told() -> None:
    case_of, rules = case(fault=F.NODE_LOST), []
    for number in range(30):
        name, after = (R0 if not number else f"slurm.ml.7.r{number}"), f"slurm.ml.7.r{number + 1}"
        decision = decided(
            case_of, sees(put_back(name=name, after=after, restart=number, step=100), next_number=number + 2)
        )
        case_of = decision.incident
        rules.append(decision.rule)
        if not case_of.is_open:
            break
    assert rules == ["adopt.platform_restart"] * 3 + ["adopt.loop"] * 12 + ["adopt.loop_limit"]


def test_a_person_is_told_how_to_let_a_held_job_go() -> None:
    before = case(Phase.STOPPING, F.NODE_LOST, **(LOOP | {"stopped_attempts": (R4,)}))
    decision = decided(before, sees(put_back(EndedBy.AGENT, name=R4, after="slurm.ml.7.r5", step=60)))
    assert "`scontrol release 7` lets it go" in decision.reason


@pytest.mark.parametrize(
    ("old", "how", "name", "rule"),
    [
        ({}, Submission.REQUEUE, R1, "keeps its id"),
        ({"dependents": 2}, Submission.REQUEUE, R1, "for the 2 jobs that wait for it"),
        ({"restart": 4}, Submission.REQUEUE, "slurm.ml.7.r5", "keeps its id"),
        ({"is_known": False}, Submission.SUBMIT, NEW, "no longer knows"),
        ({"is_requeueable": False}, Submission.SUBMIT, NEW, "may not be requeued"),
        ({"has_mailbox": False}, Submission.REQUEUE, R1, "keeps its id"),
    ],
)
def test_how_a_dead_job_is_started_again(old: dict[str, Any], how: Submission, name: str, rule: str) -> None:
    decision = decided(case(), sees(start(S.FAILED, failure_reason=CRASH, **old), **POINTS))
    action = one(decision, ResubmitJob)
    assert (action.how, action.name, action.number) == (how, name, 2)
    assert (action.resume_step, action.resume_root) == (Known(90), f"s3://b/{R0}/90")
    assert rule in decision.reason
    last = decision.incident.resubmission.tries[-1]
    assert (last.how, last.name, last.is_theirs) == (how, name, False)


def test_a_new_submission_is_named_after_the_first_and_not_after_the_last() -> None:
    before = case(Phase.RESUBMITTING, F.SOFTWARE_CRASH, attempt=f"{NEW}.r3", attempt_number=4)
    old = start(S.FAILED, f"{NEW}.r3", failure_reason=CRASH, is_known=False, restart=3)
    assert one(decided(before, sees(old, next_number=5, **POINTS)), ResubmitJob).name == "slurm.ml.7-a5"


def test_a_taken_name_is_salted() -> None:
    before = case(Phase.RESUBMITTING, F.NODE_LOST, **SUBMITTED)
    old = start(S.FAILED, failure_reason=CRASH, is_known=False)
    decision = decided(before, sees(old, results=result("ResubmitJob", Done.NAME_TAKEN), **POINTS))
    assert one(decision, ResubmitJob).name == "slurm.ml.7-a2x1"


def test_a_held_job_is_let_go_under_the_name_that_slurm_gave_it() -> None:
    before = case(Phase.RESUBMITTING, F.HANG, stopped_attempts=(R0,), stop_hold=True)
    action = one(decided(before, sees(put_back(EndedBy.AGENT), **POINTS)), ResubmitJob)
    assert (action.how, action.name, action.clone_of) == (Submission.REQUEUE, R1, R0)


def test_a_held_job_that_must_be_submitted_anew_is_not_left_in_the_queue() -> None:
    before = case(Phase.RESUBMITTING, F.HANG, stopped_attempts=(R0,), stop_hold=True)
    damaged = Known((checkpoint(90, attempt=R0, problems=("too short",)), checkpoint(80, attempt=R0)))
    decision = decided(before, sees(put_back(EndedBy.AGENT, has_mailbox=False), checkpoints=damaged))
    assert one(decision, ResubmitJob).how is Submission.SUBMIT
    assert decision.incident.resubmission.tries[-1].leaves == R1


def test_the_same_order_again_is_the_same_whatever_has_been_saved_since() -> None:
    first = decided(case(), sees(start(S.FAILED, failure_reason=CRASH), **POINTS))
    newer = Known((checkpoint(99, attempt=R0), checkpoint(90, attempt=R0)))
    then = decided(first.incident, sees(SILENT, results=result("ResubmitJob", Done.PENDING), checkpoints=newer))
    assert dataclasses.replace(one(then, ResubmitJob), why="") == dataclasses.replace(one(first, ResubmitJob), why="")
    assert then.look_again_in is not None
    assert then.look_again_in >= P.timing.look_min


def test_a_stop_that_is_followed_by_a_requeue_leaves_the_job_in_the_queue() -> None:
    reply = Known(ReplyView(request_id="inc-lm-1-c1", outcome="saved", step=100, why=""))
    for old, hold in (({}, True), ({"is_requeueable": False}, False)):
        decision = decided(case(Phase.CHECKPOINTING, F.NODE_HARDWARE), sees(start(**old), reply=reply))
        assert (one(decision, StopJob).hold, decision.incident.halt.stop_hold) == (hold, hold)
        again = decided(decision.incident, sees(start(**old), results=result("StopJob", Done.PENDING)))
        assert one(again, StopJob).hold is hold


def test_a_run_without_a_mailbox_that_must_go_back_is_cancelled_and_submitted_anew() -> None:
    poisoned = {"onset_attempt": R0, "onset_step": Known(85)}
    living = sees(start(has_mailbox=False, loss_state="nan"), **POINTS)
    stopped = decided(case(fault=F.NON_FINITE, **poisoned), living)
    assert one(stopped, StopJob).hold is False
    dead = sees(start(S.STOPPED, ended_by=EndedBy.AGENT, has_mailbox=False, loss_state="nan"), **POINTS)
    action = one(decided(stopped.incident, dead), ResubmitJob)
    assert (action.how, action.resume_step) == (Submission.SUBMIT, Known(80))


def test_a_node_whose_cordon_is_not_confirmed_is_excluded() -> None:
    crash = start(S.FAILED, failure_reason="Slurm NODE_FAIL: NodeDown", state=SlurmState.NODE_FAIL)
    for what, exclude in (
        (None, ("ip-2",)),
        ((node("ip-2", "mixed"),), ("ip-2",)),
        ((node("ip-2", "idle", "drain", reason="rekindle:x"),), ()),
        ((node("ip-2", "down", "not_responding"),), ()),
    ):
        before = case(fault=F.NODE_LOST, bad_nodes=BAD)
        action = one(decided(before, sees(crash, nodes=what, **POINTS)), ResubmitJob)
        assert action.exclude == exclude


def test_a_node_that_is_another_machine_by_now_is_neither_cordoned_nor_excluded() -> None:
    told = node_signal(F.NODE_HARDWARE, evidence={"instance_id": "i-0123456789abcdef0"})
    other = (node("ip-2", instance_id="i-0fedcba9876543210"),)
    decision = decided(case(), sees(start(), new_signals=(told,), nodes=other))
    assert decision.incident.resubmission.bad_nodes == ()
    same = (node("ip-2", instance_id="i-0123456789abcdef0"),)
    decision = decided(case(), sees(start(), new_signals=(told,), nodes=same))
    assert one(decision, CordonNode) == CordonNode(cluster="ml", node="ip-2", why="ip-2 is broken")
    report = one(decision, ReportNode)
    assert (report.instance_id, report.evidence) == (
        "i-0123456789abcdef0",
        {"attempt": R0, "fault": "node_hardware", "reported_at": told.occurred_at.isoformat()},
    )


def test_a_node_whose_trouble_was_over_before_anything_was_done_is_no_bad_one() -> None:
    told = node_signal(F.NODE_HARDWARE, evidence={"repair_action": "Reboot"})
    held = BadNode(node="ip-2", why=told.summary, reported_at=told.occurred_at)
    before = case(bad_nodes=(held,), signals=(told,))
    later = told.occurred_at + timedelta(seconds=1)
    for booted_at, kept in ((None, True), (told.occurred_at - timedelta(hours=1), True), (later, False)):
        shown = (node("ip-2", booted_at=booted_at),)
        decision = decided(before, sees(start(), nodes=shown))
        assert bool(decision.incident.resubmission.bad_nodes) is kept


def test_a_signal_about_a_foreign_attempt_names_no_bad_node() -> None:
    decision = decided(case(), sees(start(), new_signals=(node_signal(F.NODE_HARDWARE, attempt="slurm.ml.99"),)))
    assert decision.incident.resubmission.bad_nodes == ()


def suspicion(attempt: str, host: str, confidence: float, rule: str = "behind") -> Suspicion:
    return Suspicion(
        attempt=attempt,
        kind=SuspicionKind.HANG,
        rule=rule,
        text=f"rank 3 is {rule}",
        ranks=(3,),
        hosts=(host,),
        confidence=confidence,
        reports=3,
        world_size=4,
    )


def test_few_reports_accuse_nobody_for_once() -> None:
    few = dataclasses.replace(suspicion(R0, "ip-2", 0.9, "alone_first"), reports=1)
    seen_hang = (signal(F.HANG, attempt=R0),)
    assert not decided(
        case(fault=F.HANG, suspicions=(few,)), sees(start(), new_signals=seen_hang)
    ).incident.resubmission.bad_nodes


@pytest.mark.parametrize(
    ("told", "bad"),
    [
        ((suspicion(R0, "ip-2.ec2.internal", 0.9),), ("ip-2",)),
        ((suspicion(R0, "ip-2", 0.6),), ()),
        ((suspicion("slurm.ml.7-a1", "ip-2", 0.6), suspicion(R0, "ip-2", 0.6)), ("ip-2",)),
        ((suspicion(R0, "ip-9", 0.9),), ()),
        ((suspicion(R0, "ip-2", 0.9, "silent"),), ()),
        ((suspicion("slurm.ml.7-a1", "ip-2", 0.9, "silent"), suspicion(R0, "ip-2", 0.9, "silent")), ("ip-2",)),
        ((suspicion("slurm.ml.7-a1", "ip-2", 0.75, "not_entered"), suspicion(R0, "ip-2", 0.75, "not_entered")), ()),
        ((suspicion("slurm.ml.7-a1", "ip-2", 0.9, "mismatched"), suspicion(R0, "ip-2", 0.6)), ()),
        ((suspicion(R0, "ip-2", 0.91, "mismatched"),), ()),
    ],
    ids=[
        "strong",
        "weak",
        "weak, and again",
        "no node of the job",
        "by silence",
        "by silence, and again",
        "by recorders alone, and again",
        "the code's, and weak",
        "the code's",
    ],
)
def test_whom_its_ranks_accuse(told: tuple[Suspicion, ...], bad: tuple[str, ...]) -> None:
    decision = decided(case(fault=F.HANG, suspicions=told), sees(start(), new_signals=(signal(F.HANG, attempt=R0),)))
    assert tuple(item.node for item in decision.incident.resubmission.bad_nodes) == bad


def test_a_late_signal_about_the_old_start_does_not_touch_the_new_one() -> None:
    before = case(Phase.VERIFYING, F.NODE_LOST)
    late = node_signal(F.NODE_LOST, attempt=R0)
    decision = decided(before, sees(start(S.RUNNING, R1, step=95, heartbeat_at=NOW), new_signals=(late,)))
    assert decision.rule == "verify.waiting"
    assert not any(isinstance(action, StopJob) for action in decision.actions)


def test_the_reports_of_a_stuck_run_are_waited_for_before_it_is_stopped() -> None:
    waits = begin_stop(look_at(case(fault=F.HANG), start()), "r", "stuck.")
    assert (waits.rule, waits.actions) == ("stacks.waiting", ())


def test_the_answer_to_a_signal_is_looked_for_often_because_nothing_tells_of_it() -> None:
    ask = CheckpointAsk(request_id="r", attempt=R0, asked_at=NOW - 2 * MINUTE, deadline_at=NOW + 3 * MINUTE)
    waiting = case(Phase.CHECKPOINTING, F.NO_PROGRESS, ask=ask, phase_entered_at=NOW - 2 * MINUTE)
    by_signal = decided(waiting, sees(start(has_mailbox=False), reply=Known(None)))
    by_mailbox = decided(waiting, sees(start(), reply=Known(None)))
    assert (by_signal.rule, by_signal.look_again_in) == ("checkpoint.waiting", timedelta(seconds=10))
    assert (by_mailbox.rule, by_mailbox.look_again_in) == ("checkpoint.waiting", P.timing.look_max)
    late = dataclasses.replace(waiting, phase_entered_at=NOW - 6 * MINUTE)
    assert decided(late, sees(start(has_mailbox=False), reply=Known(None))).look_again_in == P.timing.look_max
    near = dataclasses.replace(
        waiting,
        halt=dataclasses.replace(waiting.halt, ask=dataclasses.replace(ask, deadline_at=NOW + timedelta(seconds=4))),
    )
    assert decided(near, sees(start(has_mailbox=False), reply=Known(None))).look_again_in == timedelta(seconds=4)
