"""Puts the Slurm side together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from rekindle.protocol.cluster.documents import AttemptDoc
from rekindle.slurm_agent.base.aws import code_of, text_of
from rekindle.slurm_agent.base.clock import SystemClock
from rekindle.slurm_agent.base.ports import AgentContext, Parts
from rekindle.slurm_agent.copies.kept import SpecFolder
from rekindle.slurm_agent.copies.reads import CopyReads
from rekindle.slurm_agent.files.user_files import UserFiles
from rekindle.slurm_agent.privileged.caps import Caps
from rekindle.slurm_agent.privileged.gate import Gate
from rekindle.slurm_agent.reading.nodemap import NodeMap
from rekindle.slurm_agent.reading.run import Runner, Unreadable
from rekindle.slurm_agent.slurm.commands import Commands
from rekindle.slurm_agent.watching.followed_jobs import FollowedJobs
from rekindle.slurm_agent.watching.joining import Joining, Rules
from rekindle.slurm_agent.watching.owners import Owners
from rekindle.slurm_agent.watching.relay import MailboxRelay
from rekindle.slurm_agent.watching.watcher import Watch


def build(ground: AgentContext) -> Parts:
    """The commands, the watcher and the relay of one cluster; nothing is run or read yet."""
    runner = Runner(environ=ground.environ, guard_fd=ground.guard_fd, holding=ground.holding)
    now = ground.wall or SystemClock().now
    reads = CopyReads(runner, now)
    node_map = NodeMap(ground.resource_config)
    followed_jobs = FollowedJobs()
    published = _Published(ground.s3, ground.bucket)
    owners = Owners(ground.cluster, published.surely)
    files = UserFiles()
    rules = Rules(partitions=ground.partitions, accounts=ground.accounts)
    joining = Joining(reads, rules)
    kept = SpecFolder(ground.state_dir if ground.keeps else None, lambda: watch.current_settings().state_location)
    watch = Watch(
        cluster=ground.cluster,
        reads=reads,
        node_map=node_map,
        memory=ground.memory,
        own_actions=ground.own_actions,
        followed_jobs=followed_jobs,
        published=published.surely,
        owners=owners,
        joining=joining,
        files=files,
        kept=kept,
    )
    gate = Gate(
        runner=runner,
        reads=reads,
        caps=Caps(ground.state_dir / "caps.json"),
        path=ground.allow_file,
        is_hyperpod=lambda: Path(ground.resource_config).exists(),
        is_leaving=ground.is_leaving,
    )
    relay = MailboxRelay(
        cluster=ground.cluster,
        bucket=ground.bucket,
        s3=ground.s3,
        memory=ground.memory,
        followed_jobs=followed_jobs,
        files=files,
        holding=ground.holding,
        observes=gate.observes,
    )
    commands = Commands(
        cluster=ground.cluster,
        runner=runner,
        reads=reads,
        gate=gate,
        node_map=node_map,
        settings=watch.current_settings,
        now=now,
        owners=owners,
        asked=watch.asked,
        held_unprotected=watch.held_unprotected,
        late_copies=watch.late_copies,
        start=watch.start,
        followed=watch.followed,
        spec=watch.spec,
        deliver=relay.deliver,
        files=files,
        hashes=kept.hashes,
    )
    return Parts(slurm=commands, watcher=watch, relay=relay, kept=kept)


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
