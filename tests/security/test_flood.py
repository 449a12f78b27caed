"""What a flood of forged events makes us ask of AWS, counted on the wire: the sums in docs/threat-model.md."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from chalicelib.services.intake.remembered_names import MAX_QUESTIONS
from tests.fakes.fleet import Fleet, fleet

EVENTS = Path(__file__).parents[2] / "events"
FLOOD = 3 * MAX_QUESTIONS


@pytest.fixture
def f() -> Iterator[Fleet]:
    with fleet() as made:
        made.add(1)
        yield made


def forged(f: Fleet, name: str = "monitor_stall", **detail: Any) -> dict[str, Any]:
    """An event as the bus brings it: account, region and time are AWS's, the detail is whoever's."""
    event: dict[str, Any] = json.loads((EVENTS / f"{name}.json").read_text(encoding="utf-8"))
    settings = f.service.settings
    now = f.cloud.clock.now().isoformat()
    event |= {"account": settings.account or event["account"], "region": settings.region, "time": now}
    event["detail"] |= {"at": now, **detail}
    return event


def calls_of(f: Fleet, events: list[tuple[str, dict[str, Any]]]) -> Counter[str]:
    f.cloud.wire.calls.clear()
    for function, event in events:
        f.service.ingress.take(function, event)
    return Counter(f.cloud.wire.calls)


def of_names(f: Fleet, names: list[str]) -> list[tuple[str, dict[str, Any]]]:
    return [("monitor_event", forged(f, job_id=name, attempt=name, attempt_number=1)) for name in names]


def test_a_million_different_names_ask_the_platform_so_often_a_minute_and_no_more(f: Fleet) -> None:
    calls = calls_of(f, of_names(f, [f"nobody-{n}" for n in range(FLOOD)]))
    assert calls["sagemaker.DescribeTrainingJob"] == MAX_QUESTIONS
    assert set(calls) <= {"dynamodb.GetItem", "sagemaker.DescribeTrainingJob", "sagemaker.ListTags"}, calls
    f.wait(2)
    again = calls_of(f, of_names(f, ["nobody-else"]))
    assert again["sagemaker.DescribeTrainingJob"] == 1


def test_in_the_middle_of_a_flood_a_run_that_asks_for_protection_gets_it(f: Fleet) -> None:
    calls_of(f, of_names(f, [f"nobody-{n}" for n in range(FLOOD)]))
    tags = [{"Key": "rekindle:policy", "Value": "default"}]
    f.cloud.training.create_training_job({"TrainingJobName": "lm-new", "Tags": tags})
    event = json.loads((EVENTS / "sagemaker_training_job_in_progress.json").read_text(encoding="utf-8"))
    account, region = f.service.settings.account or event["account"], f.service.settings.region
    arn = f"arn:aws:sagemaker:{region}:{account}:training-job/lm-new"
    event |= {"account": account, "region": region, "resources": [arn]}
    event["detail"] |= {"TrainingJobName": "lm-new", "TrainingJobArn": arn}
    f.service.ingress.take("training_job_event", event)
    assert f.service.registry.get("lm-new").current_attempt == "lm-new"


def test_one_strangers_name_again_and_again_costs_reads_of_the_table(f: Fleet) -> None:
    calls_of(f, of_names(f, ["nobody"]))
    calls = calls_of(f, of_names(f, ["nobody"] * FLOOD))
    assert set(calls) == {"dynamodb.GetItem"}
    assert calls["dynamodb.GetItem"] <= 2 * FLOOD


@pytest.mark.long
def test_forged_claims_about_a_protected_run_cost_what_the_table_says(f: Fleet) -> None:
    name = f.jobs[0].job_id
    calls_of(f, [("monitor_event", forged(f, job_id=name, attempt=name, attempt_number=1, step=1))])
    events = []
    for n in range(FLOOD):
        f.cloud.clock.run_for(timedelta(milliseconds=10))  # type: ignore[attr-defined]  # a SimClock
        events.append(("monitor_event", forged(f, job_id=name, attempt=name, attempt_number=1, step=2 + n)))
    calls = calls_of(f, events)
    writes = calls["dynamodb.PutItem"] + calls["dynamodb.UpdateItem"] + 2 * calls["dynamodb.TransactWriteItems"]
    assert writes <= 2 * FLOOD, calls
    assert not [call for call in calls if call.startswith(("sagemaker.Create", "sagemaker.Stop", "s3.Put"))], calls


def test_a_head_node_that_speaks_for_other_clusters_makes_no_queues(f: Fleet) -> None:
    """It may put an agent's events on the bus, and write below its own cluster's prefix alone."""
    bucket = f.service.settings.bucket
    f.cloud.client("s3").put_object(Bucket=bucket, Key="clusters/own/agent.json", Body=b"{}")
    names = [f"other-{n}" for n in range(FLOOD)]
    calls = calls_of(f, [("agent_event", forged(f, "agent_started", cluster=name)) for name in names])
    assert "sqs.CreateQueue" not in calls
    assert calls["s3.ListObjectsV2"] == FLOOD
    assert calls_of(f, [("agent_event", forged(f, "agent_started", cluster="own"))])["sqs.CreateQueue"] == 1
