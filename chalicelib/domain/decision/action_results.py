"""What the answers of a look's Actions tell by themselves, so that the world need not be read again for it. Pure."""

from __future__ import annotations

from dataclasses import replace

from chalicelib.domain.model.action import ActionResult, Done
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import AttemptStatus, AttemptView, Observation

_UNREAD = Unknown("not read again")


def after_accepted_start(
    recorded: Incident, seen: Observation, results: tuple[ActionResult, ...]
) -> Observation | None:
    """The next observation of an Incident whose new attempt was accepted; None where the world must be seen first.

    `recorded` is the Incident as it was written before the Actions, `seen` what it was decided from. The platform has
    answered for exactly this job, so another look at it could tell no more than that it starts. What arrived meanwhile
    is not in it, and wakes the Incident again. A start that an agent was ordered to make, and any other answer, is
    looked at.
    """
    pending = recorded.resubmission.pending
    if recorded.phase is not Phase.RESUBMITTING or pending is None or not seen.platform.accepts_at_once:
        return None
    if any(result.done not in (Done.DONE, Done.ALREADY) for result in results):
        return None
    if not any(result.action == "ResubmitJob" for result in results):
        return None
    return replace(
        seen,
        attempt=Known(AttemptView(name=pending.name, status=AttemptStatus.STARTING, detail="submitted")),
        checkpoints=_UNREAD,
        reply=_UNREAD,
        suspicion=_UNREAD,
        new_signals=(),
        results=results,
    )
