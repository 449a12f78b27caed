"""The API, fuzzed by its own description: no 5xx, no status or content type that is not documented, answers that fit
their schemas, nothing taken that the description refuses.

Everything is derived from one seed, so that a failure comes again. `make test-api` runs it.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, Final
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from chalicelib.api.operation import PREFIX, Operation
from chalicelib.api.operations.routes import BY_NAME, OPERATIONS
from tests.api_fuzz.stage import CLUSTER, Stage

CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
EXAMPLES: Final = 25  # of each operation and kind: some 2,000 requests in all
TIMEOUT_S: Final = 120

# A body that each order takes, where it needs one; `GOOD_NAMES` where another name than the first is meant.
GOOD_BODIES: Final[dict[str, Any]] = {
    "register_job": {"training_job": "plain"},
    "resubmit_job": {"skip": [[10, 20]]},
    "set_pause": {"paused": False},
    "set_shadow": {"scope": "job", "name": "lm-calm", "on": False},
    "answer_approval": {"answer": "deny", "comment": "not now"},
    "put_policy": {"document": {"budgets": {"max_attempts": 20}}, "version": 0},
    "validate_policy": {"document": {"budgets": {"max_attempts": 0}}},
    "diff_policy": {"document": {"budgets": {"max_attempts": 20}}},
    "repair_node": {"do": "reboot", "why": "ECC errors"},
    "start_drill": {"fault": "hang"},
}
GOOD_NAMES: Final[dict[str, dict[str, str]]] = {
    "put_policy": {"name": "brand-new"},
}
# Nothing of the stage lets this one succeed: the breaker has not tripped.
REFUSED: Final = {"lift_breaker": 409}


def path_of(operation: Operation, known: dict[str, list[str]]) -> str:
    path = operation.path
    for name in operation.names:
        chosen = GOOD_NAMES.get(operation.name, {}).get(name, known[name][0])
        path = path.replace(f"{{{name}}}", quote(chosen, safe=""))
    return path


def _operation(schema: Any, name: str) -> Any:
    wanted = BY_NAME[name]
    return schema[wanted.path][wanted.method]


# The Incident is cancelled last: it is the one that asks.
IN_ORDER: Final = sorted((operation.name for operation in OPERATIONS), key=lambda name: name == "cancel_incident")


@pytest.mark.parametrize("name", IN_ORDER)
def test_every_operation_can_be_answered_well(name: str, staged: Stage, schema: Any) -> None:
    operation = BY_NAME[name]
    case = _operation(schema, name).Case(
        path_parameters={one: GOOD_NAMES.get(name, {}).get(one, staged.known[one][0]) for one in operation.names},
        **({"body": GOOD_BODIES.get(name, {}), "media_type": "application/json"} if operation.body else {}),
    )
    response = case.call(timeout=TIMEOUT_S)
    case.validate_response(response, checks=CHECKS)
    assert response.status_code in ({REFUSED[name]} if name in REFUSED else operation.answers), response.text


def _real(known: dict[str, list[str]], case: Any) -> None:
    """Half of the names are such as exist: what lies behind an unknown one is never reached."""
    for name, value in list((case.path_parameters or {}).items()):
        at = zlib.crc32(repr(value).encode())
        if at % 2:
            case.path_parameters[name] = known[name][at // 2 % len(known[name])]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda one: one.value)
@pytest.mark.parametrize("name", [operation.name for operation in OPERATIONS])
def test_nothing_undocumented_is_answered(name: str, mode: GenerationMode, staged: Stage, schema: Any) -> None:
    asked = 0
    checks = [*CHECKS, negative_data_rejection] if mode is GenerationMode.NEGATIVE else CHECKS
    operation = _operation(schema, name)
    if mode is GenerationMode.NEGATIVE and not (BY_NAME[name].names or BY_NAME[name].query or BY_NAME[name].body):
        pytest.skip("nothing of it could be wrong")

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def fuzz(case: Any) -> None:
        nonlocal asked
        if mode is GenerationMode.POSITIVE:
            _real(staged.known, case)
        asked += 1
        case.validate_response(case.call(timeout=TIMEOUT_S), checks=checks)

    fuzz()
    assert asked > 0


# What no generator comes by, over raw HTTP.
ODD_BODIES: Final = {
    "not UTF-8": b'{"from_step": "\xff\xfe"}',
    "UTF-16": '{"from_step": 1}'.encode("utf-16"),
    "NaN": b'{"from_step": NaN}',
    "infinite": b'{"from_step": 1e999}',
    "5,000 digits": b'{"from_step": ' + b"9" * 5000 + b"}",
    "deep list": b"[" * 30_000 + b"]" * 30_000,
    "deep object": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "half a surrogate pair": b'{"exclude": ["\\ud800"]}',
    "a member twice": b'{"from_step": 1, "from_step": 2}',
    "no object": b"[]",
    "null": b"null",
    "a NUL": b'{"exclude": ["\\u0000"]}',
    "too large": b" " * 70_000 + b"{}",
}


@pytest.mark.parametrize("body", ODD_BODIES.values(), ids=list(ODD_BODIES))
def test_an_odd_body_is_refused_with_a_problem(body: bytes, staged: Stage) -> None:
    status, headers, content = _raw(staged, "POST", "/jobs/lm-calm/resubmit", body=body)
    assert status in (400, 413), content
    assert headers["content-type"] == "application/problem+json"
    told = json.loads(content)
    assert told["status"] == status
    assert told["field"]


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/%00",
        "/jobs/%ff%fe",
        "/jobs/..%2f..%2fpolicies",
        "/jobs/" + "a" * 2000,
        "/jobs/%F0%9F%92%A5",
        "/jobs/a%0d%0aSet-Cookie:%20x=1",
        "/incidents/INC%23x",
        "/clusters/..",
        "/clusters/-",
        "/policies/%2e%2e",
        "/drills/%25",
    ],
)
def test_an_odd_name_is_not_found(path: str, staged: Stage) -> None:
    status, headers, content = _raw(staged, "GET", path)
    assert status == 404, content
    assert headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "query", ["limit=1e9", "limit=%00", "cursor=%ff", "cursor=W10=", "cursor=" + "A" * 1024, "x=1"]
)
@pytest.mark.parametrize("path", ["/jobs", "/incidents", "/incidents/{incident_id}/timeline"])
def test_an_odd_query_is_refused(path: str, query: str, staged: Stage) -> None:
    path = path.replace("{incident_id}", staged.known["incident_id"][0])
    status, _, content = _raw(staged, "GET", f"{path}?{query}")
    assert status == 400, content
    assert json.loads(content)["field"] == query.partition("=")[0]


def test_a_cursor_of_another_question_is_refused(staged: Stage) -> None:
    _, _, content = _raw(staged, "GET", "/incidents?state=closed&limit=1")
    cursor = json.loads(content)["cursor"]
    assert cursor
    for path in ("/jobs?active=true", "/incidents?state=open", "/incidents?job_id=lm-calm"):
        status, _, content = _raw(staged, "GET", f"{path}&cursor={cursor}")
        assert (status, json.loads(content)["field"]) == (400, "cursor")


@pytest.mark.parametrize("method", ["HEAD", "DELETE", "PATCH", "TRACE", "PUT"])
def test_a_wrong_method_is_no_error_of_ours(method: str, staged: Stage) -> None:
    status, headers, _ = _raw(staged, method, "/incidents")
    assert status == 405
    assert "GET" in headers["allow"]


def test_options_and_unknown_paths_are_answered_as_by_the_gateway(staged: Stage) -> None:
    assert _raw(staged, "OPTIONS", "/incidents")[0] == 200
    for path in ("/", "/nothing", "/jobs/a/b/c/d", "//", "/jobs//curves"):
        assert _raw(staged, "GET", path)[0] in (403, 404), path


def test_a_form_is_not_json(staged: Stage) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    status, headers, content = _raw(staged, "PUT", "/pause", body=b"paused=true", headers=form)
    assert (status, headers["content-type"]) == (415, "application/problem+json")
    assert (json.loads(content)["status"], json.loads(content)["field"]) == (415, "Content-Type")


def test_the_same_key_is_one_order_and_one_answer_and_nothing_else_may_have_it(staged: Stage) -> None:
    key = {"Idempotency-Key": "night-shift-1", "Content-Type": "application/json"}
    path = "/jobs/lm-calm/checkpoint"
    status, headers, first = _raw(staged, "POST", path, body=b"{}", headers=key)
    assert (status, headers.get("idempotency-replayed")) == (202, None)
    incident_id = json.loads(first)["incident_id"]
    before = _signals(staged, incident_id)
    for body in (b"{}", b"", b" { } "):
        status, headers, again = _raw(staged, "POST", path, body=body, headers=key)
        assert (status, headers["idempotency-replayed"], again) == (202, "true", first)
    assert _signals(staged, incident_id) == before
    pause = "/pause"
    _raw(staged, "PUT", pause, body=b'{"paused": false}', headers=key)
    status, _, content = _raw(staged, "PUT", pause, body=b'{"paused": true}', headers=key)
    assert (status, json.loads(content)["field"]) == (422, "Idempotency-Key")
    assert not staged.world.service.registry.is_paused()


def _signals(staged: Stage, incident_id: str) -> int:
    """All that the Incident was ever given."""
    looked = staged.world.service.store.load(incident_id)
    return looked.incident.signals_seen + len(looked.inbox)


def test_of_two_who_change_a_policy_one_must_read_again(staged: Stage) -> None:
    document = {"document": {"budgets": {"max_attempts": 30}}, "version": 0}
    status, headers, content = _put(staged, "two", document)
    assert (status, headers["etag"]) == (200, '"1"')
    assert json.loads(content)["effective"]["budgets"]["max_attempts"] == 30
    assert staged.world.service.policies.load("two").budgets.max_attempts == 30
    assert _put(staged, "two", document | {"document": {}})[0] == 412
    assert _put(staged, "two", {"document": {}})[0] == 428
    status, headers, _ = _put(staged, "two", {"document": {"budgets": {"max_attempts": 31}}}, {"If-Match": '"1"'})
    assert (status, headers["etag"]) == (200, '"2"')
    wrong = {"document": {"budgets": {"max_attempts": 31}, "backof_s": [1]}, "version": 2}
    status, _, content = _put(staged, "two", wrong)
    assert (status, json.loads(content)["field"]) == (400, "backof_s")


def _put(
    staged: Stage, name: str, body: dict[str, Any], headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    sent = {"Content-Type": "application/json", **(headers or {})}
    return _raw(staged, "PUT", f"/policies/{name}", body=json.dumps(body).encode(), headers=sent)


def _raw(
    staged: Stage, method: str, path: str, *, body: bytes = b"", headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """One request as it is given, nothing quoted or mended."""
    import http.client

    host = staged.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=TIMEOUT_S)
    try:
        connection.request(method, PREFIX + path, body=body or None, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def test_the_stage_has_every_kind_of_name() -> None:
    assert {name for operation in OPERATIONS for name in operation.names} == {
        "job_id", "incident_id", "approval_id", "cluster", "node", "name", "drill_id",
    }  # fmt: skip
    assert CLUSTER
