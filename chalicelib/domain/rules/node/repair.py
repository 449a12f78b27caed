"""The later phases of a node's Incident: draining, repairing, checking, returning."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

from chalicelib.domain.decision.verdict import Decision, Look, result, span_word, subject
from chalicelib.domain.model.action import Action, CordonNode, Done, Notify, Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.node import (
    GroupRole,
    InstanceState,
    Machines,
    NodeRecovery,
    held_by,
    is_empty,
    is_marked,
    is_ours,
)
from chalicelib.domain.model.node_actions import CheckNode, MoveRuns, RebootNode, ReplaceNode, UncordonNode
from chalicelib.domain.model.node_findings import Finding, FindingKind
from chalicelib.domain.model.repair import (
    MAX_ORDERS,
    REPEAT_AFTER,
    Route,
    Rung,
    Step,
    StepState,
    failure_word,
    leading,
    next_rung,
    route_of,
    within,
)
from chalicelib.domain.node.memory import (
    current_id,
    facts_of,
    findings_about_now,
    has_our_drain,
    instance_seen,
    is_back_in_service,
    is_out_of_scheduling,
    is_running,
    is_well,
    note,
    repair_of,
    slurm_state,
    state_of_the_node,
    unchanged_for,
    unread,
    view_of,
    wait,
    waiting_order,
)
from chalicelib.domain.node.repair_budget import are_many_down, many_down
from chalicelib.domain.rules.node.hardware import came_back, refused_as_lemon

_MAX_REFUSALS = 2  # an order that waited too long is refused, and given once more
DOWN_SETTLES = timedelta(minutes=2)
_STEADY = 3  # a repair that keeps changing its state, and never ends, is stuck too: so many limits long


def draining(look: Look) -> Decision:
    """Out of scheduling, and waiting until no job is on it. No job is ever stopped from here."""
    missing = unread(look, "drain")
    if missing is not None:
        return missing
    facts = facts_of(look)
    assert facts is not None  # noqa: S101  unread() has just said so; this tells the type checker
    other = held_by(facts)
    if other is not None:
        reason = f"Somebody else has taken it out of service meanwhile: {other}. It is left alone."
        return look.hand_over("drain.held_by_other", reason, severity=Severity.WARNING)
    # The health agent's mark keeps jobs away as well, where nobody else acts on it.
    is_marked_only = is_marked(facts) and view_of(look).recovery is NodeRecovery.NONE
    if not (is_ours(facts) or (is_marked_only and is_out_of_scheduling(facts))):
        return _not_cordoned(look)
    if not is_empty(facts):
        if look.in_phase >= look.policy.nodes.drain_limit:
            return look.hand_over(
                "drain.limit",
                f"jobs are still on it after {span_word(look.in_phase)}, and none is ever killed for a repair."
                f" {state_of_the_node(look)}",
            )
        look, moves = _moved_off(look)
        rule = "drain.move" if moves else "drain.waiting"
        return wait(look, rule, f"it is cordoned, and jobs are still on it: {slurm_state(facts)}", *moves)
    return _settling(look) or begin_repair(look, findings_about_now(look))


def _settling(look: Look) -> Decision | None:
    """Slurm alone says that it is away, and only just: a switch that restarts looks the same, and is over soon."""
    found = findings_about_now(look)
    lead, instance = leading(found), instance_seen(look)
    if lead is None or lead.kind is not FindingKind.DOWN or lead.by_platform or waiting_order(look) is not None:
        return None
    if instance is not None and instance.state is InstanceState.FAILURE:
        return None
    left = DOWN_SETTLES - (look.now - min(one.at for one in found if one.kind is FindingKind.DOWN))
    if left <= timedelta(0):
        return None
    said = f"it is cordoned and empty; Slurm has not reached it for less than {span_word(DOWN_SETTLES)}"
    return wait(look, "drain.settling", said, soon=left)


def _moved_off(look: Look) -> tuple[Look, tuple[MoveRuns, ...]]:
    """Protected runs are asked, once, to save and go on elsewhere, where a person has ordered the repair.

    Where hardware has failed each run's own Incident does that by itself. Only now that the node is cordoned: before,
    they could be given it again.
    """
    order, repair = waiting_order(look), repair_of(look)
    is_lost = result(look, "MoveRuns", Done.UNAVAILABLE) is not None
    if order is None or ("drain.move" in repair.told and not is_lost):
        return look, ()
    move = MoveRuns(
        cluster=look.incident.cluster or "",
        node=look.incident.node or "",
        number=int(order.at.timestamp()),
        who=order.who,
        why=order.said,
    )
    return note(look, told=tuple(dict.fromkeys((*repair.told, "drain.move")))), (move,)


def _not_cordoned(look: Look) -> Decision:
    action = CordonNode(
        cluster=look.incident.cluster or "", node=look.incident.node or "", why=look.incident.fault_rule
    )
    return _ordered_again(look, action, "drain.cordon", "it is not cordoned yet")


def _ordered_again(look: Look, action: CordonNode | UncordonNode, rule: str, reason: str) -> Decision:
    """Give the same order again, which is one order; a new one where the agent's answer was no."""
    answered = result(look, type(action).__name__, Done.REFUSED, Done.UNAVAILABLE)
    repair = repair_of(look)
    if answered is not None:
        if answered.done is Done.REFUSED and repair.refusals + 1 >= _MAX_REFUSALS:
            return look.hand_over(f"{rule}_refused", f"{reason}: {answered.detail}. {state_of_the_node(look)}")
        refusals = repair.refusals + (answered.done is Done.REFUSED)
        look = note(look, serial=repair.serial + 1, refusals=refusals)
    if look.in_phase >= look.policy.nodes.stuck_limit:
        return look.hand_over(f"{rule}_limit", f"{reason}, for {span_word(look.in_phase)}. {state_of_the_node(look)}")
    return wait(look, rule, reason, action)


