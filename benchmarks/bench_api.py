"""The REST API at 10,000 Incidents against a small table: p50 and p99 of each read as a ratio, and AWS calls per page.

The real app, routes, schemas and adapters over moto in this process. moto's own work for a call is taken out where it
can be seen: the figures are the service's own time, which is what grows or does not grow with the table.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from chalicelib.domain.faults import FaultClass
from chalicelib.domain.incidents import Incident, Phase
from localcloud.cloud import Cloud
from localcloud.stack import deploy_rekindle

INCIDENTS = 10_000
OPEN = 200
JOBS = 1_000
ROUNDS = 60
ASKED = (
    ("status", {}, {}),
    ("list_incidents", {}, {"state": "open"}),
    ("list_incidents", {}, {"state": "closed"}),
    ("list_incidents", {}, {"state": "all", "job_id": "job-0001"}),
    ("list_incidents", {}, {"state": "closed", "fault": "hang"}),
    ("list_jobs", {}, {}),
    ("get_job", {"job_id": "job-0001"}, {}),
    ("get_incident", {"incident_id": "inc-00001"}, {}),
    ("get_timeline", {"incident_id": "inc-00001"}, {}),
)


@dataclass
class Meter:
    """Calls of boto3's DynamoDB client, and the time that was spent in them."""

    calls: Counter[str] = field(default_factory=Counter)
    spent_s: float = 0.0


@contextmanager
def metered(client: Any, meter: Meter) -> Iterator[None]:
    """Wraps the one method that all calls of a client go through."""
    real = client._make_api_call

    def call(operation: str, request: Any) -> Any:
        began = time.perf_counter()
        try:
            return real(operation, request)
        finally:
            meter.calls[operation] += 1
            meter.spent_s += time.perf_counter() - began

    client._make_api_call = call
    try:
        yield
    finally:
        client._make_api_call = real


def fill(cloud: Cloud, count: int, jobs: int) -> None:
    """`jobs` Jobs, and `count` Incidents of them, written as the store writes them."""
    from chalicelib.adapters import items
    from chalicelib.adapters.job_registry import job_item
    from chalicelib.domain.jobs import Job, Orchestrator

    client, now = cloud.client("dynamodb"), cloud.clock.now()
    rows: list[dict[str, Any]] = []
    for number in range(jobs):
        name = f"job-{number:04d}"
        job = Job(
            job_id=name,
            name=name,
            orchestrator=Orchestrator.TRAINING_JOB,
            policy_name="default",
            created_at=now,
            current_attempt=name,
            attempt_number=1,
            attempt_started_at=now,
        )
        rows.append(job_item(job))
    for number in range(count):
        job_id, opened = f"job-{number % max(jobs, 1):04d}", now - timedelta(minutes=count - number)
        one = Incident(
            incident_id=f"inc-{number:05d}",
            job_id=job_id,
            cluster=None,
            opened_at=opened,
            phase=Phase.OPEN,
            phase_entered_at=opened,
            fault=FaultClass.HANG if number % 50 == 0 else FaultClass.NON_FINITE,
        )
        is_open = number >= count - OPEN or count < OPEN
        if not is_open:
            one = replace(one, phase=Phase.RECOVERED, closed_at=opened)
        key = items.key(items.incident_pk(one.incident_id))
        rows.append(
            key
            | {
                "state": items.pack(one.to_wire()),
                "version": items.number(1),
                "generation": items.number(1),
                "is_open": items.flag(is_open),
                "gsi1pk": items.text(items.INCIDENTS_OPEN if is_open else items.INCIDENTS_CLOSED),
                "gsi1sk": items.text(f"{opened.isoformat()}#{one.incident_id}"),
            }
        )
        below = items.key(items.job_pk(job_id), items.incident_sk(opened, one.incident_id))
        rows.append(below | {"incident_id": items.text(one.incident_id)})
    for start in range(0, len(rows), 25):  # Source: BatchWriteItem, 25 items per call
        chunk = [{"PutRequest": {"Item": row}} for row in rows[start : start + 25]]
        client.batch_write_item(RequestItems={"rekindle": chunk})


def _event(names: dict[str, str], query: dict[str, str]) -> dict[str, Any]:
    return {"queryStringParameters": query or None, "pathParameters": names, "requestContext": {"requestId": "bench"}}


def measure(count: int, jobs: int) -> dict[int, tuple[list[float], Counter[str], int]]:
    """Question -> the service's own seconds of each round, the calls of one request, the answer's bytes."""
    found: dict[int, tuple[list[float], Counter[str], int]] = {}
    with Cloud() as cloud:
        service = deploy_rekindle(cloud)
        fill(cloud, count, jobs)
        client = cloud.client("dynamodb")
        for index, (name, names, query) in enumerate(ASKED):
            own: list[float] = []
            meter, size = Meter(), 0
            for _ in range(ROUNDS):
                meter = Meter()
                with metered(client, meter):
                    began = time.perf_counter()
                    answer = service.api.answer(name, names, _event(names, query), b"")
                    size = len(answer.text())
                    own.append(time.perf_counter() - began - meter.spent_s)
                assert answer.status == 200, (name, json.dumps(answer.body)[:300])
            found[index] = (sorted(own), meter.calls, size)
    return found


def main() -> None:
    """Print the table."""
    # Three pages' worth are "an empty store": the pages themselves are as full, the table is not.
    small, large = measure(150, 100), measure(INCIDENTS, JOBS)
    print(f"{INCIDENTS:,d} Incidents ({OPEN} open) of {JOBS:,d} Jobs, against 150 of 100: the service's own time")
    print("request                                          p50 ms  p99 ms  p50 ratio  p99 ratio  AWS calls      kB")
    for index, (name, _, query) in enumerate(ASKED):
        (before, _, _), (after, calls, size) = small[index], large[index]
        asked = name + ("?" + "&".join(f"{key}={value}" for key, value in query.items()) if query else "")
        p50, p99 = (lambda own: own[len(own) // 2]), (lambda own: own[int(len(own) * 0.99)])
        print(
            f"{asked:48s} {p50(after) * 1e3:6.2f} {p99(after) * 1e3:7.2f} {p50(after) / p50(before):10.2f}"
            f" {p99(after) / p99(before):10.2f} {sum(calls.values()):10d} {size / 1000:7.1f}"
        )


if __name__ == "__main__":
    main()
