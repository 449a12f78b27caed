"""What AWS refuses for its size, the embedded cloud refuses too; and nothing that the service sends is so large."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from chalice import Chalice, Response

from localcloud.aws.sizes import EVENT_BYTES, GATEWAY_BYTES, SIZES, SYNCHRONOUS_BYTES
from localcloud.aws.wire import TOO_LARGE
from localcloud.cloud import STACK, Cloud
from localcloud.cloud_app import ApiServer

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.may_be_too_large


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud() as one:
        yield one


def _event(cloud: Cloud, size: int) -> None:
    entry = {"Source": "a", "DetailType": "b", "Detail": json.dumps({"x": ""}), "EventBusName": f"{STACK}-bus"}
    entry["Detail"] = json.dumps({"x": "x" * (size - 2 - len(entry["Detail"]))})
    cloud.client("events").put_events(Entries=[entry])


def _two_events(cloud: Cloud, size: int) -> None:
    entries = [{"Source": "a", "DetailType": "b", "Detail": json.dumps("x" * (size // 2 - 4))} for _ in range(2)]
    missing = size - sum(len(entry["Detail"]) + 2 for entry in entries)
    entries[0]["DetailType"] += "b" * missing
    cloud.client("events").put_events(Entries=entries)


def _message(cloud: Cloud, size: int) -> None:
    queue = cloud.client("sqs").create_queue(QueueName="sizes")["QueueUrl"]
    cloud.client("sqs").send_message(QueueUrl=queue, MessageBody="x" * size)


def _notice(cloud: Cloud, size: int) -> None:
    topic = cloud.client("sns").create_topic(Name="sizes")["TopicArn"]
    cloud.client("sns").publish(TopicArn=topic, Message="é" * (size // 2))


@pytest.mark.parametrize("send", [_event, _two_events, _message, _notice])
def test_one_byte_more_is_refused_with_the_size_and_the_limit(cloud: Cloud, send: Callable[[Cloud, int], None]) -> None:
    send(cloud, EVENT_BYTES)
    with pytest.raises(ClientError, match=str(EVENT_BYTES)):
        send(cloud, EVENT_BYTES + 2)
    assert TOO_LARGE


def test_a_parameter_has_its_tier_s_size_and_refers_to_no_other(cloud: Cloud) -> None:
    put = cloud.client("ssm").put_parameter
    put(Name="/sizes/standard", Value="x" * 4096, Type="String")
    put(Name="/sizes/advanced", Value="x" * 8192, Type="String", Tier="Intelligent-Tiering")
    with pytest.raises(ClientError, match="4096"):
        put(Name="/sizes/standard", Value="x" * 4097, Type="String", Overwrite=True)
    with pytest.raises(ClientError, match="8192"):
        put(Name="/sizes/advanced", Value="x" * 8193, Type="String", Tier="Advanced", Overwrite=True)
    with pytest.raises(ClientError, match="refers to no other"):
        put(Name="/sizes/nested", Value="{{ssm:a}}", Type="String")


def test_what_is_invoked_without_waiting_takes_less_than_what_is_waited_for(cloud: Cloud) -> None:
    cloud.functions.handlers["sized"] = lambda _event, _context: None
    name = "sized"
    client = cloud.client("lambda")
    with pytest.raises(ClientError, match=str(EVENT_BYTES)) as caught:
        client.invoke(FunctionName=name, InvocationType="Event", Payload=json.dumps("x" * EVENT_BYTES))
    assert caught.value.response["Error"]["Code"] == "RequestTooLargeException"
    with pytest.raises(ClientError, match=str(SYNCHRONOUS_BYTES)):
        client.invoke(FunctionName=name, Payload=json.dumps("x" * SYNCHRONOUS_BYTES))


def test_each_row_says_where_its_figure_is_from() -> None:
    assert all(row.source for row in SIZES.values())
    assert GATEWAY_BYTES > SYNCHRONOUS_BYTES > EVENT_BYTES


@pytest.mark.parametrize("size", [GATEWAY_BYTES + 1, 10**8 - 1])
def test_the_api_takes_no_more_than_its_gateway(size: int) -> None:
    assert _asked("POST", "/echo", {"Content-Length": str(size)}) == 413


def test_an_answer_that_lambda_drops_is_the_gateways_error() -> None:
    assert _asked("GET", f"/large/{SYNCHRONOUS_BYTES // 2}", {}) == 200
    assert _asked("GET", f"/large/{SYNCHRONOUS_BYTES + 1}", {}) == 502


def _asked(method: str, path: str, headers: Mapping[str, str]) -> int:
    app = Chalice(app_name="sizes")

    @app.route("/large/{size}")
    def large(size: str) -> Response:
        return Response("x" * int(size), headers={"Content-Type": "text/plain"})

    @app.route("/echo", methods=["POST"])
    def echo() -> str:
        return "taken"

    server = ApiServer(app)
    server.start()
    try:
        connection = HTTPConnection("127.0.0.1", int(server.url.rpartition(":")[2]), timeout=60)
        connection.putrequest(method, path)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        status = connection.getresponse().status
        connection.close()
        return status
    finally:
        server.close()


def test_a_call_that_is_too_large_fails_its_test(pytester: pytest.Pytester) -> None:
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(
        "from localcloud.aws.wire import TOO_LARGE\ndef test_a() -> None:\n    TOO_LARGE.append('too large')\n"
    )
    result: Any = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*larger than AWS takes: too large*"])
