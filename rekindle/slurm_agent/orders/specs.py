"""What is needed to submit a job again: content-addressed in the cluster state, or still on its way there."""

from __future__ import annotations

import hashlib
from typing import Any

from rekindle.protocol.cluster.documents import MAX_SPEC_BYTES, JobSpec
from rekindle.protocol.cluster.names import order_key, spec_key
from rekindle.protocol.cluster.orders import Order
from rekindle.protocol.wire import MailboxError
from rekindle.slurm_agent.base.aws import AwsError, code_of, is_away, text_of
from rekindle.slurm_agent.orders.verbs import OrderNotReady
from rekindle.slurm_agent.publishing.outbox import Outbox


class StoredSpecs:
    """`verbs.Specs`, from S3."""

    def __init__(self, *, s3: Any, bucket: str, cluster: str, outbox: Outbox) -> None:
        self._s3 = s3
        self._bucket = bucket
        self._cluster = cluster
        self._outbox = outbox

    def get(self, sha256: str) -> JobSpec:
        """Raises: OrderNotReady while S3 is away, LookupError for a spec that is missing or not what its name says."""
        key = spec_key(self._cluster, sha256)
        raw = self._outbox.document(key) or self._fetch(key)
        if hashlib.sha256(raw).hexdigest() != sha256:
            raise LookupError(f"{key} is not what its name says")
        try:
            return JobSpec.from_json(raw)
        except MailboxError as err:
            raise LookupError(f"{key} cannot be read: {err}") from err

    def check(self, order: Order) -> None:
        """The right to send to the queue is no right to submit: the service has recorded what it orders.

        Raises: OrderNotReady while S3 is away, LookupError for an order that is not in the cluster state exactly so.
        """
        key = order_key(self._cluster, order.token)
        raw = self._outbox.document(key) or self._fetch(key)
        try:
            is_the_same = Order.from_json(raw) == order
        except MailboxError as err:
            raise LookupError(f"{key} cannot be read: {err}") from err
        if not is_the_same:
            raise LookupError(f"{key} is another order")

    def _fetch(self, key: str) -> bytes:
        try:
            body: bytes = self._s3.get_object(Bucket=self._bucket, Key=key)["Body"].read(MAX_SPEC_BYTES + 1)
        except AwsError as err:
            if is_away(err):
                raise OrderNotReady(text_of("GetObject", err), after_s=5.0) from err
            if code_of(err) == "NoSuchKey":
                raise LookupError(f"there is no {key}") from err
            raise LookupError(text_of(f"GetObject {key}", err)) from err
        return body
