"""The REST API at 10,000 Incidents against a small table: p50 and p99 of each read as a ratio, and AWS calls per page.

The real routes, schemas and adapters; AWS's part is played back (benchmarks/played.py). The figures are the service's
own CPU time, which is what grows or does not grow with the table.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from benchmarks.played import Counted, Played
from chalicelib.domain.model.incident import Incident, Phase
from localcloud.cloud import Cloud
from localcloud.stack import deploy_rekindle
from rekindle.protocol.signals import FaultClass

INCIDENTS = 10_000
OPEN = 100
JOBS = 1_000
SMALL = (500, 50)  # as many Incidents for each Job, and pages as full
ROUNDS = 200
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


@dataclass(frozen=True)
class Row:
    """One question's figures: seconds in order, what one answer asks of AWS, and its size in bytes."""

    own_s: list[float]
    aws: Counted
    size: int

    def at(self, share: float) -> float:
        return self.own_s[int(len(self.own_s) * share)]


def fill(cloud: Cloud, count: int, jobs: int) -> None:
    """`jobs` Jobs, and `count` Incidents of them, written as the store writes them."""
    from chalicelib.aws.dynamodb import items
    from chalicelib.aws.dynamodb.jobs import job_item
    from chalicelib.domain.model.job import Job

    client, now = cloud.client("dynamodb"), cloud.clock.now()
    rows: list[dict[str, Any]] = []
    for number in range(jobs):
        name = f"job-{number:04d}"
        job = Job(
            job_id=name,
            name=name,
            platform="training_job",
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


def measure(count: int, jobs: int) -> list[Row]:
    """Every question's figures, in the order of ASKED."""
    found: list[Row] = []
    with Cloud() as cloud:
        service = deploy_rekindle(cloud)
        fill(cloud, count, jobs)
        played = Played()
        with played.over(list(cloud._clients.values())):
            for name, names, query in ASKED:
                own, aws, size = [], played.counted, 0
                for _ in range(ROUNDS + 1):
                    aws = played.fresh()
                    began = time.process_time()
                    answer = service.api.answer(name, names, _event(names, query), b"")
                    size = len(answer.text())
                    own.append(time.process_time() - began)
                    assert answer.status == 200, (name, json.dumps(answer.body)[:300])
                found.append(Row(sorted(own[1:]), aws, size))  # the first one asked moto
    return found


def main() -> None:
    """Print the table."""
    small, large = measure(*SMALL), measure(INCIDENTS, JOBS)
    print(f"{INCIDENTS:,d} Incidents ({OPEN} open) of {JOBS:,d} Jobs, against {SMALL[0]} of {SMALL[1]}: own CPU time")
    print(
        "request                                          p50 ms  p99 ms  p50 ratio  p99 ratio  AWS calls  items     kB"
    )
    for (name, _, query), before, after in zip(ASKED, small, large, strict=True):
        asked = name + ("?" + "&".join(f"{key}={value}" for key, value in query.items()) if query else "")
        calls = f"{before.aws.all_calls}/{after.aws.all_calls}"
        print(
            f"{asked:48s} {after.at(0.5) * 1e3:6.2f} {after.at(0.99) * 1e3:7.2f}"
            f" {after.at(0.5) / before.at(0.5):10.2f} {after.at(0.99) / before.at(0.99):10.2f}"
            f" {calls:>10s} {after.aws.items:6,d} {after.size / 1000:7.1f}"
        )


if __name__ == "__main__":
    main()