# ---- the repair ------------------------------------------------------------------------------------------------------


def begin_repair(look: Look, findings: tuple[Finding, ...]) -> Decision:
    """Order the next rung of the ladder, for the instance that stands there now."""
    view, instance, repair, facts = view_of(look), instance_seen(look), repair_of(look), facts_of(look)
    other = held_by(facts) if facts is not None else None
    if other is not None:
        reason = f"Somebody else has taken it out of service meanwhile: {other}. It is left alone."
        return look.hand_over("repair.held_by_other", reason, severity=Severity.WARNING)
    if view.role in (GroupRole.CONTROLLER, GroupRole.LOGIN):
        return look.hand_over("repair.controller", f"it is a {view.role} node, which no program repairs")
    if (many := many_down(look)) is not None:
        return _not_now(look, many)
    rung, why = next_rung(repair, findings, now=look.now)
    if rung is None:
        return look.hand_over("repair.ladder_end", f"{why}. {state_of_the_node(look)}")
    # The policy bounds what is done by itself; what a person ordered is that person's business.
    if waiting_order(look) is None and not within(rung, look.policy.nodes.repair):
        reason = f"it should be {_DONE[rung]} ({why}), which the policy ({look.policy.nodes.repair}) does not allow."
        return look.hand_over("repair.not_allowed", f"{reason} {state_of_the_node(look)}")
    if view.machines is Machines.UNKNOWN:
        return _not_now(look, "it is not known what the cluster runs on")
    route = route_of(look.policy.nodes.route, rung, view.machines, view.recovery)
    if route is None:
        reason = f"it should be {_DONE[rung]} ({why}), and nothing on this cluster can do that by itself."
        return look.hand_over("repair.no_way", f"{reason} {state_of_the_node(look)}")
    if route is not Route.SLURM_REBOOT:
        blocked = _api_blocked(look)
        if blocked is not None:
            return blocked
    instance_id = instance.instance_id if instance is not None else current_id(look)
    step = Step(number=len(repair.steps) + 1, rung=rung, route=route, at=look.now, instance_id=instance_id)
    look = note(look, steps=(*repair.steps, step), refusals=0)
    reason = f"It is cordoned and empty. {_DOES[rung]} ({route}): {why}"
    told = Notify(severity=Severity.WARNING, title=f"{subject(look)}: {_DOES[rung]}", text=reason)
    return wait(look, f"repair.{rung}", reason, _order(look, step, why), told, phase=Phase.REPAIRING)


