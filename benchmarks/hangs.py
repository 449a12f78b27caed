"""Hangs injected into real runs: PyTorch under gloo, 2 to 8 ranks, each with the monitor. Who is named, and when.

Each case is one run of forked processes that share a directory as their mailbox. The verdict is taken from the ranks'
reports once all have come; beside it what the same reports say without the flight recorder.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rekindle.detectors.rank_rules import STRONG, FlightRule, RankRule
from rekindle.detectors.ranks import RankVerdict, find_suspects
from rekindle.protocol.reports import RankReport, ReportKind, report_prefix

ATTEMPT: Final = "run-1"
INJECTED_AT: Final = 6  # steps
WITHIN_S: Final = 60.0
SETTLED_S: Final = 3.0  # after the last report of those that can
WORLDS: Final = (2, 3, 4, 8)


@dataclass(frozen=True)
class Hang:
    """`inject` stands in for the step's collectives; `least`: how many ranks it needs to show who it is; `is_mute`: the
    rank cannot report.
    """

    inject: Callable[[Any], None]
    is_somebody: bool = True
    is_mute: bool = False
    least: int = 2


@dataclass(frozen=True, kw_only=True)
class Outcome:
    kind: str
    world: int
    bad: int
    verdict: RankVerdict
    without: RankVerdict
    after_s: float

    @property
    def is_right(self) -> bool:
        return self.after_s <= WITHIN_S and _is_right(self.kind, self.bad, self.verdict)

    @property
    def was_right(self) -> bool:
        return self.after_s <= WITHIN_S and _is_right(self.kind, self.bad, self.without)

    @property
    def condemns_wrongly(self) -> bool:
        """A node would be left out of the next attempt, and it is not the one, or none is."""
        named = self.verdict.suspect_ranks
        is_of_a_node = self.verdict.rule.value not in set(FlightRule) and self.verdict.confidence >= STRONG
        return is_of_a_node and bool(named) and (named != (self.bad,) or not KINDS[self.kind].is_somebody)


@dataclass
class _Rank:
    """What a case's code needs of one rank: torch.distributed as `dist`, and its groups."""

    torch: Any
    dist: Any
    number: int
    world: int
    bad: int
    pipe: str
    half: Any  # the group of this rank's half, or of all
    other: Any  # a second group of all

    @property
    def is_bad(self) -> bool:
        return self.number == self.bad

    def reduce(self, size: int = 4, group: Any = None) -> None:
        self.dist.all_reduce(self.torch.ones(size), group=group)

    def read(self) -> None:
        Path(self.pipe).read_bytes()  # no process ever writes to it: storage that does not answer


def _sleeps(rank: _Rank) -> None:
    if rank.is_bad:
        time.sleep(600)
    rank.reduce()


def _spins(rank: _Rank) -> None:
    while rank.is_bad:
        sum(range(1000))
    rank.reduce()


def _reads(rank: _Rank) -> None:
    if rank.is_bad:
        rank.read()
    rank.reduce()


def _stopped(rank: _Rank) -> None:
    if rank.is_bad:
        os.kill(os.getpid(), signal.SIGSTOP)
    rank.reduce()


def _killed(rank: _Rank) -> None:
    if rank.is_bad:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        rank.reduce()
    except RuntimeError:  # the others' connections break; a script that goes on without an end
        time.sleep(600)


def _other_size(rank: _Rank) -> None:
    rank.reduce(5 if rank.is_bad else 4)
    rank.reduce()


def _other_operation(rank: _Rank) -> None:
    if rank.is_bad:
        rank.dist.broadcast(rank.torch.ones(4), src=(rank.bad + 1) % rank.world)
    rank.reduce()
    rank.reduce()


def _other_group(rank: _Rank) -> None:
    rank.reduce(group=rank.other if rank.is_bad else None)


def _missing_in_half(rank: _Rank) -> None:
    if rank.is_bad:
        time.sleep(600)
    rank.reduce(3, group=rank.half)
    rank.reduce()


def _unsent(rank: _Rank) -> None:
    if rank.is_bad:
        time.sleep(600)
    if rank.number == (rank.bad + 1) % rank.world:
        rank.dist.recv(rank.torch.ones(4), src=rank.bad)
    rank.reduce()


def _all_read(rank: _Rank) -> None:
    rank.read()


KINDS: Final = {
    "a rank sleeps": Hang(_sleeps),
    "a rank computes without end": Hang(_spins),
    "a rank waits for storage": Hang(_reads),
    "a rank is stopped": Hang(_stopped, is_mute=True),
    "a rank is killed": Hang(_killed, is_mute=True),
    "another size": Hang(_other_size, least=3),
    "another operation": Hang(_other_operation, least=3),
    "another group": Hang(_other_group, least=3),
    "missing in a subgroup": Hang(_missing_in_half, least=4),
    "nothing is sent": Hang(_unsent, least=3),
    "all wait for storage": Hang(_all_read, is_somebody=False),
}


