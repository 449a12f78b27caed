"""The minute sweep over 10 to 10,000 Jobs: what it asks of AWS, CPU per Job, dollars a month.

Its boto3 clients are real, and answered from memory (benchmarks/sweep_wire.py): moto is too slow for so many Jobs.
tests/services/test_sweep_calls.py counts the same calls on moto. CPU is the process's time without the answers.
"""

from __future__ import annotations

import gc
import json
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.sweep_clients import RealClients
from benchmarks.sweep_wire import NOW, Wire, fleet_of
from chalicelib.bootstrap import Service, build
from chalicelib.domain.model.job import WatchPlan
from chalicelib.ports.sweep import SweepMark
from chalicelib.services.sweep.figures import SweepFigures
from infra import costs

ROOT = Path(__file__).parent.parent
SIZES = (10, 100, 1_000, 10_000)
PLAIN_SIZES = (10, 100, 1_000)  # each Job's loss goes through the detectors: 10,000 take minutes, and tell no more
ROUNDS = 5  # CPU is the least of the sweeps: the others were disturbed
MONITORED = WatchPlan()
PLAIN = WatchPlan(loss="train:loss", step="train:step")
LONG_AGO = 1_000_000  # a round far from the first, which asks about every Job

SWEEPS_A_MONTH: Final = 60 * 730
PER_METRIC: Final = costs.METRIC_CALLS_K / 1e3
PER_GET: Final = costs.GETS_M / 1e6
PER_LIST: Final = costs.PUTS_M / 1e6
PER_READ_UNIT: Final = costs.READ_UNITS_M / 1e6
PER_WRITE_UNIT: Final = costs.WRITE_UNITS_M / 1e6
CALL_S: Final = 0.020  # assumed: one AWS call inside a Region, one after the other
SETTINGS: Final = json.loads((ROOT / ".chalice" / "config.json").read_text())["lambda_functions"]["sweep"]
MEMORY_GB: Final = SETTINGS["lambda_memory_size"] / 1024
CORE: Final = min(
    1.0, SETTINGS["lambda_memory_size"] / 1769
)  # Source: Lambda guide, "Configure Lambda function memory"
SLOW: Final = {"cloudwatch.GetMetricData": 0.2}  # assumed: 500 metrics of 45 minutes
ALONE: Final = ("dynamodb.", "lambda.", "sagemaker.List", "cloudwatch.DescribeAlarms")  # one after the other
PAIRS: Final = 2  # a chunk's metrics take two calls, side by side
GOAL: Final = 3  # times


def fits(jobs: int) -> str:
    """How long a sweep of so many Jobs takes, and how often that fits into the function's time, as one line.

    CPU seconds are the process's own, with real boto3 clients, but without sockets and TLS; seconds of waiting are
    counted calls by assumed seconds each. Nothing is taken to overlap but what the readers read side by side.
    """
    result = measure(jobs, MONITORED)
    waiting = 0.0
    for call, count in result.calls.items():
        side_by_side = PAIRS if call in SLOW else 1 if call.startswith(ALONE) else result.readers
        waiting += count * SLOW.get(call, CALL_S) / side_by_side
    total_s, limit_s = result.cpu_s / CORE + waiting, SETTINGS["lambda_timeout"]
    return (
        f"{jobs:,d} Jobs: {result.cpu_s:.1f} s of CPU, {result.cpu_s / CORE:.1f} s at "
        f"{SETTINGS['lambda_memory_size']} MB, {waiting:.1f} s of waiting: {total_s:.1f} s, "
        f"{limit_s / total_s:.1f} times in {limit_s} s (goal {GOAL})"
    )


class _Clock:
    def now(self) -> object:
        return NOW


@dataclass(frozen=True)
class Result:
    """One size's figures, of one sweep in the steady state."""

    jobs: int
    calls: Counter[str]
    metrics: int
    read_units: float
    cpu_s: float
    readers: int

    @property
    def dollars(self) -> float:
        """A month of such sweeps."""
        calls = self.calls
        lambda_s = self.cpu_s + sum(calls.values()) * CALL_S
        once = (
            self.metrics * PER_METRIC
            + calls["s3.GetObject"] * PER_GET
            + calls["s3.ListObjectsV2"] * PER_LIST
            + self.read_units * PER_READ_UNIT
            + calls["dynamodb.PutItem"] * PER_WRITE_UNIT
            + lambda_s * MEMORY_GB * costs.GB_S
        )
        return once * SWEEPS_A_MONTH


def service_over(session: RealClients) -> Service:
    """The real composition root over clients of the in-memory fleet."""
    names = ("TABLE", "BUS", "BUCKET", "QUARANTINE_URL")
    environ = {f"REKINDLE_{name}": "rekindle" for name in names}
    environ |= {"AWS_REGION": "us-west-2", "REKINDLE_RECOVER_FUNCTION": "rekindle-recover:live"}
    return build(environ, clock=_Clock(), session=session)  # type: ignore[arg-type]  # a clock that stands still


def sweep_once(service: Service, wire: Wire, number: int) -> SweepFigures:
    """One sweep of round `number`, from a clean count."""
    wire.calls.clear()
    wire.metrics, wire.read_units = 0, 0.0
    service.marks.save(SweepMark(round=number - 1, began_at=NOW, last_began_at=NOW, jobs=len(wire.jobs)))
    wire.calls.clear()
    return service.sweep.run()


def measure(count: int, watch: WatchPlan) -> Result:
    """Figures of one size."""
    wire = Wire(fleet_of(count, watch))
    session = RealClients(wire)
    service = service_over(session)
    cpu: list[float] = []
    gc.collect()
    gc.freeze()  # the wire's own fleet is not the service's to look after
    for number in range(ROUNDS):
        session.answering_s, began = 0.0, time.process_time()
        swept = sweep_once(service, wire, LONG_AGO + number)
        cpu.append(time.process_time() - began - session.answering_s)
        assert (swept.jobs, swept.unread, swept.left) == (count, 0, 0), swept
    gc.unfreeze()
    return Result(count, Counter(wire.calls), wire.metrics, wire.read_units, min(cpu), service.sweep_readers)


def main() -> None:
    """Print both tables."""
    print(fits(SIZES[-1]))
    for kind, watch, sizes in (
        ("with a monitor: 2 metrics each", MONITORED, SIZES),
        ("without: 2 metrics of 3 h each", PLAIN, PLAIN_SIZES),
    ):
        results = [measure(count, watch) for count in sizes]
        print(f"Jobs {kind}")
        print("   Jobs  list  describe  metrics calls  metrics    GET  LIST  DynamoDB  CPU µs/Job   $/month")
        for result in results:
            calls = result.calls
            table = sum(number for name, number in calls.items() if name.startswith("dynamodb."))
            listed, described = calls["sagemaker.ListTrainingJobs"], calls["sagemaker.DescribeTrainingJob"]
            print(
                f"{result.jobs:7,d} {listed:5d} {described:9d}"
                f" {calls['cloudwatch.GetMetricData']:14d} {result.metrics:8,d} {calls['s3.GetObject']:6d}"
                f" {calls['s3.ListObjectsV2']:5d} {table:9d} {result.cpu_s / result.jobs * 1e6:11.1f}"
                f" {result.dollars:9,.2f}"
            )
        ratio = (results[-1].cpu_s / results[-1].jobs) / (results[1].cpu_s / results[1].jobs)
        print(f"CPU per Job, {results[-1].jobs:,d} against 100: {ratio:.2f} (goal 1.2 at most)")


if __name__ == "__main__":
    main()
