"""One row per phase and observation; each negative row is one fact away from its positive."""

# ruff: noqa: E501 - a table is read by its rows

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.model.action import ActionResult, Done, Notify, ResubmitJob, action_name
from chalicelib.domain.model.incident import Failure, Incident, Phase, SkipWindow
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import AttemptStatus as S
from chalicelib.domain.model.observation import Observation, ReplyView
from chalicelib.domain.model.signal import SignalKind as K
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.domain.policy.playbooks import Deadline, Response
from rekindle.protocol.signals import FaultClass as F
from tests.domain.looks import (
    MINUTE,
    NOW,
    UNSEEN,
    a_try,
    checkpoint,
    incident,
    look,
    seen,
    signal,
    view,
    with_row,
)
from tests.domain.policies import changed

SHADOW = dataclasses.replace(DEFAULT_POLICY, shadow=True)
CRASH = "AlgorithmError: RuntimeError: boom"
NO_ROOM = "CapacityError: Unable to provision requested ML compute capacity."
LONG = timedelta(hours=7)


def held(fault: F = F.UNCLEAR, **more: Any) -> Incident:
    return incident(Phase.HOLDING, fault, **more)


SLOW_TOLD = ("tell:lm:throughput_drop",)


def said(kind: K, **evidence: Any) -> Any:
    return signal(None, kind=kind, step=None, evidence=evidence)


def result(action: str, done: Done) -> tuple[ActionResult, ...]:
    return (ActionResult(action=action, done=done, detail="because"),)


def reply(outcome: str, request_id: str = "inc-lm-1-c1") -> Known[ReplyView]:
    return Known(ReplyView(request_id=request_id, outcome=outcome, step=100, why=""))


def stalled(**more: Any) -> dict[str, Any]:
    return {"new_signals": (signal(F.HANG, **more),)}


def state(status: S, since: timedelta, name: str = "lm") -> dict[str, Any]:
    return {"seen_as": f"{name}:{status}", "seen_since": NOW - since}


STALL2 = signal(F.HANG, attempt="lm-r2", step=95)
pending = {"tries": (a_try(),), "attempt": "lm-r2", "attempt_number": 2}
points = {"checkpoints": Known((checkpoint(90), checkpoint(80)))}
repaired = {"repaired_at": NOW - MINUTE, **state(S.RUNNING, MINUTE)}
POISON = {"onset_attempt": "lm", "onset_step": Known(85)}

# Rolled back without a watch and without a forensic checkpoint, from a checkpoint near by.
NEAR = changed(
    with_row(F.LOSS_SPIKE, response=Response.ROLL_BACK, deadline=Deadline.NONE), loss={"spike_rewind_steps": 5}
)

