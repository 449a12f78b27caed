"""`make bench ARGS=healthy`: how often the loss detectors act on runs that are healthy.

Per kind (`benchmarks.healthy_kinds`): acts and watches per 100,000 steps over seeded runs of two
lengths, and the rules that acted. `python -m benchmarks.healthy --reported` adds what a script can tell: planned
changes, learning rates and the kind of loss; `--only TEXT` measures the kinds whose name holds it.
"""

from __future__ import annotations

import argparse
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from benchmarks.healthy_kinds import KINDS, Run
from rekindle.detectors.kinds import LossKind
from rekindle.detectors.points import Point, Severity
from rekindle.detectors.watch import LossWatch

GOAL = 2.0  # acts per 100,000 steps of each kind
LENGTHS = (20_000,) * 10 + (100_000,) * 2  # steps per run; 400,000 in all
POLICY_RUNS = (100, 250, 500, 1_000, 2_000) * 104
SHORT = {
    "early training with warm-up": (2_500,) * 160,
    "GRPO: a multiple of the divergence": POLICY_RUNS,
    "GRPO: the same with four digits": POLICY_RUNS,
    "GRPO: of both signs": POLICY_RUNS,
    "a divergence that is logged as the loss": POLICY_RUNS,
    "DPO and its kin": POLICY_RUNS,
}


@dataclass(slots=True)
class Count:
    steps: int = 0
    acts: int = 0
    watches: int = 0
    rules: Counter[str] = field(default_factory=Counter)

    def per_100k(self, number: int) -> float:
        return number / self.steps * 100_000 if self.steps else 0.0


def points(run: Run, *, is_reported: bool = False) -> Iterator[Point]:
    rates = run.lr if is_reported else None
    for row, loss in enumerate(run.losses.tolist()):
        yield Point(
            step=row * run.every,
            loss=loss,
            lr=None if rates is None else float(rates[row]),
        )


def measure(name: str, lengths: tuple[int, ...], *, seed: int = 0, is_reported: bool = False) -> Count:
    """All runs of one kind. The seed of a run depends on its kind's name and its number alone.

    is_reported: the detectors are given what a script can tell of the run.
    """
    count = Count()
    for number, steps in enumerate(lengths):
        rng = np.random.default_rng([seed, zlib.crc32(name.encode()), number])
        run = KINDS[name](rng, steps)
        watch = LossWatch(LossKind(run.declared or "auto") if is_reported else LossKind.AUTO)
        announced = {row for row, _ in run.announced} if is_reported and run.lr is None else set()
        for row, point in enumerate(points(run, is_reported=is_reported)):
            if row in announced:
                watch.expect(point.step)
            for verdict in watch.update(point):
                if verdict.severity is Severity.ACT:
                    count.acts += 1
                    count.rules[f"{verdict.kind}: {verdict.rule}"] += 1
                else:
                    count.watches += 1
        count.steps += len(run.losses) * run.every
    return count


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reported", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args(arguments if arguments is not None else [])
    if not any(options.only in name for name in KINDS):
        parser.error(f"--only: no kind holds {options.only!r}: {', '.join(KINDS)}")
    print(f"{'acts and watches per 100,000 steps':36} {'steps':>9} {'acts':>7} {'watches':>8}  rules that acted")
    total = over = 0
    for name in KINDS:
        if options.only not in name:
            continue
        count = measure(name, SHORT.get(name, LENGTHS), is_reported=options.reported)
        rate = count.per_100k(count.acts)
        total += count.acts
        over += rate > GOAL
        rules = ", ".join(f"{rule} {times}" for rule, times in count.rules.most_common(4))
        mark = "!" if rate > GOAL else " "
        print(f"{name:36} {count.steps:9,} {rate:6.1f}{mark} {count.per_100k(count.watches):8.1f}  {rules}", flush=True)
    print(f"{total} acts; {over} kinds above the goal of {GOAL:g}")


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
