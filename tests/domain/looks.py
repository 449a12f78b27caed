"""Small makers for decision tables: an Incident, an observation, a Signal, each with what the row says."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

from chalicelib.domain import decide as product
from chalicelib.domain.decide import Decision
from chalicelib.domain.model.incident import CheckpointAsk, Incident, Phase, Try
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import AttemptStatus, AttemptView, CheckpointView, Observation
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.domain.policy.playbooks import Playbook
from chalicelib.platforms.training_job.platform import TRAINING_JOB
from rekindle.protocol.signals import FaultClass

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
UNSEEN: Maybe[Any] = Unknown("throttled")


def signal(
    fault: FaultClass | None = FaultClass.HANG,
    *,
    kind: SignalKind = SignalKind.STALL,
    attempt: str | None = "lm",
    step: int | None = 100,
    at: datetime = NOW,
    **more: Any,
) -> Signal:
    evidence = more.pop("evidence", {} if step is None else {"step": step})
    return Signal(
        kind=kind,
        source=more.pop("source", SignalSource.MONITOR),
        occurred_at=at,
        dedupe_key=f"{kind}:{attempt}:{step}:{at}",
        summary=f"{kind} of {attempt}",
        job_id="lm",
        attempt=attempt,
        fault=fault,
        triggers=more.pop("triggers", fault is not None),
        evidence=evidence,
        **more,
    )


def view(
    status: AttemptStatus = AttemptStatus.RUNNING, *, name: str = "lm", step: int | None = 100, **more: Any
) -> AttemptView:
    last: Maybe[int] = Unknown("no heartbeat") if step is None else Known(step)
    return AttemptView(name=name, status=status, last_step=last, **more)


def seen(attempt: AttemptView | Maybe[Any] | None = None, **more: Any) -> Observation:
    if attempt is None:
        attempt = view()
    wrapped = Known(attempt) if isinstance(attempt, AttemptView) else attempt
    return Observation(
        platform=more.pop("platform", TRAINING_JOB),
        observed_at=NOW,
        has_job=more.pop("has_job", True),
        paused=more.pop("paused", False),
        job_name="lm",
        attempt=wrapped,
        next_number=more.pop("next_number", 2),
        **more,
    )


def incident(phase: Phase = Phase.OPEN, fault: FaultClass = FaultClass.UNCLEAR, **more: Any) -> Incident:
    """An Incident that entered `phase` a minute ago, with what that phase needs."""
    base: dict[str, Any] = {
        "incident_id": "inc-lm-1",
        "job_id": "lm",
        "cluster": None,
        "opened_at": NOW - 10 * MINUTE,
        "phase": phase,
        "phase_entered_at": NOW - MINUTE,
        "fault": fault,
        "attempt": "lm",
        "attempt_number": 1,
        "policy_document": DEFAULT_POLICY.to_wire(),
    }
    usual: dict[str, Any] = {}
    if phase is Phase.CHECKPOINTING:
        usual["ask"] = CheckpointAsk(
            request_id="inc-lm-1-c1", attempt="lm", asked_at=NOW - MINUTE, deadline_at=NOW + MINUTE
        )
        usual["asks"] = 1
        usual["evidence_since"] = NOW - MINUTE
    if phase is Phase.STOPPING:
        usual |= {"stopped_attempts": ("lm",), "stop_asked_at": NOW - MINUTE / 2, "target_step": Known(100)}
    if phase is Phase.VERIFYING:
        usual |= {"attempt": "lm-r2", "attempt_number": 2, "target_step": Known(100), "tries": (a_try(),)}
    return Incident(**base).changed(**(usual | more))


def a_try(number: int = 2, **more: Any) -> Try:
    base: dict[str, Any] = {
        "number": number,
        "name": f"lm-r{number}",
        "clone_of": "lm" if number == 2 else f"lm-r{number - 1}",
        "at": NOW - MINUTE,
        "resume_step": Known(90),
        "resume_manifest": "m90",
    }
    return Try(**(base | more))


def checkpoint(step: int, *, attempt: str = "lm", **more: Any) -> CheckpointView:
    base: dict[str, Any] = {
        "step": step,
        "root": f"s3://b/{attempt}/{step}",
        "manifest": f"s3://b/m/{attempt}/{step}",
        "attempt": attempt,
        "kind": "periodic",
        "saved_at": NOW - timedelta(seconds=1000 - step),
    }
    return CheckpointView(**(base | more))


REACHED: set[str] = set()  # the rules by which decisions were made in this process (test_each_rule.py)


def decide(case: Incident, what: Observation, *, now: datetime, policy: Policy) -> Decision:
    """The product's decide(), whose rule is kept in REACHED."""
    decision = product.decide(case, what, now=now, policy=policy)
    REACHED.add(decision.rule)
    return decision


def look(case: Incident, what: Observation, policy: Policy = DEFAULT_POLICY) -> Decision:
    return decide(case, what, now=NOW, policy=policy)


def with_row(fault: FaultClass, **columns: Any) -> Policy:
    rows: tuple[Playbook, ...] = tuple(
        dataclasses.replace(row, **columns) if row.fault is fault else row for row in DEFAULT_POLICY.playbooks
    )
    return dataclasses.replace(DEFAULT_POLICY, playbooks=rows)
