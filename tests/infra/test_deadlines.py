"""Time-outs add up: whatever hangs, a function ends, and says so, before Lambda ends it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.session import get_session

from chalicelib.aws.deadline import PATIENCE, WIND_UP_S, Deadline, OutOfTime, RetryLimits, patience_of
from chalicelib.aws.errors import call
from chalicelib.bootstrap.clients import Clients
from chalicelib.channels import outbound
from chalicelib.channels.address import LOOK_S
from chalicelib.channels.bus import detail_of
from chalicelib.channels.delivery.deliver import HOLD, ONE_S
from chalicelib.channels.slack import web_api as slack_api
from chalicelib.channels.slack.groups import TIMEOUT_S as SLACK_READ_S
from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.errors import Retryable
from chalicelib.ports.notices import Notice
from chalicelib.services.reporting.pages import WRITE_S
from chalicelib.services.sweep.sweep import BUDGET
from infra.functions import FUNCTIONS, Function, Trigger
from infra.package import ROOT

TIMEOUTS = {
    name: float(one["lambda_timeout"])
    for name, one in json.loads((ROOT / ".chalice" / "config.json").read_text(encoding="utf-8"))[
        "lambda_functions"
    ].items()
}
API_GATEWAY_S = 29.0  # Source: API Gateway quotas, integration time-out


def patience(function: Function) -> RetryLimits:
    return patience_of("app" if function.trigger is Trigger.HTTP else function.name)


# ---- arithmetic ------------------------------------------------------------------------------------------------------


def test_a_call_that_hangs_is_tried_twice_within_every_function_s_time(function: Function) -> None:
    one = patience(function)
    first = one.connect_s + one.read_s + 1.0  # no answer at all, and the pause after it
    assert TIMEOUTS[function.name] - first >= one.attempt_s + WIND_UP_S, "the second attempt would be refused"


def test_the_pause_before_a_refused_attempt_fits_into_what_is_kept_for_the_end(function: Function) -> None:
    one = patience(function)
    longest = min(20.0, 2.0 ** (one.attempts - 2))
    assert longest <= WIND_UP_S - 1


def test_what_botocore_is_told_is_what_the_arithmetic_counts(function: Function) -> None:
    one = patience(function)
    config = one.config()
    assert (config.connect_timeout, config.read_timeout) == (one.connect_s, one.read_s)
    assert config.retries == {"mode": "standard", "total_max_attempts": one.attempts}


def test_a_whole_hung_call_fits_into_the_recovery() -> None:
    """A step that fails is tried again by the durable execution, in another invocation: it must be able to fail."""
    one = PATIENCE["recover"]
    # Source: botocore, retries/standard.py: at most 1 s before the second attempt, twice that before each further one.
    pauses_s = sum(min(20.0, 2.0**number) for number in range(one.attempts - 1))
    assert one.attempts * one.attempt_s + pauses_s + WIND_UP_S < TIMEOUTS["recover"]


def test_the_durable_waits_are_not_spent_inside_the_function() -> None:
    """The SDK ends the invocation for a pause; the shortest that it does so for is a second."""
    from chalicelib.recovery import workflow

    assert workflow.CALLBACK_TIMEOUT.to_seconds() > TIMEOUTS["recover"], "waited for outside, or it could never pass"


def test_the_api_answers_before_api_gateway_gives_up() -> None:
    (api,) = (function for function in FUNCTIONS if function.trigger is Trigger.HTTP)
    assert TIMEOUTS[api.name] <= API_GATEWAY_S


def test_a_sweep_that_begins_its_last_job_late_still_ends() -> None:
    one = patience_of("sweep")
    assert BUDGET + timedelta(seconds=one.attempt_s) <= timedelta(seconds=TIMEOUTS["sweep"])


def test_a_delivery_that_hangs_leaves_time_for_its_end() -> None:
    webhook = outbound.ADDRESSES * outbound.CONNECT_S + outbound.HANDSHAKE_S + outbound.TOTAL_S
    link = LOOK_S - WIND_UP_S  # no attempt for the page's link goes on for longer
    assert patience_of("deliver").attempt_s + WIND_UP_S < LOOK_S, "it would never be asked for"
    assert max(webhook, 4 * slack_api.TIMEOUT_S) + link <= ONE_S
    assert TIMEOUTS["deliver"] >= ONE_S * 2
    assert timedelta(seconds=TIMEOUTS["deliver"]) < HOLD
    assert SLACK_READ_S < 3


def test_a_page_that_cannot_be_written_leaves_time_for_everything_after_it() -> None:
    one = patience_of("notice_event")
    assert one.attempt_s + WIND_UP_S < WRITE_S, "it would never be written"
    left_s = TIMEOUTS["notice_event"] - (WRITE_S - WIND_UP_S)
    first = one.connect_s + one.read_s + 1.0
    assert left_s - first >= one.attempt_s + WIND_UP_S, "a second attempt at the queue would be refused"


# ---- the guard -------------------------------------------------------------------------------------------------------


class Context:
    def __init__(self, left_s: float) -> None:
        self.left_s = left_s

    def get_remaining_time_in_millis(self) -> int:
        return int(self.left_s * 1000)


@pytest.fixture
def silence() -> Iterator[str]:
    """The URL of a socket that takes connections and never answers."""
    with closing(socket.socket()) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        held: list[socket.socket] = []

        def hold() -> None:
            while True:
                try:
                    held.append(listening.accept()[0])
                except OSError:
                    return

        threading.Thread(target=hold, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        for one in held:
            one.close()


class Session:
    """boto3's, with one endpoint for every service."""

    def __init__(self, url: str) -> None:
        self.url = url

    def client(self, name: str, config: Any) -> Any:
        return get_session().create_client(
            name,
            region_name="eu-west-1",
            endpoint_url=self.url,
            config=config,
            aws_access_key_id="x",
            aws_secret_access_key="x",
        )


