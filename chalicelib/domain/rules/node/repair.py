"""The later phases of a node's Incident: draining, repairing, checking, returning. What is ordered: ladder.py."""

from __future__ import annotations

from datetime import timedelta

from chalicelib.domain.decision.verdict import Decision, RuleContext, result, span_word
from chalicelib.domain.model.action import CordonNode, Done, Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.node import (
    InstanceState,
    NodeRecovery,
    held_by,
    is_empty,
    is_marked,
    is_ours,
)
from chalicelib.domain.model.node_actions import CheckNode, MoveRuns, UncordonNode
from chalicelib.domain.model.node_findings import Finding, FindingKind
from chalicelib.domain.model.repair import (
    REPEAT_AFTER,
    Rung,
    Step,
    StepState,
    failure_word,
    leading_finding,
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
    node_view_missing,
    repair_of,
    slurm_state,
    state_of_the_node,
    unchanged_for,
    view_of,
    wait,
    waiting_order,
    with_repair,
)
from chalicelib.domain.node.repair_budget import are_many_down
from chalicelib.domain.rules.node.hardware import came_back, refused_as_suspect
from chalicelib.domain.rules.node.ladder import DONE, ask_again, begin_repair, escalate, order_of

_MAX_REFUSALS = 2  # an order that waited too long is refused, and given once more
DOWN_SETTLES = timedelta(minutes=2)
_STEADY = 3  # a repair that keeps changing its state, and never ends, is stuck too: so many limits long


def draining(context: RuleContext) -> Decision:
    """Out of scheduling, and waiting until no job is on it. No job is ever stopped from here."""
    missing = node_view_missing(context, "drain")
    if missing is not None:
        return missing
    facts = facts_of(context)
    assert facts is not None  # noqa: S101  unread() has just said so; this tells the type checker
    other = held_by(facts)
    if other is not None:
        reason = f"Someone else has taken it out of service meanwhile: {other}. It is left alone."
        return context.hand_over("drain.held_by_other", reason, severity=Severity.WARNING)
    # The health agent's mark keeps jobs away as well, where nobody else acts on it.
    is_marked_only = is_marked(facts) and view_of(context).recovery is NodeRecovery.NONE
    if not (is_ours(facts) or (is_marked_only and is_out_of_scheduling(facts))):
        return _not_cordoned(context)
    if not is_empty(facts):
        if context.in_phase >= context.policy.nodes.drain_limit:
            return context.hand_over(
                "drain.limit",
                f"jobs are still on it after {span_word(context.in_phase)}, and none is ever killed for a repair."
                f" {state_of_the_node(context)}",
            )
        context, moves = _moved_off(context)
        rule = "drain.move" if moves else "drain.waiting"
        return wait(context, rule, f"it is cordoned, and jobs are still on it: {slurm_state(facts)}", *moves)
    return _settling(context) or begin_repair(context, findings_about_now(context))


def _settling(context: RuleContext) -> Decision | None:
    """Slurm alone says that it is away, and only just: a switch that restarts looks the same, and is over soon."""
    found = findings_about_now(context)
    lead, instance = leading_finding(found), instance_seen(context)
    if lead is None or lead.kind is not FindingKind.DOWN or lead.by_platform or waiting_order(context) is not None:
        return None
    if instance is not None and instance.state is InstanceState.FAILURE:
        return None
    left = DOWN_SETTLES - (context.now - min(one.at for one in found if one.kind is FindingKind.DOWN))
    if left <= timedelta(0):
        return None
    text = f"it is cordoned and empty; Slurm has not reached it for less than {span_word(DOWN_SETTLES)}"
    return wait(context, "drain.settling", text, soon=left)


def _moved_off(context: RuleContext) -> tuple[RuleContext, tuple[MoveRuns, ...]]:
    """Protected runs are asked, once, to save and go on elsewhere, where a person has ordered the repair.

    Where hardware has failed, each run's own Incident does that. Only now that the node is cordoned: before,
    they could be given it again.
    """
    order, repair = waiting_order(context), repair_of(context)
    is_lost = result(context, "MoveRuns", Done.UNAVAILABLE) is not None
    if order is None or ("drain.move" in repair.notified and not is_lost):
        return context, ()
    move = MoveRuns(
        cluster=context.incident.cluster or "",
        node=context.incident.node or "",
        number=int(order.at.timestamp()),
        who=order.who,
        why=order.text,
    )
    return with_repair(context, notified=tuple(dict.fromkeys((*repair.notified, "drain.move")))), (move,)


def _not_cordoned(context: RuleContext) -> Decision:
    action = CordonNode(
        cluster=context.incident.cluster or "", node=context.incident.node or "", why=context.incident.fault_rule
    )
    return _ordered_again(context, action, "drain.cordon", "it is not cordoned yet")


