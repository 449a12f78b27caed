"""Puts the Slurm side together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from rekindle.protocol.cluster.documents import AttemptDoc
from rekindle.slurm_agent.base.aws import code_of, text_of
from rekindle.slurm_agent.base.clock import SystemClock
from rekindle.slurm_agent.base.ports import LeaseHolder, Memory, OwnActions
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
from rekindle.slurm_agent.watching.joining import Joining, Rules
from rekindle.slurm_agent.watching.owners import Owners
from rekindle.slurm_agent.watching.relay import MailboxRelay
from rekindle.slurm_agent.watching.watcher import Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentContext:
    """What the Slurm side is given. `s3` is a boto3 client. `guard_fd`: see `base.lock`; None in tests of one part."""

    cluster: str
    bucket: str
    s3: Any
    memory: Memory
    own_actions: OwnActions
    resource_config: str  # path of resource_config.json; need not exist
    state_dir: Path
    allow_file: str  # see `privileged.allowed`; need not exist
    is_leaving: bool = False  # what is held is given back, and nothing else is done
    guard_fd: int | None = None
    holding: LeaseHolder | None = None  # None in tests of one part, and where nothing is changed
    environ: Mapping[str, str] = field(default_factory=dict)  # of the commands: PATH, SLURM_CONF
    wall: Callable[[], datetime] | None = None  # the host's clock, which is slurmctld's; None: this machine's
    partitions: frozenset[str] = frozenset()  # whose batch jobs are protected without a word of theirs
    accounts: frozenset[str] = frozenset()
    channels: Channels | None = None  # to root's helper; None where this process has all the rights there are
    keeps: bool = True  # False: specs are kept in memory alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The Slurm side, put together."""

    slurm: Commands
    watcher: Watch
    kept: SpecFolder | RemoteKept
    relay: MailboxRelay | None = None  # None in tests of one part


def _of_the_helper(context: AgentContext, channels: Channels, now: Callable[[], datetime]) -> Rights:
    return Rights(
        reads=CopyReads(RemoteReads(channels), now),
        node_map=RemoteNodeMap(channels),
        files=UserFiles(RemoteWorkers(channels)),
        gate=RemoteGate(channels, context.holding),
        captures=RemoteCaptures(channels),
        copies=RemoteCopies(channels, context.holding),
    )


def _own(context: AgentContext, now: Callable[[], datetime], settings: Callable[[], Settings]) -> Rights:
    return rights(
        environ=context.environ,
        guard_fd=context.guard_fd,
        holding=context.holding,
        now=now,
        folder=context.state_dir,
        allow_file=context.allow_file,
        resource_config=context.resource_config,
        is_leaving=context.is_leaving,
        settings=settings,
        files=UserFiles(),
        kept=SpecFolder(context.state_dir if context.keeps else None, lambda: settings().state_location),
    )


def build(context: AgentContext) -> Parts:
    """The commands, the watcher and the relay of one cluster; nothing is run or read yet."""
    now = context.wall or SystemClock().now
    channels = context.channels
    if channels is None:
        parts = _own(context, now, lambda: watch.current_settings())
    else:
        parts = _of_the_helper(context, channels, now)
    followed_jobs = FollowedJobs()
    published = _Published(context.s3, context.bucket)
    owners = Owners(context.cluster, published.surely)
    joining = Joining(parts.reads, Rules(partitions=context.partitions, accounts=context.accounts))
    watch = Watch(
        cluster=context.cluster,
        reads=parts.reads,
        node_map=parts.node_map,
        memory=context.memory,
        own_actions=context.own_actions,
        followed_jobs=followed_jobs,
        published=published.surely,
        owners=owners,
        joining=joining,
        files=parts.files,
        captures=parts.captures,
    )
    relay = MailboxRelay(
        cluster=context.cluster,
        bucket=context.bucket,
        s3=context.s3,
        memory=context.memory,
        followed_jobs=followed_jobs,
        files=parts.files,
        holding=context.holding,
        observes=parts.gate.observes,
    )
    commands = Commands(
        cluster=context.cluster,
        reads=parts.reads,
        gate=parts.gate,
        node_map=parts.node_map,
        watch=watch,
        now=now,
        owners=owners,
        was_taken_out=joining.ask_again,
        deliver=relay.deliver,
        files=parts.files,
        captures=parts.captures,
        copies=parts.copies,
    )
    return Parts(slurm=commands, watcher=watch, relay=relay, kept=parts.captures.kept)


class _Published:
    """What the cluster state holds."""

    def __init__(self, s3: Any, bucket: str) -> None:
        self._s3 = s3
        self._bucket = bucket

    def surely(self, key: str) -> bytes | None:
        """None only where nothing is there. Raises: Unreadable."""
        try:
            raw: bytes = self._s3.get_object(Bucket=self._bucket, Key=key)["Body"].read(AttemptDoc.LIMIT_BYTES + 1)
        except (ClientError, BotoCoreError) as err:
            if code_of(err) in ("NoSuchKey", "404"):
                return None
            raise Unreadable(text_of(f"GetObject {key}", err)) from err
        return raw