def test_no_attempt_is_begun_that_could_outlast_the_function(silence: str) -> None:
    quick = RetryLimits(connect_s=0.2, read_s=0.3, attempts=3)
    clients = Clients(Session(silence), patience=quick)
    clients.deadline.begin(Context(WIND_UP_S + 1.2))  # time for one attempt of 0.8 s, not for two
    began = time.monotonic()
    with pytest.raises(Retryable):
        call(clients("dynamodb").get_item, TableName="t", Key={"pk": {"S": "x"}})
    assert time.monotonic() - began < 1.2 + WIND_UP_S - 1
    began = time.monotonic()
    for _ in range(50):  # a handler that takes every failure well cannot add them up
        with pytest.raises(OutOfTime):
            clients("dynamodb").get_item(TableName="t", Key={"pk": {"S": "x"}})
    assert time.monotonic() - began < 1.0


def test_without_a_deadline_nothing_is_refused(silence: str) -> None:
    clients = Clients(Session(silence), patience=RetryLimits(connect_s=0.1, read_s=0.1, attempts=1))
    clients.deadline.begin(None)
    with pytest.raises(Exception, match="Read timeout"):
        clients("dynamodb").get_item(TableName="t", Key={"pk": {"S": "x"}})


def test_a_new_invocation_has_its_own_time() -> None:
    now = [100.0]
    deadline = Deadline(monotonic=lambda: now[0])
    deadline.begin(Context(30))
    now[0] = 129.0
    assert deadline.left_s() == 1.0
    deadline.begin(Context(30))
    assert deadline.left_s() == 30.0


PROGRAM = """
import json, sys, time
import app
function, event, left_s = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
ends = time.monotonic() + left_s

class Context:
    function_name = function
    invoked_function_arn = "arn:aws:lambda:eu-west-1:123456789012:function:rekindle-" + function
    aws_request_id = "r"
    memory_limit_in_mb = 512
    tenant_id = None
    def get_remaining_time_in_millis(self):
        return int((ends - time.monotonic()) * 1000)

handler = app.app if function == "api_handler" else getattr(app, function)
try:
    said = repr(handler(event, Context()))[:300]
except BaseException as err:
    said = repr(err)[:300]
print(json.dumps({"left_s": ends - time.monotonic(), "said": said}))
"""


