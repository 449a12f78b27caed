"""Alerts come in over HTTP through the running app: genuine ones become Signals, the others leave nothing behind."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests

from chalicelib import bootstrap
from chalicelib.aws.dynamodb.incident_inbox import SIGNAL_MEMORY
from chalicelib.domain.model.signal import Signal
from chalicelib.domain.notices.sources import sources_from_wire
from chalicelib.ingest import alerts
from localcloud.cloud import STACK, Cloud
from localcloud.platforms.simulated_run import Script
from localcloud.stack import deploy_rekindle
from tests.canary import INBOUND_SECRET
from tests.notify.conftest import Told
from tests.notify.receiver import hmac_by_the_book

pytestmark = pytest.mark.long

GOLDEN = Path(__file__).resolve().parents[2] / "events" / "webhooks"
TOLERANCE = timedelta(minutes=5)
NOW = datetime(2035, 1, 1, tzinfo=UTC)
SOURCES = {
    "prom": {"kind": "alertmanager", "auth": "bearer", "secret": "inbound"},
    "prom-basic": {"kind": "alertmanager", "auth": "basic", "user": "prom", "secret": "inbound"},
    "prom-names": {
        "kind": "alertmanager",
        "auth": "bearer",
        "secret": "inbound",
        "labels": {"job": "team", "fault": "none"},
        "faults": {"GpuXidErrors": "node_hardware"},
    },
    "grafana": {"kind": "grafana", "auth": "grafana", "secret": "inbound"},
    "tool": {"kind": "generic", "secret": "inbound", "older_secret": "older"},
    "quiet": {"kind": "generic", "secret": "inbound", "news_only": True},
    "unset": {"kind": "generic", "secret": "nobody-made-it"},
}


def golden(name: str, job: str, at: datetime) -> bytes:
    """A golden body about a job of this test, now."""
    body = (GOLDEN / f"{name}.json").read_text(encoding="utf-8").replace("llm-7b", job)
    for old in ("2026-11-20T10:00:00.123456789Z", "2026-11-20T10:00:00Z", "2026-11-20T11:51:03.157076+02:00"):
        body = body.replace(old, at.isoformat())
    return body.replace("2026-11-20T10:20:00Z", at.isoformat()).encode()


@dataclass
class Door:
    """The app's open paths over HTTP, and a protected Job behind them."""

    cloud: Cloud
    service: bootstrap.Service
    url: str

    def now(self) -> datetime:
        return self.cloud.clock.now()

    def standard(self, body: bytes, *, at: datetime | None = None, key: str = INBOUND_SECRET, **changes: str) -> Any:
        """Headers as Standard Webhooks wants them."""
        stamp = str(int((at or self.now()).timestamp()))
        headers = {"webhook-id": "msg-1", "webhook-timestamp": stamp, "Content-Type": "application/json"}
        content = f"{headers['webhook-id']}.{stamp}.".encode() + body
        signature = base64.b64encode(hmac_by_the_book(key.encode(), content)).decode()
        return {**headers, "webhook-signature": f"v1,{signature}", **changes}

    def grafana(self, body: bytes, *, at: datetime | None = None) -> dict[str, str]:
        stamp = str(int((at or self.now()).timestamp()))
        made = hmac.new(INBOUND_SECRET.encode(), f"{stamp}:".encode() + body, hashlib.sha256).hexdigest()
        return {
            "X-Grafana-Alerting-Signature": made,
            "X-Grafana-Alerting-Timestamp": stamp,
            "Content-Type": "application/json",
        }

    def post(self, name: str, body: bytes, headers: dict[str, str]) -> requests.Response:
        return requests.post(f"{self.url}/hooks/in/{name}", data=body, headers=headers, timeout=120)

    def stored(self) -> set[str]:
        """What is in the table, by key, once whatever was begun is at rest: Signals, marks, Incidents, all."""
        self.cloud.clock.settle()
        pages = self.cloud.client("dynamodb").get_paginator("scan").paginate(TableName=STACK)
        return {f"{item['pk']['S']} {item['sk']['S']}" for page in pages for item in page["Items"]}

    def signals(self, job: str) -> list[Signal]:
        found = self.service.store.list_for_job(job, limit=5)
        if not found:
            return []
        looked = self.service.store.load(found[0].incident_id)
        return [*looked.incident.signals, *looked.inbox]