_DOES = {Rung.REBOOT: "rebooting it", Rung.REPLACE: "replacing it"}
_DONE = {Rung.REBOOT: "rebooted", Rung.REPLACE: "replaced"}


def _order(look: Look, step: Step, why: str) -> Action:
    kind = RebootNode if step.rung is Rung.REBOOT else ReplaceNode
    return kind(
        cluster=look.incident.cluster or "",
        node=look.incident.node or "",
        instance_id=step.instance_id,
        route=step.route,
        number=step.number,
        why=why[:300],
    )


def _not_now(look: Look, reason: str) -> Decision:
    if look.in_phase >= look.policy.nodes.drain_limit or unchanged_for(look) >= look.policy.nodes.stuck_limit:
        return look.hand_over("repair.blocked_limit", f"{reason}, for too long. {state_of_the_node(look)}")
    return wait(look, "repair.blocked", f"not yet: {reason}")


def _api_blocked(look: Look) -> Decision | None:
    """HyperPod takes such an order only for an instance that it knows, and while nothing else goes on there."""
    view = view_of(look)
    if isinstance(view.instance, Unknown):
        return _not_now(look, f"its instance cannot be read: {view.instance.why}")
    if view.instance.value is None:
        return _not_now(look, "HyperPod names no instance for it")
    if view.instance.value.state not in (InstanceState.RUNNING, InstanceState.FAILURE):
        return _not_now(look, f"its instance is {view.instance.value.state}")
    if not isinstance(view.cluster, Known) or view.cluster.value is None:
        return _not_now(look, "the HyperPod cluster cannot be read")
    if view.cluster.value.status != "InService":
        return _not_now(look, f"the cluster is {view.cluster.value.status}, and repairs only while it is InService")
    return None


def repairing(look: Look) -> Decision:
    """Ordered, and waiting for both views to say that it is well."""
    look = _answered(look)
    repair = repair_of(look)
    step = repair.step
    if step is None:
        return look.hand_over("repair.misplaced", "nothing was ordered, and yet a repair is waited for")
    if step.state is StepState.REFUSED:
        return _refused(look, step)
    order = waiting_order(look)
    if order is not None:
        return escalate(look, order.said)
    again = repeated(look, step)
    if again is not None:
        return escalate(look, f"it was seen again after the {step.rung}: {again.said}")
    back = came_back(look, step)
    if back is not None:
        return refused_as_lemon(look, back) or _asked_anew(look, step, back, rule="repair.lemon")
    if _is_done(look, step):
        return _well_again(look, step)
    failed = _failed(look, step) or _marked_by_them(look, step)
    if failed is not None:
        return failed
    age = look.now - step.at
    stuck = unchanged_for(look) >= look.policy.nodes.stuck_limit or age >= _STEADY * look.policy.nodes.stuck_limit
    if stuck:
        reason = f"the {step.rung} stands still: nothing has changed for {span_word(unchanged_for(look))}."
        return look.hand_over("repair.stuck", f"{reason} {state_of_the_node(look)}")
    if step.state is StepState.ASKED:  # whoever asked was stopped before it was known what came of it
        return wait(look, "repair.asked", f"asking for the {step.rung}", _order(look, step, "asked before"))
    if step.state is StepState.DOUBTFUL and age >= look.policy.nodes.settle and _shows_nothing(look, step):
        return _asked_anew(look, step)
    if step.rung is Rung.REBOOT and age >= look.policy.nodes.reboot_limit:
        return _not_well_yet(look, age)
    return wait(look, "repair.waiting", f"the {step.rung} is under way: {state_of_the_node(look)}")


