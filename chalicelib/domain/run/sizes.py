"""May a started-again job run on fewer nodes than it asks for? Only if its policy and its script both say so.

Its policy gives the share (`min_nodes_percent`), the job's own comment how few nodes its script can do with
(`min_nodes=N`). It waits for all of them for half of `timing.start_limit_s` first. The next start of the Job asks for
all of its nodes again.
"""

from __future__ import annotations

import dataclasses
import math
from datetime import timedelta

from chalicelib.domain.decision.verdict import Decision, RuleContext, result, span_word, subject
from chalicelib.domain.model.action import Done, Notify, ResizeJob, Severity
from chalicelib.domain.model.observation import AttemptView
from chalicelib.domain.model.platform import Resize
from chalicelib.domain.model.start_view import StartView
from chalicelib.domain.policy.document import Policy


def fewest_nodes(job: StartView, policy: Policy, whole: int = 0) -> int | None:
    """The fewest nodes that policy and script both allow; None where that is not fewer than it asks for.

    `whole` is what an earlier start asked for: a small one is not made smaller by the share of itself.
    """
    if job.min_nodes is None or policy.resubmission.min_nodes_percent >= 100 or job.node_count <= 0:
        return None
    least = max(job.min_nodes, math.ceil(max(job.node_count, whole) * policy.resubmission.min_nodes_percent / 100))
    return least if least < job.node_count else None


def order_smaller_start(context: RuleContext, attempt: AttemptView) -> Decision | None:
    """VERIFYING a start of ours that waits for nodes. Once for each start; in shadow mode never."""
    last = context.incident.resubmission.tries[-1] if context.incident.resubmission.tries else None
    job = attempt.start if context.platform.resize is Resize.WHILE_QUEUED else None
    if (
        last is None
        or last.name != attempt.name
        or job is None
        or not job.is_queued
        or job.held
        or context.policy.shadow
    ):
        return None
    if not job.wait.is_short:
        return None
    if last.nodes_min is not None:
        return _asked(context, attempt, job, last.nodes_min)
    least = fewest_nodes(
        job, context.policy, max(earlier.nodes_max or 0 for earlier in context.incident.resubmission.tries)
    )
    if least is None or context.in_state < _smaller_after(context.policy):
        return None
    text = (
        f"{attempt.name} has waited {span_word(context.in_state)} for {job.node_count} nodes ({job.wait.word}): its "
        f"policy and its script allow {least}, and now it asks for so many. The next start asks for all "
        "again."
    )
    notice = Notify(severity=Severity.WARNING, title=f"{subject(context)} may run on fewer nodes", text=text)
    tries = (
        *context.incident.resubmission.tries[:-1],
        dataclasses.replace(last, nodes_min=least, nodes_max=job.node_count),
    )
    return context.stay("verify.smaller", text, _resize(attempt, job, least, job.node_count), notice, tries=tries)


def _asked(context: RuleContext, attempt: AttemptView, job: StartView, least: int) -> Decision | None:
    """What became of it. The same order is repeated until it is answered; a refusal is notified once."""
    last = context.incident.resubmission.tries[-1]
    is_open = result(context, "ResizeJob", Done.PENDING) or result(context, "ResizeJob", Done.UNAVAILABLE)
    if is_open and context.in_state < _smaller_after(context.policy) + context.policy.timing.stop_limit:
        again = _resize(attempt, job, least, last.nodes_max or least)
        return context.stay(
            "verify.smaller_again", f"{attempt.name}: not known yet to be smaller; the same again", again
        )
    refused = result(context, "ResizeJob", Done.REFUSED)
    if refused is not None:
        text = f"{attempt.name} keeps its size and waits: {refused.detail}"
        notice = Notify(severity=Severity.WARNING, title=f"{subject(context)} was not made smaller", text=text)
        return context.stay("verify.smaller_refused", text, notice)
    return None


def _smaller_after(policy: Policy) -> timedelta:
    """Before people are told that it does not start."""
    return policy.timing.start_limit / 2


def _resize(attempt: AttemptView, job: StartView, least: int, most: int) -> ResizeJob:
    return ResizeJob(attempt=attempt.name, handle=job.handle, nodes_min=least, nodes_max=most, why="waits for nodes")