BEARER = {"Authorization": f"Bearer {INBOUND_SECRET}", "Content-Type": "application/json"}


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with Cloud() as cloud:
        service = deploy_rekindle(cloud)
        cloud.events.stop_schedules()
        cloud.simulated.default = Script(steps=10_000_000)
        told = Told(cloud, service)
        told.secret("inbound", INBOUND_SECRET)
        told.document("sources", SOURCES)
        from app import app

        yield Door(cloud, service, cloud.serve_api(app))
    bootstrap.install(None)


@pytest.fixture
def job(door: Door, request: pytest.FixtureRequest) -> str:
    """A protected training job that runs on and on."""
    name = "job-" + hashlib.sha256(request.node.name.encode()).hexdigest()[:12]
    door.cloud.client("sagemaker").create_training_job(
        TrainingJobName=name,
        RoleArn="arn:aws:iam::123456789012:role/train",
        AlgorithmSpecification={"TrainingImage": "image", "TrainingInputMode": "File"},
        OutputDataConfig={"S3OutputPath": "s3://out/runs"},
        ResourceConfig={"InstanceType": "ml.p5.48xlarge", "InstanceCount": 2, "VolumeSizeInGB": 100},
        StoppingCondition={"MaxRuntimeInSeconds": 86400},
        Tags=[{"Key": "rekindle:policy", "Value": "default"}],
    )
    door.service.intake.register(door.service.scheduler.of_name(name).discover(name))
    return name


def test_an_alert_of_alertmanager_opens_the_job_s_incident_with_its_fault(door: Door, job: str) -> None:
    answer = door.post("prom", golden("alertmanager_v4_firing", job, door.now()), BEARER)
    assert (answer.status_code, answer.json()) == (
        200,
        {"alerts": [{"alert": "GpuXidErrors", "what": "opened", "reason": ""}]},
    )
    (signal,) = door.signals(job)
    assert (signal.kind.value, signal.source.value, signal.fault) == (
        "external_alert",
        "rekindle.webhook",
        "node_hardware",
    )
    assert signal.summary == "prom: GpuXidErrors is firing: XID 79 on ip-10-0-0-7"
    assert signal.evidence["labels"]["instance"] == "ip-10-0-0-7:9400"
    # Alertmanager sends a firing alert again and again: the same fact.
    again = door.post("prom", golden("alertmanager_v4_firing", job, signal.occurred_at), BEARER)
    assert again.json()["alerts"][0]["what"] == "duplicate"
    resolved = door.post("prom", golden("alertmanager_v4_resolved", job, door.now()), BEARER)
    assert resolved.json()["alerts"][0]["what"] == "joined"
    assert [signal.fault for signal in door.signals(job)] == ["node_hardware", None]


def test_a_resolved_alert_opens_nothing(door: Door, job: str) -> None:
    answer = door.post("prom", golden("alertmanager_v4_resolved", job, door.now()), BEARER)
    assert answer.json()["alerts"][0]["what"] == "dropped"
    assert door.signals(job) == []


def test_basic_authentication_and_a_source_s_own_names_for_labels(door: Door, job: str) -> None:
    basic = base64.b64encode(f"prom:{INBOUND_SECRET}".encode()).decode()
    body = golden("alertmanager_v4_firing", job, door.now())
    headers = {"Authorization": f"basic {basic}", "Content-Type": "application/json; charset=utf-8"}
    assert door.post("prom-basic", body, headers).json()["alerts"][0]["what"] == "opened"
    named = json.loads(body)
    named["alerts"][0] |= {"fingerprint": "another"}
    named["alerts"][0]["labels"] = {"alertname": "GpuXidErrors", "team": job}
    assert door.post("prom-names", json.dumps(named).encode(), BEARER).json()["alerts"][0]["what"] == "joined"
    assert [signal.fault for signal in door.signals(job)] == ["node_hardware", "node_hardware"]


def test_grafana_s_alerts_come_one_by_one_each_to_whom_it_concerns(door: Door, job: str) -> None:
    body = golden("grafana_firing", job, door.now())
    answer = door.post("grafana", body, door.grafana(body))
    first, second = answer.json()["alerts"]
    assert (first["alert"], first["what"]) == ("Loss is not a number", "opened")
    assert (second["alert"], second["what"]) == ("Storage is nearly full", "dropped")  # nobody protects that cluster
    assert [signal.fault for signal in door.signals(job)] == ["non_finite"]


