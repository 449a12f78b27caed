"""S3 requests of one observation of a hang, by number of ranks: with hosts' summaries, and with some missing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from chalicelib.aws.s3.mailbox import S3Mailbox
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Known
from chalicelib.platforms.training_job.platform import TRAINING_JOB
from localcloud.aws.clock import SimClock
from rekindle.detectors.ranks import find_suspects
from rekindle.protocol.reports import RankReport, ReportKind
from rekindle.protocol.summaries import HostSummary, ranks_beside
from simulation.cloud.store import MemoryObjects, MemoryS3

NOW: Final = datetime(2026, 11, 21, tzinfo=UTC)
JOB: Final = Job(
    job_id="lm-7b",
    name="lm-7b",
    platform=TRAINING_JOB.name,
    policy_name="default",
    created_at=NOW,
    current_attempt="lm-7b",
    attempt_number=1,
    attempt_started_at=NOW,
    mailbox="s3://training/runs/lm-7b",
)
FRAMES: Final = "".join(f'  File "/opt/train/model_{number}.py", line {number}, in forward\n' for number in range(30))
WAITS: Final = f'Thread MainThread:\n{FRAMES}  File "/x/torch/distributed/distributed_c10d.py", line 9, in all_reduce\n'
BUSY: Final = f'Thread MainThread:\n{FRAMES}  File "/opt/train/loader.py", line 4, in read\n'
RANKS: Final = (64, 512, 1024, 2048, 4096, 16_384, 65_536)
MISSING: Final = 40  # hosts without a summary, in the second table


def reports_of(world: int, kind: ReportKind = ReportKind.STALL) -> Iterator[RankReport]:
    for rank in range(world):
        stacks = "" if kind is ReportKind.PACE else BUSY if rank == world // 2 else WAITS
        named: dict[str, Any] = {"job_id": "lm-7b", "attempt": "lm-7b", "host": f"node-{rank // 8}"}
        yield RankReport(kind=kind, rank=rank, world_size=world, at=NOW, step=7, silent_s=60.0, stacks=stacks, **named)


def summaries_of(reports: Iterable[RankReport]) -> Iterator[HostSummary]:
    hosts: dict[int, list[RankReport]] = {}
    for report in reports:
        ranks = ranks_beside(report.rank, report.world_size)
        if ranks:
            hosts.setdefault(ranks.start, []).append(report)
    for ranks_there in hosts.values():
        yield HostSummary.of(ReportKind.STALL, [(3.0, report) for report in ranks_there], at=NOW)


def measure(world: int, missing: int) -> str:
    clock = SimClock()
    objects, calls = MemoryObjects(clock, "training"), list[str]()
    mailbox = S3Mailbox(MemoryS3(objects, lambda operation, _: calls.append(operation)))
    stalls = list(reports_of(world))
    summaries = list(summaries_of(stalls))
    for message in (*reports_of(world, ReportKind.PACE), *stalls, *summaries[missing:]):
        objects.put(f"runs/lm-7b/{message.key}", message.to_json())
    began = time.process_time()
    found = mailbox.reports(JOB, "lm-7b", ReportKind.STALL)
    verdict = find_suspects(found.value, world) if isinstance(found, Known) else None
    own_s = time.process_time() - began
    counts = Counter(calls)
    size = sum(len(summary.to_json()) for summary in summaries) / 1e6
    named = "unknown" if verdict is None else ", ".join(verdict.hosts) or "none"
    right = f"{named} ({'right' if named == f'node-{world // 2 // 8}' else 'WRONG'})"
    clock.close()
    lists, gets = counts["ListObjectsV2"], counts["GetObject"]
    return f"{world:>8,} {lists:>6} {gets:>7,} {size:>9.1f} {own_s / world * 1e6:>12.0f}  {right}"


def main() -> None:
    for title, missing in (("all hosts have a summary", 0), (f"{MISSING} hosts' summaries are missing", MISSING)):
        print(f"{title}\n{'ranks':>8} {'LISTs':>6} {'GETs':>7} {'MB in all':>9} {'us CPU/rank':>12}  suspect")
        for world in RANKS:
            print(measure(world, missing))
        print()


if __name__ == "__main__":
    main()
