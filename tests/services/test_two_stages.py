"""Two stages of Rekindle in one account: one of them acts on a run, and the other one says why it does not."""

from __future__ import annotations

from datetime import timedelta

import pytest

from chalicelib.domain.model.errors import InvalidRequest
from chalicelib.domain.model.incident import Phase
from localcloud.worlds.recoveries import Script, crash_at, world

POLICY = {"Key": "rekindle:policy", "Value": "default"}


def test_a_run_of_another_stage_is_not_registered_when_it_fails_nor_protected_by_order() -> None:
    with world() as w:
        w.submit(scripts=(Script(faults=(crash_at(5),)),), Tags=[POLICY, {"Key": "rekindle:stage", "Value": "dev"}])
        w.cloud.clock.run_for(timedelta(minutes=5))
        assert w.jobs()["lm"].status == "Failed"
        assert w.incidents() == []
        assert list(w.jobs()) == ["lm"]
        with pytest.raises(InvalidRequest, match="rekindle:stage=prod"):
            w.service.orders.register(training_job="lm", policy=None, mailbox=None)


@pytest.mark.long
def test_a_run_that_names_our_stage_is_recovered_and_its_clone_names_it_too() -> None:
    with world() as w:
        w.submit(
            scripts=(Script(faults=(crash_at(25),)), Script()),
            Tags=[POLICY, {"Key": "rekindle:stage", "Value": "prod"}],
        )
        assert w.recover().phase is Phase.RECOVERED, w.story()
        client = w.cloud.client("sagemaker")
        arn = client.describe_training_job(TrainingJobName="lm-r2")["TrainingJobArn"]
        assert {"Key": "rekindle:stage", "Value": "prod"} in client.list_tags(ResourceArn=arn)["Tags"]
