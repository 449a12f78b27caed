"""The minute sweep over 10 to 10,000 Jobs: what it asks of AWS, our own CPU per Job, peak memory, dollars a month.

10 and 100 Jobs run twice: with real boto3 clients over moto, and over the in-memory wire that serves all sizes
(benchmarks/sweep_wire.py, validated against botocore's models first). Both must ask the same.
Own CPU is the process's time without AWS's part; boto3's serialising and parsing count as AWS's part.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections import Counter
from dataclasses import dataclass
from typing import Final

from benchmarks.sweep_wire import NOW, Wire, fleet_of
from chalicelib.bootstrap import Service, build
from chalicelib.domain.jobs import WatchPlan
from chalicelib.ports import SweepMark
from chalicelib.services.sweep import Swept
from tests.services.fleet import fleet

SIZES = (10, 100, 1_000, 10_000)
PLAIN_SIZES = (10, 100, 1_000)  # each Job's loss goes through the detectors: 10,000 take minutes, and tell no more
ROUNDS = 5  # CPU is the least of the sweeps: the others were disturbed
MONITORED = WatchPlan()
PLAIN = WatchPlan(loss="train:loss", step="train:step")
LONG_AGO = 1_000_000  # a round far from the first, which asks about every Job

SWEEPS_A_MONTH: Final = 60 * 730
# us-east-1 list prices in dollars. Source: the AWS price pages of CloudWatch, S3, DynamoDB (on demand), Lambda (arm64).
PER_METRIC: Final = 0.01 / 1_000
PER_GET: Final = 0.0004 / 1_000
PER_LIST: Final = 0.005 / 1_000
PER_READ_UNIT: Final = 0.125 / 1_000_000
PER_WRITE_UNIT: Final = 0.625 / 1_000_000
PER_GB_S: Final = 0.0000133334
CALL_S: Final = 0.030  # assumed: one AWS call inside a Region, one after the other
MEMORY_GB: Final = 0.5


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
    own_s: float
    peak_mb: float

    @property
    def dollars(self) -> float:
        """A month of such sweeps."""
        calls = self.calls
        lambda_s = self.own_s + sum(calls.values()) * CALL_S
        once = (
            self.metrics * PER_METRIC
            + calls["s3.GetObject"] * PER_GET
            + calls["s3.ListObjectsV2"] * PER_LIST
            + self.read_units * PER_READ_UNIT
            + calls["dynamodb.PutItem"] * PER_WRITE_UNIT
            + lambda_s * MEMORY_GB * PER_GB_S
        )
        return once * SWEEPS_A_MONTH


def service_over(wire: Wire) -> Service:
    """The real composition root over the in-memory wire."""

    class Session:
        def client(self, name: str, config: object = None) -> object:  # noqa: ARG002  bootstrap's own call
            return wire.client(name)

    names = ("TABLE", "BUS", "BUCKET", "QUARANTINE_URL")
    environ = {f"REKINDLE_{name}": "rekindle" for name in names}
    environ |= {"AWS_REGION": "us-west-2", "REKINDLE_RECOVER_FUNCTION": "rekindle-recover:live"}
    return build(environ, clock=_Clock(), session=Session())  # type: ignore[arg-type]  # a clock that stands still


def sweep_once(service: Service, wire: Wire, number: int) -> Swept:
    """One sweep of round `number`, from a clean count."""
    wire.calls.clear()
    wire.metrics, wire.read_units, wire.spent_s = 0, 0.0, 0.0
    service.marks.save(SweepMark(round=number - 1, began_at=NOW, last_began_at=NOW, jobs=len(wire.jobs)))
    wire.calls.clear()
    return service.sweep.run()


def measure(count: int, watch: WatchPlan) -> Result:
    """Figures of one size."""
    wire = Wire(fleet_of(count, watch))
    service = service_over(wire)
    own: list[float] = []
    gc.collect()
    gc.freeze()  # the wire's own fleet is not the service's to look after
    for number in range(ROUNDS):
        gc.collect()
        began = time.process_time()
        swept = sweep_once(service, wire, LONG_AGO + 1 + number)
        own.append(time.process_time() - began - wire.spent_s)
        assert (swept.jobs, swept.unread, swept.left) == (count, 0, 0), swept
    calls, metrics, units = Counter(wire.calls), wire.metrics, wire.read_units
    gc.collect()
    tracemalloc.start()
    sweep_once(service, wire, LONG_AGO + ROUNDS)
    peak_mb = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    gc.unfreeze()
    return Result(count, calls, metrics, units, min(own), peak_mb)


def over_moto(count: int) -> Counter[str]:
    """The same sweep with real clients over moto: what it asks."""
    with fleet() as made:
        made.add(count)
        made.move()
        now = made.cloud.clock.now()
        made.service.marks.save(SweepMark(round=LONG_AGO + ROUNDS - 1, began_at=now, last_began_at=now, jobs=count))
        return made.sweep()[1]


def main() -> None:
    """Print both tables."""
    validated = Wire(fleet_of(50, MONITORED), validate=True)
    sweep_once(service_over(validated), validated, LONG_AGO + 1)
    for kind, watch, sizes in (
        ("with a monitor: 2 metrics each", MONITORED, SIZES),
        ("without: 2 metrics of 3 h each", PLAIN, PLAIN_SIZES),
    ):
        results = [measure(count, watch) for count in sizes]
        print(f"Jobs {kind}")
        print("   Jobs  list  describe  metrics calls  metrics    GET  LIST  DynamoDB  own µs/Job  peak MB   $/month")
        for result in results:
            calls = result.calls
            table = sum(number for name, number in calls.items() if name.startswith("dynamodb."))
            listed, described = calls["sagemaker.ListTrainingJobs"], calls["sagemaker.DescribeTrainingJob"]
            print(
                f"{result.jobs:7,d} {listed:5d} {described:9d}"
                f" {calls['cloudwatch.GetMetricData']:14d} {result.metrics:8,d} {calls['s3.GetObject']:6d}"
                f" {calls['s3.ListObjectsV2']:5d} {table:9d} {result.own_s / result.jobs * 1e6:11.1f}"
                f" {result.peak_mb:8.1f} {result.dollars:9,.2f}"
            )
        ratio = (results[-1].own_s / results[-1].jobs) / (results[1].own_s / results[1].jobs)
        print(f"own CPU per Job, {results[-1].jobs:,d} against 100: {ratio:.2f} (goal 1.2 at most)")
        if watch is MONITORED:
            for result in results[:2]:
                same = over_moto(result.jobs) == result.calls
                print(f"{result.jobs} Jobs over moto with real clients: {'the same calls' if same else 'OTHER CALLS'}")


if __name__ == "__main__":
    main()
