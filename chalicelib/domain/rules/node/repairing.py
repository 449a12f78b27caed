"""A node's Incident, REPAIRING: ordered (ladder.py), and waiting for both views to say that it is well."""

from __future__ import annotations

from typing import Final

from chalicelib.domain.decision.rule import rule
from chalicelib.domain.decision.verdict import Decision, RuleContext, span_word
from chalicelib.domain.model.action import Done, Severity
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.node import (
    InstanceState,
    NodeRecovery,
    is_marked,
    is_silent,
)
from chalicelib.domain.model.repair import (
    REPEAT_AFTER,
    Rung,
    Step,
    StepState,
    failure_word,
)
from chalicelib.domain.node.memory import (
    current_id,
    facts_of,
    findings_about_now,
    instance_seen,
    is_back_in_service,
    is_running,
    is_well,
    repair_of,
    state_of_the_node,
    unchanged_for,
    view_of,
    wait,
    waiting_order,
)
from chalicelib.domain.node.repair_budget import is_mass_outage
from chalicelib.domain.rules.node.hardware import came_back, refused_as_suspect
from chalicelib.domain.rules.node.ladder import DONE, ask_again, escalate, order_of
from chalicelib.domain.rules.node.orders import ordered_step, repeated
from chalicelib.domain.rules.node.returning import begin_check, uncordon

_STEADY = 3  # a repair that keeps changing its state, and never ends, is stuck too: so many limits long


@rule()
def repair_answered(context: RuleContext) -> RuleContext:
    """What the order has answered is noted."""
    step = repair_of(context).step
    if step is None or step.state is StepState.REFUSED:
        return context
    name = "RebootNode" if step.rung is Rung.REBOOT else "ReplaceNode"
    answer = next((result for result in context.seen.results if result.action == name), None)
    if answer is None or answer.done is Done.PENDING:
        return context
    state = {Done.DONE: StepState.TAKEN, Done.ALREADY: StepState.TAKEN, Done.REFUSED: StepState.REFUSED}
    # A refusal of a repetition does not undo that it was taken once.
    new = state.get(answer.done, StepState.DOUBTFUL)
    if step.state is StepState.TAKEN:
        return context
    return context.changed(repair=repair_of(context).with_step(state=new))


@rule("node.misplaced")
def repair_misplaced(context: RuleContext) -> Decision | None:
    """Nothing was ordered, which cannot happen: a person."""
    if repair_of(context).step is not None:
        return None
    return context.hand_over("node.misplaced", "nothing was ordered, and yet a repair is waited for")


@rule("repair.refused")
def repair_refused(context: RuleContext) -> Decision | None:
    """The replacement is refused: a person, with AWS's message. A reboot is: [the next rung](#the-next-rung)."""
    step = ordered_step(context)
    if step.state is not StepState.REFUSED:
        return None
    stated = next((result.detail for result in context.seen.results if result.detail), "no reason given")
    if step.rung is Rung.REBOOT:
        return escalate(context, f"the reboot was refused: {stated}")
    return context.hand_over("repair.refused", f"the replacement was refused: {stated}. {state_of_the_node(context)}")


@rule()
def repair_ordered(context: RuleContext) -> Decision | None:
    """A person orders a repair meanwhile: [the next rung](#the-next-rung)."""
    order = waiting_order(context)
    return escalate(context, order.text) if order is not None else None


@rule()
def repair_seen_again(context: RuleContext) -> Decision | None:
    """The fault is seen again after the repair: [the next rung](#the-next-rung)."""
    step = ordered_step(context)
    again = repeated(context, step)
    return escalate(context, f"it was seen again after the {step.rung}: {again.text}") if again is not None else None


@rule("repair.suspect_hardware", "repair.suspect_hardware_limit")
def repair_suspect_hardware(context: RuleContext) -> Decision | None:
    """The replacement is [suspect hardware](hardware.md), or the old machine: replaced again; then a person.

    A person after two replacements, or if `nodes.suspect_repair` is `tell`.
    """
    step = ordered_step(context)
    back = came_back(context, step)
    if back is None:
        return None
    return refused_as_suspect(context, back) or ask_again(context, step, back, name="repair.suspect_hardware")


@rule("check.begin", "return.uncordon", "return.done")
def repair_done(context: RuleContext) -> Decision | None:
    """Well by both views, and really repaired: checked where `nodes.deep_health_check_s` is set, then given back."""
    step = ordered_step(context)
    if not _is_done(context, step):
        return None
    context = context.changed(repair=repair_of(context).with_step(state=StepState.TAKEN, back_at=context.now))
    took = span_word(context.now - step.at)
    reason = f"{DONE[step.rung]} in {took}; HyperPod and Slurm both say that it is well"
    instance = instance_seen(context)
    if context.policy.nodes.deep_health_check and instance is not None and instance.group:
        return begin_check(context, reason)
    return uncordon(context, reason)


