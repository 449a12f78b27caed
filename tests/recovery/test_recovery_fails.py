"""A recovery that fails by what no code foresaw: what it harms, and who hears of it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from chalicelib.aws.dynamodb import items
from chalicelib.recovery.workflow import is_told
from localcloud.worlds.recoveries import Phase, Script, crash_at, world

INDEX = b'{"metadata":{"total_size":1e999},"weight_map":{"a":"model.safetensors"}}'


def test_a_document_that_no_rule_foresaw_keeps_no_run_from_its_recovery() -> None:
    with world() as w:
        w.submit(scripts=(Script(faults=(crash_at(25),)), Script()))
        s3 = w.cloud.client("s3")
        files = {"trainer_state.json": b'{"global_step": 9}', "model.safetensors": b"x"}
        for name, body in {**files, "model.safetensors.index.json": INDEX}.items():
            s3.put_object(Bucket="rekindle-mailbox", Key=f"jobs/lm/checkpoint-9/{name}", Body=body)
        assert w.recover().phase is Phase.RECOVERED
        assert all(item.current_status().value != "FAILED" for item in w.cloud.engine.executions())


@pytest.mark.long
def test_a_recovery_whose_second_generation_fails_too_is_told_to_a_person() -> None:
    with world() as w:
        w.submit(scripts=(Script(faults=(crash_at(25),)), Script()))
        w.run_until(lambda: bool(w.incidents()), limit=timedelta(hours=1))
        (incident,) = w.incidents()
        before = w.cloud.wire.calls["sns.Publish"]
        # The Job's own record becomes unreadable: no part of an observation, but what all of it rests on.
        w.cloud.client("dynamodb").update_item(
            TableName=w.service.settings.table,
            Key=items.key(items.job_pk("lm")),
            UpdateExpression="SET created_at = :none",
            ExpressionAttributeValues={":none": {"S": "no date"}},
        )
        w.run_for(timedelta(minutes=8))
        (now,) = w.incidents()
        assert (now.incident_id, now.is_open) == (incident.incident_id, True)
        told = sum(is_told(generation) for generation in range(1, now.generation + 1))
        assert 2 <= told < now.generation / 2
        assert w.cloud.wire.calls["sns.Publish"] - before in (told, told - 1)  # the newest may be under way