def test_an_alert_that_began_before_facts_are_remembered_opens_nothing() -> None:
    """A bearer's request can be sent again by whoever read it; a run may be older than what we remember of it."""
    source = sources_from_wire(SOURCES)["prom"]
    for age, opens in ((timedelta(days=12), True), (SIGNAL_MEMORY, False), (timedelta(days=60), False)):
        body = json.loads(golden("alertmanager_v4_firing", "lm", NOW - age))
        (signal,) = alerts.parse_alertmanager(body, source, now=NOW)
        assert (signal.triggers, signal.fault) == (opens, "node_hardware")


def test_an_alert_without_a_fault_that_we_know_is_news(door: Door, job: str) -> None:
    for number, fault in enumerate((None, "gremlins", "operator_order", "no_progress")):
        labels = {"rekindle_job": job} | ({"rekindle_fault": fault} if fault else {})
        body = json.dumps(alert(door, id=f"n{number}", labels=labels)).encode()
        answer = door.post("tool", body, door.standard(body, **{"webhook-id": ""}) | signed(door, body, f"n-{number}"))
        assert answer.json()["alerts"][0]["what"] == "dropped", fault
    assert door.signals(job) == []


def test_a_source_may_be_kept_to_news(door: Door, job: str) -> None:
    body = json.dumps(alert(door, labels={"rekindle_job": job, "rekindle_fault": "hang"})).encode()
    assert door.post("quiet", body, signed(door, body, "q-1")).json()["alerts"][0]["what"] == "dropped"
    assert door.post("tool", body, signed(door, body, "q-2")).json()["alerts"][0]["what"] == "opened"


def test_a_request_s_copy_is_refused_and_a_secret_may_be_changed_without_a_gap(door: Door, job: str) -> None:
    body = json.dumps(alert(door, labels={"rekindle_job": job, "rekindle_fault": "hang"})).encode()
    headers = signed(door, body, "once")
    assert door.post("tool", body, headers).status_code == 200
    before = door.stored()
    copy = door.post("tool", body, headers)
    assert copy.status_code == 409
    assert copy.json()["field"] == "webhook-id"
    assert door.stored() == before
    from tests.notify.made import OLDER

    fresh = json.dumps(alert(door, id="other", labels={"rekindle_job": job})).encode()
    assert door.post("tool", fresh, signed(door, fresh, "older", key=OLDER)).status_code == 200


def alert(door: Door, **changes: Any) -> dict[str, Any]:
    return {
        "id": "raid-7",
        "name": "RaidDegraded",
        "status": "firing",
        "at": door.now().isoformat(),
        "summary": "a disk is lost",
        "labels": {},
    } | changes


def signed(door: Door, body: bytes, message_id: str, *, key: str = INBOUND_SECRET) -> dict[str, str]:
    stamp = str(int(door.now().timestamp()))
    signature = base64.b64encode(hmac_by_the_book(key.encode(), f"{message_id}.{stamp}.".encode() + body)).decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": stamp,
        "webhook-signature": f"v1,AAAA v1,{signature}",
        "Content-Type": "application/json",
    }


def refused(door: Door, name: str, body: bytes, headers: dict[str, str], status: int, field: str | None) -> None:
    answer = door.post(name, body, headers)
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json().get("field") == field
    assert INBOUND_SECRET not in answer.text


