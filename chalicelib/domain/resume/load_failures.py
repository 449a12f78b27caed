"""New attempts that die before they have made a step past their checkpoint: when is the checkpoint to blame? Pure."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from chalicelib.domain.fault_specs.faults import MAY_BE_THE_CHECKPOINT, NOT_THE_CHECKPOINT
from chalicelib.domain.model.incident import Incident, Try
from chalicelib.domain.model.known import Known, Maybe
from chalicelib.domain.model.observation import AttemptStatus, AttemptView, CheckpointView
from chalicelib.domain.policy.document import Policy
from chalicelib.domain.resume.resume_point import choose_resume_point
from chalicelib.domain.resume.rollback import is_of_its_checkpoint
from rekindle.protocol.signals import FaultClass

# A kill from outside is not the load's doing: the out-of-memory killer, a preemption, a node that is drained.
# Source: 128 + SIGKILL, 128 + SIGTERM (Docker exit codes); the negative ones are Python's, of a child ended by a
# signal.
_KILLED = re.compile(
    r"exit ?code\s{0,3}:?\s{0,3}(137|143|-9|-15)\b|\bsignal (9|15)\b|\bSIG(KILL|TERM)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condemned:
    """A checkpoint that this Incident does not try again. `key` is what it is called there, `root` where it lies.

    `is_proven`: it is to be marked, for other Incidents too. Otherwise it is only passed over until another one loads.
    """

    key: str
    root: str | None
    why: str
    is_proven: bool = True


def settle_load(incident: Incident, view: AttemptView | None) -> Incident:
    """Note on the newest try whether it died at load, once it has ended."""
    if view is None or not incident.resubmission.tries or incident.resubmission.tries[-1].name != view.name:
        return incident
    last = incident.resubmission.tries[-1]
    if not _died_at_load(incident, last, view):
        return incident
    # A monitored run that is known to have begun and named no step has gained none.
    gained = False if view.heartbeat_at is not None and last.gained is None else last.gained
    settled = dataclasses.replace(last, died_at_load=True, gained=gained)
    return incident.changed(tries=(*incident.resubmission.tries[:-1], settled))


def _died_at_load(incident: Incident, last: Try, view: AttemptView) -> bool:
    if view.status is not AttemptStatus.FAILED or last.no_room or last.resume_manifest is None:
        return False
    if incident.fault not in MAY_BE_THE_CHECKPOINT:
        return False
    if incident.fault is FaultClass.BAD_CHECKPOINT:
        return True  # its own words
    if _KILLED.search(view.failure_reason[:4096]) or view.has_ended_unseen:
        return False
    if isinstance(view.last_step, Known):
        return isinstance(last.resume_step, Known) and view.last_step.value <= last.resume_step.value
    # No step was seen. Without a single heartbeat it died before its monitor had begun, so before it could load
    # anything: an image that does not start must not use up one good checkpoint after the other.
    return view.heartbeat_at is not None


def condemned(incident: Incident, checkpoints: Maybe[tuple[CheckpointView, ...]], policy: Policy) -> Condemned | None:
    """The checkpoint that has now killed enough attempts, if one has.

    A failure that says "corrupt" needs fewer of them, but only where an older checkpoint exists: where there is none,
    a failed download deserves its second chance. Two checkpoints in a row that kill alike are left to the budgets.
    """
    poisoned = _poisoned(incident)
    if poisoned is not None:
        return poisoned
    last = _died_on_its_checkpoint(incident)
    if last is None or last.resume_manifest is None:
        return None
    key = last.resume_manifest
    deaths = _deaths_on(key, incident)
    is_reported_corrupt = incident.fault is FaultClass.BAD_CHECKPOINT
    if not is_reported_corrupt and _ends_alike_elsewhere(incident, last):
        return None
    limit = policy.budgets.load_deaths_before_quarantine
    if is_reported_corrupt and _has_older(incident, key, checkpoints, policy):
        limit = min(limit, policy.budgets.corrupt_loads_before_quarantine)
    if deaths < limit or (is_reported_corrupt and not _was_loaded(last, checkpoints)):
        return None
    step = last.resume_step.value if isinstance(last.resume_step, Known) else "unknown"
    how = "could not be loaded" if is_reported_corrupt else "no step was made from it"
    times = f"{deaths} attempt{'s' if deaths > 1 else ''} died on the checkpoint of step {step}"
    return Condemned(key=key, root=last.resume_root, why=f"{times}, {how}", is_proven=is_reported_corrupt)


def _died_on_its_checkpoint(incident: Incident) -> Try | None:
    """The newest try, where it died of a checkpoint that is still tried, and of nothing else."""
    last = incident.resubmission.tries[-1] if incident.resubmission.tries else None
    if last is None or not last.died_at_load or last.name in _excused(incident):
        return None
    return None if last.resume_manifest in incident.resubmission.excluded_checkpoints else last


def _excused(incident: Incident) -> set[str | None]:
    """Attempts of which something else than their checkpoint was reported."""
    return {signal.attempt for signal in incident.signals if signal.fault in NOT_THE_CHECKPOINT}


def _deaths_on(key: str, incident: Incident) -> int:
    """How many attempts died on that checkpoint."""
    excused = _excused(incident)
    died = (
        attempt for attempt in incident.resubmission.tries if attempt.died_at_load and attempt.resume_manifest == key
    )
    return sum(attempt.name not in excused for attempt in died)


def _ends_alike_elsewhere(incident: Incident, last: Try) -> bool:
    """An attempt that had not loaded this checkpoint has ended in the same words: the checkpoint is not why.

    A fault that the first batch after it triggers ends every attempt at that step, whichever checkpoint it loaded.
    """
    loaded_it = {item.name for item in incident.resubmission.tries if item.resume_manifest == last.resume_manifest}
    words = {item.signature for item in incident.resubmission.failures if item.attempt == last.name}
    elsewhere = {item.signature for item in incident.resubmission.failures if item.attempt not in loaded_it}
    return bool((words & elsewhere) - {""})


def proven_by(incident: Incident, view: AttemptView) -> Condemned | None:
    """A checkpoint that was passed over and is to be marked now: the attempt began from another one, and has passed
    the step at which those from it died. A bug in the first batch after it would have killed this one there as well.
    """
    newest = incident.resubmission.tries[-1] if incident.resubmission.tries else None
    if newest is None or newest.name != view.name or not isinstance(view.last_step, Known):
        return None
    for item in incident.resubmission.tries[:-1]:
        key, step = item.resume_manifest, item.resume_step
        is_passed_over = (
            item.died_at_load
            and key in incident.resubmission.excluded_checkpoints
            and key not in incident.resubmission.quarantined
        )
        if key is None or not is_passed_over or key == newest.resume_manifest or not isinstance(step, Known):
            continue
        if view.last_step.value > step.value + 1:
            why = (
                f"{item.name} died on it before it had made a step, and {newest.name} has passed that step from another"
            )
            return Condemned(key=key, root=item.resume_root, why=why)
    return None


def _was_loaded(last: Try, checkpoints: Maybe[tuple[CheckpointView, ...]]) -> bool:
    """This checkpoint is the damaged one, as far as is known: a trainer that loads its own newest, whatever its plan,
    dies of that one.
    """
    if not isinstance(checkpoints, Known) or not isinstance(last.resume_step, Known):
        return True
    step = last.resume_step.value
    return not any(item.problems and item.step > step for item in checkpoints.value)


def _poisoned(incident: Incident) -> Condemned | None:
    """At once, and whatever older ones there are: the weights of such a checkpoint never give a finite loss again."""
    last = incident.resubmission.tries[-1] if incident.resubmission.tries else None
    if (
        last is None
        or last.resume_manifest is None
        or last.resume_manifest in incident.resubmission.excluded_checkpoints
    ):
        return None
    onset = next((onset for onset in incident.loss.onsets if onset.attempt == last.name), None)
    if onset is None or not is_of_its_checkpoint(incident, onset):
        return None
    step = last.resume_step.value if isinstance(last.resume_step, Known) else "unknown"
    why = f"poisoned: {last.name} resumed from step {step} and was not finite from its first step on"
    return Condemned(key=last.resume_manifest, root=last.resume_root, why=why)


def _has_older(incident: Incident, key: str, checkpoints: Maybe[tuple[CheckpointView, ...]], policy: Policy) -> bool:
    if not isinstance(checkpoints, Known):
        return False
    without = incident.changed(excluded_checkpoints=(*incident.resubmission.excluded_checkpoints, key))
    point = choose_resume_point(checkpoints.value, without, policy)
    return point is not None and point.root is not None