def _ordered_again(context: RuleContext, action: CordonNode | UncordonNode, rule: str, reason: str) -> Decision:
    """Give the same order again, which is one order; a new one where the agent's answer was no."""
    answered = result(context, type(action).__name__, Done.REFUSED, Done.UNAVAILABLE)
    repair = repair_of(context)
    if answered is not None:
        if answered.done is Done.REFUSED and repair.refusals + 1 >= _MAX_REFUSALS:
            return context.hand_over(f"{rule}_refused", f"{reason}: {answered.detail}. {state_of_the_node(context)}")
        refusals = repair.refusals + (answered.done is Done.REFUSED)
        context = with_repair(context, serial=repair.serial + 1, refusals=refusals)
    if context.in_phase >= context.policy.nodes.stuck_limit:
        return context.hand_over(
            f"{rule}_limit", f"{reason}, for {span_word(context.in_phase)}. {state_of_the_node(context)}"
        )
    return wait(context, rule, reason, action)


# ---- the repair ------------------------------------------------------------------------------------------------------


def repairing(context: RuleContext) -> Decision:
    """Ordered, and waiting for both views to say that it is well."""
    context = _answered(context)
    repair = repair_of(context)
    step = repair.step
    if step is None:
        return context.hand_over("repair.misplaced", "nothing was ordered, and yet a repair is waited for")
    if step.state is StepState.REFUSED:
        return _refused(context, step)
    order = waiting_order(context)
    if order is not None:
        return escalate(context, order.text)
    again = repeated(context, step)
    if again is not None:
        return escalate(context, f"it was seen again after the {step.rung}: {again.text}")
    back = came_back(context, step)
    if back is not None:
        return refused_as_suspect(context, back) or ask_again(context, step, back, rule="repair.suspect_hardware")
    if _is_done(context, step):
        return _well_again(context, step)
    failed = _failed(context, step) or _marked_by_them(context, step)
    if failed is not None:
        return failed
    age = context.now - step.at
    stuck = (
        unchanged_for(context) >= context.policy.nodes.stuck_limit or age >= _STEADY * context.policy.nodes.stuck_limit
    )
    if stuck:
        reason = f"the {step.rung} stands still: nothing has changed for {span_word(unchanged_for(context))}."
        return context.hand_over("repair.stuck", f"{reason} {state_of_the_node(context)}")
    if step.state is StepState.ASKED:  # whoever asked was stopped before it was known what came of it
        return wait(context, "repair.asked", f"asking for the {step.rung}", order_of(context, step, "asked before"))
    if step.state is StepState.DOUBTFUL and age >= context.policy.nodes.settle and _shows_nothing(context, step):
        return ask_again(context, step)
    if step.rung is Rung.REBOOT and age >= context.policy.nodes.reboot_limit:
        return _not_well_yet(context, age)
    return wait(context, "repair.waiting", f"the {step.rung} is under way: {state_of_the_node(context)}")


def _answered(context: RuleContext) -> RuleContext:
    """The order's outcome, as far as it is known."""
    step = repair_of(context).step
    if step is None or step.state is StepState.REFUSED:
        return context
    name = "RebootNode" if step.rung is Rung.REBOOT else "ReplaceNode"
    answer = next((one for one in context.seen.results if one.action == name), None)
    if answer is None or answer.done is Done.PENDING:
        return context
    state = {Done.DONE: StepState.TAKEN, Done.ALREADY: StepState.TAKEN, Done.REFUSED: StepState.REFUSED}
    # A refusal of a repetition does not undo that it was taken once.
    new = state.get(answer.done, StepState.DOUBTFUL)
    if step.state is StepState.TAKEN:
        return context
    return context.changed(repair=repair_of(context).with_step(state=new))


def _refused(context: RuleContext, step: Step) -> Decision:
    stated = next((one.detail for one in context.seen.results if one.detail), "no reason given")
    if step.rung is Rung.REBOOT:
        return escalate(context, f"the reboot was refused: {stated}")
    return context.hand_over("repair.refused", f"the replacement was refused: {stated}. {state_of_the_node(context)}")


def repeated(context: RuleContext, step: Step) -> Finding | None:
    """A fault of the hardware as it came back from the repair."""
    return next(
        (
            one
            for one in reversed(findings_about_now(context))
            if one.kind.is_of_the_hardware
            and one.at > step.at + REPEAT_AFTER
            and (step.rung is Rung.REBOOT or (one.instance_id is not None and one.instance_id != step.instance_id))
        ),
        None,
    )


