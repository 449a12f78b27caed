"""`--check`: what the agent finds and what is missing, all of it, before people rely on it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final

from rekindle.compat import UTC
from rekindle.protocol.cluster.names import cluster_prefix, queue_name
from rekindle.slurm_agent.base.aws import AwsError, Clients, is_no_queue, text_of
from rekindle.slurm_agent.base.clock import AwsClock
from rekindle.slurm_agent.base.ports import Advice, Memory, OwnActions, SlurmError
from rekindle.slurm_agent.base.settings import Settings
from rekindle.slurm_agent.base.store import Store
from rekindle.slurm_agent.leases.store import read_lease, standing_by
from rekindle.slurm_agent.privileged.remote import Channels
from rekindle.slurm_agent.privileged.separation import USER
from rekindle.slurm_agent.process import DATABASE, Build
from rekindle.slurm_agent.publishing.outbox import Outbox
from rekindle.slurm_agent.publishing.publisher import SOURCE
from rekindle.slurm_agent.slurm.build import AgentContext
from rekindle.slurm_agent.watching.watcher import Watch

COMMANDS: Final = ("squeue", "scontrol", "sinfo", "sbatch", "scancel")
# Where HyperPod and ParallelCluster have Slurm's commands, besides PATH.
FOLDERS: Final = "/opt/slurm/bin"
MANY_A_MINUTE: Final = 20  # commands; at the default rhythm it is three a look, and six looks


class _NoMemory(Memory):
    """Of a watcher that looks for the first time, and only once."""

    def items(self, prefix: str) -> dict[str, bytes]:  # noqa: ARG002
        return {}


def check(
    settings: Settings,
    clients: Clients,
    build: Build,
    say: Callable[[str], None],
    channels: Channels | None = None,
) -> bool:
    """Says one line for each thing looked at. True where the agent can work."""
    found = [*_machine(settings, channels), *_slurm(settings, clients, build, channels), *_aws(settings, clients)]
    words = {True: "ok     ", False: "MISSING", None: "note   "}
    for finding in found:
        say(f"{words[finding.is_ok]}  {finding.what}: {finding.text}")
    return all(finding.is_ok is not False for finding in found)


def _machine(settings: Settings, channels: Channels | None) -> Iterator[Advice]:
    yield Advice(what="cluster", is_ok=True, text=f"{settings.cluster} (from {settings.cluster_from})")
    directory = settings.state_dir
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
        yield Advice(what="state", is_ok=True, text=f"{directory} can be written to")
    except OSError as err:
        yield Advice(what="state", is_ok=False, text=f"{directory}: {err}")
    if channels is not None:
        yield Advice(what="user", is_ok=True, text=f"{USER}; root's rights are in a process of their own")
    elif os.geteuid() == 0:
        text = f"root in one process, which reads what users and AWS send: there is no user {USER} on this machine"
        yield Advice(what="user", is_ok=None, text=text)
    else:
        text = "not root: only this user's jobs can be stopped and submitted, unless Slurm makes it an operator"
        yield Advice(what="user", is_ok=None, text=text)


def _slurm(settings: Settings, clients: Clients, build: Build, channels: Channels | None) -> Iterator[Advice]:
    path = f"{settings.environ.get('PATH', os.defpath)}:{FOLDERS}"
    missing = [name for name in COMMANDS if shutil.which(name, path=path) is None]
    if missing:
        yield Advice(what="commands", is_ok=False, text=f"not found: {', '.join(missing)}")
        return
    yield Advice(what="commands", is_ok=True, text=", ".join(COMMANDS))
    kept = settings.state_dir / DATABASE
    parts = build(
        AgentContext(
            settings=settings,
            s3=clients.s3,
            memory=Outbox(Store(kept, clock=AwsClock())) if kept.exists() else _NoMemory(),
            own_actions=OwnActions(),
            keeps=False,
            channels=channels,
        )
    )
    try:
        reading = parts.watcher.read(datetime.now(UTC))
    except SlurmError as err:
        yield Advice(what="slurmctld", is_ok=False, text=str(err))
        return
    jobs = sum("/attempts/" in key for key in reading.documents)
    version, arn = parts.watcher.slurm_version, parts.watcher.cluster_arn
    yield Advice(what="slurmctld", is_ok=True, text=f"Slurm {version or 'of unknown version'}, {jobs} jobs of ours")
    for line in parts.slurm.barred_here():
        yield Advice(what="allowed", is_ok=None, text=line)
    yield Advice(what="HyperPod", is_ok=None, text=arn or "no: node repair goes through Slurm only")
    try:
        yield from parts.watcher.advice(datetime.now(UTC))
        yield _cost(settings, parts.watcher)
    except SlurmError as err:
        yield Advice(what="slurmctld", is_ok=False, text=str(err))
    for line in reading.problems:
        yield Advice(what="reading", is_ok=None, text=line)


def _cost(settings: Settings, watcher: Watch) -> Advice:
    """By a second look: the first one asks about every protected job. Raises: SlurmError."""
    before = watcher.commands
    watcher.read(datetime.now(UTC))
    each = watcher.commands - before
    a_minute = each * 60 / settings.poll_s
    text = f"{each} a look, {a_minute:.0f} a minute at rest"
    is_many = a_minute > MANY_A_MINUTE
    if is_many:
        text += f": more than {MANY_A_MINUTE}; REKINDLE_POLL_S, now {settings.poll_s:g}, can be longer"
    return Advice(what="commands of Slurm's", is_ok=None if is_many else True, text=text)


def _lease(settings: Settings, clients: Clients) -> Iterator[Advice]:
    """Who acts, and who would take over."""
    try:
        found = read_lease(clients.lease, settings.bucket, settings.cluster)
        marks = [name for _, name in standing_by(clients.lease, settings.bucket, settings.cluster)]
    except AwsError as err:
        yield Advice(what="lease", is_ok=False, text=text_of("lease.json", err))
        return
    if found is None:
        yield Advice(what="lease", is_ok=None, text="none yet: the first agent that starts takes it")
        return
    doc, age = found.doc, f"{max(0.0, found.age_s):.0f} s ago"
    if doc is None:
        yield Advice(what="lease", is_ok=None, text=f"lease.json is no lease ({found.why}): an agent replaces it")
    elif doc.stopped_on:
        yield Advice(what="lease", is_ok=None, text=f"all agents were stopped by an operator on {doc.stopped_on}")
    elif doc.term_s == 0:
        yield Advice(what="lease", is_ok=None, text=f"given back by {doc.holder} on {doc.host}, {age}")
    elif found.age_s > doc.term_s:
        text = f"over: {doc.holder} on {doc.host} renewed it {age}, and no agent has taken over"
        yield Advice(what="lease", is_ok=None, text=text)
    else:
        text = f"held by {doc.holder} on {doc.host}, epoch {doc.epoch}, renewed {age}"
        yield Advice(what="lease", is_ok=True, text=text)
        marks = [name for name in marks if name != doc.holder]
    yield Advice(what="standby", is_ok=None, text=", ".join(marks) or "no other agent")


def _aws(settings: Settings, clients: Clients) -> Iterator[Advice]:
    clock = AwsClock()
    for client in (clients.s3, clients.sqs, clients.events):
        clock.follow(client)
    now = datetime.now(UTC).isoformat()
    name = queue_name(settings.stack, settings.cluster)
    try:
        key = f"{cluster_prefix(settings.cluster)}check.json"
        clients.s3.put_object(Bucket=settings.bucket, Key=key, Body=json.dumps({"v": 1, "at": now}).encode())
        clients.s3.get_object(Bucket=settings.bucket, Key=key)["Body"].read()
        yield Advice(
            what="cluster state", is_ok=True, text=f"s3://{settings.bucket}/{cluster_prefix(settings.cluster)}"
        )
    except AwsError as err:
        yield Advice(what="cluster state", is_ok=False, text=text_of(f"s3://{settings.bucket}", err))
    try:
        detail = {"v": 1, "cluster": settings.cluster, "agent_id": "check", "at": now, "started_at": now}
        entry = {
            "Source": SOURCE,
            "DetailType": "Rekindle Agent Started",  # has the service make the queue, as it has been written for
            "Detail": json.dumps(detail),
            "EventBusName": settings.bus,
        }
        refused = [
            answer["ErrorCode"]
            for answer in clients.events.put_events(Entries=[entry])["Entries"]
            if "ErrorCode" in answer
        ]
        yield Advice(what="bus", is_ok=not refused, text=", ".join(refused) or f"{settings.bus} takes events")
    except AwsError as err:
        yield Advice(what="bus", is_ok=False, text=text_of("PutEvents", err))
    try:
        url = clients.sqs.get_queue_url(QueueName=name)["QueueUrl"]
        # Hidden for no time: an agent that runs gets the message all the same.
        clients.sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=1, VisibilityTimeout=0, WaitTimeSeconds=0)
        yield Advice(what="queue", is_ok=True, text=name)
    except AwsError as err:
        if is_no_queue(err):
            text = f"no {name} yet: the service makes it when the agent starts"
            yield Advice(what="queue", is_ok=None, text=text)
        else:
            yield Advice(what="queue", is_ok=False, text=text_of(f"queue {name}", err))
    yield from _lease(settings, clients)
    stated = clock.problems()
    yield Advice(what="clock", is_ok=None if stated else True, text=stated[0] if stated else "as AWS's")