def cases(worlds: tuple[int, ...] = WORLDS) -> Iterator[tuple[str, int, int]]:
    """Each kind with each size that shows it; the bad rank is the first, the last, or one between, in turn."""
    turns = itertools.count()
    for world, kind in itertools.product(worlds, KINDS):
        if world >= KINDS[kind].least:
            yield kind, world, (0, world - 1, world // 2)[next(turns) % 3]


def play(kind: str, world: int, bad: int) -> Outcome:
    """Run one case. All its processes have ended when this returns."""
    import torch  # noqa: F401  once, before the fork: each rank would need seconds for it

    here = Path(tempfile.mkdtemp(prefix="rekindle-hangs-"))
    os.mkfifo(here / "pipe")
    ranks = [_fork(kind, rank, world, bad, here) for rank in range(world)]
    try:
        reports, after_s = _collected(here, world, KINDS[kind].is_mute)
        bare = [replace(report, flight=None) for report in reports]
        return Outcome(
            kind=kind,
            world=world,
            bad=bad,
            verdict=find_suspects(reports, world),
            without=find_suspects(bare, world),
            after_s=after_s,
        )
    finally:
        for pid in ranks:
            os.kill(pid, signal.SIGKILL)
        for pid in ranks:
            os.waitpid(pid, 0)
        shutil.rmtree(here, ignore_errors=True)


def _fork(kind: str, rank: int, world: int, bad: int, here: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        _train(kind, rank, world, bad, here)
    except BaseException as err:
        os.write(2, f"rank {rank} of {kind}: {err!r}\n".encode())
    os._exit(1)


def _train(kind: str, rank: int, world: int, bad: int, here: Path) -> None:
    import torch
    import torch.distributed as dist

    from rekindle.monitor import Ranks
    from rekindle.monitor.base.settings import Config
    from rekindle.monitor.starting import start_in

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{here}/store", rank=rank, world_size=world)
    halves = [dist.new_group(list(range(world // 2))), dist.new_group(list(range(world // 2, world)))]
    own = _Rank(
        torch=torch, dist=dist, number=rank, world=world, bad=bad, pipe=str(here / "pipe"),
        half=halves[rank >= world // 2], other=dist.new_group(list(range(world))),
    )  # fmt: skip
    monitor = start_in(
        {"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": ATTEMPT, "NODE_NAME": f"node-{rank}"},
        mailbox=str(here),
        ranks=Ranks(rank=rank, world_size=world),
        config=Config(heartbeat_s=1.0, poll_s=1.0, watch_s=0.1, stall_floor_s=2.0, stall_startup_s=30.0),
    )
    for step in range(1, INJECTED_AT + 1):
        own.reduce()
        own.reduce(3, group=own.half)
        monitor.step(step, loss=1.0)
    (here / f"injected-{rank}").touch()
    KINDS[kind].inject(own)
    time.sleep(600)


def _collected(here: Path, world: int, is_mute: bool) -> tuple[list[RankReport], float]:
    """The reports once all that can have come, and the seconds since the fault; a mute rank is waited for a while."""
    folder = here / report_prefix(ATTEMPT)
    until = time.monotonic() + 2 * WITHIN_S
    began, newest, seen = 0.0, 0.0, 0
    while time.monotonic() < until:
        now = time.monotonic()
        if not began and len(list(here.glob("injected-*"))) == world:
            began = now
        there = len(list(folder.glob(f"{ReportKind.STALL.value}-*.json"))) if began else 0
        if there > seen:
            seen, newest = there, now
        if seen == world or (is_mute and seen == world - 1 and now - newest > SETTLED_S):
            break
        time.sleep(0.1)
    reports = [RankReport.from_json(path.read_bytes()) for path in sorted(folder.glob("*.json"))]
    return reports, time.monotonic() - began if began and seen else 2 * WITHIN_S


def _is_right(kind: str, bad: int, verdict: RankVerdict) -> bool:
    if not KINDS[kind].is_somebody:
        return not verdict.suspect_ranks and verdict.rule is RankRule.NOBODY_WAITS
    return verdict.suspect_ranks == (bad,)


def main() -> None:
    """A line per kind: named rightly, of how many; before, without the recorder; the slowest; nodes wrongly accused."""
    outcomes: list[Outcome] = []
    for kind, world, bad in cases():
        outcome = play(kind, world, bad)
        outcomes.append(outcome)
        if not outcome.is_right or outcome.condemns_wrongly:
            print(f"{kind}, rank {bad} of {world}: {outcome.verdict}", file=sys.stderr)
    print(f"{'hang':30} {'right':>9} {'without':>9} {'slowest':>9} {'wrong node':>10}")
    for kind in (*KINDS, "all"):
        of = [outcome for outcome in outcomes if kind in (outcome.kind, "all")]
        right, before = sum(outcome.is_right for outcome in of), sum(outcome.was_right for outcome in of)
        slowest, wrong = max(outcome.after_s for outcome in of), sum(outcome.condemns_wrongly for outcome in of)
        print(f"{kind:30} {right:>4} of {len(of):<2} {before:>4} of {len(of):<2} {slowest:>7.1f} s {wrong:>10}")


if __name__ == "__main__":
    main()
