"""Services with one mechanism switched off, and sources that say what is not so: what the judge must catch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from chalicelib.domain.model.action import ActionResult, Done, ResubmitJob, action_name
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.node import Load, NodeView
from chalicelib.domain.model.observation import AttemptStatus, AttemptView
from localcloud.memory_ports import OnePolicy
from simulation.stages.world import World
from tests.domain.policies import changed


class Over:
    """A part with some of its methods replaced; all else is the part's own."""

    def __init__(self, part: Any, **methods: Callable[..., Any]) -> None:
        self._part = part
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)


def _scheduled(world: Any, **makers: Callable[[Any], Any]) -> None:
    """Each platform's Scheduler with methods replaced: a maker is given the real one and returns the method."""
    part = world.scheduler

    def over(one: Any) -> Over:
        return Over(one, **{name: make(one) for name, make in makers.items()})

    world.scheduler = Over(part, of=lambda name: over(part.of(name)), of_name=lambda name: over(part.of_name(name)))


def _described(world: World, change: Callable[[AttemptView], AttemptView]) -> None:
    _scheduled(world, describe=lambda one: lambda name: change(one.describe(name)))


def _beating(world: World, change: Callable[[AttemptView], AttemptView]) -> None:
    part = world.mailbox
    world.mailbox = Over(part, heartbeat=lambda job, attempt: change(part.heartbeat(job, attempt)))


def stopping_is_taken_for_stopped(world: World) -> None:
    """A new attempt no longer waits for the end of the old one, nor looks for one that lives."""

    def change(view: AttemptView) -> AttemptView:
        is_stopping = view.status is AttemptStatus.STOPPING
        return replace(view, status=AttemptStatus.STOPPED, ended_at=world.clock.now()) if is_stopping else view

    _described(world, change)
    _scheduled(world, siblings=lambda _: lambda job, **more: ())


def no_other_start_is_looked_for(world: World) -> None:
    """Neither by the service, in lists, mailboxes, chains and other Jobs, nor by the agent right before its start."""
    assert world.cluster is not None
    world.cluster.head.agent.orders.check_beside = lambda old: None  # type: ignore[method-assign]
    world.registry = Over(world.registry, active=lambda **_: iter(()))
    world.mailbox = Over(world.mailbox, heartbeat_times=lambda job: {})
    _scheduled(
        world,
        siblings=lambda _: lambda job, **more: (),
        missed=lambda _: lambda job, **more: None,
        platform=lambda one: replace(one.platform, holds_own_queue=False),
    )


def what_waits_is_not_told_of_the_next_start(world: World) -> None:
    """By the agent."""
    assert world.cluster is not None
    world.cluster.head.agent.orders.wait_for = lambda new, **more: None  # type: ignore[method-assign]


def every_run_is_said_to_be_stalled(world: World) -> None:
    _beating(world, lambda view: replace(view, work="stalled") if view.heartbeat_at is not None else view)


def starts_in_place_are_not_seen(world: World) -> None:
    """What has hung once in its first life is said to stand there still."""

    def change(view: AttemptView) -> AttemptView:
        return replace(view, life=0, work="stalled") if view.life and view.heartbeat_at is not None else view

    _beating(world, change)


def the_breaker_does_not_count(world: World) -> None:
    world.registry = Over(world.registry, will_act=lambda *_, **__: 1)


def checkpoints_are_not_verified(world: World) -> None:
    part = world.mailbox

    def checkpoints(job: Any, attempts: Any, **more: Any) -> Known[Any]:
        found = part.checkpoints(job, attempts, **more).value
        return Known(tuple(replace(one, problems=(), fenced=False) for one in found))

    world.mailbox = Over(part, checkpoints=checkpoints)


def the_newest_checkpoint_is_not_listed(world: World) -> None:
    part = world.mailbox

    def checkpoints(job: Any, attempts: Any, **more: Any) -> Known[Any]:
        return Known(part.checkpoints(job, attempts, **more).value[1:])

    world.mailbox = Over(part, checkpoints=checkpoints)


def every_crash_is_read_as_a_corrupt_checkpoint(world: World) -> None:
    corrupt = "AlgorithmError: PytorchStreamReader failed reading zip archive: failed finding central directory"
    _described(world, lambda view: replace(view, failure_reason=corrupt) if view.failure_reason else view)


