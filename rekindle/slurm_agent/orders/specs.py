"""What is needed to submit a job again, from the head node's own file system; orders, from the cluster state."""

from __future__ import annotations

from typing import Any

from rekindle.protocol.cluster.documents import JobSpec
from rekindle.protocol.cluster.names import order_key
from rekindle.protocol.cluster.orders import Order
from rekindle.protocol.wire import MAX_MESSAGE_BYTES, MailboxError
from rekindle.slurm_agent.base.aws import AwsError, code_of, is_away, text_of
from rekindle.slurm_agent.copies.kept import SpecFolder
from rekindle.slurm_agent.orders.verbs import OrderNotReady
from rekindle.slurm_agent.privileged.remote import RemoteKept


class StoredSpecs:
    def __init__(self, *, s3: Any, bucket: str, cluster: str, kept: SpecFolder | RemoteKept) -> None:
        self._s3 = s3
        self._bucket = bucket
        self._cluster = cluster
        self._kept = kept

    def get(self, name: str) -> JobSpec:
        """Raises: LookupError for one that is not here."""
        found = self._kept.get(name)
        if found is None:
            raise LookupError("the script and environment of its submission are not kept on this head node")
        return found

    def check(self, order: Order) -> None:
        """The right to send to the queue is no right to submit: the service has recorded what it orders.

        Raises: OrderNotReady while S3 is away, LookupError for an order that is not in the cluster state exactly so.
        """
        key = order_key(self._cluster, order.token)
        try:
            is_the_same = Order.from_json(self._fetch(key)) == order
        except MailboxError as err:
            raise LookupError(f"{key} cannot be read: {err}") from err
        if not is_the_same:
            raise LookupError(f"{key} is another order")

    def _fetch(self, key: str) -> bytes:
        try:
            body: bytes = self._s3.get_object(Bucket=self._bucket, Key=key)["Body"].read(MAX_MESSAGE_BYTES + 1)
        except AwsError as err:
            if is_away(err):
                raise OrderNotReady(text_of("GetObject", err), after_s=5.0) from err
            if code_of(err) == "NoSuchKey":
                raise LookupError(f"there is no {key}") from err
            raise LookupError(text_of(f"GetObject {key}", err)) from err
        return body
