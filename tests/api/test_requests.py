"""What a request may say, and how what is wrong with it is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chalicelib.api.json_body import read_json
from chalicelib.api.operations.routes import BY_NAME
from chalicelib.api.problems import ApiResponse, of_framework
from chalicelib.api.reading import MAX_BODY_BYTES, TooLarge, WrongMediaType, read
from chalicelib.api.request import Request
from chalicelib.domain.model.errors import InvalidRequest, UnknownEntity


def asked(
    operation: str,
    body: Any = None,
    *,
    raw: bytes | None = None,
    query: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
    who: str = "arn:aws:iam::1:user/ada",
    **names: str,
) -> Request:
    event = {
        "queryStringParameters": query,
        "headers": headers or {},
        "requestContext": {"requestId": "r", "path": "/api/x", "identity": {"userArn": who}},
    }
    sent = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
    return read(BY_NAME[operation], names, event, sent)


@pytest.mark.parametrize("text", ["0", "-1", "101", "abc", "", "1.5", "٣", "9" * 5000, "1_0", "+5", " 5"])
def test_a_wrong_limit_is_named(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        asked("list_jobs", query={"limit": text})
    assert caught.value.field == "limit"


def test_a_query_is_typed() -> None:
    request = asked("list_jobs", query={"limit": "7", "active": "false", "cursor": "abc="})
    assert (request.limit, request.query["active"], request.cursor) == (7, False, "abc=")
    assert asked("list_jobs").limit == 50


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"state": "shut"}, "state"),
        ({"fault": "bad_luck"}, "fault"),
        ({"since": "yesterday"}, "since"),
        ({"cursor": "a b"}, "cursor"),
        ({"jobid": "lm"}, "jobid"),
        ({"job_id": "a\nb"}, "job_id"),
    ],
)
def test_a_parameter_that_is_wrong_or_misspelt_is_named(query: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        asked("list_incidents", query=query)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("operation", "query", "says"),
    [
        # An offset whose + was not quoted arrives as a blank.
        ("list_incidents", {"since": "2026-11-20T10:00:00 01:00"}, "as in 2026-11-20T10:00:00Z; in a query + is"),
        ("list_incidents", {"job_id": "a\x1b[2Jb"}, "without control characters"),
    ],
)
def test_what_a_text_must_be_is_said_in_words_and_not_as_a_pattern(
    operation: str, query: dict[str, str], says: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        asked(operation, query=query)
    assert says in str(caught.value)
    assert "^" not in str(caught.value)


@pytest.mark.parametrize(
    ("operation", "body", "field"),
    [
        ("register_job", {}, "training_job"),
        ("register_job", [], "body"),
        ("register_job", {"training_job": 5}, "training_job"),
        ("register_job", {"training_job": "a/b"}, "training_job"),
        ("register_job", {"training_job": "lm", "mailbox": "gs://b"}, "mailbox"),
        ("register_job", {"training_job": "lm", "polcy": "x"}, "polcy"),
        ("register_job", {"slurm_job": {"cluster": "ml"}}, "slurm_job.job"),
        ("register_job", {"slurm_job": {"cluster": "ml", "job": 0}}, "slurm_job.job"),
        ("register_job", {"slurm_job": {"cluster": "ml", "job": True}}, "slurm_job.job"),
        ("register_job", {"slurm_job": {"cluster": "ml", "job": 1, "x": 1}}, "slurm_job.x"),
        ("register_job", {"slurm_job": {"cluster": "ml", "job": 1}, "metrics": {}}, "metrics"),
        ("resubmit_job", {"from_step": -1}, "from_step"),
        ("resubmit_job", {"from_step": 1.5}, "from_step"),
        ("resubmit_job", {"from_step": 2**60}, "from_step"),
        ("resubmit_job", {"skip": [[1, 2], [3]]}, "skip[1]"),
        ("resubmit_job", {"skip": [[1, "2"]]}, "skip[0][1]"),
        ("resubmit_job", {"skip": [[1, 2]] * 65}, "skip"),
        ("checkpoint_job", {"now": True}, "now"),
        ("set_pause", {"paused": "yes"}, "paused"),
        ("set_pause", {"paused": None}, "paused"),
        ("set_pause", {}, "paused"),
        ("put_policy", {"document": [], "version": 0}, "document"),
        ("put_policy", {"document": {}, "version": -1}, "version"),
    ],
)
def test_a_body_that_does_not_fit_names_the_dotted_path(operation: str, body: Any, field: str) -> None:
    names = {"job_id": "lm"} if "job" in operation and "register" not in operation else {}
    names |= {"name": "default"} if operation == "put_policy" else {}
    with pytest.raises(InvalidRequest) as caught:
        asked(operation, body, **names)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"nul",
        b'{"from_step": NaN}',
        b'{"from_step": Infinity}',
        b'{"from_step": 1e999}',
        b'{"from_step": ' + b"9" * 5000 + b"}",
        b'{"from_step": 1, "from_step": 2}',
        b"\xff\xfe{}",
        b'{"from_step": "\xc3\x28"}',
        '{"from_step": 1}'.encode("utf-16"),
        b'{"a": "\\ud800"}',
        b"[" * 5000 + b"]" * 5000,
        b'{"a":' * 4000 + b"1" + b"}" * 4000,
        b'{"a":' * 33 + b"1" + b"}" * 33,
    ],
    ids=range(14),
)
def test_what_is_no_json_document_is_refused_as_the_body(raw: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        asked("resubmit_job", raw=raw, job_id="lm")
    assert caught.value.field == "body"


def test_a_whole_number_may_be_written_with_a_point() -> None:
    step = asked("resubmit_job", raw=b'{"from_step": 5.0}', job_id="lm").body["from_step"]
    assert (step, type(step)) == (5, int)
    assert read_json(b"[0.5, 1e3]") == [0.5, 1000]


def test_a_body_that_is_too_large_or_something_else_is_refused_unread() -> None:
    with pytest.raises(TooLarge):
        asked("resubmit_job", raw=b" " * (MAX_BODY_BYTES + 1), job_id="lm")
    with pytest.raises(WrongMediaType):
        asked("resubmit_job", raw=b"a=1", headers={"Content-Type": "application/x-www-form-urlencoded"}, job_id="lm")
    fine = asked("resubmit_job", raw=b"{}", headers={"content-type": "Application/JSON; charset=utf-8"}, job_id="lm")
    assert fine.body == {}


def test_a_body_that_nobody_asked_for_is_not_looked_at() -> None:
    assert asked("list_jobs", raw=b"\xff").body == {}


@pytest.mark.parametrize("name", ["", "a" * 300, "a%2Fb", "a%00b", "%ff", "a\x7f", "%0a"])
def test_a_name_that_nothing_can_have_is_not_found(name: str) -> None:
    with pytest.raises(UnknownEntity):
        asked("get_job", job_id=name)


def test_a_name_is_decoded() -> None:
    assert asked("get_job", job_id="slurm%2Eml.4211").names == {"job_id": "slurm.ml.4211"}


@pytest.mark.parametrize("key", ["", " a", "a ", "é", "a\tb", "k" * 257])
def test_a_key_that_would_not_travel_is_refused(key: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        asked("checkpoint_job", {}, headers={"Idempotency-Key": key}, job_id="lm")
    assert caught.value.field == "Idempotency-Key"


def test_without_a_key_each_request_is_its_own_order() -> None:
    request = asked("checkpoint_job", {}, job_id="lm")
    assert (request.given_key, request.key, request.who) == (None, "r", "arn:aws:iam::1:user/ada")


def test_a_key_is_its_signer_s_own_and_a_session_of_the_same_role_has_the_same() -> None:
    def key_of(who: str) -> str:
        return asked("checkpoint_job", {}, headers={"Idempotency-Key": "k"}, job_id="lm", who=who).key

    role = "arn:aws:sts::1:assumed-role/OnCall"
    assert key_of(f"{role}/botocore-session-1") == key_of(f"{role}/botocore-session-2")
    users = [f"arn:aws:iam::1:{name}" for name in ("user/ada", "user/bob", "root")]
    signers = [*users, f"{role}/ada", f"{role}2/ada"]
    assert len({key_of(who) for who in signers}) == len(signers)


def test_what_the_framework_refuses_names_the_header_that_is_wrong() -> None:
    told = of_framework(415, {"Code": "UnsupportedMediaType", "Message": "Unsupported media type: text/plain"}, {})
    assert told is not None
    assert (told.body["field"], told.body["status"]) == ("Content-Type", 415)
    other = of_framework(405, {"Code": "MethodNotAllowedError", "Message": "no"}, {"Allow": "GET"})
    assert other is not None
    assert ("field" in other.body, other.headers["Allow"]) == (False, "GET")


def test_an_answer_is_always_json() -> None:
    answer = ApiResponse(status=200, body={"loss": [1.0, float("nan"), {"x": float("inf")}]})
    assert json.loads(answer.text(), parse_constant=pytest.fail) == {"loss": [1.0, None, {"x": None}]}
