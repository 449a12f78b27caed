"""What a look needs, and what is remembered between looks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from rekindle.agent.ports import Deeds
from rekindle.agent.slurm.joining import Joining
from rekindle.agent.slurm.known import Known
from rekindle.agent.slurm.nodemap import NodeMap
from rekindle.agent.slurm.owners import Owners
from rekindle.agent.slurm.reads import Reads
from rekindle.agent.slurm.roster import Member
from rekindle.agent.slurm.workers import UserFiles
from rekindle.headnode.documents import AttemptDoc, NodeFacts

MEMORY: Final = "watch/"
ATTEMPT: Final = f"{MEMORY}attempt/"
KNOWN: Final = f"{MEMORY}job/"
NODES: Final = f"{MEMORY}nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """What a look needs. `start`: see `ports.Slurm`."""

    cluster: str
    reads: Reads
    node_map: NodeMap
    deeds: Deeds
    start: Callable[[str], AttemptDoc | None]
    owners: Owners
    joining: Joining
    files: UserFiles


@dataclass(slots=True, kw_only=True)
class Held:
    """What is remembered between looks: open starts, captures, nodes; and what the last look at each job showed."""

    docs: dict[str, AttemptDoc] = field(default_factory=dict)
    known: dict[int, Known] = field(default_factory=dict)
    nodes: dict[str, NodeFacts] | None = None
    prints: dict[int, tuple[object, ...]] = field(default_factory=dict)
    details: dict[int, Mapping[str, str]] = field(default_factory=dict)
    members: dict[int, Member] = field(default_factory=dict)
    later: set[int] = field(default_factory=set)
    followed: tuple[str, ...] | None = None
    numbers: dict[int, datetime | None] = field(default_factory=dict)  # of jobs found to be new, and their submission