def test_forged_late_and_early_requests_are_refused_by_the_header_at_fault(door: Door) -> None:
    body = json.dumps(alert(door)).encode()
    good = door.standard(body)
    json_type = {"Content-Type": "application/json"}
    late, early = door.now() - TOLERANCE - timedelta(seconds=2), door.now() + TOLERANCE + timedelta(seconds=2)
    rows: list[tuple[str, bytes, dict[str, str], int, str | None]] = [
        ("tool", body, json_type, 401, "webhook-id"),
        ("tool", body, door.standard(body, key="another secret, long enough"), 401, "webhook-signature"),
        ("tool", body + b" ", good, 401, "webhook-signature"),
        ("tool", body, good | {"webhook-id": "msg-2"}, 401, "webhook-signature"),
        ("tool", body, good | {"webhook-timestamp": str(int(good["webhook-timestamp"]) + 1)}, 401, "webhook-signature"),
        ("tool", body, good | {"webhook-timestamp": "soon"}, 401, "webhook-timestamp"),
        ("tool", body, good | {"webhook-signature": "v1,x" * 2000}, 401, "webhook-signature"),
        ("tool", body, good | {"webhook-id": "x" * 300}, 401, "webhook-id"),
        ("tool", body, door.standard(body, at=late), 401, "webhook-timestamp"),
        ("tool", body, door.standard(body, at=early), 401, "webhook-timestamp"),
        ("prom", body, json_type, 401, "authorization"),
        ("prom", body, json_type | {"Authorization": "Bearer nobody's"}, 401, "authorization"),
        ("prom", body, json_type | {"Authorization": INBOUND_SECRET}, 401, "authorization"),
        ("prom-basic", body, BEARER, 401, "authorization"),
        ("grafana", body, door.standard(body), 401, "x-grafana-alerting-timestamp"),
        ("grafana", body, door.grafana(body + b" "), 401, "x-grafana-alerting-signature"),
        ("grafana", body, door.grafana(body, at=late), 401, "x-grafana-alerting-timestamp"),
        ("nobody", body, good, 404, None),
        ("unset", body, good, 503, None),
    ]
    before = door.stored()
    for row in rows:
        refused(door, *row)
    assert door.stored() == before


def test_bodies_that_cannot_be_read_are_refused_by_the_field(door: Door) -> None:
    firing = json.loads((GOLDEN / "alertmanager_v4_firing.json").read_text(encoding="utf-8"))

    def changed(path: str, value: Any) -> bytes:
        body = json.loads(json.dumps(firing))
        *way, last = path.split(".")
        place: Any = body
        for step in way:
            place = place[int(step)] if step.isdigit() else place[step]
        place[last] = value
        return json.dumps(body).encode()

    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    rows: list[tuple[bytes, str]] = [
        (b"", "body"),
        (b"{", "body"),
        (b"[]", "body"),
        (b'"text"', "body"),
        (b'{"a": NaN}', "body"),
        (b"\xff\xfe", "body"),
        (b'{"version": ' + b"9" * 6000 + b"}", "body"),
        (deep[:100_000], "body"),
        (b'{"a":' * 40 + b"1" + b"}" * 40, "body"),
        (b"[" * 50_000 + b"]" * 50_000, "body"),
        (b"{}", "version"),
        (changed("version", "5"), "version"),
        (changed("alerts", []), "alerts"),
        (changed("alerts", firing["alerts"] * 101), "alerts"),
        (changed("alerts", ["x"]), "alerts[0]"),
        (changed("alerts.0.status", "burning"), "alerts[0].status"),
        (changed("alerts.0.startsAt", "yesterday"), "alerts[0].startsAt"),
        (changed("alerts.0.startsAt", "2099-01-01T00:00:00Z"), "alerts[0].labels.startsAt"),
        (changed("alerts.0.labels", "x"), "alerts[0].labels"),
        (changed("alerts.0.labels.alertname", 7), "alerts[0].labels.alertname"),
        (changed("alerts.0.labels.rekindle_job", "../../etc/passwd"), "alerts[0].labels.rekindle_job"),
        (changed("alerts.0.labels.rekindle_cluster", "a b"), "alerts[0].labels.rekindle_cluster"),
        (changed("alerts.0.fingerprint", None), "alerts[0].fingerprint"),
    ]
    before = door.stored()
    for body, field in rows:
        refused(door, "prom", body, BEARER, 400, field)
    assert door.stored() == before


def test_what_is_too_large_or_no_json_by_its_own_word_is_refused_before_it_is_read(door: Door) -> None:
    refused(door, "prom", b"x" * (256 * 1024 + 1), BEARER, 413, "body")
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        refused(door, "prom", b"{}", BEARER | {"Content-Type": kind}, 415, "content-type")


def test_a_sources_document_that_cannot_be_read_asks_for_another_try(door: Door) -> None:
    told = Told(door.cloud, door.service)
    told.secret("inbound", INBOUND_SECRET)
    told.document("sources", {"prom": {"kind": "prometheus"}})
    door.cloud.clock.run_for(timedelta(minutes=1))
    refused(door, "prom", b"{}", BEARER, 503, None)
    told.document("sources", SOURCES)
    door.cloud.clock.run_for(timedelta(minutes=1))


def test_every_golden_body_says_where_its_shape_comes_from() -> None:
    told = (GOLDEN / "README.md").read_text(encoding="utf-8")
    for path in GOLDEN.glob("*.json"):
        assert f"`{path.name}`" in told
