"""Each AWS call throttled, cut after it took effect, or refused: a run is never doubled, and every Incident ends.

`make test` takes one call of each operation; `make test-crash` takes every call of every operation.
"""

from __future__ import annotations

import pytest

from localcloud.aws.wire import FailureMode
from localcloud.worlds.scenarios import CALLS, Disturbed, Summary, play
from tests.recovery.test_crash_anywhere import IS_WHOLE, baseline

pytestmark = pytest.mark.long

SCENARIO = "hang"  # it asks, stops and resubmits: every operation there is
OPERATIONS = (
    "sagemaker.CreateTrainingJob",
    "sagemaker.DescribeTrainingJob",
    "sagemaker.ListTags",
    "sagemaker.StopTrainingJob",
    "dynamodb.GetItem",
    "dynamodb.PutItem",
    "dynamodb.Query",
    "dynamodb.TransactWriteItems",
    "dynamodb.UpdateItem",
    "lambda.Invoke",
    "lambda.SendDurableExecutionCallbackSuccess",
    "s3.GetObject",
    "s3.ListObjectsV2",
    "s3.PutObject",
    "ssm.GetParameter",
    "eventbridge.PutEvents",
)
MUST_HEAL = (FailureMode.THROTTLE, FailureMode.TIMEOUT_AFTER)


def _positions(operation: str) -> list[int]:
    expected, _ = baseline(SCENARIO)
    assert expected.phase == "recovered"
    calls = CALLS[SCENARIO][operation]
    if IS_WHOLE:
        return list(range(calls))
    return [calls // 2] if calls else []


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("how", MUST_HEAL)
def test_a_call_that_fails_in_passing_changes_nothing(operation: str, how: FailureMode) -> None:
    expected, _ = baseline(SCENARIO)
    for skip in _positions(operation):
        seen, _ = play(SCENARIO, disturbed=Disturbed(operation=operation, how=how, skip=skip))
        assert _essence(seen) == _essence(expected), f"call {skip} of {operation}"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_call_that_is_refused_doubles_nothing_and_ends(operation: str) -> None:
    for skip in _positions(operation):
        seen, _ = play(SCENARIO, disturbed=Disturbed(operation=operation, how=FailureMode.REFUSE, skip=skip))
        assert seen.phase in ("recovered", "handed_over"), f"call {skip} of {operation}"
        assert len(seen.jobs) <= 2, f"call {skip} of {operation}"


def _essence(summary: Summary) -> tuple[object, ...]:
    """What counts: how it ended, what was started. The request may have been answered late, or not at all."""
    return (summary.phase, summary.outcome, summary.tries, summary.resumed, summary.jobs)
