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
from rekindle.protocol.launch_orders import ENV_ATTEMPT, ENV_BUS, ENV_INCIDENT, ENV_JOB_ID, ENV_MAILBOX, ResumePlan
from rekindle.protocol.wire import MailboxError

Share = Callable[[str], str]  # rank 0's text, on every rank; a collective
_NAMES = (ENV_JOB_ID, ENV_ATTEMPT, ENV_INCIDENT)
_DATA = ("world_size", "samples", "samples_per_step")
_PLACES = (ENV_MAILBOX, ENV_BUS)  # a rank whose environment lacks them takes part all the same


def shared(
    reported: LaunchInstructions, plan: ResumePlan, share: Share | None, life: int | None
) -> tuple[LaunchInstructions, ResumePlan, int | None]:
    """What rank 0 has by its plan and its files; this rank's own where rank 0 cannot be asked. Never raises.

    life: the number of the life that rank 0 has claimed; None on the other ranks, and where it could not. `share` is
    called exactly once, whatever happened before: the other ranks wait in theirs.
    """
    if share is None:
        return reported, plan, life
    own = _written(reported, plan, life)
    try:
        heard = share(own)
        if heard in ("", own):
            return reported, plan, life
        body = json.loads(heard)
        found, life = replace(ResumePlan.from_env(body["resume"]), **body["data"]), body["life"]
        env = {name: value for name, value in reported.env.items() if name not in _NAMES} | dict(body["reported"])
    except Exception as err:  # a broken group shows itself soon enough; how it is answered is the script's business
        logger.warning("Rekindle's ranks cannot share where they go on, so each goes by what it read: %r", err)
        return reported, plan, life
    if found != plan:
        logger.warning("This rank would resume at step %s, rank 0 at step %s: rank 0's holds", plan.step, found.step)
    return replace(reported, env=env), found, life


def _written(reported: LaunchInstructions, plan: ResumePlan, life: int | None) -> str:
    """Empty where it does not fit an environment: then it came from none, and every rank goes by its own."""
    try:
        env = plan.to_env()
    except MailboxError:
        return ""
    told = {name: reported.env[name] for name in (*_NAMES, *_PLACES) if name in reported.env}
    data = {name: getattr(plan, name) for name in _DATA}
    return json.dumps({"resume": env, "data": data, "reported": told, "life": life})