def _event(name: str) -> dict[str, Any]:
    """Something that makes the function ask AWS."""
    scheduled = {
        "version": "0",
        "id": "7bf73129-1428-4cd3-a780-95db273d1602",
        "detail-type": "Scheduled Event",
        "source": "aws.events",
        "account": "123456789012",
        "time": "2026-11-20T10:00:00Z",
        "region": "eu-west-1",
        "resources": [],
        "detail": {},
    }
    notice = Notice(
        token="t", severity=Severity.PAGE, title="t", text="t", incident_id="i", job_id=None, at=datetime.now(UTC)
    )
    match name:
        case "api_handler":
            return {
                "requestContext": {"httpMethod": "GET", "resourcePath": "/v1/status", "identity": {}},
                "headers": {},
                "multiValueQueryStringParameters": None,
                "pathParameters": {},
                "body": None,
                "isBase64Encoded": False,
                "stageVariables": {},
            }
        case "recover":
            payload = json.dumps({"incident_id": "i", "generation": 1})
            operation = {"Id": "x", "Type": "EXECUTION", "Status": "STARTED", "StartTimestamp": 1795168800}
            return {
                "DurableExecutionArn": "arn:aws:lambda:eu-west-1:123456789012:function:r:1/durable-execution/i.1/x",
                "CheckpointToken": "t",
                "InitialExecutionState": {
                    "Operations": [{**operation, "ExecutionDetails": {"InputPayload": payload}}],
                    "NextMarker": "",
                },
            }
        case "deliver":
            body = json.dumps({"channel": "ops", "detail": detail_of(notice)})
            attributes = {"SentTimestamp": "1795168800000"}
            return {"Records": [{"messageId": "m", "receiptHandle": "r", "body": body, "attributes": attributes}]}
        case "notice_event":
            return {**scheduled, "source": "rekindle", "detail-type": "Rekindle Notice", "detail": detail_of(notice)}
        case "training_job_event":
            path = ROOT / "events" / "sagemaker_training_job_completed.json"
            return dict(json.loads(path.read_text(encoding="utf-8")))
        case _:
            return scheduled


def _time(name: str) -> float:
    """For one attempt and the end, and a little; a delivery begins nothing with less than ONE_S."""
    at_least = ONE_S if name == "deliver" else 0.0
    return max(patience_of(name).attempt_s + WIND_UP_S, at_least) + 2


# One of each kind; the other event handlers are training_job_event with another pattern.
KINDS = ("training_job_event", "notice_event", "deliver", "sweep", "recover", "api_handler")


def _environ(function: Function, url: str) -> dict[str, str]:
    return {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_REGION": "eu-west-1",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_LAMBDA_FUNCTION_NAME": f"rekindle-{function.name}",
        "_HANDLER": "app.app" if function.trigger is Trigger.HTTP else f"app.{function.name}",
        "REKINDLE_TABLE": "rekindle",
        "REKINDLE_BUS": "rekindle",
        "REKINDLE_BUCKET": "rekindle-123456789012-eu-west-1",
        "REKINDLE_QUARANTINE_URL": f"{url}/123456789012/quarantine",
        "REKINDLE_TOPIC": "arn:aws:sns:eu-west-1:123456789012:rekindle-notices",
        "REKINDLE_POLICY_PREFIX": "/rekindle/policies",
        "REKINDLE_RECOVER_FUNCTION": "rekindle-recover:live",
        "REKINDLE_STAGE": "rekindle",
        "REKINDLE_ACCOUNT": "123456789012",
        "REKINDLE_SETTINGS_PREFIX": "/rekindle",
        "REKINDLE_DELIVERIES_URL": f"{url}/123456789012/deliveries",
        "REKINDLE_UNDELIVERED_URL": f"{url}/123456789012/undelivered",
    }


@pytest.mark.long
def test_functions_whose_endpoints_never_answer_end_in_time(silence: str) -> None:
    """As they are shipped, with their own time-outs, each in a process of its own, with time for one attempt."""
    running = {}
    for function in FUNCTIONS:
        if function.name in KINDS:
            event = json.dumps(_event(function.name))
            command = [sys.executable, "-c", PROGRAM, function.name, event, str(_time(function.name))]
            running[function.name] = subprocess.Popen(
                command, env=_environ(function, silence), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
    told = {}
    for name, process in running.items():
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, (name, err[-2000:])
        told[name] = json.loads(out.splitlines()[-1])
    assert told.keys() == set(KINDS)
    for name, invocation in told.items():
        assert invocation["left_s"] > 1.0, (name, told)
        used = _time(name) - invocation["left_s"]
        assert used > 0.9 * patience_of(name).read_s, f"{name} never asked: {told}"
