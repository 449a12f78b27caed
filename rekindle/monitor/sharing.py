"""One resume point for all ranks of this attempt: rank 0's.

Each rank reads the plan, the manifests and the disk for itself. A read that fails on one rank alone would have it go on
from another step than the others, and what they then save would be no state that ever was.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from rekindle.monitor.base.trouble import logger
from rekindle.monitor.mail.slurm import LaunchInstructions
from rekindle.protocol.mailbox import (
    ENV_ATTEMPT,
    ENV_BUS,
    ENV_INCIDENT,
    ENV_JOB_ID,
    ENV_MAILBOX,
    MailboxError,
    ResumePlan,
)

Share = Callable[[str], str]  # rank 0's text, on every rank; a collective
_NAMES = (ENV_JOB_ID, ENV_ATTEMPT, ENV_INCIDENT)
_PLACES = (ENV_MAILBOX, ENV_BUS)  # a rank whose environment lacks them takes part all the same


def shared(
    reported: LaunchInstructions, plan: ResumePlan, share: Share | None
) -> tuple[LaunchInstructions, ResumePlan]:
    """What rank 0 has by its plan and its files; this rank's own where rank 0 cannot be asked. Never raises.

    `share` is called exactly once, whatever happened before: the other ranks wait in theirs.
    """
    if share is None:
        return reported, plan
    own = _written(reported, plan)
    try:
        heard = share(own)
        if heard in ("", own):
            return reported, plan
        body = json.loads(heard)
        found = ResumePlan.from_env(body["resume"])
        env = {name: value for name, value in reported.env.items() if name not in _NAMES} | dict(body["reported"])
    except Exception as err:  # a broken group shows itself soon enough; how it is answered is the script's business
        logger.warning("Rekindle's ranks cannot share where they go on, so each goes by what it read: %r", err)
        return reported, plan
    if found != plan:
        logger.warning("This rank would resume at step %s, rank 0 at step %s: rank 0's holds", plan.step, found.step)
    return replace(reported, env=env), found


def _written(reported: LaunchInstructions, plan: ResumePlan) -> str:
    """Empty where it does not fit an environment: then it came from none, and every rank goes by its own."""
    try:
        env = plan.to_env()
    except MailboxError:
        return ""
    return json.dumps(
        {"resume": env, "reported": {name: reported.env[name] for name in (*_NAMES, *_PLACES) if name in reported.env}}
    )
