"""What the later phases of a node's Incident share: its newest order, a fault that is back, an order given again."""

from __future__ import annotations

from chalicelib.domain.decision.verdict import Decision, RuleContext, result, span_word
from chalicelib.domain.model.action import CordonNode, Done
from chalicelib.domain.model.node_actions import UncordonNode
from chalicelib.domain.model.node_findings import Finding
from chalicelib.domain.model.repair import (
    REPEAT_AFTER,
    Rung,
    Step,
)
from chalicelib.domain.node.memory import (
    facts_of,
    findings_about_now,
    repair_of,
    state_of_the_node,
    wait,
    with_repair,
)
from rekindle.protocol.cluster.documents import NodeFacts

_MAX_REFUSALS = 2  # an order that waited too long is refused, and given once more


def listed(context: RuleContext) -> NodeFacts:
    """The node in Slurm, for rules that stand below the one for a node that cannot be read.

    Raises:
        ValueError: it cannot be read, or Slurm has no such node.
    """
    facts = facts_of(context)
    if facts is None:
        raise ValueError(f"{context.incident.node} cannot be read in Slurm")
    return facts


def ordered_step(context: RuleContext) -> Step:
    """The newest order of the repair, for rules that stand below the one for a repair without any.

    Raises:
        ValueError: nothing was ordered.
    """
    step = repair_of(context).step
    if step is None:
        raise ValueError("no repair was ordered")
    return step


def repeated(context: RuleContext, step: Step) -> Finding | None:
    """A fault of the hardware as it came back from the repair."""
    return next(
        (
            finding
            for finding in reversed(findings_about_now(context))
            if finding.kind.is_of_the_hardware
            and finding.at > step.at + REPEAT_AFTER
            and (
                step.rung is Rung.REBOOT
                or (finding.instance_id is not None and finding.instance_id != step.instance_id)
            )
        ),
        None,
    )


def ordered_again(context: RuleContext, action: CordonNode | UncordonNode, name: str, reason: str) -> Decision:
    """Give the same order again, which is one order; a new one where the agent's answer was no."""
    answered = result(context, type(action).__name__, Done.REFUSED, Done.UNAVAILABLE)
    repair = repair_of(context)
    if answered is not None:
        if answered.done is Done.REFUSED and repair.refusals + 1 >= _MAX_REFUSALS:
            return context.hand_over(f"{name}_refused", f"{reason}: {answered.detail}. {state_of_the_node(context)}")
        refusals = repair.refusals + (answered.done is Done.REFUSED)
        context = with_repair(context, serial=repair.serial + 1, refusals=refusals)
    if context.in_phase >= context.policy.nodes.stuck_limit:
        return context.hand_over(
            f"{name}_limit", f"{reason}, for {span_word(context.in_phase)}. {state_of_the_node(context)}"
        )
    return wait(context, name, reason, action)
