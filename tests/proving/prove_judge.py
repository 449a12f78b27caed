"""`python -m tests.proving.prove_judge`: the judge judged. Each mechanism of the service is switched off in turn, and
stories are played until a count, or a row of the owner's bill, is beyond what the service as it is comes to.

Prints a line a mechanism: after how many Incidents it was caught, and by what. Exit status 1 where one was not.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from simulation.command import stories
from simulation.judging.bill import Bill, beyond_bounds
from simulation.play import play
from simulation.stages.world import World
from simulation.stories.story import Story
from tests.proving.broken import MECHANISMS

KEPT: Final = Path(__file__).with_name("stories")
CHUNK: Final = 25


def caught(breaks: Callable[[World], None] | None, played: Sequence[Story]) -> tuple[int, str, Bill]:
    """(Incidents played, what caught it or nothing, the bill), over the stories in their order."""
    bill = Bill()
    for story in played:
        verdict = play(story, broken=breaks)
        bill.add(verdict.bill)
        if verdict.kinds:
            return bill.incidents, min(verdict.kinds), bill
    beyond = beyond_bounds(bill)
    return bill.incidents, f"the bill: {beyond[0].name}" if beyond else "", bill


def judged(name: str, *, incidents: int, seed: int) -> tuple[str, int, str]:
    """(mechanism, Incidents played, what caught it or nothing). The kept stories are played where fresh ones do not."""
    logging.disable(logging.CRITICAL)
    breaks, bill, start = MECHANISMS.get(name), Bill(), 0
    while bill.incidents < incidents:
        _, by, more = caught(breaks, stories(seed, start, CHUNK))
        start += CHUNK
        bill.add(more)
        beyond = beyond_bounds(bill)
        by = by if not by.startswith("the bill") else ""
        by = by or (f"the bill: {beyond[0].name}" if beyond else "")
        if by:
            return name, bill.incidents, by
    kept = [Story.from_json(path.read_text()) for path in sorted(KEPT.glob("*.json"))]
    played, by, _ = caught(breaks, kept)
    return name, bill.incidents + played, f"{by}, in a kept story" if by else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.proving.prove_judge", description=__doc__)
    parser.add_argument("--incidents", type=int, default=300, help="fresh ones for each mechanism")
    parser.add_argument("--seed", type=int, default=1, help="of the stories")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", default="", help="mechanisms whose name holds this")
    options = parser.parse_args(argv)
    names = [name for name in MECHANISMS if options.only in name]
    missed = 0
    with ProcessPoolExecutor(max_workers=options.jobs) as pool:
        _, played, by = pool.submit(judged, "nothing", incidents=options.incidents, seed=options.seed).result()
        if by:
            print(f"{by} after {played} Incidents, with nothing switched off: that comes first")
            return 1
        for name, played, by in pool.map(partial(judged, incidents=options.incidents, seed=options.seed), names):
            missed += not by
            print(f"{by or 'NOT CAUGHT':35} after {played:4} Incidents: without that {name}", flush=True)
    print(f"{len(names)} mechanisms, {missed} not caught")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
