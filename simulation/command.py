"""`python -m simulation`: plays seeded stories, counts what was unsafe, shrinks each failure and writes it down."""

from __future__ import annotations

import argparse
import gc
import logging
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from simulation.judging.bill import ROWS, Bill, beyond_bounds
from simulation.judging.counts import COUNTS, Unsafe
from simulation.making.maker import PLATFORMS, make
from simulation.making.wild import make_wild
from simulation.play import Verdict, play, played
from simulation.shrink import parts_of, shrink
from simulation.stories.story import Story

DEFAULT_INCIDENTS: Final = 10_000
STORIES_PER_SEED: Final = 10_000_000
SHRUNK_PER_KIND: Final = 4
PROGRESS_S: Final = 60.0
CUT_OFF: Final = 130  # as a shell says of what Ctrl-C ended
_CHUNK: Final = 25


@dataclass(slots=True)
class PlayTotals:
    """Everything played so far."""

    stories: int = 0
    incidents: int = 0
    submissions: int = 0
    pages: int = 0
    steps_lost: int = 0
    detections_s: list[float] = field(default_factory=list)
    recoveries_s: list[float] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    bill: Bill = field(default_factory=Bill)
    found: list[tuple[Unsafe, Story]] = field(default_factory=list)

    def take(self, verdict: Verdict) -> None:
        """Add one story's. A kind counts once a story."""
        figures = verdict.figures
        self.stories += 1
        self.incidents += figures.incidents
        self.submissions += figures.submissions
        self.pages += figures.pages
        self.steps_lost += figures.steps_lost
        self.detections_s += figures.detections_s
        self.recoveries_s += figures.recoveries_s
        self.bill.add(verdict.bill)
        for kind in sorted(verdict.kinds):
            self.counts[kind] += 1
            self.found.append((next(unsafe for unsafe in verdict.unsafe if unsafe.kind == kind), verdict.story))


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 where anything was unsafe."""
    options = _options(argv)
    before = logging.root.manager.disable
    _quiet()
    try:
        return _run(options)
    finally:
        logging.disable(before)


def _quiet() -> None:
    """Without the service's own lines about calls that the stories have refused."""
    logging.disable(logging.CRITICAL)