def the_heartbeats_of_our_attempts_are_well_and_far(world: World) -> None:
    def change(view: AttemptView) -> AttemptView:
        attempt = world.training.attempts.get(view.name)
        if attempt is None or not attempt.is_ours or not isinstance(view.last_step, Known):
            return view
        far = Known(view.last_step.value + 500)
        return replace(view, last_step=far, loss_state="finite", work="training", loss_health="ok")

    _beating(world, change)


def the_sweep_does_nothing(world: World) -> None:
    world.sweep = Over(world.sweep, run=lambda: None)


def a_heartbeat_says_diverging(world: World) -> None:
    def change(view: AttemptView) -> AttemptView:
        if view.heartbeat_at is None or not isinstance(view.last_step, Known) or view.last_step.value < 30:
            return view
        return replace(view, loss_health="diverging", onset_step=25)

    _beating(world, change)


def the_budget_is_boundless(world: World) -> None:
    policy = changed(world.policy, budgets={"max_no_progress": 20, "max_attempts": 100})
    world.look = replace(world.look, policies=OnePolicy(policy))


def an_owners_stop_is_read_as_a_failure(world: World) -> None:
    def change(view: AttemptView) -> AttemptView:
        if view.status is not AttemptStatus.STOPPED:
            return view
        return replace(view, status=AttemptStatus.FAILED, failure_reason="InternalServerError: try again")

    _described(world, change)


def a_defect_in_reading_the_job(world: World) -> None:
    """Not in reading the run's own documents: a part of an observation that cannot be read is Unknown."""
    part = world.registry

    def standing(job_id: Any) -> Any:
        if part.get(job_id).open_incident is not None:
            raise ZeroDivisionError("a defect")
        return part.standing(job_id)

    world.registry = Over(part, standing=standing)


def the_first_step_is_not_looked_at(world: World) -> None:
    def change(view: AttemptView) -> AttemptView:
        attempt = world.training.attempts.get(view.name)
        if attempt is None or attempt.plan.step is None or not isinstance(view.last_step, Known):
            return view
        far = max(view.last_step.value, attempt.plan.step + 1)
        return replace(view, first_step=Known(attempt.plan.step + 1), last_step=Known(far))

    _beating(world, change)


def _viewed(world: World, change: Callable[[NodeView], NodeView]) -> None:
    part = world.nodes

    def view(incident: Any) -> Any:
        seen = part.view(incident)
        return Known(change(seen.value)) if isinstance(seen, Known) else seen

    world.nodes = Over(part, view=view)


def many_nodes_down_count_as_one(world: World) -> None:
    _viewed(world, lambda view: replace(view, down=min(view.down, 1)))


def no_word_about_nodes_is_doubted(world: World) -> None:
    def change(view: NodeView) -> NodeView:
        load = view.load
        return replace(view, load=Known(replace(load.value, doubted_by=()))) if isinstance(load, Known) else view

    _viewed(world, change)


def nodes_in_repair_are_not_counted(world: World) -> None:
    def change(view: NodeView) -> NodeView:
        return replace(view, load=Known(Load(ahead=0, last_day=0))) if isinstance(view.load, Known) else view

    _viewed(world, change)


def the_other_stage_takes_every_run_for_its_own(world: World) -> None:
    assert world.beside is not None
    _scheduled(world.beside, discover=lambda one: one.find, siblings=lambda _: lambda job, **more: ())


def a_bad_loss_is_dated_a_hundred_steps_late(world: World) -> None:
    """And what a manifest says of poison is not read."""
    checkpoints_are_not_verified(world)
    _beating(world, lambda view: replace(view, onset_step=view.onset_step and view.onset_step + 100))
    ingress = world.ingress

    def take(kind: str, event: Any) -> Any:
        detail = event["detail"]
        if event["detail-type"] == "Rekindle Non-Finite Loss":
            event = event | {"detail": detail | {"step": detail["step"] + 100}}
        return ingress.take(kind, event)

    world.ingress = Over(ingress, take=take)


def another_run_s_checkpoints_are_listed(world: World) -> None:
    part = world.mailbox

    def checkpoints(job: Any, attempts: Any, **more: Any) -> Known[Any]:
        found = part.checkpoints(job, attempts, **more).value
        return Known(
            tuple(
                replace(checkpoint, root=checkpoint.root.replace("/step-", "/of-another-step-")) for checkpoint in found
            )
        )

    world.mailbox = Over(part, checkpoints=checkpoints)