Row = tuple[str, Incident, Observation, Policy, str, Phase, tuple[str, ...]]
P = DEFAULT_POLICY
TABLE: list[Row] = [
    # --- open: what is wrong
    (
        "a hang is asked to save",
        incident(),
        seen(**stalled()),
        P,
        "playbook.checkpoint",
        Phase.CHECKPOINTING,
        ("RequestCheckpoint",),
    ),
    (
        "a stall told late about a run that moved on",
        incident(),
        seen(view(step=101), **stalled()),
        P,
        "healed",
        Phase.RECOVERED,
        ("Notify",),
    ),
    (
        "a stall of another attempt",
        incident(),
        seen(**stalled(attempt="lm-r9")),
        P,
        "playbook.tell",
        Phase.HOLDING,
        ("Notify",),
    ),
    (
        "a poisoned run is stopped",
        incident(),
        seen(new_signals=(signal(F.NON_FINITE, kind=K.NON_FINITE),), **points),
        P,
        "playbook.roll_back",
        Phase.STOPPING,
        ("StopJob",),
    ),
    (
        "a poisoned beat is enough",
        incident(),
        seen(view(loss_state="nan"), **points),
        P,
        "playbook.roll_back",
        Phase.STOPPING,
        ("StopJob",),
    ),
    (
        "a finite beat is not",
        incident(),
        seen(view(loss_state="finite")),
        P,
        "playbook.tell",
        Phase.HOLDING,
        ("Notify",),
    ),
    ("shadow mode only tells", incident(), seen(**stalled()), SHADOW, "guard.shadow", Phase.HANDED_OVER, ("Notify",)),
    ("paused: nothing", incident(), seen(paused=True, **stalled()), P, "guard.paused", Phase.OPEN, ("Notify",)),
    (
        "a crash is resubmitted",
        incident(),
        seen(view(S.FAILED, failure_reason=CRASH)),
        P,
        "resubmit.prepare",
        Phase.RESUBMITTING,
        (),
    ),
    (
        "a crash in shadow mode",
        incident(),
        seen(view(S.FAILED, failure_reason=CRASH)),
        SHADOW,
        "guard.shadow",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    ("an unclear death is a crash", incident(), seen(view(S.FAILED)), P, "resubmit.prepare", Phase.RESUBMITTING, ()),
    (
        "a death after a told loss spike is a crash",
        incident(signals=(signal(F.LOSS_SPIKE, kind=K.ALARM),)),
        seen(view(S.FAILED)),
        P,
        "resubmit.prepare",
        Phase.RESUBMITTING,
        (),
    ),
    (
        "a death where the user wants to be told",
        incident(),
        seen(view(S.FAILED)),
        with_row(F.SOFTWARE_CRASH, response=Response.TELL),
        "playbook.notified_dead",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "a death for a person",
        incident(),
        seen(view(S.FAILED)),
        with_row(F.SOFTWARE_CRASH, response=Response.HAND_OVER),
        "playbook.hand_over",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "an error of the user's",
        incident(),
        seen(view(S.FAILED, failure_reason="ClientError: Data download failed: NoSuchKey")),
        P,
        "crash.person_needed",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "no room, before it ever ran",
        incident(),
        seen(view(S.FAILED, step=None, failure_reason=NO_ROOM)),
        P,
        "capacity.back_off",
        Phase.RESUBMITTING,
        ("Notify",),
    ),
    (
        "no room, said by a run that ran",
        incident(),
        seen(view(S.FAILED, failure_reason=NO_ROOM)),
        P,
        "resubmit.prepare",
        Phase.RESUBMITTING,
        (),
    ),
    ("time limit", incident(), seen(view(S.EXPIRED)), P, "resubmit.prepare", Phase.RESUBMITTING, ()),
    ("completed", incident(), seen(view(S.COMPLETED)), P, "open.completed", Phase.STOPPED, ("Notify",)),
    ("stopped by its owner", incident(), seen(view(S.STOPPED)), P, "open.owner_stopped", Phase.STOPPED, ("Notify",)),
    ("being stopped", incident(), seen(view(S.STOPPING)), P, "open.stopping", Phase.OPEN, ()),
    (
        "being stopped for ever",
        incident(**state(S.STOPPING, LONG)),
        seen(view(S.STOPPING)),
        P,
        "open.stop_stuck",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    ("not known once", incident(), seen(view(S.GONE)), P, "attempt.not_listed", Phase.OPEN, ()),
    (
        "not known for a while",
        incident(**state(S.GONE, MINUTE)),
        seen(view(S.GONE)),
        P,
        "job.gone",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    ("unreadable", incident(), seen(UNSEEN), P, "open.unseen", Phase.OPEN, ()),
    (
        "unreadable for long",
        incident(unseen_since=NOW - LONG),
        seen(UNSEEN),
        P,
        "open.unseen_limit",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "a divergence saves first",
        incident(),
        seen(new_signals=(signal(F.DIVERGENCE, kind=K.ALARM),)),
        P,
        "playbook.checkpoint",
        Phase.CHECKPOINTING,
        ("RequestCheckpoint", "Notify"),
    ),
    (
        "no progress is for people",
        incident(),
        seen(new_signals=(signal(F.NO_PROGRESS, kind=K.ALARM),)),
        P,
        "playbook.hand_over",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "a user's RESTART for a hang",
        incident(evidence_since=NOW - MINUTE),
        seen(**stalled()),
        with_row(F.HANG, response=Response.RESTART),
        "playbook.restart",
        Phase.STOPPING,
        ("StopJob",),
    ),
    # --- claims that a living run is dead
    (
        "a deadly log line is weighed",
        incident(),
        seen(new_signals=(signal(F.SOFTWARE_CRASH, kind=K.AGENT_LOG_FAULT),)),
        P,
        "defer.confirm",
        Phase.HOLDING,
        (),
    ),
    (
        "still standing there",
        held(
            F.SOFTWARE_CRASH,
            signals=(signal(F.SOFTWARE_CRASH, kind=K.AGENT_LOG_FAULT),),
            phase_entered_at=NOW - 2 * MINUTE,
        ),
        seen(),
        P,
        "defer.confirm",
        Phase.HOLDING,
        (),
    ),
    (
        "confirmed by standing still",
        held(
            F.SOFTWARE_CRASH,
            signals=(signal(F.SOFTWARE_CRASH, kind=K.AGENT_LOG_FAULT, at=NOW - 3 * MINUTE),),
            phase_entered_at=NOW - 2 * MINUTE,
        ),
        seen(),
        P,
        "playbook.restart",
        Phase.STOPPING,
        ("StopJob",),
    ),
    (
        "refuted by a step",
        held(
            F.SOFTWARE_CRASH,
            signals=(signal(F.SOFTWARE_CRASH, kind=K.AGENT_LOG_FAULT, at=NOW - 3 * MINUTE),),
            phase_entered_at=NOW - 2 * MINUTE,
            target_step=Known(100),
        ),
        seen(view(step=101)),
        P,
        "healed",
        Phase.RECOVERED,
        ("Notify",),
    ),
    (
        "a state that the platform refutes",
        incident(),
        seen(new_signals=(signal(F.JOB_MISSING, kind=K.JOB_MISSING, step=None),)),
        P,
        "defer.refuted",
        Phase.HOLDING,
        (),
    ),
    (
        "refuted still",
        held(F.JOB_MISSING, signals=(signal(F.JOB_MISSING, kind=K.JOB_MISSING, step=None),)),
        seen(),
        P,
        "defer.refuted",
        Phase.HOLDING,
        (),
    ),
    (
        "refuted long enough",
        held(
            F.JOB_MISSING, signals=(signal(F.JOB_MISSING, kind=K.JOB_MISSING, step=None),), phase_entered_at=NOW - LONG
        ),
        seen(),
        P,
        "defer.refuted_limit",
        Phase.STOPPED,
        ("Notify",),
    ),
    # --- tell
    ("told once", held(F.THROUGHPUT_DROP, told=SLOW_TOLD), seen(), P, "playbook.collect", Phase.HOLDING, ()),
    ("held, not told yet", held(F.THROUGHPUT_DROP), seen(), P, "playbook.tell", Phase.HOLDING, ("Notify",)),
    (
        "told and over",
        held(F.THROUGHPUT_DROP, told=SLOW_TOLD, phase_entered_at=NOW - LONG),
        seen(),
        P,
        "playbook.notified",
        Phase.STOPPED,
        (),
    ),
    (
        "told, then it hangs",
        held(F.LOSS_SPIKE),
        seen(**stalled()),
        P,
        "playbook.checkpoint",
        Phase.CHECKPOINTING,
        ("RequestCheckpoint",),
    ),
    # --- the platform's own repair
    (
        "repair is left alone",
        incident(),
        seen(view(S.REPAIRING), **stalled()),
        P,
        "defer.platform_repair",
        Phase.HOLDING,
        (),
    ),
    (
        "repair still",
        held(F.HANG, **state(S.REPAIRING, MINUTE)),
        seen(view(S.REPAIRING)),
        P,
        "defer.platform_repair",
        Phase.HOLDING,
        (),
    ),
    (
        "repair for too long",
        held(F.HANG, **state(S.REPAIRING, LONG)),
        seen(view(S.REPAIRING)),
        P,
        "defer.grace_over",
        Phase.STOPPING,
        ("StopJob",),
    ),
    (
        "repair for too long in shadow mode",
        held(F.HANG, **state(S.REPAIRING, LONG)),
        seen(view(S.REPAIRING)),
        SHADOW,
        "guard.shadow",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "repair for too long under a checkpoint order",
        held(F.OPERATOR_ORDER, order={"do": "checkpoint"}, **state(S.REPAIRING, LONG)),
        seen(view(S.REPAIRING)),
        P,
        "order.checkpoint_no_run",
        Phase.STOPPED,
        ("Notify",),
    ),
    (
        "repair for too long of what people decide",
        held(F.NO_PROGRESS, **state(S.REPAIRING, LONG)),
        seen(view(S.REPAIRING)),
        P,
        "playbook.hand_over",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "repair of what is only told",
        incident(),
        seen(view(S.REPAIRING)),
        P,
        "playbook.tell",
        Phase.HOLDING,
        ("Notify",),
    ),
    (
        "back from repair, behind the target",
        held(F.HANG, target_step=Known(100), signals=(signal(F.HANG, at=NOW - 5 * MINUTE),), **repaired),
        seen(view(step=90)),
        P,
        "defer.repaired",
        Phase.HOLDING,
        (),
    ),
    (
        "back from repair before it was ever held",
        incident(Phase.OPEN, F.HANG, target_step=Known(100), **repaired),
        seen(view(step=90)),
        P,
        "defer.repaired",
        Phase.HOLDING,
        (),
    ),
    (
        "back from repair, and a new stall",
        held(F.HANG, target_step=Known(100), **repaired),
        seen(view(step=90), **stalled(step=90)),
        P,
        "playbook.checkpoint",
        Phase.CHECKPOINTING,
        ("RequestCheckpoint",),
    ),
    (
        "back from repair, past the target",
        held(F.NODE_HARDWARE, target_step=Known(100), **repaired),
        seen(view(step=101)),
        P,
        "healed",
        Phase.RECOVERED,
        ("Notify",),
    ),
    (
        "a broken node without repair does not heal by moving",
        incident(target_step=Known(100)),
        seen(view(step=101), new_signals=(signal(F.NODE_HARDWARE, kind=K.AGENT_LOG_FAULT),)),
        P,
        "playbook.checkpoint",
        Phase.CHECKPOINTING,
        ("RequestCheckpoint",),
    ),
    (
        "back from repair and standing still",
        held(
            F.NODE_LOST,
            target_step=Known(100),
            watch_at=NOW - LONG,
            watch_step=Known(90),
            **(repaired | {"repaired_at": NOW - LONG}),
        ),
        seen(view(step=90)),
        P,
        "defer.repaired_silent",
        Phase.STOPPING,
        ("StopJob",),
    ),
    (
        "back from repair, steps unseen",
        held(F.NODE_LOST, **(repaired | {"repaired_at": NOW - LONG})),
        seen(view(step=None)),
        P,
        "defer.repaired_unseen",
        Phase.STOPPED,
        ("Notify",),
    ),
    # --- orders
    (
        "a checkpoint order",
        incident(),
        seen(new_signals=(said(K.ORDER_CHECKPOINT, who="ada"),)),
        P,
        "playbook.checkpoint",
        Phase.CHECKPOINTING,
        ("RequestCheckpoint",),
    ),
    (
        "a checkpoint order on a dead run",
        incident(),
        seen(view(S.FAILED), new_signals=(said(K.ORDER_CHECKPOINT),)),
        P,
        "order.checkpoint_no_run",
        Phase.STOPPED,
        ("Notify",),
    ),
    (
        "a checkpoint order never takes over a fault",
        incident(signals=(signal(F.NON_FINITE, kind=K.NON_FINITE),)),
        seen(new_signals=(said(K.ORDER_CHECKPOINT),), **points),
        P,
        "playbook.roll_back",
        Phase.STOPPING,
        ("StopJob", "Notify"),
    ),
    (
        "a resubmit order on a completed run",
        incident(),
        seen(view(S.COMPLETED), new_signals=(said(K.ORDER_RESUBMIT),)),
        P,
        "resubmit.prepare",
        Phase.RESUBMITTING,
        (),
    ),
    (
        "a resubmit order on a dead run in shadow mode",
        incident(),
        seen(view(S.FAILED), new_signals=(said(K.ORDER_RESUBMIT),)),
        SHADOW,
        "guard.shadow",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "an order that lost a part is not taken",
        incident(),
        seen(new_signals=(said(K.ORDER_RESUBMIT, evidence_dropped_bytes=9),)),
        P,
        "playbook.tell",
        Phase.HOLDING,
        ("Notify", "Notify"),
    ),
    (
        "an order that comes too late is answered",
        incident(Phase.STOPPING),
        seen(new_signals=(said(K.ORDER_RESUBMIT),)),
        P,
        "stop.waiting",
        Phase.STOPPING,
        ("Notify",),
    ),
    (
        "a cancel comes before a pause",
        incident(Phase.STOPPING),
        seen(paused=True, new_signals=(said(K.ORDER_CANCEL, who="ada"),)),
        P,
        "order.cancel",
        Phase.STOPPED,
        ("Notify",),
    ),
    (
        "a cancel of an unseen run",
        incident(),
        seen(UNSEEN, new_signals=(said(K.ORDER_CANCEL),)),
        P,
        "order.cancel",
        Phase.STOPPED,
        ("Notify",),
    ),
    (
        "a cancel of a dead run",
        incident(),
        seen(view(S.FAILED), new_signals=(said(K.ORDER_CANCEL),)),
        P,
        "order.cancel",
        Phase.STOPPED,
        ("Notify",),
    ),
    # --- a cluster without a Job
    (
        "a cluster is told",
        incident(job_id=None, cluster="c"),
        seen(UNSEEN, has_job=False),
        P,
        "cluster.tell",
        Phase.HOLDING,
        ("Notify",),
    ),
    (
        "a cluster collects",
        held(job_id=None, cluster="c"),
        seen(UNSEEN, has_job=False),
        P,
        "cluster.collect",
        Phase.HOLDING,
        (),
    ),
    (
        "a cluster is over",
        held(job_id=None, cluster="c", phase_entered_at=NOW - LONG),
        seen(UNSEEN, has_job=False),
        P,
        "cluster.notified",
        Phase.STOPPED,
        ("Notify",),
    ),
    # --- checkpointing
    ("waiting", incident(Phase.CHECKPOINTING, F.HANG), seen(), P, "checkpoint.waiting", Phase.CHECKPOINTING, ()),
    (
        "saved",
        incident(Phase.CHECKPOINTING, F.HANG),
        seen(reply=reply("saved")),
        P,
        "checkpoint.saved",
        Phase.STOPPING,
        ("StopJob",),
    ),
    (
        "an answer to another request",
        incident(Phase.CHECKPOINTING, F.HANG),
        seen(reply=reply("saved", "other")),
        P,
        "checkpoint.waiting",
        Phase.CHECKPOINTING,
        (),
    ),
    (
        "late",
        incident(
            Phase.CHECKPOINTING,
            F.HANG,
            ask=dataclasses.replace(incident(Phase.CHECKPOINTING).halt.ask, deadline_at=NOW),
        ),
        seen(),
        P,
        "checkpoint.late",
        Phase.STOPPING,
        ("StopJob",),
    ),
    (
        "no mailbox",
        incident(Phase.CHECKPOINTING, F.HANG),
        seen(results=result("RequestCheckpoint", Done.REFUSED)),
        P,
        "checkpoint.refused",
        Phase.STOPPING,
        ("StopJob",),
    ),
    (
        "not written",
        incident(Phase.CHECKPOINTING, F.HANG),
        seen(results=result("RequestCheckpoint", Done.UNAVAILABLE)),
        P,
        "checkpoint.again",
        Phase.CHECKPOINTING,
        ("RequestCheckpoint",),
    ),
    (
        "a stop that never arrived, and the run moves again",
        incident(Phase.STOPPING, F.HANG, signals=(signal(),), stop_asked_at=NOW - 10 * MINUTE),
        seen(view(step=101)),
        P,
        "stop.moves_again",
        Phase.HOLDING,
        (),
    ),
    (
        "the request is not on record",
        incident(Phase.CHECKPOINTING, F.HANG, ask=None),
        seen(),
        P,
        "checkpoint.lost",
        Phase.STOPPING,
        ("StopJob",),
    ),
    (
        "it died meanwhile",
        incident(Phase.CHECKPOINTING, F.HANG),
        seen(view(S.FAILED)),
        P,
        "resubmit.prepare",
        Phase.RESUBMITTING,
        (),
    ),
    (
        "it completed meanwhile",
        incident(Phase.CHECKPOINTING, F.HANG),
        seen(view(S.COMPLETED)),
        P,
        "checkpoint.completed",
        Phase.RECOVERED,
        ("Notify",),
    ),
    (
        "its owner stopped it meanwhile",
        incident(Phase.CHECKPOINTING, F.HANG),
        seen(view(S.STOPPED)),
        P,
        "checkpoint.owner_stopped",
        Phase.STOPPED,
        ("Notify",),
    ),
    (
        "its owner is stopping it",
        incident(Phase.CHECKPOINTING, F.HANG),
        seen(view(S.STOPPING)),
        P,
        "checkpoint.stopping",
        Phase.CHECKPOINTING,
        (),
    ),
    (
        "its owner is stopping it for ever",
        incident(Phase.CHECKPOINTING, F.HANG, **state(S.STOPPING, LONG)),
        seen(view(S.STOPPING)),
        P,
        "checkpoint.stop_stuck",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "the platform repairs it",
        incident(Phase.CHECKPOINTING, F.HANG),
        seen(view(S.REPAIRING)),
        P,
        "defer.platform_repair",
        Phase.HOLDING,
        (),
    ),
    (
        "the platform repairs the new attempt",
        incident(Phase.CHECKPOINTING, F.HANG, **pending),
        seen(view(S.REPAIRING, name="lm-r2")),
        P,
        "defer.platform_repair",
        Phase.VERIFYING,
        (),
    ),
    (
        "it moves again",
        incident(Phase.CHECKPOINTING, F.HANG, target_step=Known(100), signals=(signal(),)),
        seen(view(step=101)),
        P,
        "healed",
        Phase.RECOVERED,
        ("Notify",),
    ),
    (
        "the new attempt moves again",
        incident(Phase.CHECKPOINTING, F.HANG, signals=(STALL2,), **pending),
        seen(view(name="lm-r2", step=96)),
        P,
        "verify.moves_again",
        Phase.VERIFYING,
        (),
    ),
    (
        "the new attempt does not move",
        incident(Phase.CHECKPOINTING, F.HANG, signals=(STALL2,), **pending),
        seen(view(name="lm-r2", step=95)),
        P,
        "checkpoint.waiting",
        Phase.CHECKPOINTING,
        (),
    ),
    (
        "it turns out to be poisoned",
        incident(Phase.CHECKPOINTING, F.HANG),
        seen(new_signals=(signal(F.NON_FINITE, kind=K.NON_FINITE, step=90),), **points),
        P,
        "checkpoint.poisoned",
        Phase.STOPPING,
        ("StopJob",),
    ),
    (
        "a divergence is handed over once saved",
        incident(Phase.CHECKPOINTING, F.DIVERGENCE),
        seen(reply=reply("saved")),
        P,
        "playbook.saved_then_hand_over",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "an ordered checkpoint",
        incident(Phase.CHECKPOINTING, F.OPERATOR_ORDER, order={"do": "checkpoint"}),
        seen(reply=reply("saved")),
        P,
        "order.checkpoint",
        Phase.RECOVERED,
        ("Notify",),
    ),
    (
        "an ordered checkpoint that cannot be",
        incident(Phase.CHECKPOINTING, F.OPERATOR_ORDER, order={"do": "checkpoint"}),
        seen(reply=reply("cannot")),
        P,
        "order.checkpoint",
        Phase.STOPPED,
        ("Notify",),
    ),
    (
        "an ordered resubmission whose run ended",
        incident(Phase.CHECKPOINTING, F.OPERATOR_ORDER, order={"do": "resubmit"}),
        seen(view(S.STOPPED)),
        P,
        "resubmit.prepare",
        Phase.RESUBMITTING,
        (),
    ),
    # --- stopping
    ("still stopping", incident(Phase.STOPPING, F.HANG), seen(view(S.STOPPING)), P, "stop.waiting", Phase.STOPPING, ()),
    ("stopped", incident(Phase.STOPPING, F.HANG), seen(view(S.STOPPED)), P, "resubmit.prepare", Phase.RESUBMITTING, ()),
    (
        "refused",
        incident(Phase.STOPPING, F.HANG),
        seen(results=result("StopJob", Done.REFUSED)),
        P,
        "stop.refused",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "refused, because it has ended",
        incident(Phase.STOPPING, F.HANG),
        seen(view(S.FAILED), results=result("StopJob", Done.REFUSED)),
        P,
        "resubmit.prepare",
        Phase.RESUBMITTING,
        (),
    ),
    (
        "completed first",
        incident(Phase.STOPPING, F.HANG),
        seen(view(S.COMPLETED)),
        P,
        "stop.completed",
        Phase.RECOVERED,
        ("Notify",),
    ),
    ("unseen", incident(Phase.STOPPING, F.HANG), seen(UNSEEN), P, "stop.unseen", Phase.STOPPING, ()),
    (
        "unseen for long",
        incident(Phase.STOPPING, F.HANG, phase_entered_at=NOW - LONG),
        seen(UNSEEN),
        P,
        "stop.unseen_limit",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "never stops",
        incident(Phase.STOPPING, F.HANG, phase_entered_at=NOW - LONG),
        seen(view(S.STOPPING)),
        P,
        "stop.stuck",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "the order was not sent",
        incident(Phase.STOPPING, F.HANG),
        seen(results=result("StopJob", Done.UNAVAILABLE)),
        P,
        "stop.again",
        Phase.STOPPING,
        ("StopJob",),
    ),
    (
        "the order was sent",
        incident(Phase.STOPPING, F.HANG),
        seen(results=result("StopJob", Done.DONE)),
        P,
        "stop.waiting",
        Phase.STOPPING,
        (),
    ),
    (
        "the order may be lost",
        incident(Phase.STOPPING, F.HANG, stop_asked_at=NOW - MINUTE),
        seen(),
        P,
        "stop.again",
        Phase.STOPPING,
        ("StopJob",),
    ),
    (
        "a stop that never arrived, and no heartbeat has repeated the stall since",
        incident(
            Phase.STOPPING,
            F.HANG,
            signals=(signal(at=NOW - 9 * MINUTE),),
            stop_asked_at=NOW - 9 * MINUTE,
        ),
        seen(view(heartbeat_at=NOW - 8 * MINUTE)),
        P,
        "stop.stale",
        Phase.STOPPING,
        (),
    ),
    (
        "a stop that never arrived, and a heartbeat that repeats the stall",
        incident(
            Phase.STOPPING,
            F.HANG,
            signals=(signal(at=NOW - 9 * MINUTE),),
            stop_asked_at=NOW - 9 * MINUTE,
        ),
        seen(view(work="stalled", heartbeat_at=NOW - MINUTE)),
        P,
        "stop.again",
        Phase.STOPPING,
        ("StopJob",),
    ),
    (
        "gone while stopping is not ended",
        incident(Phase.STOPPING, F.HANG, stop_asked_at=NOW - MINUTE),
        seen(view(S.GONE)),
        P,
        "stop.waiting",
        Phase.STOPPING,
        (),
    ),
    (
        "the stopped run turns out to be poisoned",
        incident(Phase.STOPPING, F.HANG),
        seen(view(S.STOPPED), new_signals=(signal(F.NON_FINITE, kind=K.NON_FINITE, step=90),)),
        P,
        "resubmit.prepare",
        Phase.RESUBMITTING,
        (),
    ),
    # --- budgets
    (
        "three tries gained nothing",
        incident(Phase.STOPPING, F.HANG, tries=tuple(a_try(n, ended=True, gained=False) for n in (2, 3, 4))),
        seen(view(S.STOPPED)),
        P,
        "budget.no_progress",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "two tries gained nothing",
        incident(Phase.STOPPING, F.HANG, tries=tuple(a_try(n, ended=True, gained=False) for n in (2, 3))),
        seen(view(S.STOPPED)),
        P,
        "resubmit.back_off",
        Phase.RESUBMITTING,
        (),
    ),
    (
        "three tries of which one gained",
        incident(Phase.STOPPING, F.HANG, tries=tuple(a_try(n, ended=True, gained=n == 4) for n in (2, 3, 4))),
        seen(view(S.STOPPED)),
        P,
        "resubmit.prepare",
        Phase.RESUBMITTING,
        (),
    ),
    (
        "three tries of which nothing is known",
        incident(Phase.STOPPING, F.HANG, tries=tuple(a_try(n, ended=True) for n in (2, 3, 4))),
        seen(view(S.STOPPED)),
        P,
        "resubmit.back_off",
        Phase.RESUBMITTING,
        (),
    ),
    (
        "one memory error too many",
        incident(Phase.STOPPING, F.OUT_OF_MEMORY, tries=(a_try(ended=True, gained=False),)),
        seen(view(S.STOPPED)),
        P,
        "budget.no_progress",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "ten attempts",
        incident(Phase.STOPPING, F.HANG, tries=tuple(a_try(n, ended=True) for n in range(2, 12))),
        seen(view(S.STOPPED)),
        P,
        "budget.attempts",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "ten attempts, some without room",
        incident(Phase.STOPPING, F.HANG, tries=tuple(a_try(n, ended=True, no_room=n == 5) for n in range(2, 12))),
        seen(view(S.STOPPED)),
        P,
        "resubmit.back_off",
        Phase.RESUBMITTING,
        (),
    ),
    (
        "a fourth roll-back",
        incident(Phase.STOPPING, F.NON_FINITE, rollbacks=3, **POISON),
        seen(view(S.STOPPED)),
        P,
        "budget.rollbacks",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "a third roll-back",
        incident(Phase.STOPPING, F.NON_FINITE, rollbacks=2, **POISON),
        seen(view(S.STOPPED)),
        P,
        "resubmit.prepare",
        Phase.RESUBMITTING,
        (),
    ),
    # --- resubmitting
    (
        "now",
        incident(Phase.RESUBMITTING, F.HANG),
        seen(view(S.STOPPED), **points),
        P,
        "resubmit.now",
        Phase.RESUBMITTING,
        ("ResubmitJob",),
    ),
    (
        "not before the back-off ends",
        incident(Phase.RESUBMITTING, F.HANG, not_before=NOW + MINUTE),
        seen(view(S.STOPPED), **points),
        P,
        "resubmit.waiting",
        Phase.RESUBMITTING,
        (),
    ),
    (
        "the old one lives",
        incident(Phase.RESUBMITTING, F.HANG),
        seen(view(), **points),
        P,
        "resubmit.old_lives",
        Phase.VERIFYING,
        (),
    ),
    (
        "checkpoints unseen",
        incident(Phase.RESUBMITTING, F.HANG),
        seen(view(S.STOPPED)),
        P,
        "resume.unseen",
        Phase.RESUBMITTING,
        (),
    ),
    (
        "checkpoints unseen for long",
        incident(Phase.RESUBMITTING, F.HANG, phase_entered_at=NOW - LONG),
        seen(view(S.STOPPED)),
        P,
        "resume.unseen_limit",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "checkpoints unseen after a long back-off",
        incident(Phase.RESUBMITTING, F.HANG, phase_entered_at=NOW - LONG, not_before=NOW),
        seen(view(S.STOPPED)),
        P,
        "resume.unseen",
        Phase.RESUBMITTING,
        (),
    ),
    (
        "checkpoints unseen with an order under way",
        incident(Phase.RESUBMITTING, F.HANG, **pending),
        seen(view(S.GONE, name="lm-r2")),
        P,
        "resume.unseen",
        Phase.RESUBMITTING,
        (),
    ),
    (
        "poisoned, and no manifest",
        incident(Phase.RESUBMITTING, F.NON_FINITE, onset_attempt="lm", onset_step=Known(95)),
        seen(view(S.STOPPED), checkpoints=Known(())),
        P,
        "resume.none_fit",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "not poisoned, and no manifest",
        incident(Phase.RESUBMITTING, F.HANG),
        seen(view(S.STOPPED), checkpoints=Known(())),
        P,
        "resubmit.now",
        Phase.RESUBMITTING,
        ("ResubmitJob",),
    ),
    (
        "none fits",
        incident(Phase.RESUBMITTING, F.HANG),
        seen(view(S.STOPPED), checkpoints=Known((checkpoint(90, fenced=True),))),
        P,
        "resume.none_fit",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "answered",
        incident(Phase.RESUBMITTING, F.HANG, **pending),
        seen(view(S.GONE, name="lm-r2"), results=result("ResubmitJob", Done.DONE), **points),
        P,
        "resubmit.started",
        Phase.VERIFYING,
        (),
    ),
    (
        "answer lost, registered",
        incident(Phase.RESUBMITTING, F.HANG, **pending),
        seen(view(S.STARTING, name="lm-r2"), next_number=3, **points),
        P,
        "resubmit.started",
        Phase.VERIFYING,
        (),
    ),
    (
        "answer lost, not registered",
        incident(Phase.RESUBMITTING, F.HANG, **pending),
        seen(view(S.STARTING, name="lm-r2"), **points),
        P,
        "resubmit.now",
        Phase.RESUBMITTING,
        ("ResubmitJob",),
    ),
    (
        "refused by the platform",
        incident(Phase.RESUBMITTING, F.HANG, **pending),
        seen(view(S.GONE, name="lm-r2"), results=result("ResubmitJob", Done.REFUSED)),
        P,
        "resubmit.refused",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "out of reach",
        incident(Phase.RESUBMITTING, F.HANG, **pending),
        seen(UNSEEN, results=result("ResubmitJob", Done.UNAVAILABLE)),
        P,
        "resubmit.unavailable",
        Phase.RESUBMITTING,
        (),
    ),
    (
        "out of reach for long",
        incident(Phase.RESUBMITTING, F.HANG, **(pending | {"tries": (a_try(at=NOW - LONG),)})),
        seen(UNSEEN, results=result("ResubmitJob", Done.UNAVAILABLE)),
        P,
        "resubmit.unavailable_limit",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "no capacity",
        incident(Phase.RESUBMITTING, F.HANG, **pending),
        seen(view(S.GONE, name="lm-r2"), results=result("ResubmitJob", Done.CAPACITY)),
        P,
        "capacity.back_off",
        Phase.RESUBMITTING,
        ("Notify",),
    ),
    (
        "no capacity for long",
        incident(Phase.RESUBMITTING, F.HANG, capacity_since=NOW - LONG, **pending),
        seen(view(S.GONE, name="lm-r2"), results=result("ResubmitJob", Done.CAPACITY)),
        P,
        "capacity.limit",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    (
        "name taken",
        incident(Phase.RESUBMITTING, F.HANG, **pending),
        seen(view(name="lm-r2"), results=result("ResubmitJob", Done.NAME_TAKEN), **points),
        P,
        "resubmit.now",
        Phase.RESUBMITTING,
        ("ResubmitJob",),
    ),
    (
        "names taken on and on",
        incident(Phase.RESUBMITTING, F.HANG, name_salt=5, **pending),
        seen(view(name="lm-r2"), results=result("ResubmitJob", Done.NAME_TAKEN), **points),
        P,
        "resubmit.names_taken",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
]
V = Phase.VERIFYING


def new(status: S = S.RUNNING, **more: Any) -> Any:
    return view(status, name="lm-r2", **more)


def on2(fault: F, kind: K = K.ALARM, **more: Any) -> dict[str, Any]:
    return {"new_signals": (signal(fault, kind=kind, attempt="lm-r2", **more),)}


NO_TARGET = {"target_step": Unknown("never seen")}
TABLE += [
    ("past the target", incident(V, F.HANG), seen(new(step=101)), P, "verify.passed", Phase.RECOVERED, ("Notify",)),
    ("at the target", incident(V, F.HANG), seen(new(step=100)), P, "verify.waiting", V, ()),
    ("past the target, but dead", incident(V, F.HANG), seen(new(S.FAILED, step=101)), P, "resubmit.prepare", Phase.RESUBMITTING, ()),
    ("past the target, but poisoned", incident(V, F.HANG), seen(new(step=101, loss_state="inf"), **points), P, "verify.non_finite", Phase.STOPPING, ("StopJob",)),
    ("poisoned, begun beyond where it was to go back to", incident(V, F.NON_FINITE, tries=(a_try(went_back=True, resume_step=Known(70)),)), seen(new(step=101, first_step=Known(91), loss_state="inf"), **points), P, "rollback.plan_ignored", Phase.HANDED_OVER, ("Notify",)),
    ("poisoned, begun beyond it by a later life", incident(V, F.NON_FINITE, tries=(a_try(went_back=True, resume_step=Known(70)),)), seen(new(step=101, first_step=Known(91), life=1, loss_state="inf"), **points), P, "verify.non_finite", Phase.STOPPING, ("StopJob",)),
    ("poisoned, begun where it was to go back to", incident(V, F.NON_FINITE, tries=(a_try(went_back=True),)), seen(new(step=101, first_step=Known(91), loss_state="inf"), **points), P, "verify.non_finite", Phase.STOPPING, ("StopJob",)),
    ("past the target, but said to be poisoned", incident(V, F.HANG), seen(new(step=101), **on2(F.NON_FINITE, K.NON_FINITE), **points), P, "verify.non_finite", Phase.STOPPING, ("StopJob",)),
    ("past the target, but stalled", incident(V, F.HANG), seen(new(step=101), **on2(F.HANG, K.STALL, step=101)), P, "playbook.checkpoint", Phase.CHECKPOINTING, ("RequestCheckpoint",)),
    ("past the target, and past the stall", incident(V, F.HANG), seen(new(step=102), **on2(F.HANG, K.STALL, step=101)), P, "verify.passed", Phase.RECOVERED, ("Notify",)),
    ("past the target, and a stall that names no step", incident(V, F.HANG), seen(new(step=102), **on2(F.HANG, K.STALL, step=None)), P, "verify.passed", Phase.RECOVERED, ("Notify",)),
    ("past the target in repair", incident(V, F.HANG), seen(new(S.REPAIRING, step=101)), P, "verify.platform_repair", V, ()),
    ("a stall absorbed while paused still stands", incident(V, F.HANG, signals=(STALL2,)), seen(new(step=95)), P, "playbook.checkpoint", Phase.CHECKPOINTING, ("RequestCheckpoint",)),
    ("a stall from before the repair does not", incident(V, F.HANG, signals=(STALL2,), repaired_at=NOW + MINUTE, **state(S.RUNNING, MINUTE, "lm-r2")), seen(new(step=95)), P, "verify.waiting", V, ()),
    ("a spike on the new attempt is told", incident(V, F.HANG), seen(new(step=101), **on2(F.LOSS_SPIKE)), with_row(F.LOSS_SPIKE, response=Response.TELL), "verify.tell", V, ("Notify",)),
    ("a spike told before", incident(V, F.HANG, signals=on2(F.LOSS_SPIKE)["new_signals"]), seen(new(step=101)), P, "verify.passed", Phase.RECOVERED, ("Notify",)),
    ("a deadly word about the new attempt", incident(V, F.HANG), seen(new(step=101), **on2(F.SOFTWARE_CRASH)), P, "verify.confirm", V, ()),
    ("a word for people about the new attempt", incident(V, F.HANG), seen(new(step=101), **on2(F.NO_PROGRESS)), P, "playbook.hand_over", Phase.HANDED_OVER, ("Notify",)),
    ("a roll-back that the user wants for spikes", incident(V, F.HANG), seen(new(), **on2(F.LOSS_SPIKE), **points), NEAR, "verify.roll_back", Phase.STOPPING, ("StopJob",)),
    ("poisoned, where the user wants to be told", incident(V, F.HANG), seen(new(loss_state="nan")), with_row(F.NON_FINITE, response=Response.TELL), "verify.poisoned", Phase.HANDED_OVER, ("Notify",)),
    (
        "completed",
        incident(V, F.HANG),
        seen(new(S.COMPLETED, work="finished")),
        P,
        "verify.completed",
        Phase.RECOVERED,
        ("Notify",),
    ),
    (
        "completed, without a monitor",
        incident(V, F.HANG, target_step=Unknown("no heartbeat")),
        seen(new(S.COMPLETED)),
        P,
        "verify.completed",
        Phase.RECOVERED,
        ("Notify",),
    ),
    (
        "completed, with a heartbeat from its end",
        incident(V, F.HANG),
        seen(
            new(
                S.COMPLETED,
                step=101,
                ended_at=NOW,
                heartbeat_at=NOW - timedelta(seconds=50),
                is_heartbeat_last=True,
            )
        ),
        P,
        "verify.completed",
        Phase.RECOVERED,
        ("Notify",),
    ),
    (
        "completed, seen shortly before its end, which may have been a crash",
        incident(V, F.HANG),
        seen(new(S.COMPLETED, step=101, ended_at=NOW, heartbeat_at=NOW - timedelta(seconds=50))),
        P,
        "verify.last_heartbeat",
        V,
        (),
    ),
    (
        "completed, last seen where the old one failed",
        incident(V, F.HANG),
        seen(new(S.COMPLETED, step=95, ended_at=NOW, heartbeat_at=NOW - timedelta(seconds=50))),
        P,
        "verify.last_heartbeat",
        V,
        (),
    ),
    (
        "completed, its end not seen yet",
        incident(V, F.HANG),
        seen(new(S.COMPLETED, ended_at=NOW - timedelta(minutes=14), heartbeat_at=NOW - timedelta(minutes=16))),
        P,
        "verify.last_heartbeat",
        V,
        (),
    ),
    (
        "completed, its end never seen",
        incident(V, F.HANG),
        seen(new(S.COMPLETED, ended_at=NOW - timedelta(minutes=16), heartbeat_at=NOW - timedelta(minutes=18))),
        P,
        "verify.completed_unseen",
        Phase.HANDED_OVER,
        ("Notify",),
    ),
    ("stopped by its owner", incident(V, F.HANG), seen(new(S.STOPPED)), P, "verify.owner_stopped", Phase.STOPPED, ("Notify",)),
    ("stopped by us", incident(V, F.HANG, stopped_attempts=("lm-r2",)), seen(new(S.STOPPED)), P, "resubmit.prepare", Phase.RESUBMITTING, ()),
    ("being stopped", incident(V, F.HANG), seen(new(S.STOPPING)), P, "verify.stopping", V, ()),
    ("being stopped for ever", incident(V, F.HANG, **state(S.STOPPING, LONG, "lm-r2")), seen(new(S.STOPPING)), P, "verify.stop_stuck", Phase.HANDED_OVER, ("Notify",)),
    ("not listed yet", incident(V, F.HANG), seen(new(S.GONE)), P, "attempt.not_listed", V, ()),
    ("never listed", incident(V, F.HANG, **state(S.GONE, LONG, "lm-r2")), seen(new(S.GONE)), P, "job.gone", Phase.HANDED_OVER, ("Notify",)),
    ("unseen", incident(V, F.HANG), seen(UNSEEN), P, "verify.unseen", V, ()),
    ("unseen for long", incident(V, F.HANG, unseen_since=NOW - LONG), seen(UNSEEN), P, "verify.unseen_limit", Phase.HANDED_OVER, ("Notify",)),
    ("starting", incident(V, F.HANG), seen(new(S.STARTING, step=None)), P, "verify.starting", V, ()),
    ("never started", incident(V, F.HANG, phase_entered_at=NOW - LONG), seen(new(S.STARTING, step=None)), P, "verify.never_started", Phase.HANDED_OVER, ("Notify",)),
    ("blind", incident(V, F.HANG), seen(new(step=None)), P, "verify.blind", V, ()),
    ("blind only since it started", incident(V, F.HANG, phase_entered_at=NOW - LONG, **state(S.RUNNING, MINUTE, "lm-r2")), seen(new(step=None)), P, "verify.blind", V, ()),
    ("blind for long", incident(V, F.HANG, **state(S.RUNNING, LONG, "lm-r2")), seen(new(step=None)), P, "verify.blind_limit", Phase.HANDED_OVER, ("Notify",)),
    ("standing still with a fresh heartbeat", incident(V, F.HANG, watch_at=NOW - LONG, watch_step=Known(95), evidence_since=NOW - MINUTE), seen(new(step=95, heartbeat_at=NOW)), P, "verify.silent", Phase.STOPPING, ("StopJob",)),
    ("moving slowly", incident(V, F.HANG, watch_at=NOW - LONG, watch_step=Known(94)), seen(new(step=95)), P, "verify.waiting", V, ()),
    ("repair of the new attempt for too long", incident(V, F.HANG, **state(S.REPAIRING, LONG, "lm-r2")), seen(new(S.REPAIRING)), P, "defer.grace_over", Phase.STOPPING, ("StopJob",)),
    ("no target, moving", incident(V, F.HANG, **NO_TARGET), seen(new(step=91)), P, "verify.moves", Phase.RECOVERED, ("Notify",)),
    ("no target, not moving yet", incident(V, F.HANG, **NO_TARGET), seen(new(step=90)), P, "verify.moving", V, ()),
    ("the same crash at the same step", incident(V, F.SOFTWARE_CRASH, failures=(Failure(attempt="lm", signature="algorithmerror: runtimeerror: boom", step=Known(100)),)), seen(new(S.FAILED, failure_reason=CRASH)), P, "crash.same_again", Phase.HANDED_OVER, ("Notify",)),
    ("the same crash at an unknown step", incident(V, F.SOFTWARE_CRASH, failures=(Failure(attempt="lm", signature="algorithmerror: runtimeerror: boom", step=Unknown("no beat")),)), seen(new(S.FAILED, failure_reason=CRASH, step=None)), P, "resubmit.prepare", Phase.RESUBMITTING, ()),
    ("another crash at the same step", incident(V, F.SOFTWARE_CRASH, failures=(Failure(attempt="lm", signature="algorithmerror: runtimeerror: bang", step=Known(100)),)), seen(new(S.FAILED, failure_reason=CRASH)), P, "resubmit.prepare", Phase.RESUBMITTING, ()),
    ("the new attempt found no room", incident(V, F.HANG), seen(new(S.FAILED, step=None, failure_reason=NO_ROOM)), P, "capacity.back_off", Phase.RESUBMITTING, ("Notify",)),
    ("a closed Incident", incident(Phase.RECOVERED), seen(**stalled()), P, "closed", Phase.RECOVERED, ()),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=[f"{row[5]}: {row[0]}" for row in TABLE])
def test_the_table_says(row: Row) -> None:
    _, case, what, policy, rule, phase, actions = row
    decision = look(case, what, policy)
    assert (decision.rule, decision.incident.phase) == (rule, phase)
    assert tuple(action_name(action) for action in decision.actions) == (
        actions
        if not decision.incident.is_open or actions
        else tuple(action_name(a) for a in decision.actions if isinstance(a, Notify))
    )


def test_a_lost_answer_sends_the_same_name_again() -> None:
    case = incident(Phase.RESUBMITTING, F.HANG, **pending)
    (again,) = look(case, seen(view(S.GONE, name="lm-r2"), **points)).actions
    assert isinstance(again, ResubmitJob)
    assert (again.name, again.number, again.clone_of) == ("lm-r2", 2, "lm")


def test_a_taken_name_gets_a_salted_one_with_the_same_number() -> None:
    case = incident(Phase.RESUBMITTING, F.HANG, **pending)
    decision = look(case, seen(view(name="lm-r2"), results=result("ResubmitJob", Done.NAME_TAKEN), **points))
    assert decision.incident.attempt == "lm-r2x1"
    assert len(decision.incident.resubmission.tries) == 1


def test_a_checkpoint_that_could_not_be_loaded_is_not_tried_again() -> None:
    case = incident(V, F.HANG)
    reason = "PytorchStreamReader failed reading zip archive"
    died = look(case, seen(new(S.FAILED, failure_reason=reason), **points))
    assert died.incident.resubmission.excluded_checkpoints == ("m90",)


def test_a_late_stop_of_a_poisoned_run_lowers_its_onset() -> None:
    case = incident(Phase.STOPPING, F.NON_FINITE, **POISON)
    late = look(case, seen(view(S.STOPPING), new_signals=(signal(F.NON_FINITE, kind=K.NON_FINITE, step=80),)))
    assert late.incident.loss.onset_step == Known(80)


def test_a_second_rollback_skips_the_data_and_a_third_skips_more() -> None:
    for before, window in (
        (0, ()),
        (1, (SkipWindow(from_step=75, to_step=275),)),
        (2, (SkipWindow(from_step=70, to_step=370),)),
    ):
        case = incident(Phase.STOPPING, F.NON_FINITE, rollbacks=before, **POISON)
        assert look(case, seen(view(S.STOPPED))).incident.loss.skips == window


def test_an_ordered_resubmission_goes_back_as_far_as_it_says_but_only_once() -> None:
    order = {"do": "resubmit", "from_step": 85}
    case = incident(Phase.RESUBMITTING, F.OPERATOR_ORDER, order=order)
    (first,) = look(case, seen(view(S.STOPPED), **points)).actions
    assert isinstance(first, ResubmitJob)
    assert first.resume_step == Known(80)
    later = dataclasses.replace(
        case, resubmission=dataclasses.replace(case.resubmission, tries=(a_try(ended=True, gained=False),))
    )
    (second,) = look(later, seen(view(S.STOPPED), **points)).actions
    assert isinstance(second, ResubmitJob)
    assert second.resume_step == Known(90)


def test_what_befalls_an_ordered_attempt_is_a_fault_again() -> None:
    case = incident(V, F.OPERATOR_ORDER, order={"do": "resubmit"})
    died = look(case, seen(new(S.FAILED, failure_reason="torch.cuda.OutOfMemoryError: CUDA out of memory")))
    assert died.incident.fault is F.OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("ran_for", "said"),
    [(timedelta(0), "has just begun"), (P.timing.look_max, "its steps cannot be seen: no heartbeat")],
    ids=["just begun", "for a while"],
)
def test_an_attempt_without_a_step_is_called_blind_only_after_a_while(ran_for: timedelta, said: str) -> None:
    decision = look(incident(V, F.HANG, **state(S.RUNNING, ran_for, "lm-r2")), seen(new(step=None)))
    assert decision.rule == "verify.blind"
    assert said in decision.reason
