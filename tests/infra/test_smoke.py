"""The smoke test, rehearsed: the real one, on the embedded cloud in real time, with real training processes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from chalicelib import bootstrap
from infra.package import ROOT
from infra.smoke.__main__ import NotReady, place_of
from infra.smoke.run import Smoke, SmokeTarget, WaitLimits, package
from infra.target_stack import TargetStack
from localcloud.demo.stage import MONITOR, POLICY_DOCUMENT
from rekindle.client.api import Client
from tests.infra.live_account import ACCOUNT_ID

NAME = "rekindle-smoke-1"
QUICK = WaitLimits(
    protected=timedelta(seconds=60),
    failed=timedelta(seconds=90),
    recovered=timedelta(seconds=180),
    completed=timedelta(seconds=120),
    notified=timedelta(seconds=30),
    look=timedelta(seconds=0.25),
)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[SmokeTarget]:
    """The stack of an embedded cloud, quick in all that AWS takes minutes for."""
    from app import app
    from localcloud.aws.clock import RealClock
    from localcloud.cloud import STACK, Cloud
    from localcloud.stack import deploy_rekindle

    code = tmp_path / "code"
    code.mkdir()
    (code / "trainer.py").write_bytes((ROOT / "infra" / "smoke" / "trainer.py").read_bytes())
    (code / "rekindle.zip").write_bytes(package())
    with Cloud(http=True, clock=RealClock(), store=tmp_path / "store") as cloud:
        try:
            deploy_rekindle(cloud, policies={"smoke": {**POLICY_DOCUMENT, "name": "smoke"}})
            url = cloud.serve_api(app)
            cloud.run_processes(tmp_path / "jobs", grace=timedelta(seconds=2))
            topic = f"arn:aws:sns:{cloud.client('sns').meta.region_name}:{ACCOUNT_ID}:{STACK}-notices"
            yield SmokeTarget(
                stack=STACK,
                client=cloud.client,
                api=Client(url=url),
                outputs={"TopicArn": topic, "BucketName": f"{STACK}-mailbox", "BusName": STACK},
                role=f"arn:aws:iam::{ACCOUNT_ID}:role/train",
                prefix="team-a",
                image=f"{ACCOUNT_ID}.dkr.ecr.us-west-2.amazonaws.com/any:latest",
                policy="smoke",
                code=str(code),
                pace_s=0.05,
                settings=MONITOR,
            )
        finally:
            bootstrap.install(None)


def smoke(place: SmokeTarget, said: list[str], patience: WaitLimits = QUICK) -> Smoke:
    """The sweep comes at each look, not once a minute."""

    def pause(seconds: float) -> None:
        bootstrap.service().sweep.run()
        threading.Event().wait(seconds)

    return Smoke(place, NAME, pause=pause, say=said.append, patience=patience)


@pytest.mark.long
@pytest.mark.process
def test_the_rehearsal_finds_all_well_and_leaves_nothing(place: SmokeTarget) -> None:
    said: list[str] = []
    assert smoke(place, said).run(), said
    text = "\n".join(said)
    for part in ("dies on purpose", "it is recovered", "ends on its own", "from a checkpoint", "notices of it arrive"):
        assert f"ok: {next(line for line in said if part in line).removeprefix('ok: ')}" in text, part
    assert "PROBLEM" not in text
    assert "cost: " in text
    listed = place.client("s3").list_objects_v2(Bucket=place.outputs["BucketName"], Prefix=f"team-a/{NAME}/")
    assert listed["KeyCount"] == 0
    queues = place.client("sqs").list_queues(QueueNamePrefix=NAME)
    assert queues.get("QueueUrls", []) == []
    alarms = place.client("cloudwatch").describe_alarms(AlarmNamePrefix=f"{place.stack}-job-{NAME}")
    assert alarms["MetricAlarms"] == []
    assert place.client("sns").list_subscriptions()["Subscriptions"] == []


@pytest.mark.long
@pytest.mark.process
def test_a_job_that_nobody_protects_is_a_problem_and_is_removed_all_the_same(place: SmokeTarget) -> None:
    said: list[str] = []
    unprotected = replace(place, policy="no-such-policy")
    wait = replace(QUICK, protected=timedelta(seconds=6), recovered=timedelta(seconds=6))
    one = smoke(unprotected, said, wait)
    assert not one.run()
    (told,) = one.problems
    assert "ended as handed_over" in told, said
    listed = place.client("s3").list_objects_v2(Bucket=place.outputs["BucketName"], Prefix=f"team-a/{NAME}/")
    assert listed["KeyCount"] == 0
    assert place.client("sqs").list_queues(QueueNamePrefix=NAME).get("QueueUrls", []) == []
    assert [name for name in said if name.startswith("removed: ")]


@pytest.mark.long
def test_an_alarm_of_the_stack_that_rings_is_a_problem(place: SmokeTarget) -> None:
    watch = place.client("cloudwatch")
    watch.put_metric_alarm(
        AlarmName=f"{place.stack}-sweep-silent",
        Namespace="Rekindle",
        MetricName="Sweeps",
        Statistic="Sum",
        Period=60,
        EvaluationPeriods=1,
        Threshold=1,
        ComparisonOperator="GreaterThanThreshold",
    )
    said: list[str] = []
    one = smoke(place, said)
    one._alarms()
    assert one.problems == []
    watch.set_alarm_state(AlarmName=f"{place.stack}-sweep-silent", StateValue="ALARM", StateReason="test")
    one._alarms()
    assert one.problems == [f"these ring: {place.stack}-sweep-silent (docs/runbook)"]


class _Iam:
    def __init__(self, tags: list[dict[str, str]]) -> None:
        self.tags = tags

    def list_role_tags(self, RoleName: str) -> dict[str, Any]:
        return {"Tags": self.tags}


@pytest.mark.parametrize(
    ("existing", "tags", "said"),
    [
        (None, [], "there is no stack rekindle: make deploy first"),
        (
            {"Outputs": [], "Parameters": []},
            [],
            "no training role may be used: deploy with --parameter TrainingRoleArns",
        ),
        (
            {
                "Outputs": [
                    {"OutputKey": "ApiUrl", "OutputValue": "https://x.execute-api.eu-west-1.amazonaws.com/api/"}
                ],
                "Parameters": [
                    {"ParameterKey": "TrainingRoleArns", "ParameterValue": f"arn:aws:iam::{ACCOUNT_ID}:role/train"}
                ],
            },
            [],
            "aws iam tag-role --role-name train --tags Key=rekindle-mailbox",
        ),
    ],
)
def test_what_the_account_lacks_is_told_before_anything_is_made(
    existing: dict[str, Any] | None, tags: list[dict[str, str]], said: str
) -> None:
    target = TargetStack(
        session=None, stack="rekindle", account_id=ACCOUNT_ID, existing=existing, _clients={"iam": _Iam(tags)}
    )
    with pytest.raises(NotReady, match=said):
        place_of(target, role=None, image=None, instance="ml.m5.large", policy="default")


def test_the_container_s_package_is_whole(tmp_path: Path) -> None:
    """Imported from the zip alone, as in the container."""
    import subprocess

    packed = tmp_path / "rekindle.zip"
    packed.write_bytes(package())
    code = "import rekindle.monitor; print(rekindle.monitor.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(packed), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(str(packed))
