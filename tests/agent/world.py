"""The agent's core between the embedded cloud and a slurmctld in this process, pass by pass, on a clock of ours."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from localcloud.cloud import STACK, Cloud
from rekindle.protocol.cluster.documents import AgentDoc, JobSpec
from rekindle.protocol.cluster.names import agent_key, answer_key, order_key, queue_name
from rekindle.protocol.cluster.orders import Order, OrderResult, Verb
from rekindle.protocol.cluster.queue_place import QueueFact
from rekindle.slurm_agent.base.aws import Clients
from rekindle.slurm_agent.base.ports import Advice, Reading, SlurmUnavailable
from rekindle.slurm_agent.base.settings import Settings
from rekindle.slurm_agent.copies.kept import SpecFolder
from rekindle.slurm_agent.process import Agent
from rekindle.slurm_agent.publishing.outbox import Outbox, OutboxLane
from rekindle.slurm_agent.slurm.build import AgentContext, Parts
from tests.agent.ctld import START, Ctld

CLUSTER = "lab"
BUCKET = f"{STACK}-mailbox"


class ManualClock:
    def __init__(self) -> None:
        self.at = START

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return (self.at - START).total_seconds() + 1000.0

    def wall(self) -> datetime:
        return self.now()

    def is_sure(self) -> bool:
        return True

    def forward(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


@dataclass
class Seen:
    """As `Watch`: says what the test wants it to have read."""

    ctld: Ctld
    readings: list[Reading] = field(default_factory=list)
    slurm_version: str = "22.05.8"
    queue_losses: tuple[QueueFact, ...] = ()
    cluster_arn: str = ""

    def read(self, now: datetime) -> Reading:
        if self.ctld.is_away:
            raise SlurmUnavailable("Unable to contact slurm controller")
        return self.readings.pop(0) if self.readings else Reading()

    commands = 0

    def advice(self, now: datetime) -> tuple[Advice, ...]:
        return ()

    def tell_again(self) -> None:
        self.asked_again = True


@dataclass
class Network:
    """Stands before a boto3 client: the road to AWS, which can be cut, and which counts what passes."""

    client: Any
    error: Exception | None = None
    calls: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        def call(**arguments: Any) -> Any:
            if self.error is not None:
                raise self.error
            self.calls.append(name)
            return getattr(self.client, name)(**arguments)

        return call


class Bucket:
    """What of S3 an agent without a cloud asks for: orders that the service has written down."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put_object(self, *, Bucket: str, Key: str, Body: bytes) -> None:
        self.objects[Key] = Body

    def get_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        if Key not in self.objects:
            raise ClientError({"Error": {"Code": "NoSuchKey"}}, "GetObject")
        return {"Body": io.BytesIO(self.objects[Key])}


