"""An embedded cloud's store, read without the embedded cloud: the service's own API over the facts in the file.

A read command needs a few items, and importing moto and restoring a cloud takes seconds of CPU. Here the service's API
runs in the caller's process over clients that read the file: DynamoDB's reads, SSM's parameters, S3's objects, empty
queues, and training jobs that are over; nothing is written. What they do not do raises NotRead, and the caller asks the
embedded cloud instead.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from botocore.exceptions import ClientError

from chalicelib.api.operation import Operation
from chalicelib.api.operations.routes import OPERATIONS, Api
from chalicelib.bootstrap import Service
from chalicelib.bootstrap.clients import Clients, SystemClock
from chalicelib.config import Settings
from localcloud.read_objects import StoredObjects, StoredTrainingJobs
from localcloud.stored_bytes import with_bytes

Item = dict[str, Any]
# Not `localcloud.cloud`'s: importing it imports moto. A test holds them equal.
STACK: Final = "rekindle"
REGION: Final = "us-west-2"
ACCOUNT_ID: Final = "123456789012"
_INDEX_KEYS: Final = ("gsi1pk", "gsi1sk")
_TABLE_KEYS: Final = ("pk", "sk")
_QUERY_PARAMETERS: Final = frozenset(
    (
        *("TableName", "IndexName", "KeyConditionExpression", "ExpressionAttributeValues", "ScanIndexForward"),
        *("ConsistentRead", "Limit", "ExclusiveStartKey", "Select", "ProjectionExpression"),
    )
)
# The key conditions that the service uses (chalicelib/aws/dynamodb); another one is not read here.
_CONDITION: Final = re.compile(
    r"(?P<pk>\w+) = (?P<is>:\w+)(?: AND (?:begins_with\((?P<sk1>\w+), (?P<begins>:\w+)\)"
    r"|(?P<sk2>\w+) BETWEEN (?P<low>:\w+) AND (?P<high>:\w+)|(?P<sk3>\w+) (?P<op>>=|>) (?P<least>:\w+)))?"
)


class NotRead(BaseException):
    """The store's file cannot answer this. Not an Exception, so that no reader makes an answer of it."""


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """One answer of the API."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class StoreReader:
    """The API of one store, for reads. Not thread-safe. `not_read`: what `get` raises for all else.

    Raises:
        NotRead: the file is no store, or one of another form.
    """

    not_read: Final = NotRead

    def __init__(self, file: Path) -> None:
        facts = _facts(file)
        settings = Settings(
            region=REGION,
            table=STACK,
            bus=STACK,
            bucket=f"{STACK}-mailbox",
            quarantine_url="",
            recover_function="recover",
            account=ACCOUNT_ID,
            log_level="ERROR",
        )
        self._api = Api(parts=Service(settings, clock=SystemClock(), clients=_StoredClients(file, facts)))

    def get(self, address: str) -> StoredAnswer:
        """Answer a GET of this address.

        Raises:
            NotRead: there is no such route, or it needs more than the file.
        """
        parts = urlsplit(address)
        for operation in OPERATIONS:
            names = _names(operation, parts.path) if operation.method == "GET" else None
            if names is not None:
                event = {"queryStringParameters": dict(parse_qsl(parts.query)), "requestContext": {"path": parts.path}}
                answer = self._api.answer(operation.name, names, event, b"")
                return StoredAnswer(answer.status, answer.text().encode(), dict(answer.headers))
        raise NotRead(parts.path)


def _names(operation: Operation, path: str) -> dict[str, str] | None:
    pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(operation.address))
    found = re.fullmatch(pattern, path)
    return {name: unquote(value) for name, value in found.groupdict().items()} if found else None


@dataclass(slots=True)
class _Facts:
    """Items by partition and sort key, and parameters by name."""

    items: dict[str, dict[str, Item]] = field(default_factory=lambda: defaultdict(dict))
    parameters: dict[str, Mapping[str, Any]] = field(default_factory=dict)


def _facts(file: Path) -> _Facts:
    found = _Facts()
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, timeout=5)) as db:
            for table, text in db.execute("SELECT tbl, item FROM items"):
                item = json.loads(text)
                if table == STACK:
                    found.items[item["pk"]["S"]][item["sk"]["S"]] = item
            for name, text in db.execute("SELECT name, parameter FROM parameters"):
                found.parameters[name] = json.loads(text)
    except (sqlite3.Error, ValueError, KeyError, TypeError) as err:
        raise NotRead(f"{file}: {err}") from err
    return found


class _StoredClients(Clients):
    """`bootstrap.Clients` over a file."""

    def __init__(self, file: Path, facts: _Facts) -> None:
        super().__init__(session=None)
        self._clients: dict[str, Any] = {
            "dynamodb": _Dynamo(facts),
            "ssm": _Parameters(facts),
            "sqs": _Queues(file),
            "s3": StoredObjects(file, own=f"{STACK}-mailbox", refuse=_refuse),
            "sagemaker": StoredTrainingJobs(file, refuse=_refuse),
        }

    def __call__(self, name: str) -> Any:
        return self._clients.get(name) or _Unread(name)


def _refuse(what: str) -> Any:
    raise NotRead(what)


class _Unread:
    """A service of which the file knows nothing."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        def refuse(**_: Any) -> Any:
            raise NotRead(f"{self._name}.{method}")

        return refuse


