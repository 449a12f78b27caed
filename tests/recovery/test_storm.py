"""Many reports of few faults, from many threads at once; and the largest that an Incident can hold."""

from __future__ import annotations

import random
import string
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from chalicelib.aws.dynamodb.incident_inbox import MAX_INBOX, ORDERS_EXTRA
from chalicelib.domain.model.incident import MAX_KEPT_SIGNALS, Phase
from chalicelib.domain.model.signal import MAX_EVIDENCE_BYTES, Signal, SignalKind, SignalSource
from localcloud.worlds.recoveries import Script, World, crash_at, world

pytestmark = pytest.mark.long


@dataclass(frozen=True)
class Storm:
    """What a storm has led to."""

    incidents: int
    recovered: int
    jobs: int


def play(*, jobs: int, events: int, threads: int) -> Storm:
    """Let every Job crash, and report each crash many times from many threads at once."""
    with world(log_level="WARNING") as w:
        for number in range(jobs):
            w.submit(f"job{number}", scripts=(Script(faults=(crash_at(15),)), Script()))
        names = [f"job{number}" for number in range(jobs)]
        rules, w.cloud.events.rules[:] = list(w.cloud.events.rules), []
        w.run_until(lambda: all(w.jobs()[name].status == "Failed" for name in names))
        payloads = [_variant(w, names[index % jobs], index) for index in range(events)]
        with w.cloud.clock.working("storm"), ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda event: w.cloud.invoke("training_job_event", event), payloads))
        w.cloud.events.rules.extend(rules)
        w.run_until(w.closed(jobs))
        found = w.incidents()
        return Storm(
            incidents=len(found),
            recovered=sum(incident.phase.value == "recovered" for incident in found),
            jobs=len(w.jobs()),
        )


def _variant(w: World, name: str, index: int) -> dict[str, Any]:
    """The job's Failed event: every third an exact duplicate, the others repeated with another envelope and time."""
    job = w.jobs()[name]
    copy = 0 if index % 3 == 0 else index
    ended_ms = int(job.ended_at.timestamp() * 1000) + copy
    return {
        "version": "0",
        "id": f"00000000-0000-4000-8000-{copy:012d}",
        "detail-type": "SageMaker Training Job State Change",
        "source": "aws.sagemaker",
        "account": "123456789012",
        "time": job.ended_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "region": "us-west-2",
        "resources": [f"arn:aws:sagemaker:us-west-2:123456789012:training-job/{name}"],
        "detail": {
            "TrainingJobName": name,
            "TrainingJobArn": f"arn:aws:sagemaker:us-west-2:123456789012:training-job/{name}",
            "TrainingJobStatus": "Failed",
            "SecondaryStatus": "Failed",
            "FailureReason": job.failure_reason,
            "CreationTime": int(job.created_at.timestamp() * 1000),
            "TrainingEndTime": ended_ms,
            "LastModifiedTime": ended_ms,
        },
    }


def test_a_storm_opens_one_incident_and_starts_one_attempt_per_job() -> None:
    storm = play(jobs=10, events=1_000, threads=16)
    assert (storm.incidents, storm.recovered, storm.jobs) == (10, 10, 20)


def test_a_full_inbox_of_the_largest_signals_fits_what_one_step_may_return() -> None:
    """Lambda refuses a step's result above 256 KB; the sweep would start the execution on the same inbox for ever."""
    with world() as w:
        w.submit("lm", scripts=(Script(faults=(crash_at(15),)), Script()))
        w.run_until(lambda: bool(w.incidents()))
        for batch in range(2):  # the first is kept on the Incident itself, the second is in the inbox beside it
            _fill_inbox(w, batch)
            w.run_until(lambda: not w.service.look.store.load(w.incidents()[0].incident_id).inbox)
        assert len(w.incidents()[0].signals) == MAX_KEPT_SIGNALS
        assert w.recover().phase is Phase.RECOVERED
        executions = w.cloud.engine.executions()
        assert [item.current_status().value for item in executions] == ["SUCCEEDED"]


def _fill_inbox(w: World, batch: int) -> None:
    """As many Signals as there is room for, each large, and as random as the store keeps whole."""
    store, (incident,) = w.service.look.store, w.incidents()
    drawn = random.Random(batch)
    for number in range(MAX_INBOX + ORDERS_EXTRA):
        words = ["".join(drawn.choices(string.ascii_lowercase, k=8)) for _ in range(40)]
        noise = " ".join(drawn.choices(words, k=MAX_EVIDENCE_BYTES))[: MAX_EVIDENCE_BYTES - 700]
        large = Signal(
            kind=SignalKind.TRAINING_LOG,
            source=SignalSource.OPERATOR if number >= MAX_INBOX else SignalSource.LOGS,
            occurred_at=w.cloud.clock.now(),
            dedupe_key=f"noise-{batch}-{number}",
            summary="a line of the log",
            job_id=incident.job_id,
            attempt=incident.attempt,
            triggers=False,
            evidence={f"line_{part}": noise[part * 90 : part * 90 + 90] for part in range(len(noise) // 90)},
        )
        assert not store.join(incident.incident_id, large, now=w.cloud.clock.now()).is_full