def _run(options: argparse.Namespace) -> int:
    if options.play is not None:
        return _play_file(options.play, options.verbose)
    print(f"seed {options.seed}: stories until {options.incidents} Incidents have opened")
    began = time.monotonic()
    tally, written, is_cut = PlayTotals(), StoryWriter(options.out), False
    printed_at = began
    try:
        for verdict in _verdicts(options.seed, options.incidents, options.jobs, options.platform, is_wild=options.wild):
            tally.take(verdict)
            written.take(tally.found)
            if time.monotonic() - printed_at >= PROGRESS_S:
                printed_at = time.monotonic()
                print(f"{tally.incidents} Incidents, {len(tally.found)} failures", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        is_cut = True
        print("cut off; this is what was played:")
    _print(tally, time.monotonic() - began)
    print("\n".join([f"\nfailures: {len(tally.found)}", *written.lines]))
    return CUT_OFF if is_cut else 1 if tally.counts or beyond_bounds(tally.bill) else 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--incidents", type=_positive, default=DEFAULT_INCIDENTS, help="how many are to open in all")
    parser.add_argument("--seed", type=int, default=1, help="of the stories")
    parser.add_argument("--platform", choices=PLATFORMS, default="", help="of all stories; a mix where not given")
    parser.add_argument(
        "--wild", action="store_true", help="stories further from the ordinary (simulation/making/wild.py)"
    )
    parser.add_argument("--jobs", type=_positive, default=1, help="processes")
    parser.add_argument("--out", type=Path, default=Path("build/proving"), help="where shrunk stories are written")
    parser.add_argument("--play", type=Path, help="play the story of this file, and nothing else")
    parser.add_argument("--verbose", action="store_true", help="with --play: every Incident's timeline and the truth")
    return parser.parse_args(argv)


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise argparse.ArgumentTypeError("must be a whole number, 1 or more")
    return int(text)


def stories(seed: int, start: int, count: int, platform: str = "", *, is_wild: bool = False) -> list[Story]:
    """The stories of a seed from the given one on."""
    made = make_wild if is_wild else make
    return [made(seed * STORIES_PER_SEED + number, platform) for number in range(start, start + count)]


def _chunk(job: tuple[int, int, str, bool]) -> list[Verdict]:
    seed, start, platform, is_wild = job
    gc.disable()  # collected once a chunk instead: a story's world is alive until its end, and scanning it takes time
    try:
        return [play(story) for story in stories(seed, start, _CHUNK, platform, is_wild=is_wild)]
    finally:
        gc.enable()
        gc.collect()


def _verdicts(seed: int, incidents: int, processes: int, platform: str, *, is_wild: bool) -> Iterator[Verdict]:
    """In the stories' order, whatever the number of processes, so that the counts are the same."""
    opened, start = 0, 0
    with ProcessPoolExecutor(max_workers=processes, initializer=_quiet) as pool:
        while opened < incidents:
            starts = [start + index * _CHUNK for index in range(processes)]
            jobs = [(seed, start, platform, is_wild) for start in starts]
            chunks = map(_chunk, jobs) if processes == 1 else pool.map(_chunk, jobs)
            start += processes * _CHUNK
            for chunk in chunks:
                for verdict in chunk:
                    if opened >= incidents:
                        return
                    opened += verdict.figures.incidents
                    yield verdict


def _print(tally: PlayTotals, took_s: float) -> None:
    rate = tally.incidents / took_s * 60 if took_s else 0.0
    print(f"{tally.stories} stories, {tally.incidents} Incidents in {took_s:.0f} s: {rate:.0f} Incidents a minute")
    print(f"{tally.submissions} submissions, {tally.pages} pages, {tally.steps_lost} steps lost")
    for name, values in (("until seen", tally.detections_s), ("until it trained on", tally.recoveries_s)):
        if values:
            middle, worst = statistics.median(values), max(values)
            print(f"{name}: median {middle:.0f} s, longest {worst:.0f} s, of {len(values)}")
    print("\nunsafe, in stories:")
    for kind, meaning in COUNTS.items():
        print(f"  {tally.counts[kind]:6}  {kind:20} {meaning}")
    _print_bill(tally.bill)


def _print_bill(bill: Bill) -> None:
    print(f"\nthe owner's bill ({bill.trained_h:.0f} GPU-hours trained, {sum(bill.ill_h.values()):.0f} not working):")
    beyond = beyond_bounds(bill)
    for row in ROWS:
        mark = "BEYOND" if row in beyond else ""
        print(f"  {row.share(bill):8.4f}  {row.name:15} at most {row.bound:g}: {row.meaning} {mark}".rstrip())
        for cause, amount in sorted(row.causes(bill).items(), key=lambda item: -item[1])[:6]:
            print(f"            {amount:8.1f}  {cause}")
    total = bill.excused_min.total()
    print(
        f"\nminutes in which a run was not working and no person was told ({total}), by the excuse that covered them:"
    )
    for excuse, minutes in bill.excused_min.most_common():
        print(f"  {minutes / total:7.1%}  {excuse}")


class StoryWriter:
    """The shortest story of each failure, a few per kind, written as soon as it is found: a run of hours that is
    cut off has lost nothing.
    """

    def __init__(self, out: Path) -> None:
        self.lines: list[str] = []
        self._out = out
        self._taken = 0
        self._number: Counter[str] = Counter()
        self._seen: set[tuple[str, frozenset[str]]] = set()

    def take(self, found: Sequence[tuple[Unsafe, Story]]) -> None:
        """Those that came since the last time."""
        for unsafe, story in found[self._taken :]:
            is_like_one = any(kind == unsafe.kind and parts <= parts_of(story) for kind, parts in self._seen)
            if self._number[unsafe.kind] < SHRUNK_PER_KIND and not is_like_one:
                self._write(unsafe, story)
        self._taken = len(found)

    def _write(self, unsafe: Unsafe, story: Story) -> None:
        short = shrink(story, unsafe.kind)
        parts = parts_of(short)
        self._seen.add((unsafe.kind, parts))
        self._number[unsafe.kind] += 1
        self._out.mkdir(parents=True, exist_ok=True)
        path = self._out / f"{unsafe.kind}-{story.seed}.json"
        path.write_text(short.to_json() + "\n")
        line = f"  {unsafe.kind}: {unsafe.detail}\n    {', '.join(sorted(parts)) or 'nothing at all'}: {path}"
        self.lines.append(line)
        print(f"found:\n{line}", file=sys.stderr, flush=True)


def _play_file(path: Path, verbose: bool) -> int:
    try:
        story = Story.from_json(path.read_text())
    except (OSError, ValueError) as err:
        print(f"--play {path}: {err}", file=sys.stderr)
        return 2
    world, judge = played(story)
    if verbose:
        from simulation.report import report

        report(world)
    for unsafe in judge.unsafe:
        print(f"{unsafe.kind} at {unsafe.at_s:.0f} s, {unsafe.run}: {unsafe.detail}")
    print(f"{len(judge.unsafe)} unsafe, {judge.figures.incidents} Incidents")
    return 1 if judge.unsafe else 0
