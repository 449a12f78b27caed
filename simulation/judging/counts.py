"""What the judge counts, and measures beside the counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

COUNTS: Final[Mapping[str, str]] = {
    "two_live_attempts": "the service submitted an attempt while another one of the run was live",
    "chain_trained_twice": "a start of ours and a link of the run's chain, which Slurm begins by itself, trained "
    "at once",
    "chain_left_waiting": "a link of a chain waits for the success of a start that has failed, although the start of "
    "ours that took its place has completed",
    "healthy_stopped": "the service stopped an attempt that was well, or that had finished its work",
    "too_many_at_once": "the service acted on more runs within the breaker's window, or had more nodes in repair, than "
    "the policy allows",
    "node_repaired_well": "the service had a node rebooted or replaced that was well, and not condemned by HyperPod",
    "resumed_from_bad": "an attempt was submitted to resume from a checkpoint that is not whole, is another run's, or "
    "whose poison could be known",
    "resumed_in_spike": "an attempt was submitted to resume from a checkpoint that was saved while the loss had risen "
    "for good, as its monitor had reported",
    "superseded_saves": "an attempt saved although another one of its Job had trained for ten minutes: no fence "
    "kept it from that",
    "kept_on_bad_node": "a run was left to people after each of its starts had got one broken node, while others were "
    "idle",
    "good_condemned": "a checkpoint that is whole and not poisoned was marked as bad",
    "passed_over": "an attempt was submitted to resume from an older checkpoint than the newest good one",
    "rewound_silently": "an attempt of ours began far below its resume step; no person was notified in ten minutes",
    "false_recovery": "an Incident was closed as recovered while its run was not",
    "dead_unwatched": "a run was dead, hung or poisoned for ten minutes, with no open Incident and no person notified",
    "looped_silently": "a run was started again in its place over and over without a checkpoint gained; no person was "
    "notified in ten minutes",
    "waited_on": "a new attempt was waited for longer than the policy allows, while its run did not train",
    "paged_for_nothing": "a person was paged about a run with which nothing had been wrong",
    "paged_again": "people were paged more than three times about one Incident",
    "budget_exceeded": "a run was submitted again, or nodes repaired within a day, beyond the policy's budget",
    "acted_while_paused": "the service stopped, submitted or repaired something a minute or more after it was paused",
    "owner_undone": "a run that its owner had stopped was submitted again, or a step was done that a person had not "
    "allowed",
    "service_defect": "a durable execution failed by a defect, or an event of this world could not be read",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsafe:
    """One thing that was unsafe."""

    kind: str
    at_s: float
    run: str
    detail: str


@dataclass(slots=True, kw_only=True)
class Figures:
    """What is measured beside the counts."""

    incidents: int = 0
    recoveries_s: list[float] = field(default_factory=list)  # from the trouble's beginning until the run trains on
    detections_s: list[float] = field(default_factory=list)  # until its Incident opens
    steps_lost: int = 0
    pages: int = 0
    submissions: int = 0