def _not_well_yet(context: RuleContext, age: timedelta) -> Decision:
    """The next rung. Where Slurm reaches hardly any node, and HyperPod says that this one runs, nothing is known."""
    if are_many_down(context) and is_running(context):
        reason = f"the reboot is {span_word(age)} ago, and HyperPod says that it runs"
        return wait(context, "repair.waiting", f"{reason}; but Slurm reaches too few nodes to say that it is not well")
    return escalate(context, f"it is not well {span_word(age)} after the reboot")


def _is_done(context: RuleContext, step: Step) -> bool:
    """Well by both views, and really repaired: another instance, or a reboot that was seen or must be over by now."""
    after_reboot = step.rung is Rung.REBOOT
    if not is_well(context, after_reboot=after_reboot) and not is_back_in_service(context):
        return False
    has_settled = context.now - step.at >= context.policy.nodes.settle
    if step.state in (StepState.ASKED, StepState.DOUBTFUL) and _shows_nothing(context, step):
        # It may have been away while nothing could be read. A node that only was not reached needs no reboot once it
        # is; one whose hardware was reported does, and nothing shows that it had it.
        findings = findings_about_now(context)
        was_only_lost = bool(findings) and not any(one.kind.is_of_the_hardware for one in findings)
        return after_reboot and was_only_lost and has_settled
    if step.rung is Rung.REPLACE:
        now_id = current_id(context)
        return now_id is not None and now_id != step.instance_id
    return step.disturbed or has_settled


def _shows_nothing(context: RuleContext, step: Step) -> bool:
    return not step.disturbed and is_running(context) and current_id(context) in (None, step.instance_id)


def _failed(context: RuleContext, step: Step) -> Decision | None:
    """The instance is in Failure. Its message counts only if it is of this very repair: it is sticky."""
    instance = instance_seen(context)
    if instance is None or instance.state is not InstanceState.FAILURE:
        return None
    if context.now - step.at < min(REPEAT_AFTER, context.policy.nodes.settle):
        return None
    if step.rung is Rung.REBOOT:
        return escalate(context, f"its instance failed after the reboot: {instance.message or 'no reason given'}")
    if instance.instance_id == step.instance_id:
        return None  # still the old one: the order has not taken effect yet
    word = failure_word(instance.message)
    if word is None:
        return None  # the service may retry by itself; a time limit ends that
    tries = sum(one.rung is Rung.REPLACE for one in repair_of(context).steps)
    if word.once_more and tries < 2:
        return ask_again(
            context, step, f"the new instance failed ({word.word}), which often passes: {instance.message}"
        )
    reason = f"the new instance failed ({word.word}): {instance.message}. {word.source}."
    return context.hand_over("repair.failed", f"{reason} {state_of_the_node(context)}")


def _marked_by_them(context: RuleContext, step: Step) -> Decision | None:
    """Repaired, and kept out of service by nothing but the health agent's own mark, which is not ours to lift."""
    facts, now_id = facts_of(context), current_id(context)
    if facts is None or not is_marked(facts) or view_of(context).recovery is not NodeRecovery.NONE:
        return None
    is_new = (
        now_id != step.instance_id
        if step.rung is Rung.REPLACE
        else context.now - step.at >= context.policy.nodes.settle
    )
    if not (is_new and is_running(context)) or unchanged_for(context) < context.policy.nodes.settle:
        return None
    command = f"scontrol update nodename={context.incident.node} state=resume"
    reason = f"it is {DONE[step.rung]} and runs, and only the health agent's mark {facts.reason} keeps jobs away"
    return context.hand_over(
        "repair.marked",
        f"{reason}; Rekindle did not set that, and does not lift it: {command}",
        severity=Severity.WARNING,
    )


# ---- check, and give back --------------------------------------------------------------------------------------------


def _well_again(context: RuleContext, step: Step) -> Decision:
    context = context.changed(repair=repair_of(context).with_step(state=StepState.TAKEN, back_at=context.now))
    took = span_word(context.now - step.at)
    reason = f"{DONE[step.rung]} in {took}; HyperPod and Slurm both say that it is well"
    instance = instance_seen(context)
    if context.policy.nodes.deep_health_check and instance is not None and instance.group:
        return _check(context, reason)
    return _give_back(context, reason)


def _check(context: RuleContext, reason: str) -> Decision:
    instance = instance_seen(context)
    assert instance is not None  # noqa: S101  asked for by whoever calls
    number = repair_of(context).health_check + 1
    action = CheckNode(
        cluster=context.incident.cluster or "",
        node=context.incident.node or "",
        instance_id=instance.instance_id,
        group=instance.group,
        number=number,
    )
    context = with_repair(context, health_check=number, check_seen=False)
    phase = None if context.incident.phase is Phase.CHECKING else Phase.CHECKING
    return wait(context, "check.begin", f"{reason}; a deep health check is asked for", action, phase=phase)


