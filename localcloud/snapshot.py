"""What of the embedded cloud outlives its process: one SQLite file, written whole or not at all.

Kept are the durable facts: DynamoDB items, S3 objects, training jobs, SSM parameters, waiting SQS messages, and the
metrics of the last hours. Rules, clients and whatever is on its way are not; durable executions have a store of their
own (`engine`).
"""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from botocore.exceptions import ClientError
from moto.sqs.models import sqs_backends

from localcloud.aws.clock import Clock
from localcloud.aws.sagemaker import TERMINAL, Phase, TrainingJob, TrainingJobs

_SCHEMA = """
CREATE TABLE IF NOT EXISTS items (tbl TEXT, item TEXT);
CREATE TABLE IF NOT EXISTS objects (bucket TEXT, key TEXT, etag TEXT, body BLOB, PRIMARY KEY (bucket, key));
CREATE TABLE IF NOT EXISTS jobs (name TEXT PRIMARY KEY, job TEXT);
CREATE TABLE IF NOT EXISTS parameters (name TEXT PRIMARY KEY, parameter TEXT);
CREATE TABLE IF NOT EXISTS messages (queue TEXT, body TEXT, attributes TEXT);
CREATE TABLE IF NOT EXISTS metrics (namespace TEXT, datum TEXT);
"""
_METRICS_KEPT = timedelta(hours=3)  # as long as CloudWatch keeps seconds apart
_DATA_PER_CALL = 500
_JOB_TIMES = ("created_at", "modified_at", "started_at", "ended_at", "stop_requested_at")


class Cloud(Protocol):
    """What is saved and restored: the embedded cloud (localcloud/cloud.py)."""

    @property
    def clock(self) -> Clock: ...

    @property
    def training(self) -> TrainingJobs: ...

    def client(self, service: str) -> Any:
        """A boto3 client."""
        ...

    def create_bucket(self, name: str) -> None:
        """A bucket of training runs."""
        ...


class Snapshot:
    """One file that holds the facts. Saving twice at once is safe; a crash while saving keeps the save before."""

    _saving = threading.Lock()

    def __init__(self, path: Path) -> None:
        self._path = path

    def save(self, cloud: Cloud) -> None:
        """Write everything in one transaction; unchanged objects are not written again."""
        with self._saving:
            items = list(_items(cloud))
            parameters = list(_parameters(cloud))
            messages = list(_messages())
            metrics = list(_metrics(cloud.clock.now() - _METRICS_KEPT))
            jobs = [(job.name, json.dumps(_job_to_wire(job))) for job in list(cloud.training.jobs.values())]
            with closing(self._connect()) as db, db:
                for table in ("items", "jobs", "parameters", "messages", "metrics"):
                    db.execute(f"DELETE FROM {table}")  # noqa: S608  the names are in the line above
                db.executemany("INSERT INTO items VALUES (?, ?)", items)
                db.executemany("INSERT INTO jobs VALUES (?, ?)", jobs)
                db.executemany("INSERT INTO parameters VALUES (?, ?)", parameters)
                db.executemany("INSERT INTO messages VALUES (?, ?, ?)", messages)
                db.executemany("INSERT INTO metrics VALUES (?, ?)", metrics)
                _save_objects(cloud, db)

    def load(self, cloud: Cloud) -> None:
        """Bring the facts back into a cloud that was just opened. Jobs whose processes are gone have failed."""
        if not self._path.exists():
            return
        with closing(self._connect()) as db:
            for table, item in db.execute("SELECT tbl, item FROM items"):
                cloud.client("dynamodb").put_item(TableName=table, Item=_with_bytes(json.loads(item)))
            buckets = {row["Name"] for row in cloud.client("s3").list_buckets()["Buckets"]}
            for bucket, key, body in db.execute("SELECT bucket, key, body FROM objects"):
                if bucket not in buckets:
                    cloud.create_bucket(bucket)
                    buckets.add(bucket)
                cloud.client("s3").put_object(Bucket=bucket, Key=key, Body=body)
            for _, parameter in db.execute("SELECT name, parameter FROM parameters"):
                cloud.client("ssm").put_parameter(**json.loads(parameter), Overwrite=True)
            for queue, body, attributes in db.execute("SELECT queue, body, attributes FROM messages"):
                _send(cloud, queue, body, json.loads(attributes))
            data: dict[str, list[dict[str, Any]]] = {}
            for namespace, datum in db.execute("SELECT namespace, datum FROM metrics"):
                data.setdefault(namespace, []).append(_datum_from_wire(json.loads(datum)))
            for namespace, listed in data.items():
                for start in range(0, len(listed), _DATA_PER_CALL):
                    part = listed[start : start + _DATA_PER_CALL]
                    cloud.client("cloudwatch").put_metric_data(Namespace=namespace, MetricData=part)
            jobs = [_job_from_wire(json.loads(text)) for (text,) in db.execute("SELECT job FROM jobs")]
        cloud.training.restore(jobs)
        for job in jobs:
            if job.phase not in TERMINAL:
                ended = Phase.STOPPED if job.phase is Phase.STOPPING else Phase.FAILED
                reason = "InternalServerError: the embedded cloud ended while the job was running"
                cloud.training.enter(job.name, ended, failure_reason=reason if ended is Phase.FAILED else None)

    def _connect(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(self._path, timeout=30)
        db.execute("PRAGMA journal_mode=WAL")
        db.executescript(_SCHEMA)
        return db


def _items(cloud: Cloud) -> Iterator[tuple[str, str]]:
    client = cloud.client("dynamodb")
    for table in client.list_tables()["TableNames"]:
        for page in client.get_paginator("scan").paginate(TableName=table):
            for item in page["Items"]:
                yield table, json.dumps(item, default=_bytes_to_wire)


def _bytes_to_wire(value: object) -> Any:
    if isinstance(value, bytes):
        return {"__bytes__": value.hex()}
    raise TypeError(f"not serialisable: {value!r}")


def _with_bytes(value: Any) -> Any:
    """The inverse of `_bytes_to_wire`, within any JSON."""
    if isinstance(value, dict):
        if set(value) == {"__bytes__"}:
            return bytes.fromhex(value["__bytes__"])
        return {key: _with_bytes(inner) for key, inner in value.items()}
    return [_with_bytes(inner) for inner in value] if isinstance(value, list) else value


def _job_to_wire(job: TrainingJob) -> dict[str, Any]:
    """JSON form."""
    wire = {field.name: getattr(job, field.name) for field in fields(job)}
    wire["phase"] = job.phase.value
    wire["transitions"] = [
        {key: value.isoformat() if isinstance(value, datetime) else value for key, value in transition.items()}
        for transition in job.transitions
    ]
    for name in _JOB_TIMES:
        wire[name] = wire[name].isoformat() if wire[name] is not None else None
    return wire


def _job_from_wire(wire: dict[str, Any]) -> TrainingJob:
    """The job that `_job_to_wire` wrote; `wire` is used up."""
    for name in _JOB_TIMES:
        wire[name] = datetime.fromisoformat(wire[name]) if wire[name] is not None else None
    wire["phase"] = Phase(wire["phase"])
    wire["transitions"] = [
        {key: datetime.fromisoformat(value) if key.endswith("Time") else value for key, value in transition.items()}
        for transition in wire["transitions"]
    ]
    return TrainingJob(**wire)


def _save_objects(cloud: Cloud, db: sqlite3.Connection) -> None:
    client = cloud.client("s3")
    known = {(bucket, key): etag for bucket, key, etag in db.execute("SELECT bucket, key, etag FROM objects")}
    for bucket in client.list_buckets()["Buckets"]:
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket["Name"]):
            for entry in page.get("Contents", ()):
                where = (bucket["Name"], entry["Key"])
                if known.pop(where, None) == entry["ETag"]:
                    continue
                try:
                    body = client.get_object(Bucket=where[0], Key=where[1])["Body"].read()
                except ClientError as err:
                    if err.response["Error"]["Code"] == "NoSuchKey":  # deleted since it was listed
                        continue
                    raise
                db.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?)", (*where, entry["ETag"], body))
    db.executemany("DELETE FROM objects WHERE bucket = ? AND key = ?", list(known))


