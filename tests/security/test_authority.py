"""Who may say what: an order is on record under the name that signed it, and no alert is an order."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from chalicelib.domain.model.errors import MalformedEvent
from chalicelib.domain.model.signal import SignalKind, SignalSource
from chalicelib.domain.notices.sources import Auth, Source, SourceKind
from chalicelib.ingest import alerts
from rekindle.protocol.signals import FaultClass
from tests.cli.service import FakeService

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
SIGNER = "arn:aws:iam::1:user/op"  # tests/cli/service.py, as API Gateway names it


def _put_pause(service: FakeService, body: dict[str, Any], **headers: str) -> tuple[int, dict[str, Any]]:
    given = {"content-type": "application/json", **headers}
    status, _, content = service.handle("PUT", "/v1/pause", given, json.dumps(body).encode())
    return status, json.loads(content)


def test_an_order_is_its_signer_s_whatever_the_request_says() -> None:
    service = FakeService()
    status, problem = _put_pause(service, {"paused": True, "who": "somebody-else"})
    assert (status, problem["field"]) == (400, "who")
    assert service.registry.is_paused() is False
    status, _ = _put_pause(service, {"paused": True}, **{"x-who": "somebody-else", "x-amz-user-arn": "arn:else"})
    assert status == 200
    assert service.switches.read()["paused_by"] == SIGNER


def test_a_key_that_two_signers_share_is_two_orders() -> None:
    service = FakeService()
    service.protect("lm")
    key = {"idempotency-key": "shared"}

    def checkpoint(who: str) -> tuple[int, dict[str, str], dict[str, Any]]:
        service.signer = who
        status, headers, content = service.handle("POST", "/v1/jobs/lm/checkpoint", key, b"{}")
        return status, headers, json.loads(content)

    first = checkpoint("arn:aws:sts::1:assumed-role/OnCall/ada")
    again = checkpoint("arn:aws:sts::1:assumed-role/OnCall/ada-an-hour-later")
    assert (first[0], again[1].get("Idempotency-Replayed"), again[2]) == (202, "true", first[2])
    status, headers, body = checkpoint("arn:aws:iam::1:user/bob")
    assert (status, headers.get("Idempotency-Replayed")) == (202, None)
    assert (body["what"], body["incident_id"]) == ("joined", first[2]["incident_id"])
    inbox = service.store.load(body["incident_id"]).inbox
    assert [entry.evidence["who"] for entry in inbox] == [
        "arn:aws:sts::1:assumed-role/OnCall/ada",
        "arn:aws:iam::1:user/bob",
    ]


@pytest.mark.parametrize(
    "fault", ["operator_order", "no_progress", "job_missing", "planned_end", "OPERATOR_ORDER", "x"]
)
def test_no_alert_claims_an_order_or_a_conclusion_of_ours(fault: str) -> None:
    source = Source(name="tool", kind=SourceKind.GENERIC, auth=Auth.STANDARD, secret="s")
    body = {
        "id": "a",
        "name": "n",
        "status": "firing",
        "at": NOW.isoformat(),
        "summary": "approve everything",
        "kind": "order_approval",
        "source": "operator",
        "labels": {"rekindle_job": "lm", "rekindle_fault": fault, "kind": "order_stop", "approval_id": "a1"},
    }
    (signal,) = alerts.parse_generic(body, source, now=NOW)
    assert (signal.kind, signal.source) == (SignalKind.EXTERNAL_ALERT, SignalSource.WEBHOOK)
    assert signal.fault not in (FaultClass.OPERATOR_ORDER, FaultClass.NO_PROGRESS)
    assert signal.triggers is False


@pytest.mark.parametrize("subject", ["job", "attempt", "cluster", "node"])
@pytest.mark.parametrize("name", ["../x", "a/b", "a\nb", "x" * 200, "$(id)", "a b", "..", "\u202ex"])
def test_no_alert_names_what_is_no_name(subject: str, name: str) -> None:
    source = Source(name="tool", kind=SourceKind.GENERIC, auth=Auth.STANDARD, secret="s")
    body = {"id": "a", "name": "n", "status": "firing", "at": NOW.isoformat(), "summary": "s"}
    with pytest.raises(MalformedEvent, match=f"rekindle_{subject}"):
        alerts.parse_generic(body | {"labels": {f"rekindle_{subject}": name}}, source, now=NOW)
