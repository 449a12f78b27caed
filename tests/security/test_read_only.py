"""A role that may only read: what it can do, and that nothing of it changes anything.

IAM tells reading from ordering by the method in a request's ARN (`execute-api:Invoke` on `…/GET/*`), so the rule to be
proven is: no GET changes anything, and nothing that changes anything is a GET. API Gateway itself is played by a door
that lets GET through and answers everything else as API Gateway answers who is not allowed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from chalicelib import bootstrap
from chalicelib.api.operations.routes import OPERATIONS
from chalicelib.aws.dynamodb.jobs import job_item
from localcloud.cloud import STACK, Cloud
from localcloud.stack import deploy_rekindle
from rekindle.cli.main import main
from rekindle.client.api import Client
from rekindle.console.server import running
from tests.cli.service import FakeService, serve
from tests.console.world import Visitor, a_job, an_incident, an_item

# What is sent with POST because its body is a document, and changes nothing: a reader may be given these, too.
HARMLESS_POSTS = {"validate_policy", "diff_policy"}


class ReadersDoor(FakeService):
    """The service behind an IAM policy that allows GET alone."""

    def handle(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        if method != "GET":
            return 403, {}, b'{"Message":"User: arn:aws:iam::1:user/reader is not authorized to perform this action"}'
        return super().handle(method, target, headers, body)


def test_what_changes_something_is_no_get_and_what_is_no_get_is_an_order() -> None:
    for operation in OPERATIONS:
        if operation.name in HARMLESS_POSTS:
            assert (operation.method, operation.is_order) == ("POST", False)
        else:
            assert operation.is_order is (operation.method != "GET"), operation.name
            assert operation.method in ("GET", "POST", "PUT")


@pytest.fixture(scope="module")
def cloud() -> Iterator[tuple[Cloud, bootstrap.Service]]:
    with Cloud() as made:
        service = deploy_rekindle(made, log_level="ERROR")
        made.events.stop_schedules()
        items = [job_item(a_job("llama-00001"))]
        items += [an_item(an_incident(number, is_open=False)) for number in (1, 2)]
        for item in items:
            made.client("dynamodb").put_item(TableName=STACK, Item=item)
        yield made, service
    bootstrap.install(None)


def test_after_an_invocation_its_deadline_holds_nothing_up(cloud: tuple[Cloud, bootstrap.Service]) -> None:
    made, service = cloud
    made.invoke("log_batch", made.log_batch_event(group="g", stream="s", messages=["a line"]))
    assert service.clients.deadline.left_s() == math.inf


def _everything(cloud: Cloud) -> str:
    """All that the service keeps, as one text."""
    from moto.sqs.models import sqs_backends

    table = cloud.client("dynamodb").get_paginator("scan").paginate(TableName=STACK)
    parameters = cloud.client("ssm").get_paginator("describe_parameters").paginate()
    s3 = cloud.client("s3")
    buckets = [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
    backend: Any = sqs_backends["123456789012"]["us-west-2"]
    found = {
        "table": sorted(json.dumps(item, sort_keys=True, default=str) for page in table for item in page["Items"]),
        "parameters": sorted(
            (parameter["Name"], parameter["Version"]) for page in parameters for parameter in page["Parameters"]
        ),
        "objects": sorted(
            (bucket, entry["Key"], entry["ETag"])
            for bucket in buckets
            for entry in s3.list_objects_v2(Bucket=bucket).get("Contents", ())
        ),
        "queues": {name: sorted(message.body for message in queue._messages) for name, queue in backend.queues.items()},
    }
    return json.dumps(found, sort_keys=True)


NAMES = {
    "job_id": "llama-00001",
    "incident_id": an_incident(1, is_open=False).incident_id,
    "approval_id": "ap-1",
    "cluster": "hpc",
    "node": "ip-10-0-0-7",
    "name": "default",
    "drill_id": "drill-1",
}


@pytest.mark.parametrize(
    "name",
    [operation.name for operation in OPERATIONS if operation.method == "GET" or operation.name in HARMLESS_POSTS],
)
def test_a_reading_call_leaves_everything_as_it_was(cloud: tuple[Cloud, bootstrap.Service], name: str) -> None:
    world, service = cloud
    (operation,) = (operation for operation in OPERATIONS if operation.name == name)
    before = _everything(world)
    event = {
        "headers": {"idempotency-key": "reader-1", "x-http-method-override": "PUT", "content-type": "application/json"},
        "requestContext": {"requestId": "r1", "identity": {"userArn": "arn:aws:iam::1:user/reader"}},
    }
    answer = service.api.answer(name, {name: NAMES[name] for name in operation.names}, event, b'{"document": {}}')
    assert answer.status in (200, 404)
    assert _everything(world) == before


@contextmanager
def _door() -> Iterator[tuple[ReadersDoor, str]]:
    service = ReadersDoor()
    service.protect("lm")
    with serve(service) as url:
        yield service, url


def test_a_reader_reads_with_the_command_line_and_orders_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with _door() as (service, url):
        incident = service.fail("lm")
        for words in (("status",), ("jobs",), ("incidents",), ("approvals",), ("show", incident), ("policy", "list")):
            assert main(["--api", url, *words]) == 0, (words, capsys.readouterr().err)
        capsys.readouterr()
        orders: tuple[tuple[str, ...], ...] = (
            ("pause",),
            ("cancel", incident, "--yes"),
            ("checkpoint", "lm", "--yes"),
            ("stop", "lm", "--yes"),
            ("resubmit", "lm", "--yes"),
            ("shadow", "on", "--job", "lm"),
        )
        for order in orders:
            assert main(["--api", url, *order]) == 1, order
            assert "not allowed" in capsys.readouterr().err, order
        assert service.registry.is_paused() is False
        assert service.store.load(incident).incident.is_open
        assert service.mailbox.requests == {}


def test_a_reader_reads_in_the_console_and_orders_nothing() -> None:
    with _door() as (service, url), running(Client(url=url)) as console:
        incident = service.fail("lm")
        visitor = Visitor(console)
        for page in ("/", "/jobs", "/jobs/lm", "/incidents", f"/incidents/{incident}", "/approvals", "/policies"):
            assert visitor.get(page).status == 200, page
        form = {"csrf": console.gate.csrf, "key": "5" * 32, "paused": "yes"}
        got = visitor.ask("POST", "/pause", form=form)
        assert "not allowed" in visitor.get(got.headers["location"]).body
        assert service.registry.is_paused() is False
