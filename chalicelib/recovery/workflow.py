"""The one loop: observe, decide, record, act, wait; until the Incident is closed.

Runs as an AWS Lambda durable execution, one per Incident and generation. Everything that touches the world is inside
a step; everything between steps is deterministic, because it runs again from the top at every resume.

Operations of one turn: [callback] observe [record] [act …] [record of what the answers alone tell] [wait = parallel +
timer]. The callback is created before the look and published by it, so that whatever arrives after the look completes
it and whatever arrived before is in the look; it is used again by the next turn if only the timer ran out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Protocol

from aws_durable_execution_sdk_python import durable_execution
from aws_durable_execution_sdk_python.config import (
    CallbackConfig,
    CompletionConfig,
    Duration,
    NestingType,
    ParallelConfig,
    StepConfig,
)
from aws_durable_execution_sdk_python.context import DurableContext
from aws_durable_execution_sdk_python.exceptions import StepError
from aws_durable_execution_sdk_python.retries import RetryStrategyConfig, create_retry_strategy

from chalicelib.domain.decide import Decision, decide
from chalicelib.domain.decision.action_results import after_accepted_start
from chalicelib.domain.model.action import Action, ActionResult, Done, action_name, read_action
from chalicelib.domain.model.errors import Retryable, VersionConflict
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.instances import JobSize
from chalicelib.domain.model.known import Known, Maybe
from chalicelib.domain.model.observation import Observation
from chalicelib.domain.policy.document import Policy, pinned
from chalicelib.domain.run.liveness import LATE
from chalicelib.ports.clock import Clock
from chalicelib.recovery.results import CompressedJson
from chalicelib.services.observe.observer import Observer
from chalicelib.services.observe.timeline import needs_record
from chalicelib.services.perform.perform import ActionExecutor
from chalicelib.services.reporting.outcome import GPU_HOURS_LOST, GPU_HOURS_SAVED, MTTD_S, MTTR_S, Outcome, OutcomeKind

# A turn is 3 to 8 durable operations, and each retry is one more; Lambda allows an execution 3,000. 300 turns at the
# longest default interval are more than five hours of watching; an Incident that needs more ends its execution and the
# sweep continues it under the next generation.
MAX_TURNS = 300
# A callback must outlive any look; the timer beside it always ends the wait first.
CALLBACK_TIMEOUT = Duration.from_days(30)

_PATIENCE = create_retry_strategy(
    RetryStrategyConfig(
        max_attempts=6,
        initial_delay=Duration.from_seconds(1),
        max_delay=Duration.from_seconds(30),
        backoff_rate=2.0,
        retryable_error_types=[Retryable],
    )
)
_PATIENT = StepConfig(retry_strategy=_PATIENCE)
_OBSERVING = StepConfig(retry_strategy=_PATIENCE, serdes=CompressedJson())
# An Action is tried less often in one go: the next look re-reads the truth and decides again.
_BRIEF = StepConfig(
    retry_strategy=create_retry_strategy(
        RetryStrategyConfig(
            max_attempts=3,
            initial_delay=Duration.from_seconds(1),
            max_delay=Duration.from_seconds(10),
            backoff_rate=2.0,
            retryable_error_types=[Retryable],
        )
    )
)
# The names of what is tried again: of a step that has failed, only the name of its error is kept.
_OUTAGES = {Retryable.__name__} | {kind.__name__ for kind in Retryable.__subclasses__()}
_RACE = ParallelConfig(
    completion_config=CompletionConfig.first_successful(),  # type: ignore[no-untyped-call]  # the SDK's, untyped there
    nesting_type=NestingType.FLAT,
)


class Reporter(Protocol):
    """Where outcomes go: one structured line each."""

    def __call__(self, outcome: Outcome) -> None: ...


def run_recovery(
    event: Mapping[str, Any], context: DurableContext, *, look: Observer, perform: ActionExecutor, report: Reporter
) -> dict[str, Any]:
    """Bring one Incident to its end. `event` is `{"incident_id": …, "generation": n}`.

    Returns a summary; the Incident's own record and timeline are the result that counts. Where even a later generation
    fails, and not for an outage of AWS, a person is told: the sweep starts the next one, and by itself that may go on
    for ever.
    """
    incident_id = str(event["incident_id"])
    generation = int(event.get("generation", 1))
    try:
        return _recovered(incident_id, generation, context, look=look, perform=perform, report=report)
    except Exception as err:
        if is_told(generation) and not _is_an_outage(err):
            why = f"{type(err).__name__}: {err}"
            context.step(
                lambda _: perform.tell_failing(incident_id, generation=generation, why=why),
                name="tell-failing",
                config=_BRIEF,
            )
        raise


def _is_an_outage(err: Exception) -> bool:
    """AWS could not be reached: the next generation may well go on, and a defect is none of it."""
    if isinstance(err, StepError):
        return err.error_type.rpartition(".")[2] in _OUTAGES
    return isinstance(err, Retryable)


def is_told(generation: int) -> bool:
    """Generations that tell a person when they fail: the second, then ever more seldom, at the powers of two."""
    return generation > 1 and generation & (generation - 1) == 0


def _recovered(
    incident_id: str,
    generation: int,
    context: DurableContext,
    *,
    look: Observer,
    perform: ActionExecutor,
    report: Reporter,
) -> dict[str, Any]:
    policy = pinned(context.step(lambda _: look.policy_for(incident_id).to_wire(), name="policy", config=_PATIENT))
    callback: Any = None
    results: tuple[ActionResult, ...] = ()
    due_at: datetime | None = None
    back_at: datetime | None = None
    for turn in range(MAX_TURNS):
        if callback is None:
            callback = context.create_callback(f"wake-{turn}", CallbackConfig(timeout=CALLBACK_TIMEOUT))
        seen = _observe(context, look, incident_id, generation, callback.callback_id, policy, turn)
        if seen is None:
            return {"incident_id": incident_id, "ended": "superseded"}
        before = Incident.from_wire(seen["incident"])
        observation = Observation.from_wire(seen["seen"])
        if due_at is not None and observation.observed_at - due_at >= LATE:
            back_at = observation.observed_at
        due_at = observation.observed_at  # of the next one, where nothing is waited for
        observation = replace(observation, results=results, back_at=back_at)
        decision = decide(before, observation, now=observation.observed_at, policy=policy)
        token = f"{incident_id}.{generation}.{turn}"
        changed = needs_record(before, decision, observation, quiet_limit=policy.timing.look_max)
        if changed and not _record(context, look, perform, before, decision, observation, token, turn, report):
            continue  # another execution wrote: look again, with the answers of the last Actions still in hand
        results = _act(context, perform, decision, policy, token, turn)
        known = after_accepted_start(decision.incident, observation, results)
        if known is not None:
            recorded = replace(decision.incident, version=before.version + 1)
            decision = decide(recorded, known, now=known.observed_at, policy=policy)
            token = f"{token}.answered"
            if not _record(context, look, perform, recorded, decision, known, token, f"{turn}-answered", report):
                continue
            results = _act(context, perform, decision, policy, token, f"{turn}-answered")
        if decision.look_again_in is None:
            return {"incident_id": incident_id, "ended": decision.incident.phase.value, "rule": decision.rule}
        due_at = observation.observed_at + decision.look_again_in
        if decision.look_again_in > timedelta(0) and _wait(context, callback, decision.look_again_in, turn):
            callback = None
    return {"incident_id": incident_id, "ended": "turns_exhausted"}


def _observe(
    context: DurableContext,
    look: Observer,
    incident_id: str,
    generation: int,
    callback_id: str,
    policy: Policy,
    turn: int,
) -> dict[str, Any] | None:
    def observe(_: object) -> dict[str, Any] | None:
        try:
            incident, seen = look.observe(
                incident_id, generation=generation, callback_id=callback_id, quiet_limit=policy.timing.look_max
            )
        except VersionConflict:
            return None
        return {"incident": incident.to_wire(), "seen": seen.to_wire()}

    return context.step(observe, name=f"observe-{turn}", config=_OBSERVING)


def _record(
    context: DurableContext,
    look: Observer,
    perform: ActionExecutor,
    before: Incident,
    decision: Decision,
    seen: Observation,
    token: str,
    turn: int | str,
    report: Reporter,
) -> bool:
    def record(_: object) -> bool:
        try:
            stored = look.record(before, decision, seen, token=token)
        except VersionConflict:
            return False
        report(
            Outcome(
                what=OutcomeKind.DECIDED,
                reason=decision.rule,
                incident_id=stored.incident_id,
                job_id=stored.job_id,
                facts={
                    "phase_before": before.phase.value,
                    "phase": stored.phase.value,
                    "fault": stored.fault.value,
                    "text": decision.reason[:400],
                    "actions": [action_name(action) for action in decision.actions],
                    "policy_version": decision.policy_version,
                },
            )
        )
        perform.tell_change(before, stored, why=decision.reason, token=token)
        if not stored.is_open:
            report(closed(stored, gpus=seen.gpus, clock=look.clock))
        return True

    return bool(context.step(record, name=f"record-{turn}", config=_PATIENT))


def _act(
    context: DurableContext, perform: ActionExecutor, decision: Decision, policy: Policy, token: str, turn: int | str
) -> tuple[ActionResult, ...]:
    results: list[ActionResult] = []
    for index, action in enumerate(decision.actions):
        wire = action.to_wire()
        carry_out = _one_action(perform, wire, decision.incident, policy, f"{token}.{index}")
        try:
            answer = context.step(carry_out, name=f"act-{turn}-{index}-{action_name(action)}", config=_BRIEF)
        except StepError as err:
            results.append(_unavailable(action, err))
        else:
            results.append(ActionResult.from_wire(answer))
    return tuple(results)


def _one_action(
    perform: ActionExecutor, wire: Mapping[str, Any], incident: Incident, policy: Policy, token: str
) -> Callable[[object], dict[str, Any]]:
    def act(_: object) -> dict[str, Any]:
        result = perform.act(read_action(wire), incident=incident, policy=policy, token=token)
        return result.to_wire()

    return act


def _unavailable(action: Action, err: StepError) -> ActionResult:
    """Retries are spent. Whether it took effect is not known; the next observation finds out."""
    return ActionResult(action=action_name(action), done=Done.UNAVAILABLE, detail=f"{err}"[:300])


def _wait(context: DurableContext, callback: Any, span: timedelta, turn: int) -> bool:
    """Wait for `span` or a wake, whichever comes first. True if woken."""
    seconds = max(1, round(span.total_seconds()))  # the engine waits whole seconds, at least one

    def woken(_: DurableContext) -> str:
        callback.result()
        return "woken"

    def timer(branch: DurableContext) -> str:
        branch.wait(Duration.from_seconds(seconds), name=f"timer-{turn}")
        return "timer"

    first = context.parallel([woken, timer], name=f"wait-{turn}", config=_RACE)
    return "woken" in first.get_results()


def closed(incident: Incident, *, gpus: Maybe[int], clock: Clock) -> Outcome:
    """The Outcome of an Incident that has just closed. `gpus`: how big its run is, by the last observation."""
    from chalicelib.domain.reporting.ledger import ledger_of  # loaded once an Incident closes
    from chalicelib.domain.reporting.prices import NO_PRICES

    ledger = ledger_of(incident, size=JobSize(gpus=gpus), prices=NO_PRICES, now=clock.now())
    figures = {
        MTTD_S: ledger.mttd_s,
        MTTR_S: ledger.mttr_s,
        GPU_HOURS_LOST: ledger.gpu_hours_lost,
        GPU_HOURS_SAVED: ledger.gpu_hours_saved,
    }
    return Outcome(
        what=OutcomeKind.CLOSED,
        reason=incident.outcome,
        incident_id=incident.incident_id,
        job_id=incident.job_id,
        facts={
            "fault": incident.fault.value,
            "phase": incident.phase.value,
            **{name: round(value.value, 3) for name, value in figures.items() if isinstance(value, Known)},
        },
    )


@lru_cache(maxsize=4)  # one service a process, but for tests that build several
def durable_recovery(
    look: Observer, perform: ActionExecutor, report: Reporter, *, client: Any = None
) -> Callable[[Any, Any], Any]:
    """The handler (event, Lambda context) of one service.

    client: boto3's client of Lambda, by which the SDK keeps its checkpoints; else it makes one that waits 55 s for each
    of five attempts, longer than the function may last.
    """

    def recover(event: Any, context: DurableContext) -> Any:
        return run_recovery(event, context, look=look, perform=perform, report=report)

    return durable_execution(recover, boto3_client=client)