class World:
    """`cloud` None: no AWS at all, for tests of what is done at the desk."""

    def __init__(self, cloud: Cloud | None, folder: Path, *, has_queue: bool = True) -> None:
        self._cloud = cloud
        if cloud is not None:
            empty(cloud)
        self.clock = ManualClock()
        self.ctld = Ctld()
        self.watcher = Seen(self.ctld)
        self.kept = SpecFolder()
        self.bucket = cloud.client("s3") if cloud is not None else Bucket()
        self.network = {name: Network(cloud and cloud.client(name)) for name in ("sqs", "events")}
        self.network["s3"] = Network(self.bucket)
        self.settings = Settings.read(
            {"REKINDLE_BUCKET": BUCKET, "REKINDLE_CLUSTER": CLUSTER}, {"state_dir": str(folder)}
        )
        folder.mkdir(exist_ok=True, parents=True)
        self.agent = self.start()
        if has_queue and cloud is not None:
            self.make_queue()

    @property
    def cloud(self) -> Cloud:
        assert self._cloud is not None
        return self._cloud

    def make_queue(self) -> None:
        self.url = self.cloud.client("sqs").create_queue(QueueName=queue_name(STACK, CLUSTER))["QueueUrl"]

    def quarantined(self) -> list[str]:
        """The messages that were put aside, oldest first."""
        rows = self.agent.store.read(lambda db: db.execute("SELECT body FROM quarantine ORDER BY id").fetchall())
        return [str(body) for (body,) in rows]

    def start(self, lease: Any = None) -> Agent:
        """A new process on the same state directory; the old one is simply gone, as after kill -9."""
        s3 = self.network["s3"]
        clients = Clients(sqs=self.network["sqs"], s3=s3, events=self.network["events"], lease=s3)
        self.agent = Agent(
            settings=self.settings,
            clients=clients,
            clock=self.clock,
            build=self._build,
            guard_fd=None,
            lease=lease,
        )
        return self.agent

    def _build(self, ground: AgentContext) -> Parts:
        assert isinstance(ground.memory, Outbox)
        return Parts(slurm=self.ctld, watcher=self.watcher, kept=self.kept)

    # ---- the service's side

    def order(self, verb: Verb, token: str = "order-1", **changes: Any) -> Order:  # noqa: S107
        order = Order(
            token=token,
            verb=verb,
            cluster=CLUSTER,
            issued_at=self.clock.now(),
            expires_at=self.clock.now() + timedelta(minutes=30),
        )
        return replace(order, **changes)

    def write_down(self, order: Order) -> None:
        """What the service does before it sends an order."""
        self.bucket.put_object(Bucket=BUCKET, Key=order_key(CLUSTER, order.token), Body=order.to_json())

    def send(self, message: Order | str) -> None:
        if isinstance(message, Order) and message.verb is Verb.SUBMIT:
            self.write_down(message)
        body = message if isinstance(message, str) else message.to_json().decode()
        self.cloud.client("sqs").send_message(QueueUrl=self.url, MessageBody=body)

    def spec(self) -> str:
        """A spec that is kept; its name."""
        return self.kept.put(JobSpec(script="#!/bin/sh\nsrun train\n"))

    def answer(self, token: str = "order-1") -> OrderResult | None:  # noqa: S107
        raw = self.read(answer_key(CLUSTER, token))
        return None if raw is None else OrderResult.from_json(raw)

    def heartbeat(self) -> AgentDoc | None:
        raw = self.read(agent_key(CLUSTER))
        return None if raw is None else AgentDoc.from_json(raw)

    def read(self, key: str) -> bytes | None:
        s3 = self.cloud.client("s3")
        listed = s3.list_objects_v2(Bucket=BUCKET, Prefix=key).get("Contents", [])
        if not any(entry["Key"] == key for entry in listed):
            return None
        return bytes(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())

    def told(self, detail_type: str = "Rekindle Order Answered") -> list[dict[str, Any]]:
        """Details of the agent's events so far."""
        return [
            json.loads(json.dumps(event["detail"]))
            for bus, event in self.cloud.events.put
            if bus == STACK and event["detail-type"] == detail_type and event["source"] == "rekindle.agent"
        ]

    def left(self) -> int:
        """Messages in the queue, those that are hidden too."""
        found = self.cloud.client("sqs").get_queue_attributes(
            QueueUrl=self.url,
            AttributeNames=["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"],
        )["Attributes"]
        return sum(int(value) for value in found.values())

    # ---- the agent's turns

    def run_once(self) -> None:
        """One poll, what is due, what is to be told."""
        self.agent.orders.poll(0)
        self.agent.executor.work()
        self.agent.publisher.run_once()

    def carry_out(self, order: Order) -> OrderResult:
        """Send it, and have turns until it is answered."""
        self.send(order)
        for _ in range(100):
            self.run_once()
            if (answer := self.answer(order.token)) is not None:
                return answer
            self.agent.watch.run_once()
            self.clock.forward(30)
        raise AssertionError(f"{order.token} was never answered: {self.agent.problems.lines()}")

    def obey(self, order: Order) -> OrderResult:
        """At the desk alone: taken, and worked on until it is answered."""
        if order.verb is Verb.SUBMIT:
            self.write_down(order)
        self.agent.executor.take(order.to_json().decode())
        for _ in range(100):
            self.agent.executor.work()
            entry = self.agent.journal.find(order.token)
            if entry is not None and entry.answer is not None:
                return entry.answer
            self.clock.forward(30)
        raise AssertionError(f"{order.token} was never answered: {self.agent.problems.lines()}")

    def cut(self, error: Exception | None) -> None:
        for host in self.network.values():
            host.error = error


def empty(cloud: Cloud) -> None:
    """No object, no queue of an agent's, no event."""
    s3, sqs = cloud.client("s3"), cloud.client("sqs")
    for entry in s3.list_objects_v2(Bucket=BUCKET).get("Contents", []):
        s3.delete_object(Bucket=BUCKET, Key=entry["Key"])
    for url in sqs.list_queues(QueueNamePrefix=f"{STACK}-agent-").get("QueueUrls", []):
        sqs.delete_queue(QueueUrl=url)
    cloud.events.put.clear()


def unwritten(outbox: Outbox, key: str) -> bytes | None:
    """The document that still has to be written under a key."""
    waiting = (document for lane in OutboxLane for document in outbox.documents(lane, 1000))
    return next((document.body for document in waiting if document.key == key), None)
