"""Puts the Slurm side of the agent together: what reads, watches, relays and commands one cluster.

Called by the agent's process, its checks, and the tests of one part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from rekindle.protocol.cluster.documents import AttemptDoc
from rekindle.slurm_agent.base.aws import AwsError, read_object, text_of
from rekindle.slurm_agent.base.clock import SystemClock
from rekindle.slurm_agent.base.ports import LeaseHolder, Memory, OwnActions
from rekindle.slurm_agent.base.settings import Settings as AgentSettings
from rekindle.slurm_agent.copies.kept import SpecFolder
from rekindle.slurm_agent.copies.reads import CopyReads
from rekindle.slurm_agent.files.user_files import UserFiles
from rekindle.slurm_agent.privileged.remote import (
    Channels,
    RemoteCaptures,
    RemoteCopies,
    RemoteGate,
    RemoteKept,
    RemoteNodeMap,
    RemoteReads,
    RemoteWorkers,
)
from rekindle.slurm_agent.privileged.rights import Rights, rights
from rekindle.slurm_agent.reading.nodes import Settings
from rekindle.slurm_agent.reading.run import Unreadable
from rekindle.slurm_agent.slurm.commands import Commands
from rekindle.slurm_agent.watching.followed_jobs import FollowedJobs
from rekindle.slurm_agent.watching.joining import Joining
from rekindle.slurm_agent.watching.owners import Owners
from rekindle.slurm_agent.watching.relay import MailboxRelay
from rekindle.slurm_agent.watching.watcher import Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentContext:
    """What the Slurm side is given. `s3` is a boto3 client. `guard_fd`: see `base.lock`; None in tests of one part."""

    settings: AgentSettings
    s3: Any
    memory: Memory
    own_actions: OwnActions
    is_leaving: bool = False  # what is held is given back, and nothing else is done
    guard_fd: int | None = None
    holding: LeaseHolder | None = None  # None in tests of one part, and where nothing is changed
    wall: Callable[[], datetime] | None = None  # the host's clock, which is slurmctld's; None: this machine's
    channels: Channels | None = None  # to root's helper; None where this process has all the rights there are
    keeps: bool = True  # False: specs are kept in memory alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The Slurm side, put together."""

    slurm: Commands
    watcher: Watch
    kept: SpecFolder | RemoteKept
    relay: MailboxRelay | None = None  # None in tests of one part


def _rights_of_helper(context: AgentContext, channels: Channels, now: Callable[[], datetime]) -> Rights:
    """Each act is asked of root's helper: this process has an unprivileged user."""
    return Rights(
        reads=CopyReads(RemoteReads(channels), now),
        node_map=RemoteNodeMap(channels),
        files=UserFiles(RemoteWorkers(channels)),
        gate=RemoteGate(channels, context.holding),
        captures=RemoteCaptures(channels),
        copies=RemoteCopies(channels, context.holding),
    )


def _own_rights(context: AgentContext, now: Callable[[], datetime], settings: Callable[[], Settings]) -> Rights:
    """Each act is this process's own: it runs as root, or as a user with Slurm's rights."""
    return rights(
        context.settings,
        guard_fd=context.guard_fd,
        holding=context.holding,
        now=now,
        folder=context.settings.state_dir,
        is_leaving=context.is_leaving,
        of_slurmctld=settings,
        files=UserFiles(),
        kept=SpecFolder(context.settings.state_dir if context.keeps else None, lambda: settings().state_location),
    )


def build(context: AgentContext) -> Parts:
    """The commands, the watcher and the relay of one cluster; nothing is run or read yet."""
    now = context.wall or SystemClock().now
    channels, agent = context.channels, context.settings
    if channels is None:
        rights_held = _own_rights(context, now, lambda: watch.current_settings())
    else:
        rights_held = _rights_of_helper(context, channels, now)
    followed_jobs = FollowedJobs()
    published = partial(_published, context.s3, agent.bucket)
    owners = Owners(agent.cluster, published)
    joining = Joining(rights_held.reads, partitions=agent.partitions, accounts=agent.accounts)
    watch = Watch(
        cluster=agent.cluster,
        reads=rights_held.reads,
        node_map=rights_held.node_map,
        memory=context.memory,
        own_actions=context.own_actions,
        followed_jobs=followed_jobs,
        published=published,
        owners=owners,
        joining=joining,
        files=rights_held.files,
        captures=rights_held.captures,
    )
    relay = MailboxRelay(
        cluster=agent.cluster,
        bucket=agent.bucket,
        s3=context.s3,
        memory=context.memory,
        followed_jobs=followed_jobs,
        files=rights_held.files,
        holding=context.holding,
        observes=rights_held.gate.observes,
    )
    commands = Commands(
        cluster=agent.cluster,
        reads=rights_held.reads,
        gate=rights_held.gate,
        node_map=rights_held.node_map,
        watch=watch,
        now=now,
        owners=owners,
        was_taken_out=joining.ask_again,
        deliver=relay.deliver,
        files=rights_held.files,
        captures=rights_held.captures,
        copies=rights_held.copies,
    )
    return Parts(slurm=commands, watcher=watch, relay=relay, kept=rights_held.captures.kept)


def _published(s3: Any, bucket: str, key: str) -> bytes | None:
    """A document of the cluster state; None only where there is none. Raises: Unreadable."""
    try:
        return read_object(s3, bucket, key, limit=AttemptDoc.LIMIT_BYTES)
    except AwsError as err:
        raise Unreadable(text_of(f"GetObject {key}", err)) from err