@rule("repair.failed", "repair.again")
def repair_failed(context: RuleContext) -> Decision | None:
    """The new instance failed: once more for EFA, else a person. It failed after a reboot: the next rung.

    Its message counts only if it is of this very repair: it is sticky.
    """
    step = ordered_step(context)
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
    tries = sum(step.rung is Rung.REPLACE for step in repair_of(context).steps)
    if word.once_more and tries < 2:
        return ask_again(
            context, step, f"the new instance failed ({word.word}), which often passes: {instance.message}"
        )
    reason = f"the new instance failed ({word.word}): {instance.message}. {word.source}."
    return context.hand_over("repair.failed", f"{reason} {state_of_the_node(context)}")


@rule("repair.marked")
def repair_marked(context: RuleContext) -> Decision | None:
    """Repaired, and only the health agent's mark keeps jobs away (NodeRecovery None): a person removes the mark."""
    step = ordered_step(context)
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


@rule("repair.stuck")
def repair_stuck(context: RuleContext) -> Decision | None:
    """Neither view has changed for 75 minutes, or they change for three times that: a person."""
    step, limit = ordered_step(context), context.policy.nodes.stuck_limit
    if unchanged_for(context) < limit and context.now - step.at < _STEADY * limit:
        return None
    reason = f"the {step.rung} stands still: nothing has changed for {span_word(unchanged_for(context))}."
    return context.hand_over("repair.stuck", f"{reason} {state_of_the_node(context)}")


@rule("repair.asked")
def repair_asked(context: RuleContext) -> Decision | None:
    """Whether the order was sent is unknown: repeated. The execution that asked was stopped before it knew."""
    step = ordered_step(context)
    if step.state is not StepState.ASKED:
        return None
    return wait(context, "repair.asked", f"asking for the {step.rung}", order_of(context, step, "asked before"))


@rule("repair.again", "repair.no_effect")
def repair_again(context: RuleContext) -> Decision | None:
    """Nothing shows that the order was taken: once more; a person after three."""
    step = ordered_step(context)
    has_settled = context.now - step.at >= context.policy.nodes.settle
    is_lost = step.state is StepState.DOUBTFUL and has_settled and _shows_nothing(context, step)
    return ask_again(context, step) if is_lost else None


@rule("repair.waiting")
def repair_not_well(context: RuleContext) -> Decision | None:
    """It is not well `nodes.reboot_limit_s` after its reboot: [the next rung](#the-next-rung).

    Where Slurm does not reach half of the nodes, or its word on another that it lost at once, or since the reboot, is
    in doubt, and HyperPod says that this one runs, nothing is known.
    """
    step = ordered_step(context)
    age = context.now - step.at
    if step.rung is not Rung.REBOOT or age < context.policy.nodes.reboot_limit:
        return None
    if is_running(context) and (_reaches_too_few(context) or _is_silence_in_doubt(context)):
        reason = f"the reboot is {span_word(age)} ago, and HyperPod says that it runs"
        return wait(context, "repair.waiting", f"{reason}; but Slurm reaches too few nodes to say that it is not well")
    return escalate(context, f"it is not well {span_word(age)} after the reboot")


@rule("repair.waiting")
def repair_waiting(context: RuleContext) -> Decision:
    """In progress, or one view lags: wait."""
    step = ordered_step(context)
    return wait(context, "repair.waiting", f"the {step.rung} is under way: {state_of_the_node(context)}")


REPAIRING: Final = (
    repair_answered,
    repair_misplaced,
    repair_refused,
    repair_ordered,
    repair_seen_again,
    repair_suspect_hardware,
    repair_done,
    repair_failed,
    repair_marked,
    repair_stuck,
    repair_asked,
    repair_again,
    repair_not_well,
    repair_waiting,
)


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
        was_only_lost = bool(findings) and not any(finding.kind.is_of_the_hardware for finding in findings)
        return after_reboot and was_only_lost and has_settled
    if step.rung is Rung.REPLACE:
        now_id = current_id(context)
        return now_id is not None and now_id != step.instance_id
    return step.disturbed or has_settled


def _reaches_too_few(context: RuleContext) -> bool:
    """A mass outage of half of the cluster, with this one: its reboot is too long ago to explain that Slurm does not
    reach it. Of fewer, another may have died by itself, and waits until this one is repaired.
    """
    view, facts = view_of(context), facts_of(context)
    lost = view.down + (facts is not None and is_silent(facts))
    return is_mass_outage(lost, view.total, context.policy) and 2 * lost >= view.total


def _is_silence_in_doubt(context: RuleContext) -> bool:
    """That Slurm does not reach it is all that speaks against it, and a run goes on where it does not reach either."""
    facts, load = facts_of(context), view_of(context).load
    return facts is not None and is_silent(facts) and isinstance(load, Known) and bool(load.value.doubted_by)


def _shows_nothing(context: RuleContext, step: Step) -> bool:
    return not step.disturbed and is_running(context) and current_id(context) in (None, step.instance_id)
