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

from app import app
from chalicelib import bootstrap
from chalicelib.aws.dynamodb.jobs import job_item
from localcloud import read_store
from localcloud.cloud import ACCOUNT_ID, REGION, STACK, Cloud
from localcloud.engine.clock import RealClock
from localcloud.read_store import NotRead, StoreReader
from localcloud.stack import deploy_rekindle
from rekindle.cli.service.embedded import FACTS
from tests.console.world import a_job, an_incident, an_item

INCIDENT = an_incident(3, is_open=False).incident_id
ADDRESSES = (
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
)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
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
        with Cloud(clock=RealClock(), store=store, resumes=False) as cloud:
            deploy_rekindle(cloud, log_level="ERROR")
            cloud.events.stop_schedules()
            yield store, cloud.serve_api(app)
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
def test_the_file_answers_as_the_cloud_does(both: tuple[Path, str], address: str) -> None:
    store, url = both
    read = StoreReader(store / FACTS).get(f"http://localhost/v1{address}")
    status, body = _over_http(f"{url}/v1{address}")
    assert (read.status, _timeless(json.loads(read.body))) == (status, _timeless(body))


@pytest.mark.parametrize("route", ["/jobs?limit=2", "/incidents?state=all&limit=3"])
def test_every_page_is_the_same(both: tuple[Path, str], route: str) -> None:
    store, url = both
    reader = StoreReader(store / FACTS)
    pages, cursor = 0, ""
    while cursor is not None:
        address = f"/v1{route}{f'&cursor={cursor}' if cursor else ''}"
        body = json.loads(reader.get(f"http://localhost{address}").body)
        assert body == _over_http(url + address)[1]
        pages, cursor = pages + 1, body["cursor"]
    assert pages > 2


def test_what_the_file_cannot_answer_is_not_guessed(both: tuple[Path, str]) -> None:
    store, _ = both
    reader = StoreReader(store / FACTS)
    for address in ("/jobs/llama-00000/curves", "/clusters", "/no-such-route"):
        with pytest.raises(NotRead):
            reader.get(f"http://localhost/v1{address}")


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
    [("status",), ("jobs",), ("incidents", "--all"), ("show", INCIDENT), ("ledger",), ("policy", "get", "default")],
    ids=lambda command: command[0],
)
def test_a_read_command_imports_no_cloud(both: tuple[Path, str], command: tuple[str, ...]) -> None:
    store, _ = both
    program = _PROGRAM.format(heavy=_HEAVY)
    ended = subprocess.run(
        [sys.executable, "-c", program, *command, "--store", str(store)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.splitlines()[-1] == "loaded:"
    assert ended.stdout
