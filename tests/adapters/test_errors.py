"""The one table of AWS error codes."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)

from chalicelib.aws.errors import MEANING, AwsRefusal, call, drain_unlisted
from chalicelib.domain.model.errors import (
    CapacityUnavailable,
    DependencyUnavailable,
    NotAuthorized,
    Permanent,
    RecoveryError,
    Retryable,
    Throttled,
    VersionConflict,
)


def failing(error: Exception) -> Any:
    def describe_thing(**_: Any) -> Any:
        raise error

    return describe_thing


def answer(code: str, message: str = "text") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, "DescribeThing")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ThrottlingException", Throttled),
        ("SlowDown", Throttled),
        ("TransactionConflictException", Throttled),
        ("InternalServerError", DependencyUnavailable),
        ("ExpiredToken", DependencyUnavailable),
        ("ResourceLimitExceeded", CapacityUnavailable),
        ("ConditionalCheckFailedException", VersionConflict),
        ("AccessDenied", NotAuthorized),
        ("ValidationException", Permanent),
    ],
)
def test_a_listed_code_has_its_meaning_and_is_not_counted(code: str, kind: type[RecoveryError]) -> None:
    with pytest.raises(kind) as caught:
        call(failing(answer(code)))
    assert type(caught.value) is kind
    assert "describe_thing" in str(caught.value)
    assert code in str(caught.value)
    assert drain_unlisted() == {}


def test_a_code_that_nobody_listed_is_retryable_and_counted() -> None:
    for _ in range(2):
        with pytest.raises(Retryable):
            call(failing(answer("BrandNewException")))
    assert drain_unlisted() == {"BrandNewException": 2}
    assert drain_unlisted() == {}


def test_an_expected_code_is_an_answer_for_the_caller() -> None:
    with pytest.raises(AwsRefusal) as caught:
        call(failing(answer("AccessDenied", "why")), expect=("AccessDenied",))
    assert (caught.value.code, caught.value.message) == ("AccessDenied", "why")


@pytest.mark.parametrize(
    "error",
    [
        ReadTimeoutError(endpoint_url="https://aws.invalid"),
        ConnectTimeoutError(endpoint_url="https://aws.invalid"),
        EndpointConnectionError(endpoint_url="https://aws.invalid"),
    ],
)
def test_no_answer_is_a_dependency_that_may_or_may_not_have_acted(error: Exception) -> None:
    with pytest.raises(DependencyUnavailable):
        call(failing(error))


def test_a_request_that_does_not_fit_the_api_is_permanent() -> None:
    with pytest.raises(Permanent):
        call(failing(ParamValidationError(report="missing Name")))


def test_missing_credentials_are_retryable_and_counted() -> None:
    with pytest.raises(Retryable):
        call(failing(NoCredentialsError()))
    assert drain_unlisted() == {"NoCredentialsError": 1}


def test_an_error_of_our_own_code_is_not_translated() -> None:
    with pytest.raises(KeyError):
        call(failing(KeyError("bug")))


def test_botocores_own_throttling_codes_all_mean_throttled() -> None:
    from botocore.retries.standard import ThrottledRetryableChecker

    known = set(ThrottledRetryableChecker._THROTTLED_ERROR_CODES)
    assert {code for code in known if MEANING.get(code) is not Throttled} == set()


def test_a_long_message_is_cut() -> None:
    with pytest.raises(Permanent) as caught:
        call(failing(answer("ValidationException", "x" * 50_000)))
    assert len(str(caught.value)) <= 800