def _answered(look: Look) -> Look:
    """What came of the order, as far as it has been told."""
    step = repair_of(look).step
    if step is None or step.state is StepState.REFUSED:
        return look
    name = "RebootNode" if step.rung is Rung.REBOOT else "ReplaceNode"
    answer = next((one for one in look.seen.results if one.action == name), None)
    if answer is None or answer.done is Done.PENDING:
        return look
    state = {Done.DONE: StepState.TAKEN, Done.ALREADY: StepState.TAKEN, Done.REFUSED: StepState.REFUSED}
    # A refusal of a repetition does not undo that it was taken once.
    new = state.get(answer.done, StepState.DOUBTFUL)
    if step.state is StepState.TAKEN:
        return look
    return look.changed(repair=repair_of(look).with_step(state=new))


def _refused(look: Look, step: Step) -> Decision:
    said = next((one.detail for one in look.seen.results if one.detail), "no reason given")
    if step.rung is Rung.REBOOT:
        return escalate(look, f"the reboot was refused: {said}")
    return look.hand_over("repair.refused", f"the replacement was refused: {said}. {state_of_the_node(look)}")


def repeated(look: Look, step: Step) -> Finding | None:
    """A fault of the hardware as it came back from the repair."""
    return next(
        (
            one
            for one in reversed(findings_about_now(look))
            if one.kind.is_of_the_hardware
            and one.at > step.at + REPEAT_AFTER
            and (step.rung is Rung.REBOOT or (one.instance_id is not None and one.instance_id != step.instance_id))
        ),
        None,
    )


def _not_well_yet(look: Look, age: timedelta) -> Decision:
    """The next rung. Where Slurm reaches hardly any node, and HyperPod says that this one runs, nothing is known."""
    if are_many_down(look) and is_running(look):
        reason = f"the reboot is {span_word(age)} ago, and HyperPod says that it runs"
        return wait(look, "repair.waiting", f"{reason}; but Slurm reaches too few nodes to say that it is not well")
    return escalate(look, f"it is not well {span_word(age)} after the reboot")


def escalate(look: Look, why: str) -> Decision:
    """The next rung, for what the last one did not cure."""
    rung, _ = next_rung(repair_of(look), findings_about_now(look), now=look.now)
    if rung is None:
        return look.hand_over("repair.ladder_end", f"{why}. {state_of_the_node(look)}")
    facts = facts_of(look)
    if facts is None or not is_empty(facts):
        return _not_now(look, f"{why}; but jobs may be on it")
    decision = begin_repair(look, findings_about_now(look))
    return dataclasses.replace(decision, reason=f"{why[:1].upper()}{why[1:]}. {decision.reason}")


def _is_done(look: Look, step: Step) -> bool:
    """Well by both views, and really repaired: another instance, or a reboot that was seen or must be over by now."""
    if step.state in (StepState.ASKED, StepState.DOUBTFUL) and _shows_nothing(look, step):
        return False
    after_reboot = step.rung is Rung.REBOOT
    if not is_well(look, after_reboot=after_reboot) and not is_back_in_service(look):
        return False
    if step.rung is Rung.REPLACE:
        now_id = current_id(look)
        return now_id is not None and now_id != step.instance_id
    return step.disturbed or look.now - step.at >= look.policy.nodes.settle


def _shows_nothing(look: Look, step: Step) -> bool:
    return not step.disturbed and is_running(look) and current_id(look) in (None, step.instance_id)


def _failed(look: Look, step: Step) -> Decision | None:
    """The instance is in Failure. Its message counts only if it is of this very repair: it is sticky."""
    instance = instance_seen(look)
    if instance is None or instance.state is not InstanceState.FAILURE:
        return None
    if look.now - step.at < min(REPEAT_AFTER, look.policy.nodes.settle):
        return None
    if step.rung is Rung.REBOOT:
        return escalate(look, f"its instance failed after the reboot: {instance.message or 'no reason given'}")
    if instance.instance_id == step.instance_id:
        return None  # still the old one: the order has not taken effect yet
    word = failure_word(instance.message)
    if word is None:
        return None  # the service may retry by itself; a time limit ends that
    tries = sum(one.rung is Rung.REPLACE for one in repair_of(look).steps)
    if word.once_more and tries < 2:
        return _asked_anew(look, step, f"the new instance failed ({word.word}), which often passes: {instance.message}")
    reason = f"the new instance failed ({word.word}): {instance.message}. {word.source}."
    return look.hand_over("repair.failed", f"{reason} {state_of_the_node(look)}")