def _parameters(cloud: Cloud) -> Iterator[tuple[str, str]]:
    if "moto.ssm.models" not in sys.modules:  # SSM is not used yet, and loading it takes more than a second
        return
    client = cloud.client("ssm")
    for page in client.get_paginator("describe_parameters").paginate():
        for entry in page["Parameters"]:
            value = client.get_parameter(Name=entry["Name"], WithDecryption=True)["Parameter"]["Value"]
            kept = {"Name": entry["Name"], "Type": entry["Type"], "Value": value}
            yield entry["Name"], json.dumps(kept)


def _metrics(since: datetime) -> Iterator[tuple[str, str]]:
    """Data points by metric and time, read where moto keeps them: asking for them would need their names."""
    if "moto.cloudwatch.models" not in sys.modules:
        return
    from moto.cloudwatch.models import MetricAggregatedDatum, cloudwatch_backends

    found: dict[tuple[str, str, str, str], list[float]] = {}
    backend: Any
    for _, _, backend in cloudwatch_backends.iter_backends():
        for datum in list(backend.metric_data):
            at = datum.timestamp if datum.timestamp.tzinfo else datum.timestamp.replace(tzinfo=UTC)
            if at < since or isinstance(datum, MetricAggregatedDatum):
                continue
            dimensions = json.dumps([[item.name, item.value] for item in datum.dimensions])
            found.setdefault((datum.namespace, datum.name, dimensions, at.isoformat()), []).append(float(datum.value))
    for (namespace, name, dimensions, moment), values in found.items():
        yield namespace, json.dumps([name, json.loads(dimensions), moment, values])


def _datum_from_wire(kept: list[Any]) -> dict[str, Any]:
    name, dimensions, moment, values = kept
    return {
        "MetricName": name,
        "Dimensions": [{"Name": key, "Value": value} for key, value in dimensions],
        "Timestamp": datetime.fromisoformat(moment),
        "Values": values,
        "Counts": [1.0] * len(values),
    }


def _messages() -> Iterator[tuple[str, str, str]]:
    """Waiting messages, without receiving them: a client could only look by hiding them from others."""
    backend: Any
    for _, _, backend in sqs_backends.iter_backends():
        for name, queue in backend.queues.items():
            for message in list(queue._messages):
                attributes = {
                    key: {"DataType": kept["DataType"], "StringValue": kept["StringValue"]}
                    for key, kept in message.message_attributes.items()
                    if kept.get("StringValue") is not None
                }
                yield name, str(message.body), json.dumps(attributes)


def _send(cloud: Cloud, queue: str, body: str, attributes: dict[str, Any]) -> None:
    url = cloud.client("sqs").create_queue(QueueName=queue)["QueueUrl"]
    cloud.client("sqs").send_message(QueueUrl=url, MessageBody=body, MessageAttributes=attributes)
