"""What an order to submit needs: the job's spec, kept on the head node, and the order itself, recorded in S3.

Used by the verbs of `job_verbs.py` and by `dispatch.py`.
"""

from __future__ import annotations

from typing import Any

from rekindle.protocol.cluster.documents import JobSpec
from rekindle.protocol.cluster.names import order_key
from rekindle.protocol.cluster.orders import Order
from rekindle.protocol.wire import MAX_MESSAGE_BYTES, MailboxError
from rekindle.slurm_agent.base.aws import AwsError, is_away, read_object, text_of
from rekindle.slurm_agent.copies.kept import SpecFolder
from rekindle.slurm_agent.orders.verbs import OrderNotReady
from rekindle.slurm_agent.privileged.remote import RemoteKept


class StoredSpecs:
    """Specs by name, and the check that an order is one that the service has recorded. `s3` is a boto3 client."""

    def __init__(self, *, s3: Any, bucket: str, cluster: str, kept: SpecFolder | RemoteKept) -> None:
        self._s3 = s3
        self._bucket = bucket
        self._cluster = cluster
        self._kept = kept

    def get(self, name: str) -> JobSpec:
        """The spec of that name. Raises: LookupError where it is not kept here."""
        found = self._kept.get(name)
        if found is None:
            raise LookupError("the script and environment of its submission are not kept on this head node")
        return found

    def check(self, order: Order) -> None:
        """Refuse an order that the service has not recorded in the cluster state: the right to send to the queue is no
        right to submit.

        Raises: OrderNotReady while S3 is away, LookupError where the recorded order is missing or another.
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
            body = read_object(self._s3, self._bucket, key, limit=MAX_MESSAGE_BYTES)
        except AwsError as err:
            if is_away(err):
                raise OrderNotReady(text_of("GetObject", err), after_s=5.0) from err
            raise LookupError(text_of(f"GetObject {key}", err)) from err
        if body is None:
            raise LookupError(f"there is no {key}")
        return body