def _marked_by_them(look: Look, step: Step) -> Decision | None:
    """Repaired, and kept out of service by nothing but the health agent's own mark, which is not ours to lift."""
    facts, now_id = facts_of(look), current_id(look)
    if facts is None or not is_marked(facts) or view_of(look).recovery is not NodeRecovery.NONE:
        return None
    is_new = now_id != step.instance_id if step.rung is Rung.REPLACE else look.now - step.at >= look.policy.nodes.settle
    if not (is_new and is_running(look)) or unchanged_for(look) < look.policy.nodes.settle:
        return None
    command = f"scontrol update nodename={look.incident.node} state=resume"
    reason = f"it is {_DONE[step.rung]} and runs, and only the health agent's mark {facts.reason} keeps jobs away"
    return look.hand_over("repair.marked", f"{reason}; that is not ours to lift: {command}", severity=Severity.WARNING)


def _asked_anew(
    look: Look, step: Step, why: str = "nothing shows that the order was taken", *, rule: str = "repair.again"
) -> Decision:
    """The same rung once more, for the instance that stands there now."""
    repair = repair_of(look)
    if sum(one.rung is step.rung for one in repair.steps) >= MAX_ORDERS:
        return look.hand_over("repair.no_effect", f"{why}, {MAX_ORDERS} times. {state_of_the_node(look)}")
    fresh = Step(
        number=len(repair.steps) + 1, rung=step.rung, route=step.route, at=look.now, instance_id=current_id(look)
    )
    look = note(look, steps=(*repair.steps, fresh))
    return wait(look, rule, f"{why}; asking once more for the {step.rung}", _order(look, fresh, why))


# ---- check, and give back --------------------------------------------------------------------------------------------


def _well_again(look: Look, step: Step) -> Decision:
    look = look.changed(repair=repair_of(look).with_step(state=StepState.TAKEN, back_at=look.now))
    took = span_word(look.now - step.at)
    reason = f"{_DONE[step.rung]} in {took}; HyperPod and Slurm both say that it is well"
    instance = instance_seen(look)
    if look.policy.nodes.deep_health_check and instance is not None and instance.group:
        return _check(look, reason)
    return _give_back(look, reason)


def _check(look: Look, reason: str) -> Decision:
    instance = instance_seen(look)
    assert instance is not None  # noqa: S101  asked for by whoever calls
    number = repair_of(look).health_check + 1
    action = CheckNode(
        cluster=look.incident.cluster or "",
        node=look.incident.node or "",
        instance_id=instance.instance_id,
        group=instance.group,
        number=number,
    )
    look = note(look, health_check=number, check_seen=False)
    phase = None if look.incident.phase is Phase.CHECKING else Phase.CHECKING
    return wait(look, "check.begin", f"{reason}; a deep health check is asked for", action, phase=phase)


