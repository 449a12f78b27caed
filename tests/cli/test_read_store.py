"""A store that is only looked at is read from its file: the embedded cloud's answers, without its imports."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from botocore.exceptions import ClientError

from app import app
from chalicelib import bootstrap
from chalicelib.aws.dynamodb.jobs import job_item
from localcloud import read_store
from localcloud.aws.clock import RealClock
from localcloud.aws.sagemaker import Phase
from localcloud.cloud import ACCOUNT_ID, REGION, STACK, Cloud
from localcloud.read_objects import StoredObjects
from localcloud.read_store import NotRead, StoreReader
from localcloud.stack import deploy_rekindle
from rekindle.cli.service.embedded import FACTS
from tests.console.world import a_job, an_incident, an_item

INCIDENT = an_incident(3, is_open=False).incident_id
ADDRESSES = (
    "/policies",
    "/quarantine",
    "/undelivered",
    "/status",
    "/switches",
    "/approvals",
    "/jobs",
    "/jobs?limit=2",
    "/jobs/llama-00000",
    "/jobs/no-such-job",
    "/incidents?state=all",
    "/incidents?state=closed&limit=2",
    "/incidents?state=all&since=2020-01-01T00:00:00Z",
    "/incidents?job_id=llama-00003&state=all",
    f"/incidents/{INCIDENT}",
    f"/incidents/{INCIDENT}/timeline",
    "/incidents/no-such-incident",
    "/policies/default",
    "/policies/no-such-policy",
    "/incidents?limit=nonsense",
    "/jobs/llama-00004/ledger",
    f"/incidents/{INCIDENT}/ledger",
    "/clusters",
    "/clusters/no-such-cluster",
)


Both = tuple[Path, str, Any]  # the store, the cloud's address, a client of its S3
MAILBOX = f"{STACK}-mailbox"
KEYS = ("a", "a/b", "a/b/c", "a/b/d", "a/bc", "b/ü", "b/z", "clusterless/_", "empty/")


def _ended_job(cloud: Cloud, name: str) -> None:
    """A training job that a person has stopped."""
    client = cloud.client("sagemaker")
    client.create_training_job(
        TrainingJobName=name,
        RoleArn="arn:aws:iam::123456789012:role/training",
        AlgorithmSpecification={"TrainingInputMode": "File", "TrainingImage": "image"},
        OutputDataConfig={"S3OutputPath": f"s3://{MAILBOX}/out"},
        ResourceConfig={"InstanceType": "ml.p5.48xlarge", "InstanceCount": 2, "VolumeSizeInGB": 1},
        StoppingCondition={"MaxRuntimeInSeconds": 60},
    )
    cloud.training.enter(name, Phase.STOPPED)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """A store that a cloud has left behind, and the address of another cloud that was started on it."""
    store = tmp_path_factory.mktemp("store")
    try:
        with Cloud(clock=RealClock(), store=store) as cloud:
            deploy_rekindle(cloud, log_level="ERROR")
            cloud.events.stop_schedules()
            items = [*(job_item(a_job(f"llama-{number:05d}", active=number < 3)) for number in range(5))]
            items += [an_item(an_incident(number, is_open=number < 2)) for number in range(7)]
            requests = [{"PutRequest": {"Item": dict(item)}} for item in items]
            cloud.client("dynamodb").batch_write_item(RequestItems={STACK: requests})
            for key in KEYS:
                cloud.client("s3").put_object(Bucket=MAILBOX, Key=key, Body=key.encode() * len(key))
            _ended_job(cloud, a_job("llama-00004", active=False).current_attempt)
        with Cloud(clock=RealClock(), store=store, resumes=False) as cloud:
            deploy_rekindle(cloud, log_level="ERROR")
            cloud.events.stop_schedules()
            yield store, cloud.serve_api(app), cloud.client("s3")
    finally:
        bootstrap.install(None)


def _over_http(address: str) -> tuple[int, Any]:
    try:
        with urlopen(address, timeout=120) as answer:  # noqa: S310  loopback
            return answer.status, json.load(answer)
    except HTTPError as err:
        return err.code, json.load(err)


def _timeless(body: dict[str, Any]) -> dict[str, Any]:
    """Without the moment of the answer."""
    return {name: value for name, value in body.items() if name != "at"}


@pytest.mark.parametrize("address", ADDRESSES)
def test_the_file_answers_as_the_cloud_does(both: Both, address: str) -> None:
    store, url, _ = both
    read = StoreReader(store / FACTS).get(f"http://localhost/v1{address}")
    status, body = _over_http(f"{url}/v1{address}")
    assert (read.status, _timeless(json.loads(read.body))) == (status, _timeless(body))


@pytest.mark.parametrize("route", ["/jobs?limit=2", "/incidents?state=all&limit=3"])
def test_every_page_is_the_same(both: Both, route: str) -> None:
    store, url, _ = both
    reader = StoreReader(store / FACTS)
    pages, cursor = 0, ""
    while cursor is not None:
        address = f"/v1{route}{f'&cursor={cursor}' if cursor else ''}"
        body = json.loads(reader.get(f"http://localhost{address}").body)
        assert body == _over_http(url + address)[1]
        pages, cursor = pages + 1, body["cursor"]
    assert pages > 2


def test_what_the_file_cannot_answer_is_not_guessed(both: Both) -> None:
    store, *_ = both
    reader = StoreReader(store / FACTS)
    for address in ("/jobs/llama-00000/curves", "/jobs/llama-00000/ledger", "/no-such-route"):
        with pytest.raises(NotRead):
            reader.get(f"http://localhost/v1{address}")


@pytest.mark.parametrize("prefix", ["", "a", "a/", "a/b", "b/", "nothing", "ä"])
@pytest.mark.parametrize("delimiter", ["", "/"])
@pytest.mark.parametrize("max_keys", [1, 2, 1000])
def test_a_listing_is_the_clouds_page_by_page(both: Both, prefix: str, delimiter: str, max_keys: int) -> None:
    store, *_ = both
    stored = StoredObjects(store / FACTS, own=MAILBOX, refuse=pytest.fail)
    more: dict[str, Any] = {"Delimiter": delimiter} if delimiter else {}
    for _ in range(len(KEYS) + 1):
        request = {"Bucket": MAILBOX, "Prefix": prefix, "MaxKeys": max_keys, **more}
        answers = [stored.list_objects_v2(**request), both[2].list_objects_v2(**request)]
        pages = [
            (
                [(entry["Key"], entry["Size"], entry["ETag"]) for entry in answer.get("Contents", ())],
                [entry["Prefix"] for entry in answer.get("CommonPrefixes", ())],
                answer["IsTruncated"],
            )
            for answer in answers
        ]
        assert pages[0] == pages[1]
        if not pages[0][2]:
            return
        last = [key for key, *_ in pages[0][0]] + pages[0][1]
        more["StartAfter"] = max(last)


@pytest.mark.parametrize("key", ["a", "b/ü", "nothing"])
@pytest.mark.parametrize("part", [{}, {"Range": "bytes=0-2"}, {"Range": "bytes=1-1"}, {"Range": "bytes=900-999"}])
def test_an_object_is_the_clouds_whole_and_in_part(both: Both, key: str, part: dict[str, str]) -> None:
    store, *_ = both
    answers = []
    for client in (StoredObjects(store / FACTS, own=MAILBOX, refuse=pytest.fail), both[2]):
        try:
            answer = client.get_object(Bucket=MAILBOX, Key=key, **part)
            answers.append((answer["Body"].read(), answer["ETag"], answer["ContentLength"]))
        except ClientError as err:
            answers.append(err.response["Error"]["Code"])
    assert answers[0] == answers[1]


def test_no_bucket_is_no_empty_bucket(both: Both) -> None:
    store, *_ = both
    with pytest.raises(ClientError, match="NoSuchBucket"):
        StoredObjects(store / FACTS, own=MAILBOX, refuse=pytest.fail).list_objects_v2(Bucket="no-such-bucket")


def test_a_file_that_is_no_store_is_not_read(tmp_path: Path) -> None:
    (tmp_path / FACTS).write_text("this is no database")
    with pytest.raises(NotRead):
        StoreReader(tmp_path / FACTS)


def test_the_reader_names_what_the_cloud_names() -> None:
    assert (read_store.STACK, read_store.REGION, read_store.ACCOUNT_ID) == (STACK, REGION, ACCOUNT_ID)


_HEAVY = "moto boto3 chalice localcloud.cloud"
_PROGRAM = """
import sys
from rekindle.cli.main import main
code = main(sys.argv[1:])
print("loaded:", *(name for name in "{heavy}".split() if name in sys.modules), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize(
    "command",
    [
        *(("status",), ("jobs",), ("clusters",), ("incidents", "--all"), ("show", INCIDENT), ("ledger",)),
        *(("ledger", "--job", "llama-00004"), ("policy", "get", "default")),
    ],
    ids=" ".join,
)
def test_a_read_command_imports_no_cloud(both: Both, command: tuple[str, ...]) -> None:
    store, *_ = both
    program = _PROGRAM.format(heavy=_HEAVY)
    ended = subprocess.run(
        [sys.executable, "-c", program, *command, "--store", str(store)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.splitlines()[-1] == "loaded:"
    assert ended.stdout
