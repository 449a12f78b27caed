"""A storm: 1,000 events for 10 Jobs, delivered concurrently. Ten Incidents and ten recoveries are the right answer."""

from __future__ import annotations

import contextlib
import io
import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from localcloud.worlds.recoveries import Script, World, crash_at, world

JOBS = 10
EVENTS = 1000
THREADS = 16


@dataclass(frozen=True)
class Storm:
    """One storm's figures."""

    incidents: int
    recovered: int
    jobs: int
    calls: Counter[str]
    intake_calls: Counter[str]
    intake_s: float
    aws_s: float


def play(jobs: int = JOBS, events: int = EVENTS, threads: int = THREADS) -> Storm:
    """Let every Job crash, and report each crash many times from many threads at once."""
    with world(log_level="WARNING") as w:
        for number in range(jobs):
            w.submit(f"job{number}", scripts=(Script(faults=(crash_at(15),)), Script()))
        names = [f"job{number}" for number in range(jobs)]
        rules, w.cloud.events.rules[:] = list(w.cloud.events.rules), []
        w.run_until(lambda: all(w.jobs()[name].status == "Failed" for name in names))
        payloads = [_variant(w, names[index % jobs], index) for index in range(events)]
        w.cloud.wire.calls.clear()
        w.cloud.wire.spent_s.clear()
        began = time.perf_counter()
        with w.cloud.clock.working("storm"), ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda event: w.cloud.invoke("training_job_event", event), payloads))
        intake_s = time.perf_counter() - began
        intake_calls, aws_s = Counter(w.cloud.wire.calls), sum(w.cloud.wire.spent_s.values())
        w.cloud.events.rules.extend(rules)
        w.run_until(w.closed(jobs))
        found = w.incidents()
        return Storm(
            incidents=len(found),
            recovered=sum(incident.phase.value == "recovered" for incident in found),
            jobs=len(w.jobs()),
            calls=Counter(w.cloud.wire.calls),
            intake_calls=intake_calls,
            intake_s=intake_s,
            aws_s=float(aws_s),
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


def main() -> None:
    """Print the storm's figures."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):  # the functions' own log and metrics
        warnings.simplefilter("ignore")
        storm = play()
    print(f"events {EVENTS}, Jobs {JOBS}, threads {THREADS}")
    print(f"Incidents {storm.incidents}, recovered {storm.recovered}, training jobs in all {storm.jobs}")
    print(f"events taken per second    {EVENTS / storm.intake_s:8.0f}    (in one process, AWS emulated in it)")
    print(f"AWS calls for the intake   {sum(storm.intake_calls.values()):8d}    {_top(storm.intake_calls)}")
    print(f"AWS calls for everything   {sum(storm.calls.values()):8d}    {_top(storm.calls)}")
    # Threads overlap: the share is of all threads' time, not of the wall's.
    ours = storm.intake_s * THREADS - storm.aws_s
    ratio = max(ours, 0.0) / storm.aws_s
    print(f"our own time / AWS calls'  {ratio:8.2f}    (upper bound: waiting for a turn counts as ours)")


def _top(calls: Counter[str]) -> str:
    return ", ".join(f"{name.split('.')[1]} {count}" for name, count in calls.most_common(5))


if __name__ == "__main__":
    main()
