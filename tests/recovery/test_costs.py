"""What a recovery costs: seconds that are ours, in virtual time, and calls of AWS. Counts; no clock of this machine."""

from __future__ import annotations

import pytest

from benchmarks.bench_overhead import (
    GOAL_CALLS,
    GOAL_OPERATIONS,
    GOAL_S,
    INHERENT,
    OURS,
    OUTSIDE,
    PLAYBOOKS,
    measure,
)

QUICK = ("crash", "hang, all ranks report", "node hardware, run stuck")  # the others in `make test-long`


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.long]) for name in PLAYBOOKS]
)
def test_no_playbook_waits_longer_than_it_earns(name: str) -> None:
    one = measure(PLAYBOOKS[name], to_the_page=name.startswith("divergence"))
    assert one.seconds(OURS) <= GOAL_S, one.spans
    assert one.operations <= GOAL_OPERATIONS
    limits = {
        "hang, all ranks report": 6,
        "hang, one rank mute": 6,  # a strong verdict is not held open for the rank that never reports
        "node hardware, run stuck": 6,  # its monitor answers as soon as it is asked
        "node lost, run stuck": 45,  # two heartbeats
        "the same, monitor dead": 75,  # four heartbeats that did not come
    }
    assert one.seconds(OUTSIDE) <= limits.get(name, 36), one.spans
    if name not in ("loss spike", "no progress, to the page"):
        assert one.seconds(INHERENT) == 0


def test_a_recovery_from_a_crash_takes_few_calls_of_ours_its_pages_included() -> None:
    one = measure(PLAYBOOKS["crash"])
    assert one.end == "recovered verify.passed"
    assert one.calls.total() <= GOAL_CALLS, one.calls
    assert one.calls["s3.PutObject"] <= 4, "two of the recovery, and one page for each told change"
    assert one.sweeps.total() <= 10, "a sweep is made each minute, for all runs together, and whatever happens"
    looks = one.calls["dynamodb.BatchGetItem"] - 2  # one begins each look, two the resubmission
    assert looks <= 2
    assert one.calls["sagemaker.CreateTrainingJob"] == 1
    # The request that is cloned is the one that was looked at; a submission that was accepted is not looked at again.
    # One more asks, before an Incident opens, whether the run is still to be protected.
    assert one.calls["sagemaker.DescribeTrainingJob"] <= looks + 1
    assert one.platform_calls > 0, "they are counted apart"