def checking(look: Look) -> Decision:
    """A deep health check is under way, or waits until another of the cluster is over."""
    repair, instance = repair_of(look), instance_seen(look)
    step = repair.step
    if step is None:
        return look.hand_over("check.misplaced", "nothing was repaired, and yet it is checked")
    order = waiting_order(look)
    if order is not None:
        return escalate(look, order.said)
    again = repeated(look, step)
    is_failed = instance is not None and instance.state is InstanceState.FAILURE
    if again is not None or is_failed:
        why = f"the health check failed: {instance.message}" if is_failed and instance else "it was seen again"
        return escalate(look, why)
    if look.in_phase >= look.policy.nodes.health_check_limit:
        return look.hand_over("check.limit", f"the health check has not ended. {state_of_the_node(look)}")
    refused = result(look, "CheckNode", Done.REFUSED)
    if refused is not None and is_well(look, after_reboot=True):
        return _give_back(
            look, f"the deep health check was refused ({refused.detail}); HyperPod and Slurm say it is well"
        )
    busy = result(look, "CheckNode", Done.CAPACITY, Done.UNAVAILABLE)
    if busy is not None and not repair.check_seen:
        return _check(look, f"no check could be begun: {busy.detail}")
    is_over = repair.check_seen or look.in_phase >= 2 * look.policy.nodes.settle
    if is_over and is_well(look, after_reboot=True):
        return _give_back(look, "the deep health check has found nothing")
    return wait(look, "check.waiting", f"the deep health check is under way: {state_of_the_node(look)}")


def _give_back(look: Look, reason: str) -> Decision:
    if is_back_in_service(look):
        return look.close("return.done", _ended(look, reason), Phase.RECOVERED, severity=Severity.INFO)
    action = UncordonNode(cluster=look.incident.cluster or "", node=look.incident.node or "", why="repaired")
    look = note(look, serial=repair_of(look).serial + 1, refusals=0)
    return wait(
        look,
        "return.uncordon",
        f"{reason}; our drain is lifted",
        action,
        phase=Phase.RETURNING,
        soon=look.policy.timing.look_min,
    )


def returning(look: Look) -> Decision:
    """Our drain is being lifted; only ours ever is."""
    missing = unread(look, "return")
    if missing is not None:
        return missing
    facts, step = facts_of(look), repair_of(look).step
    assert facts is not None  # noqa: S101  unread() has just said so; this tells the type checker
    order = waiting_order(look)
    if order is not None and not repair_of(look).theirs:  # what others have just done is not done once more
        serial = repair_of(look).serial + 1
        cordon = CordonNode(cluster=look.incident.cluster or "", node=look.incident.node or "", why="ordered")
        reason = f"{order.said}; it gets no jobs again until that is done"
        return wait(note(look, serial=serial, refusals=0), "return.ordered", reason, cordon, phase=Phase.DRAINING)
    again = repeated(look, step) if step is not None and step.back_at is not None else None
    if again is not None:
        serial = repair_of(look).serial + 1
        cordon = CordonNode(cluster=look.incident.cluster or "", node=look.incident.node or "", why=again.kind.value)
        reason = f"it was seen again: {again.said}; it is cordoned again"
        return wait(note(look, serial=serial, refusals=0), "return.seen_again", reason, cordon, phase=Phase.DRAINING)
    if is_back_in_service(look):
        return look.close("return.done", _ended(look, "it is back in service"), Phase.RECOVERED, severity=Severity.INFO)
    other = held_by(facts)
    if other is not None:
        reason = f"somebody else has taken it out of service: {other}. Only our own drain is ever lifted."
        return look.hand_over("return.held_by_other", reason, severity=Severity.WARNING)
    if has_our_drain(look):
        action = UncordonNode(cluster=look.incident.cluster or "", node=look.incident.node or "", why="repaired")
        return _ordered_again(look, action, "return.uncordon", "our drain is not lifted yet")
    if unchanged_for(look) >= look.policy.nodes.stuck_limit:
        return look.hand_over("return.stuck", f"it does not come back into service. {state_of_the_node(look)}")
    return wait(look, "return.waiting", f"the drain is lifted; waiting for Slurm: {slurm_state(facts)}")


def _ended(look: Look, reason: str) -> str:
    repair = repair_of(look)
    done = [f"{_DONE[one.rung]} {one.instance_id or ''}".strip() for one in repair.steps if one.back_at is not None]
    now_id = current_id(look)
    what = f"{', then '.join(done)}; " if done else f"{repair.theirs.what}, not by us; " if repair.theirs else ""
    instance = f" as {now_id}" if now_id and now_id != repair.instance_id else ""
    return f"{what}{reason}{instance}. {state_of_the_node(look)}"