def checking(context: RuleContext) -> Decision:
    """A deep health check is under way, or waits until another of the cluster is over."""
    repair, instance = repair_of(context), instance_seen(context)
    step = repair.step
    if step is None:
        return context.hand_over("check.misplaced", "nothing was repaired, and yet it is checked")
    order = waiting_order(context)
    if order is not None:
        return escalate(context, order.text)
    again = repeated(context, step)
    is_failed = instance is not None and instance.state is InstanceState.FAILURE
    if again is not None or is_failed:
        why = f"the health check failed: {instance.message}" if is_failed and instance else "it was seen again"
        return escalate(context, why)
    if context.in_phase >= context.policy.nodes.health_check_limit:
        return context.hand_over("check.limit", f"the health check has not ended. {state_of_the_node(context)}")
    refused = result(context, "CheckNode", Done.REFUSED)
    if refused is not None and is_well(context, after_reboot=True):
        return _give_back(
            context, f"the deep health check was refused ({refused.detail}); HyperPod and Slurm say it is well"
        )
    busy = result(context, "CheckNode", Done.CAPACITY, Done.UNAVAILABLE)
    if busy is not None and not repair.check_seen:
        return _check(context, f"no check could be begun: {busy.detail}")
    is_over = repair.check_seen or context.in_phase >= 2 * context.policy.nodes.settle
    if is_over and is_well(context, after_reboot=True):
        return _give_back(context, "the deep health check has found nothing")
    return wait(context, "check.waiting", f"the deep health check is under way: {state_of_the_node(context)}")


def _give_back(context: RuleContext, reason: str) -> Decision:
    if is_back_in_service(context):
        return context.close("return.done", _ended(context, reason), Phase.RECOVERED, severity=Severity.INFO)
    action = UncordonNode(cluster=context.incident.cluster or "", node=context.incident.node or "", why="repaired")
    context = with_repair(context, serial=repair_of(context).serial + 1, refusals=0)
    return wait(
        context,
        "return.uncordon",
        f"{reason}; our drain is lifted",
        action,
        phase=Phase.RETURNING,
        soon=context.policy.timing.look_min,
    )


def returning(context: RuleContext) -> Decision:
    """Our drain is being lifted; only ours ever is."""
    missing = node_view_missing(context, "return")
    if missing is not None:
        return missing
    facts, step = facts_of(context), repair_of(context).step
    assert facts is not None  # noqa: S101  unread() has just said so; this tells the type checker
    order = waiting_order(context)
    if order is not None and not repair_of(context).theirs:  # what others have just done is not done once more
        serial = repair_of(context).serial + 1
        cordon = CordonNode(cluster=context.incident.cluster or "", node=context.incident.node or "", why="ordered")
        reason = f"{order.text}; it gets no jobs again until that is done"
        return wait(
            with_repair(context, serial=serial, refusals=0), "return.ordered", reason, cordon, phase=Phase.DRAINING
        )
    again = repeated(context, step) if step is not None and step.back_at is not None else None
    if again is not None:
        serial = repair_of(context).serial + 1
        cordon = CordonNode(
            cluster=context.incident.cluster or "", node=context.incident.node or "", why=again.kind.value
        )
        reason = f"it was seen again: {again.text}; it is cordoned again"
        return wait(
            with_repair(context, serial=serial, refusals=0), "return.seen_again", reason, cordon, phase=Phase.DRAINING
        )
    if is_back_in_service(context):
        return context.close(
            "return.done", _ended(context, "it is back in service"), Phase.RECOVERED, severity=Severity.INFO
        )
    other = held_by(facts)
    if other is not None:
        reason = f"someone else has taken it out of service: {other}. Only our own drain is ever lifted."
        return context.hand_over("return.held_by_other", reason, severity=Severity.WARNING)
    if has_our_drain(context):
        action = UncordonNode(cluster=context.incident.cluster or "", node=context.incident.node or "", why="repaired")
        return _ordered_again(context, action, "return.uncordon", "our drain is not lifted yet")
    if unchanged_for(context) >= context.policy.nodes.stuck_limit:
        return context.hand_over("return.stuck", f"it does not come back into service. {state_of_the_node(context)}")
    return wait(context, "return.waiting", f"the drain is lifted; waiting for Slurm: {slurm_state(facts)}")


def _ended(context: RuleContext, reason: str) -> str:
    repair = repair_of(context)
    done = [f"{DONE[one.rung]} {one.instance_id or ''}".strip() for one in repair.steps if one.back_at is not None]
    now_id = current_id(context)
    what = f"{', then '.join(done)}; " if done else f"{repair.theirs.what}, not by us; " if repair.theirs else ""
    instance = f" as {now_id}" if now_id and now_id != repair.instance_id else ""
    return f"{what}{reason}{instance}. {state_of_the_node(context)}"