def deaths_for_want_of_memory_are_read_as_the_platform_s(world: World) -> None:
    error = "InternalServerError: try again"
    _described(world, lambda view: replace(view, failure_reason=error) if view.failure_reason else view)


def repairs_of_a_day_are_not_counted(world: World) -> None:
    _viewed(world, lambda view: replace(view, load=Known(Load(ahead=0, last_day=0))))


def the_end_of_an_incident_is_not_kept(world: World) -> None:
    part = world.store

    def record(incident: Any, **more: Any) -> Any:
        return part.record(incident, **more) if incident.is_open else incident

    world.store = Over(part, record=record)


def a_pause_is_not_read(world: World) -> None:
    part = world.registry

    def standing(job_id: Any) -> Any:
        found = part.standing(job_id)
        return replace(found, switches=replace(found.switches, paused=False))

    world.registry = Over(part, standing=standing)


def an_interruption_is_read_as_a_stall(world: World) -> None:
    def change(view: AttemptView) -> AttemptView:
        attempt = world.training.attempts.get(view.name)
        if attempt is None or not attempt.waits_for_itself:
            return view
        return replace(view, status=AttemptStatus.RUNNING, work="stalled", heartbeat_at=world.clock.now())

    _described(world, change)
    _beating(world, change)


def auto_resume_is_not_read(world: World) -> None:
    def change(view: AttemptView) -> AttemptView:
        return replace(view, start=replace(view.start, has_auto_resume=False)) if view.start is not None else view

    _described(world, change)


def a_run_is_stopped_for_a_notice(world: World) -> None:
    """At once, without a save: every node that is announced to leave is taken for one that stands still."""
    world.training.requests.asked = lambda key, name: None  # type: ignore[method-assign]

    def change(view: AttemptView) -> AttemptView:
        attempt = world.training.attempts.get(view.name)
        if attempt is None or not any(node.is_announced(world.clock.now()) for node in attempt.nodes):
            return view
        return replace(view, work="stalled") if view.heartbeat_at is not None else view

    _beating(world, change)


def a_denial_is_read_as_an_approval(world: World) -> None:
    part = world.intake

    def cancel(incident_id: str, signal: Any) -> Any:
        given = {**signal.evidence, "answer": "approved"}
        return part.cancel(incident_id, replace(signal, evidence=given))

    world.approvals = replace(world.approvals, intake=Over(part, cancel=cancel))


def every_manifest_is_taken_for_the_run_s(world: World) -> None:
    """Every checkpoint that lies there, with whichever name."""
    checkpoints_are_not_verified(world)
    part = world.mailbox

    def checkpoints(job: Any, attempts: Any, **more: Any) -> Known[Any]:
        found = part.checkpoints(job, attempts, **more).value
        roots = {
            checkpoint.step: f"{job.mailbox}/checkpoints/step-{checkpoint.step}-{checkpoint.attempt}"
            for checkpoint in found
        }
        return Known(tuple(replace(checkpoint, root=checkpoint.root or roots[checkpoint.step]) for checkpoint in found))

    world.mailbox = Over(part, checkpoints=checkpoints)


def performed(world: World, action_type: type, answer: Done) -> None:
    """Each Action of this type is answered so, and not carried out."""
    part = world.perform

    def act(action: Any, **more: Any) -> ActionResult:
        if isinstance(action, action_type):
            return ActionResult(action=action_name(action), done=answer, detail="it is switched off")
        return part.act(action, **more)

    world.perform = Over(part, act=act)


def nothing_is_ever_resubmitted(world: World) -> None:
    performed(world, ResubmitJob, Done.REFUSED)


def no_node_is_left_out(world: World) -> None:
    part = world.perform

    def act(action: Any, **more: Any) -> ActionResult:
        return part.act(replace(action, exclude=()) if isinstance(action, ResubmitJob) else action, **more)

    world.perform = Over(part, act=act)


def capacity_is_waited_for_without_end(world: World) -> None:
    limits = {"capacity_limit": timedelta(days=7)}
    world.look = replace(world.look, policies=OnePolicy(changed(world.policy, resubmission=limits)))
    performed(world, ResubmitJob, Done.CAPACITY)


