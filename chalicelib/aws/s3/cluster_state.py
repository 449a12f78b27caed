"""Cluster states in S3, written by head nodes, and the queues that orders wait in. Formats: rekindle/protocol/cluster.

Every document of a cluster state was written by another machine: it may be too large, half written, or another
cluster's. A reader answers with the reason; nothing in a bucket makes a look fail.

AWS calls: `attempt` and `nodes` 2 GETs, `agent` 1; `order` 1 GET, 1 PUT and 1 SendMessage, and for an order that was
given before 1 GET more; the queue's URL is asked for once per process and cluster.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any, Final

from chalicelib.aws.errors import AwsRefusal, call
from chalicelib.aws.s3.objects import S3Objects, insist
from chalicelib.domain.model.errors import DependencyUnavailable, NotAuthorized, Permanent, RecoveryError, Throttled
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.node.cluster_state import why_unknown
from chalicelib.ports.clock import Clock
from rekindle.protocol.cluster.documents import AgentDoc, AttemptDoc, NodesDoc
from rekindle.protocol.cluster.names import (
    agent_key,
    answer_key,
    attempt_key,
    attempts_prefix,
    check_cluster,
    is_slurm,
    nodes_key,
    order_key,
    parse_attempt,
    queue_name,
)
from rekindle.protocol.cluster.orders import Order, OrderResult
from rekindle.protocol.wire import MAX_MESSAGE_BYTES, MailboxError, Place

_NO_QUEUE: Final = ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist")
_MAX_PAGES: Final = 10  # of a thousand clusters

# An order is refused after it has expired, and each look sends it again until it is answered: a message older than the
# longest life of an order is worth nothing, and a queue without a reader must not fill up. The agent has a minute for
# one order before it is handed out again, which is harmless: the same token is the same order.
QUEUE_ATTRIBUTES: Final = {
    "MessageRetentionPeriod": "3600",
    "VisibilityTimeout": "60",
    "ReceiveMessageWaitTimeSeconds": "20",  # Source: SQS, the longest long poll
    "SqsManagedSseEnabled": "true",
}


class S3HeadNodes:
    """ports.HeadNodes over boto3 clients of S3 and SQS; `bucket` is the stack's own, `stack` its name."""

    def __init__(self, s3: Any, sqs: Any, *, bucket: str, stack: str, clock: Clock) -> None:
        self._objects = S3Objects(s3)
        self._sqs = sqs
        self._bucket = bucket
        self._stack = stack
        self._clock = clock
        self._urls: dict[str, str] = {}

    # ---- reading ---------------------------------------------------------------------------------------------------

    def agent(self, cluster: str) -> Maybe[AgentDoc]:
        try:
            raw = self._read_object(agent_key(cluster))
            if raw is None:
                return Unknown(f"no agent of {cluster} has ever reported")
            doc = AgentDoc.from_json(raw)
            insist(doc.cluster == cluster, "cluster", f"is {doc.cluster}")
        except MailboxError as err:
            return Unknown(f"the agent's heartbeat of {cluster!r} cannot be used: {err}"[:200])
        except RecoveryError as err:
            return Unknown(f"the agent's heartbeat of {cluster!r} cannot be read: {err}"[:200])
        return Known(doc)

    def attempt(self, name: str) -> AttemptDoc | None:
        """See ports.HeadNodes. Raises Permanent for a name that is not Slurm's."""
        try:
            cluster, key = parse_attempt(name).cluster, attempt_key(name)
        except MailboxError as err:
            raise Permanent(f"{name[:128]!r}: {err}") from err
        agent = self.agent(cluster)
        if why := why_unknown(agent, now=self._clock.now()):
            raise DependencyUnavailable(why)
        raw = self._read_object(key)
        if raw is None:
            return None
        try:
            doc = AttemptDoc.from_json(raw)
            insist(doc.attempt == name, "attempt", f"is {doc.attempt}")
            insist(doc.cluster == cluster, "cluster", f"is {doc.cluster}")
            if doc.successor is not None:  # it would be adopted, and stopped in its turn
                insist(parse_attempt(doc.successor).cluster == cluster, "successor", f"is not of {cluster}")
        except MailboxError as err:
            raise DependencyUnavailable(f"what the cluster state says of {name} cannot be used: {err}"[:300]) from err
        return replace(doc, seen_at=_read_at(agent, doc.seen_at))

    def newest_attempts(self, cluster: str, *, limit: int) -> tuple[str, ...]:
        """See ports.HeadNodes: one listing."""
        try:
            listed = list(self._objects.below(self._place(attempts_prefix(cluster)), folder=True))
        except (MailboxError, NotAuthorized) as err:
            raise DependencyUnavailable(f"the attempts of {cluster!r} cannot be listed: {err}"[:300]) from err
        listed.sort(key=lambda item: item.modified_at, reverse=True)
        names = (item.key.rsplit("/", 1)[-1].removesuffix(".json") for item in listed)
        return tuple(islice((name for name in names if is_slurm(name)), limit))

    def nodes(self, cluster: str) -> Maybe[NodesDoc]:
        agent = self.agent(cluster)
        if why := why_unknown(agent, now=self._clock.now()):
            return Unknown(why)
        try:
            raw = self._read_object(nodes_key(cluster), limit=NodesDoc.LIMIT_BYTES)
            if raw is None:
                return Unknown(f"the agent of {cluster} has not reported its nodes yet")
            doc = NodesDoc.from_json(raw)
            insist(doc.cluster == cluster, "cluster", f"is {doc.cluster}")
        except MailboxError as err:
            return Unknown(f"the nodes of {cluster} cannot be used: {err}"[:200])
        except RecoveryError as err:
            return Unknown(f"the nodes of {cluster} cannot be read: {err}"[:200])
        seen_at = _read_at(agent, doc.seen_at)
        return Known(replace(doc, nodes=tuple(replace(node, seen_at=seen_at) for node in doc.nodes)))

    def clusters(self) -> tuple[str, ...]:
        found: list[str] = []
        token: str | None = None
        for _ in range(_MAX_PAGES):
            page = self._objects.page(self._place("clusters"), token)
            found += [name for name in page.folders if _is_cluster(name)]
            token = page.token
            if token is None:
                break
        return tuple(sorted(found))

    # ---- orders ----------------------------------------------------------------------------------------------------

    def order(self, order: Order) -> OrderResult | None:
        """See ports.HeadNodes. The object is written before the message is sent, so that a crash in between is fixed
        by the next call; who finds the object there sends what stands in it, not what it would say itself.
        """
        try:
            answer = self._answer(order.cluster, order.token)
            if answer is not None:
                return answer
            place = self._place(order_key(order.cluster, order.token))
            body = order.to_json()
            if not self._objects.create(place, body):
                body = self._objects.read(place, MAX_MESSAGE_BYTES) or b""
                first = Order.from_json(body)
                insist(first.token == order.token, "token", f"is {first.token}")
                insist(first.verb is order.verb, "verb", f"was {first.verb}")
        except MailboxError as err:
            raise Permanent(f"the order to {order.verb} cannot be given: {err}"[:400]) from err
        self._send(order.cluster, body.decode())
        return None

    def ordered(self, cluster: str, token: str) -> tuple[Order | None, OrderResult | None]:
        """See ports.HeadNodes: 2 GETs. An unusable document counts as absent, and is not logged: it is ours."""
        try:
            raw = self._read_object(order_key(cluster, token))
            return (Order.from_json(raw) if raw is not None else None), self._answer(cluster, token)
        except MailboxError as err:
            raise DependencyUnavailable(f"the order {token} cannot be used: {err}"[:300]) from err

    def _answer(self, cluster: str, token: str) -> OrderResult | None:
        """Raises: MailboxError for a name that is none. An answer that cannot be read is an unknown outcome."""
        raw = self._read_object(answer_key(cluster, token))
        if raw is None:
            return None
        try:
            answer = OrderResult.from_json(raw)
            insist(answer.token == token, "token", f"is {answer.token}")
        except MailboxError as err:
            raise DependencyUnavailable(f"the answer to {token} cannot be used: {err}"[:300]) from err
        return answer

    def _send(self, cluster: str, body: str) -> None:
        url = self._url(cluster)
        try:
            call(self._sqs.send_message, expect=_NO_QUEUE, QueueUrl=url, MessageBody=body)
        except AwsRefusal as refusal:
            self._urls.pop(cluster, None)  # deleted since: asked for anew next time
            raise DependencyUnavailable(f"the queue of {cluster} is gone: {refusal.message}"[:300]) from refusal

    def _url(self, cluster: str) -> str:
        known = self._urls.get(cluster)
        if known is None:
            try:
                answer = call(self._sqs.get_queue_url, expect=_NO_QUEUE, QueueName=queue_name(self._stack, cluster))
            except AwsRefusal as refusal:
                why = f"{cluster} has no queue of orders: its agent has not been started since this stack was made"
                raise DependencyUnavailable(why) from refusal
            known = self._urls[cluster] = str(answer["QueueUrl"])
        return known

    def prepare(self, cluster: str) -> None:
        """See ports.HeadNodes. Creating a queue that is there is no error, also where its attributes were changed.

        Raises:
            Permanent: no name for a queue.
            Retryable: not now (SQS wants 60 s between deleting and creating).
        """
        try:
            name = queue_name(self._stack, cluster)
        except MailboxError as err:
            raise Permanent(f"the queue of {cluster[:64]!r}: {err}") from err
        try:
            answer = call(
                self._sqs.create_queue,
                expect=(
                    "QueueAlreadyExists",
                    "QueueNameExists",
                    "QueueDeletedRecently",
                    "AWS.SimpleQueueService.QueueDeletedRecently",
                ),
                QueueName=name,
                Attributes=dict(QUEUE_ATTRIBUTES),
            )
        except AwsRefusal as refusal:
            if "Deleted" in refusal.code:
                raise Throttled(f"the queue of {cluster}: {refusal.message}"[:300]) from refusal
            return
        self._urls[cluster] = str(answer["QueueUrl"])

    # ---- places ----------------------------------------------------------------------------------------------------

    def _place(self, key: str) -> Place:
        return Place(bucket=self._bucket, path=key)

    def _read_object(self, key: str, *, limit: int = MAX_MESSAGE_BYTES) -> bytes | None:
        return self._objects.read(self._place(key), limit)


def _read_at(agent: Maybe[AgentDoc], written_at: datetime) -> datetime:
    """As of when a document holds: it is written when something changes, and Slurm has been read since."""
    read_at = agent.value.read_at if isinstance(agent, Known) else None
    return max(written_at, read_at or written_at)


def _is_cluster(name: str) -> bool:
    try:
        check_cluster(name)
    except MailboxError:
        return False
    return True
