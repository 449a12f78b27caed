"""What a look needs, and what is remembered between looks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from rekindle.protocol.cluster.documents import AttemptDoc, NodeFacts
from rekindle.slurm_agent.base.ports import OwnActions
from rekindle.slurm_agent.copies.reads import CopyReads
from rekindle.slurm_agent.files.user_files import UserFiles
from rekindle.slurm_agent.privileged.remote import RemoteCaptures, RemoteNodeMap
from rekindle.slurm_agent.privileged.submissions import Captures
from rekindle.slurm_agent.reading.nodemap import NodeMap
from rekindle.slurm_agent.watching.captures import JobCapture
from rekindle.slurm_agent.watching.followed_jobs import FollowedJob
from rekindle.slurm_agent.watching.joining import Joining
from rekindle.slurm_agent.watching.owners import Owners
from rekindle.slurm_agent.watching.protection import Protection

MEMORY: Final = "watch/"
ATTEMPT: Final = f"{MEMORY}attempt/"
KNOWN: Final = f"{MEMORY}job/"
NODES: Final = f"{MEMORY}nodes"
WRITTEN: Final = "watch-written"  # when all of the cluster state was last written


@dataclass(frozen=True, slots=True, kw_only=True)
class LookInputs:
    """What a look needs. `start`: see `Watch`."""

    cluster: str
    reads: CopyReads
    node_map: NodeMap | RemoteNodeMap
    own_actions: OwnActions
    start: Callable[[str], AttemptDoc | None]
    owners: Owners
    joining: Joining
    protection: Protection
    files: UserFiles
    captures: Captures | RemoteCaptures


@dataclass(slots=True, kw_only=True)
class LookMemory:
    """What is remembered between readings: open starts, captures, nodes; and each job as the last reading showed it."""

    docs: dict[str, AttemptDoc] = field(default_factory=dict)
    known: dict[int, JobCapture] = field(default_factory=dict)
    nodes: dict[str, NodeFacts] | None = None
    change_keys: dict[int, tuple[object, ...]] = field(default_factory=dict)
    details: dict[int, Mapping[str, str]] = field(default_factory=dict)
    members: dict[int, FollowedJob] = field(default_factory=dict)
    later: set[int] = field(default_factory=set)
    followed: tuple[str, ...] | None = None
    to_release: set[int] = field(default_factory=set)  # jobs that want no protection any more, and that we hold
    late_copies: set[int] = field(default_factory=set)  # copies beside the one that an order was answered with
    vanished: dict[int, datetime] = field(default_factory=dict)  # jobs whose end accounting has not told, since when
    real_paths: dict[tuple[str, str], str] = field(default_factory=dict)  # of a user's directories
    numbers: dict[int, datetime | None] = field(default_factory=dict)  # of jobs found to be new, and their submission
