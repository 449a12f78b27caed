"""What a start's document in the cluster state says of it beside a Job's own."""

from __future__ import annotations

from chalicelib.domain.faults.slurm_states import status_of
from chalicelib.domain.model.observation import AttemptStatus
from rekindle.protocol.cluster.documents import AttemptDoc, SlurmState
from rekindle.protocol.run_places import RunPlaces


def waits_for_us(doc: AttemptDoc) -> bool:
    """It is the queue's next start of the job, and is held until we let it go."""
    return doc.held and doc.state is SlurmState.PENDING


def is_newer(doc: AttemptDoc, own: AttemptDoc | None) -> bool:
    """Submitted after the Job's own newest; True where that is unknown."""
    if own is None or own.submitted_at is None or doc.submitted_at is None:
        return True
    return doc.submitted_at >= own.submitted_at


def places_of(doc: AttemptDoc) -> RunPlaces:
    """Where it trains: as its agent has resolved it, else as its script names it."""
    return doc.places or RunPlaces.of(doc.mailbox, doc.checkpoints)


def is_of(doc: AttemptDoc, job_id: str, places: RunPlaces) -> bool:
    """It lives, or has come to its end, and is the Job's by its comment; or trains where the Job's own script does."""
    status = status_of(doc.state)
    if doc.job_id is not None:
        return doc.job_id == job_id and (status is AttemptStatus.COMPLETED or not status.has_ended)
    if status.has_ended:
        return False
    has_begun = status is not AttemptStatus.STARTING
    return has_begun and places_of(doc).is_shared_with(places)