class _Parameters(_Unread):
    """SSM's parameters."""

    def __init__(self, facts: _Facts) -> None:
        super().__init__("ssm")
        self._parameters = facts.parameters

    def get_parameter(self, *, Name: str, **_: Any) -> dict[str, Any]:
        """One parameter. Its version and age are not in the file: versions begin again with each start of the cloud."""
        if Name not in self._parameters:
            error = {"Code": "ParameterNotFound", "Message": f"Parameter {Name} not found."}
            raise ClientError({"Error": error}, "GetParameter")
        return {"Parameter": {**self._parameters[Name], "Version": 1}}

    def get_parameters_by_path(self, *, Path: str, **_: Any) -> dict[str, Any]:
        """All parameters directly under a path, on one page. Their age is not in the file and is left out."""
        under = f"{Path.rstrip('/')}/"
        names = sorted(name for name in self._parameters if name.startswith(under) and "/" not in name[len(under) :])
        return {"Parameters": [{"Name": name, **self._parameters[name], "Version": 1} for name in names]}


class _Queues(_Unread):
    """SQS, as long as no message waits in any queue: what takes a message out is for the embedded cloud."""

    def __init__(self, file: Path) -> None:
        super().__init__("sqs")
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, timeout=5)) as db:
            self._is_empty = db.execute("SELECT count(*) FROM messages").fetchone()[0] == 0

    def receive_message(self, **_: Any) -> dict[str, Any]:
        """None."""
        return {} if self._is_empty else _refuse("sqs.receive_message")


class _Dynamo(_Unread):
    """DynamoDB's reads of the service's one table."""

    def __init__(self, facts: _Facts) -> None:
        super().__init__("dynamodb")
        self._items = facts.items

    def get_item(self, *, TableName: str, Key: Item, **_: Any) -> dict[str, Any]:
        """One item, or none."""
        found = self._items.get(Key["pk"]["S"], {}).get(Key["sk"]["S"])
        return {"Item": _readable(found)} if found is not None and TableName == STACK else {}

    def batch_get_item(self, *, RequestItems: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the items that there are."""
        answers: dict[str, list[Item]] = {}
        for table, wanted in RequestItems.items():
            found = (self.get_item(TableName=table, Key=key) for key in wanted["Keys"])
            answers[table] = [answer["Item"] for answer in found if answer]
        return {"Responses": answers, "UnprocessedKeys": {}}

    def query(self, **request: Any) -> dict[str, Any]:
        """One page, in the order of the sort key."""
        if set(request) - _QUERY_PARAMETERS:
            raise NotRead(f"dynamodb.query: {sorted(set(request) - _QUERY_PARAMETERS)}")
        keys = _INDEX_KEYS if "IndexName" in request else _TABLE_KEYS
        found = sorted(self._matching(request, keys), key=lambda item: _place(item, keys[1]))
        forward = request.get("ScanIndexForward", True)
        found = found if forward else found[::-1]
        start = request.get("ExclusiveStartKey")
        if start:
            edge = _place(start, keys[1])
            places = [_place(item, keys[1]) for item in found]
            found = [
                entry for entry, place in zip(found, places, strict=True) if (place > edge) is forward and place != edge
            ]
        limit = int(request.get("Limit") or len(found) or 1)
        page = found[:limit]
        answer: dict[str, Any] = {"Count": len(page), "ScannedCount": len(page)}
        if request.get("Select") != "COUNT":
            answer["Items"] = [_readable(item) for item in page]
        if len(found) > limit:
            answer["LastEvaluatedKey"] = {name: page[-1][name] for name in dict.fromkeys((*_TABLE_KEYS, *keys))}
        return answer

    def _matching(self, request: Mapping[str, Any], keys: tuple[str, str]) -> Iterator[Item]:
        condition = _CONDITION.fullmatch(request["KeyConditionExpression"])
        if condition is None or condition["pk"] != keys[0]:
            raise NotRead(f"dynamodb.query: {request['KeyConditionExpression']}")
        values = {name: value.get("S") for name, value in request["ExpressionAttributeValues"].items()}
        partition = values[condition["is"]]
        rows = (
            self._items.get(str(partition), {}).values()
            if keys == _TABLE_KEYS
            else (item for part in self._items.values() for item in part.values())
        )
        for item in rows:
            if item.get(keys[0], {}).get("S") == partition and _fits(str(item[keys[1]]["S"]), condition, values):
                yield item


def _fits(sort: str, condition: re.Match[str], values: Mapping[str, Any]) -> bool:
    if condition["begins"]:
        return sort.startswith(str(values[condition["begins"]]))
    if condition["low"]:
        return str(values[condition["low"]]) <= sort <= str(values[condition["high"]])
    if condition["least"]:
        least = str(values[condition["least"]])
        return sort >= least if condition["op"] == ">=" else sort > least
    return True


def _place(item: Mapping[str, Any], sort_key: str) -> tuple[str, ...]:
    """Its place by the sort key, then by the table's own keys, which tell equals apart."""
    return tuple(str(item[name]["S"]) for name in (sort_key, *_TABLE_KEYS))


def _readable(item: Item) -> Item:
    """A copy of the item with its bytes, which the file holds as text."""
    read: Item = with_bytes(item)
    return read