def no_living_attempt_is_seen_beside_ours(world: World) -> None:
    _scheduled(world, siblings=lambda _: lambda job, **more: ())


def a_rise_of_the_loss_is_dated_two_hundred_steps_late(world: World) -> None:
    """Further than a policy goes back before the onset: what was saved within the rise is resumed from."""
    _beating(world, lambda view: replace(view, onset_step=view.onset_step and view.onset_step + 200))
    ingress = world.ingress

    def take(kind: str, event: Any) -> Any:
        detail = event["detail"]
        if "onset_step" in detail:
            event = event | {"detail": detail | {"onset_step": detail["onset_step"] + 200}}
        return ingress.take(kind, event)

    world.ingress = Over(ingress, take=take)


def stretches_of_bad_loss_are_forgotten(world: World) -> None:
    part = world.store

    def record(incident: Any, **more: Any) -> Any:
        return part.record(incident.changed(stretches=()), **more)

    world.store = Over(part, record=record)


def a_run_is_stopped_whatever_it_does_by_then(world: World) -> None:
    """What was reported once is never taken back: a heartbeat that stood still keeps standing still."""
    stalled: set[str] = set()

    def change(view: AttemptView) -> AttemptView:
        if view.work == "stalled":
            stalled.add(view.name)
        return replace(view, work="stalled") if view.name in stalled and view.heartbeat_at is not None else view

    _beating(world, change)
    ingress = world.ingress

    def take(kind: str, event: Any) -> Any:
        return None if event["detail-type"] == "Rekindle Progress Resumed" else ingress.take(kind, event)

    world.ingress = Over(ingress, take=take)


def no_attempt_is_fenced(world: World) -> None:
    world.mailbox = Over(world.mailbox, fence=lambda job, **more: None)


def every_life_is_taken_for_the_first(world: World) -> None:
    _beating(world, lambda view: replace(view, life=0))
    ingress = world.ingress

    def take(kind: str, event: Any) -> Any:
        return ingress.take(kind, event | {"detail": {**event["detail"], "life": 0}} if kind == "event" else event)

    world.ingress = Over(ingress, take=take)


def people_hear_nothing(world: World) -> None:
    world.people = world.announcer = Over(world.people, announce=lambda *_, **__: None)


def earlier_attempts_are_forgotten(world: World) -> None:
    part = world.registry
    world.registry = Over(part, attempts=lambda job_id: part.attempts(job_id)[-1:])


# Each mechanism that a count or a row of the bill stands for, and the service without it: `make prove-judge`.
MECHANISMS: Final[Mapping[str, Callable[[World], None]]] = {
    "a run is submitted again": nothing_is_ever_resubmitted,
    "a wait for capacity ends": capacity_is_waited_for_without_end,
    "an attempt that lives is seen": no_living_attempt_is_seen_beside_ours,
    "the end of an attempt is waited for": stopping_is_taken_for_stopped,
    "the owner's stop is respected": an_owners_stop_is_read_as_a_failure,
    "a bad loss is gone back before": a_rise_of_the_loss_is_dated_two_hundred_steps_late,
    "earlier stretches of bad loss are kept": stretches_of_bad_loss_are_forgotten,
    "a stop is taken back when the run moves again": a_run_is_stopped_whatever_it_does_by_then,
    "superseded attempts are fenced": no_attempt_is_fenced,
    "a suspected node is left out": no_node_is_left_out,
    "checkpoints are verified": checkpoints_are_not_verified,
    "the newest checkpoint is listed": the_newest_checkpoint_is_not_listed,
    "the sweep finds what events do not tell": the_sweep_does_nothing,
    "budgets are kept": the_budget_is_boundless,
    "the breaker counts": the_breaker_does_not_count,
    "repairs of a day are counted": repairs_of_a_day_are_not_counted,
    "a pause is read": a_pause_is_not_read,
    "the first step of an attempt is compared with its plan": the_first_step_is_not_looked_at,
    "an interruption is told from a stall": an_interruption_is_read_as_a_stall,
    "a life is told from the one before": every_life_is_taken_for_the_first,
    "people hear of it": people_hear_nothing,
    "earlier attempts are remembered": earlier_attempts_are_forgotten,
    "a recovery is verified": the_heartbeats_of_our_attempts_are_well_and_far,
}
