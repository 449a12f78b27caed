"""What people read for each phase of an Incident: one sentence. Pure data; a test holds it to Phase."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chalicelib.domain.model.incident import Phase

HAPPENING: Final[Mapping[Phase, str]] = {
    Phase.OPEN: "It has been reported, and is being examined.",
    Phase.HOLDING: "Waiting before anything is done.",
    Phase.WATCHING: "Watching whether it heals without help.",
    Phase.CHECKPOINTING: "The run has been asked for an emergency checkpoint.",
    Phase.STOPPING: "The attempt is being stopped.",
    Phase.RESUBMITTING: "The job is being submitted again.",
    Phase.VERIFYING: "A new attempt runs; watching whether it makes progress.",
    Phase.DRAINING: "The node takes no new jobs; the jobs on it end or move first.",
    Phase.REPAIRING: "The node is being repaired.",
    Phase.CHECKING: "The node is back, and is being checked.",
    Phase.RETURNING: "The node is being given back to the scheduler.",
    Phase.RECOVERED: "Recovered: it makes progress again.",
    Phase.STOPPED: "Stopped: nothing more is done.",
    Phase.HANDED_OVER: "Handed over to a person: nothing more is done automatically.",
}
