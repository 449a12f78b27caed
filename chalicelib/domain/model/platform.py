"""The capabilities of a platform, as data: rules depend on capabilities, never on a platform's name. Pure.

Each platform has one instance, in its own folder (`chalicelib/platforms/<name>/platform.py`). A Job stores the name; an
Observation carries the whole value, so that a decision is recorded with the capabilities on which it was based. The
defaults describe the least that every platform can do: start, stop and read an attempt.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from chalicelib.domain.model.codec import Record


class Resize(StrEnum):
    """When the number of nodes of a submitted attempt can be changed."""

    NEVER = "never"
    WHILE_QUEUED = "while_queued"  # while it waits for nodes, it can be changed to fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform(Record):
    """One platform's capabilities. It has 21 fields, because each is an independent property that some rule reads.

    name                    stored with each Job; lower-case letters, digits and underscores
    title                   for people
    orders_wait             an agent in the cluster takes an order later: the answer may be late, the order is carried
                            out even if it is no longer wanted, and the observed state may lag behind the answer
    accepts_at_once         an accepted submission is certain to exist and to start: no observation must confirm it
    holds_own_queue         attempts wait in a queue of the platform until there are nodes
    can_hold                a stop can leave the next start in that queue, held, until it is released
    can_requeue             the same submission can be started again; the attempt's record says how, and must be read
                            first
    can_exclude_nodes       an attempt can be kept away from nodes by name, and a node can be cordoned for it
    restarts_by_itself      the platform, or a person at its console, puts an attempt back as a new start
    job_restarts_itself     the job itself may be restarted within the same attempt, and gets timing.auto_resume_grace
    ends_lost_runs          the platform ends an attempt that has lost a node; while it reports the attempt as running,
                            its report that a node is gone is in doubt
    names_recur             a later run can have the same attempt names, if a cluster is created again under the name
    tells_who_ended         the state of an ended attempt shows whether its user ended it
    checks_users            the cluster itself checks which user may join a Job or name its mailbox
    relays_heartbeats       heartbeats may arrive as copies: without any, requests in the mailbox may still be read
    resize                  when the number of nodes of a submitted attempt can be changed
    release_command, end_command, again_command
                            the shell command, for people, that releases a held job, ends it, starts it again; `{id}`
                            stands for the job's id
    uncordon_command        the shell command, for people, that makes `{node}` schedulable again
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
    resize: Resize = Resize.NEVER
    release_command: str = ""
    end_command: str = ""
    again_command: str = ""
    uncordon_command: str = ""


UNKNOWN_PLATFORM = Platform()
