"""This process's identity on Slurm, and its attempt's resume plan from the service.

A job that Slurm starts again (`scontrol requeue`, a node failure, a preemption) has the environment of its submission,
so its REKINDLE_RESUME_* are those of an earlier start. The plan in the mailbox under this start's own name is newer.
Where Slurm restarted the job without Rekindle there is no such plan: then the last earlier plan is where the run
resumed, and what the run has saved since is newer (see `resuming`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from rekindle.monitor.base.settings import attempt_number
from rekindle.monitor.base.trouble import logger
from rekindle.monitor.mail.bounded import TooSlow
from rekindle.monitor.mail.boxes import Box, document
from rekindle.protocol.cluster.cluster_name import cluster_named
from rekindle.protocol.cluster.names import (
    ENV_SLURM_ATTEMPT,
    OF_ONE_ATTEMPT,
    SlurmAttempt,
    attempt_from_env,
    is_submission_of_ours,
)
from rekindle.protocol.keys import plan_key, plan_prefix
from rekindle.protocol.launch_orders import (
    ENV_ATTEMPT,
    ENV_ATTEMPT_NAME,
    ENV_INCIDENT,
    ENV_JOB_ID,
    ENV_RESUME_MANIFEST,
    ENV_RESUME_STEP,
    ENV_RESUME_URI,
    ENV_SKIP,
    Plan,
    ResumePlan,
)
from rekindle.protocol.wire import MailboxError

WAITS_S: Final = (0.3, 0.7)  # between the tries to read the plan, so that one lost packet is no answer

# What a job that was submitted within one of ours inherits, and is no word about itself.
_OF_THE_SUBMITTER: Final = (ENV_JOB_ID, *OF_ONE_ATTEMPT)

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplanned:
    """The last plan before a restart that has none: `base`, its resume point, and the number of its attempt.

    What attempts before that one saved was left behind by it.
    """

    base: ResumePlan = field(default_factory=ResumePlan)
    since_attempt: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchInstructions:
    """The instructions that hold for this attempt.

    env: the environment, with the variables that this start's plan sets. resume: the resume point; None where the
    environment gives it. unplanned: for a restart without a plan, which has to find its own resume point; submitted:
    the environment as submitted, whose old plan is the fallback if that fails.
    """

    env: Mapping[str, str]
    submitted: Mapping[str, str]
    resume: ResumePlan | None = None
    unplanned: Unplanned | None = None


def is_on_slurm(env: Mapping[str, str]) -> bool:
    return env.get("SLURM_JOB_ID", "").isdigit()


def attempt_on_slurm(env: Mapping[str, str]) -> SlurmAttempt | None:
    """This start's name; None outside Slurm, and where the cluster has no name that can be used."""
    if not is_on_slurm(env):
        return None
    try:
        named = cluster_named(env, passes_over=True)  # on the nodes only root may read SageMaker's file
        return None if named is None else attempt_from_env(env, named[0])
    except (MailboxError, OSError) as err:
        logger.warning("Rekindle's monitor cannot tell which Slurm cluster this is: %s", err)
        return None


def read_resume_plan(env: Mapping[str, str], box: Callable[[], Box | None]) -> LaunchInstructions:
    """This attempt's resume plan: from its environment, or from its plan file where it is a restart. Never raises.

    box: opens the mailbox; only called for a restart.
    """
    start = attempt_on_slurm(env)
    if start is None:
        return LaunchInstructions(env=env, submitted=env)
    if env.get(ENV_SLURM_ATTEMPT) and not is_submission_of_ours(env):
        env = {name: value for name, value in env.items() if name not in _OF_THE_SUBMITTER}
    own = {
        ENV_ATTEMPT_NAME: start.name,
        ENV_JOB_ID: env.get(ENV_JOB_ID) or start.restarted(0).name,
        ENV_ATTEMPT: str(attempt_number(env) + start.restart),
    }
    if start.restart == 0:
        return LaunchInstructions(env={**env, **own}, submitted=env)
    stale = (ENV_RESUME_STEP, ENV_RESUME_URI, ENV_RESUME_MANIFEST, ENV_INCIDENT)
    rest = {name: value for name, value in env.items() if name not in stale}
    try:
        plan, last = patiently(lambda: _plans(box(), start))
    except Exception as err:
        # Better an old checkpoint than none at all: it was a good one when this job was submitted.
        logger.warning("Rekindle's mailbox cannot be read, so restart %d goes by its old plan: %r", start.restart, err)
        return LaunchInstructions(env={**env, **own}, submitted=env)
    if plan is None:
        logger.info("Restart %d of this Slurm job has no plan; it continues from the newest", start.restart)
        if last is None:
            return LaunchInstructions(env={**rest, **own}, submitted=env, unplanned=_submitted(env))
        kept = {ENV_SKIP: last.order.resume.to_env()[ENV_SKIP]}
        own |= {
            ENV_JOB_ID: last.order.job_id,
            ENV_ATTEMPT: str(max(last.order.attempt_number + 1, int(own[ENV_ATTEMPT]))),
        }
        since = Unplanned(base=last.order.resume, since_attempt=last.order.attempt_number)
        return LaunchInstructions(env={**rest, **own, **kept}, submitted=env, unplanned=since)
    own |= {ENV_JOB_ID: plan.order.job_id, ENV_ATTEMPT: str(plan.order.attempt_number)}
    if plan.order.incident_id is not None:
        own[ENV_INCIDENT] = plan.order.incident_id
    return LaunchInstructions(env={**rest, **own}, submitted=env, resume=plan.order.resume)


def _plans(box: Box | None, start: SlurmAttempt) -> tuple[Plan | None, Plan | None]:
    """(this start's plan, where there is none the last one of an earlier restart of the same job)."""
    plan = _plan(box, start.name)
    if plan is not None:
        return plan, None
    there = frozenset(() if box is None else box.names(plan_prefix()))
    earlier = (start.restarted(number).name for number in range(start.restart - 1, 0, -1))
    known = (name for name in earlier if plan_key(name) in there)
    return None, next((last for name in known if (last := _plan(box, name)) is not None), None)


def _submitted(env: Mapping[str, str]) -> Unplanned:
    """Where the job was submitted to go on."""
    try:
        return Unplanned(base=ResumePlan.from_env(env), since_attempt=attempt_number(env))
    except MailboxError as err:
        logger.warning("Rekindle's resume plan cannot be read: %s", err)
        return Unplanned(since_attempt=attempt_number(env))


def _plan(box: Box | None, attempt: str) -> Plan | None:
    """The plan under that name; None without one, and for one that cannot be read or is another's."""
    plan = None if box is None else document(box, plan_key(attempt), Plan.from_json, "plan for this attempt")
    return plan if plan is not None and plan.attempt == attempt else None


def patiently(read: Callable[[], _Answer]) -> _Answer:
    """Raises what the last try raised."""
    for wait_s in WAITS_S:
        try:
            return read()
        except TooSlow:
            raise
        except Exception as err:
            logger.info("Reading Rekindle's mailbox failed, trying again in %.1f s: %r", wait_s, err)
            threading.Event().wait(wait_s)
    return read()
