"""The order loop: one long poll after another, and what is open in between."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from rekindle.protocol.cluster.names import queue_name
from rekindle.slurm_agent.base.aws import LONG_POLL_S, AwsError, is_no_queue, text_of
from rekindle.slurm_agent.base.clock import Clock
from rekindle.slurm_agent.base.ports import LeaseHolder
from rekindle.slurm_agent.base.problems import Problems
from rekindle.slurm_agent.orders.executor import OrderExecutor

log = logging.getLogger(__name__)

HIDDEN_S: Final = 120  # a message comes again after this, unless it was answered and deleted
AT_ONCE: Final = 10  # Source: SQS ReceiveMessage, MaxNumberOfMessages, at most 10
FIRST_BACKOFF_S: Final = 1.0
MAX_BACKOFF_S: Final = 60.0
ASK_AGAIN_S: Final = 60.0  # how often the service is told that the agent is there, while it has no queue
NOT_HELD_S: Final = 0.5
MAX_RECEIPTS: Final = 20  # of one token: each delivery has its own


class Receipts:
    """Which deliveries are to be deleted once their order is answered. For two threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_token: dict[str, list[tuple[str, str]]] = {}

    def add(self, token: str, url: str, handle: str) -> None:
        with self._lock:
            self._by_token.setdefault(token, []).append((url, handle))
            del self._by_token[token][:-MAX_RECEIPTS]

    def pop(self, token: str) -> list[tuple[str, str]]:
        with self._lock:
            return self._by_token.pop(token, [])


class OrderLoop:
    """`on_no_queue` tells the service that this agent is there, so that it makes the queue."""

    def __init__(
        self,
        *,
        executor: OrderExecutor,
        sqs: Any,
        stack: str,
        cluster: str,
        clock: Clock,
        problems: Problems,
        on_no_queue: Callable[[], None],
        holding: LeaseHolder | None = None,
    ) -> None:
        self._holding = holding
        self._executor = executor
        self._sqs = sqs
        self._name = queue_name(stack, cluster)
        self._clock = clock
        self._problems = problems
        self._on_no_queue = on_no_queue
        self._url: str | None = None
        self._receipts = Receipts()
        self._backoff_s = 0.0
        self._asked_at: float | None = None

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            left_s = self._left_s()
            if left_s <= 0:
                stop.wait(NOT_HELD_S)
                continue
            due_s = self._executor.work()
            if stop.is_set():
                break
            # SQS waits whole seconds only
            wait_s = min(LONG_POLL_S, int(left_s), LONG_POLL_S if due_s is None else int(due_s))
            if not self.poll(wait_s, stop):
                stop.wait(self._backoff_s if due_s is None else min(self._backoff_s, max(0.1, due_s)))
            elif due_s is not None and wait_s == 0:
                stop.wait(due_s)

    def poll(self, wait_s: int, stop: threading.Event | None = None) -> bool:
        """One ReceiveMessage, and what came of it taken. False: the queue could not be read.

        What comes after `stop` was set, or after the lease ended, is for another: it is delivered again.
        """
        try:
            self._url = self._url or self._sqs.get_queue_url(QueueName=self._name)["QueueUrl"]
            messages = self._sqs.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=AT_ONCE,
                WaitTimeSeconds=wait_s,
                VisibilityTimeout=HIDDEN_S,
            ).get("Messages", [])
        except AwsError as err:
            self._failed(err)
            return False
        if self._backoff_s:
            self._backoff_s = 0.0
        self._asked_at = None
        self._problems.set("queue")
        for message in messages:
            if self._left_s() <= 0 or (stop is not None and stop.is_set()):
                self._hand_on(self._url, message["ReceiptHandle"])
                continue
            token = self._executor.take(message["Body"])
            if token is None:
                self._delete(self._url, message["ReceiptHandle"])
            else:
                self._receipts.add(token, self._url, message["ReceiptHandle"])
        return True

    def answered(self, token: str) -> None:
        """Its answer is in the cluster state: no delivery of it is needed any more."""
        for url, handle in self._receipts.pop(token):
            self._delete(url, handle)

    def _delete(self, url: str, handle: str) -> None:
        with suppress(*AwsError):  # it comes again, and is answered from the journal
            self._sqs.delete_message(QueueUrl=url, ReceiptHandle=handle)

    def _hand_on(self, url: str, handle: str) -> None:
        """At once, and not when its time out of sight is over."""
        with suppress(*AwsError):
            self._sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)

    def _left_s(self) -> float:
        return float(LONG_POLL_S) if self._holding is None else self._holding.left_s()

    def _failed(self, err: Exception) -> None:
        self._backoff_s = min(MAX_BACKOFF_S, max(FIRST_BACKOFF_S, 2 * self._backoff_s))
        if not is_no_queue(err):
            self._problems.set("queue", [text_of("ReceiveMessage", err)])
            return
        self._url = None
        self._problems.set("queue", [f"there is no queue {self._name} (yet): the service makes it"])
        now = self._clock.monotonic()
        if self._asked_at is None or now - self._asked_at >= ASK_AGAIN_S:
            self._asked_at = now
            self._on_no_queue()
