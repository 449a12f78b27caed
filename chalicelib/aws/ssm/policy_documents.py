"""Policy documents in SSM Parameter Store, for those who edit them.

Parameter Store has no conditional write. So one writer at a time holds the document's lease, an item of the table;
under it the version is read, compared and written. The lease expires after longer than any function of the API
may run, so that no holder outlives it. Who writes beside this API is noticed by the version that the write made.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final

from chalicelib.aws.dynamodb import items
from chalicelib.aws.errors import AwsRefusal, call
from chalicelib.domain.model.errors import Outdated, RecoveryError, VersionConflict
from chalicelib.ports.operator import StoredPolicy

LEASE: Final = timedelta(seconds=60)  # the API's function ends after 29 s: .chalice/config.json
_FAILED: Final = "ConditionalCheckFailedException"


class SsmPolicyDocumentStore:
    """ports.PolicyDocumentStore; boto3 clients of SSM and DynamoDB. Documents lie at `<prefix>/<name>` as JSON."""

    def __init__(self, client: Any, *, prefix: str, table_client: Any, table: str) -> None:
        self._client = client
        self._prefix = prefix.rstrip("/")
        self._table_client = table_client
        self._table = table

    def listing(self) -> tuple[StoredPolicy, ...]:
        """See ports.PolicyDocumentStore. Ten documents per call (botocore, GetParametersByPath MaxResults)."""
        found: list[StoredPolicy] = []
        token: str | None = None
        while True:
            asked: dict[str, Any] = {"Path": self._prefix, "Recursive": False, "MaxResults": 10}
            page = call(self._client.get_parameters_by_path, **asked | ({"NextToken": token} if token else {}))
            found += [self._stored(parameter) for parameter in page.get("Parameters", ())]
            token = page.get("NextToken")
            if not token:
                return tuple(sorted(found, key=lambda document: document.name))

    def stored(self, name: str) -> StoredPolicy | None:
        try:
            answer = call(self._client.get_parameter, expect=("ParameterNotFound",), Name=f"{self._prefix}/{name}")
        except AwsRefusal:
            return None
        return self._stored(answer["Parameter"])

    def write(self, name: str, text: str, *, replaces: int, now: datetime) -> StoredPolicy:
        held = self._lease(name, now)
        try:
            present = self.stored(name)
            version = present.version if present is not None else 0
            if version != replaces:
                raise Outdated(f"policy {name!r} is at version {version}, not {replaces}", present=version)
            made = self._put(name, text, is_new=present is None)
            if made != replaces + 1:
                detail = f"policy {name!r} was written by another hand meanwhile; that is its version {made - 1}"
                raise Outdated(detail, present=made)
            return StoredPolicy(name=name, version=made, text=text, modified_at=now)
        finally:
            self._release(name, held)

    def _put(self, name: str, text: str, *, is_new: bool) -> int:
        try:
            answer = call(
                self._client.put_parameter,
                expect=("ParameterAlreadyExists",),
                Name=f"{self._prefix}/{name}",
                Value=text,
                Type="String",
                Overwrite=not is_new,
                Tier="Intelligent-Tiering",  # beyond 4 KB a parameter is an advanced one, of 8 KB at most
            )
        except AwsRefusal as refusal:
            raise Outdated(f"policy {name!r} was stored by another hand meanwhile", present=1) from refusal
        return int(answer["Version"])

    def _lease(self, name: str, now: datetime) -> int:
        until = int((now + LEASE).timestamp())
        try:
            items.retry_in_transaction(
                self._table_client.put_item,
                expect=(_FAILED,),
                TableName=self._table,
                Item=self._lease_key(name) | {"until": items.number(until), "ttl": items.number(until)},
                ConditionExpression="attribute_not_exists(pk) OR #until < :now",
                ExpressionAttributeNames={"#until": "until"},
                ExpressionAttributeValues={":now": items.number(int(now.timestamp()))},
            )
        except AwsRefusal as refusal:
            raise VersionConflict(f"policy {name!r} is being written by someone else") from refusal
        return until

    def _release(self, name: str, held: int) -> None:
        """By making it old: the API's function needs no right to delete anything."""
        with suppress(AwsRefusal, RecoveryError):  # it ends by itself
            items.retry_in_transaction(
                self._table_client.update_item,
                expect=(_FAILED,),
                TableName=self._table,
                Key=self._lease_key(name),
                UpdateExpression="SET #until = :none",
                ExpressionAttributeNames={"#until": "until"},
                ExpressionAttributeValues={":none": items.number(0), ":held": items.number(held)},
                ConditionExpression="#until = :held",
            )

    def _stored(self, parameter: dict[str, Any]) -> StoredPolicy:
        return StoredPolicy(
            name=str(parameter["Name"]).removeprefix(f"{self._prefix}/"),
            version=int(parameter["Version"]),
            text=str(parameter["Value"]),
            modified_at=parameter.get("LastModifiedDate"),
        )

    def _lease_key(self, name: str) -> items.Item:
        return items.key(f"POLICY#{name}", "LEASE")
