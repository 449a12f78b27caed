"""What a platform can do, as a value: rules ask its capabilities, never its name. Pure.

Each platform has one instance, in its own folder (`chalicelib/platforms/<name>/platform.py`). A Job stores the name; an
Observation carries the whole value, so that a decision is recorded with the capabilities that it was taken with.
The default of each capability is what a platform can do of which nothing is known: start, stop and read an attempt.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from chalicelib.domain.model.codec import Record


class Resize(StrEnum):
    """What may be done to the size of an attempt that is there already."""

    NEVER = "never"
    WHILE_QUEUED = "while_queued"  # one that waits for nodes can be given fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform(Record):
    """Capabilities. More than twenty fields, because each is one question that rules ask, with one answer per platform.

    name                    stored with each Job; lower-case letters, digits and underscores
    title                   for people
    orders_wait             an order is taken later by an agent in the cluster: it may be answered late, is carried out
                            even if it is no longer wanted, and what is shown may lag its answer
    accepts_at_once         an accepted submission needs no second observation to be believed: it exists, and starts
    holds_own_queue         an attempt can wait in the platform's own queue
    can_hold                a stop can leave the next start in that queue, held, until it is released
    can_requeue             the same submission can be started again; how is part of the attempt's own record, which
                            must be read first
    can_exclude_nodes       an attempt can be kept away from nodes by name, and a node can be cordoned for it
    restarts_by_itself      the platform, or a person at its console, puts an attempt back as a new start
    job_restarts_itself     the job itself may be restarted within the same attempt, and gets timing.auto_resume_grace
    ends_lost_runs          the platform ends an attempt of which it has lost a node, so that its own word that the
                            attempt runs counts against its word that a node is away
    names_recur             a name may come to be another run's, where a cluster is created again under its old name
    tells_who_ended         an ended attempt says whether its user ended it
    checks_users            who may join a Job or name its mailbox is judged inside the cluster, before it is reported
    relays_heartbeats       heartbeats may come by a copy: their absence does not show that nothing reads requests
    stacks_by_signal        ranks write their stacks at a signal that is sent through the platform
    resize                  what may be done to the size of an attempt
    release_command, end_command, again_command
                            what a person types to let a held job go, to end it, to start it again; `{id}` is the job's
    uncordon_command        what a person types to give `{node}` back
    """

    name: str = ""
    title: str = ""
    orders_wait: bool = False
    accepts_at_once: bool = False
    holds_own_queue: bool = False
    can_hold: bool = False
    can_requeue: bool = False
    can_exclude_nodes: bool = False
    restarts_by_itself: bool = False
    job_restarts_itself: bool = False
    ends_lost_runs: bool = False
    names_recur: bool = False
    tells_who_ended: bool = False
    checks_users: bool = False
    relays_heartbeats: bool = False
    stacks_by_signal: bool = False
    resize: Resize = Resize.NEVER
    release_command: str = ""
    end_command: str = ""
    again_command: str = ""
    uncordon_command: str = ""


UNKNOWN_PLATFORM = Platform()
