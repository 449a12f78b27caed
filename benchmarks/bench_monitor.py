"""What one `Monitor.step` costs the training thread, with all of the monitor's threads at work.

    python benchmarks/bench_monitor.py [--steps 200000]

Prints microseconds per step (median, 99th and 99.9th percentile, worst) and the share of a 100 ms step.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace

import rekindle.monitor as rekindle

CASES = {"directory mailbox": False, "metrics to an AWS that is away": True}
AWAY = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",  # the discard port: refused at once, and no network is needed
    "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
    "AWS_DEFAULT_REGION": "us-west-2",
}
STEP_MS = 100.0  # a short step of a large run; longer ones make the share smaller


def measure(steps: int, *, metrics: bool) -> dict[str, float]:
    """Microseconds per call, and the share of a 100 ms step in percent."""
    with tempfile.TemporaryDirectory() as folder:
        config = replace(rekindle.Config(), beat_s=0.1, poll_s=0.1, metrics_s=0.5)  # far busier than in real life
        env = {"REKINDLE_JOB_ID": "bench", "REKINDLE_METRICS": "on" if metrics else "off"}
        monitor = rekindle.start(mailbox=folder, config=config, env=env)
        clock = time.perf_counter_ns
        costs: list[int] = []
        for step in range(steps):
            before = clock()
            monitor.step(step, loss=2.5, grad_norm=1.0, tokens=4096)
            costs.append(clock() - before)
        monitor.finish()
    costs.sort()
    mean_us = sum(costs) / steps / 1000
    return {
        "steps": float(steps),
        "mean_us": mean_us,
        "median_us": costs[steps // 2] / 1000,
        "p99_us": costs[steps * 99 // 100] / 1000,
        "p999_us": costs[steps * 999 // 1000] / 1000,
        "worst_us": costs[-1] / 1000,
        "share_of_100ms_percent": mean_us / (STEP_MS * 1000) * 100,
    }


def main(argv: Sequence[str] = ()) -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=200_000)
    arguments.add_argument("--json", action="store_true")
    given = arguments.parse_args(argv)
    os.environ |= AWAY
    logging.getLogger("rekindle.monitor").setLevel(logging.ERROR)
    results = {name: measure(given.steps, metrics=metrics) for name, metrics in CASES.items()}
    if given.json:
        print(json.dumps(results))
        return 0
    for name, result in results.items():
        print(
            f"Monitor.step, {name}: mean {result['mean_us']:.2f} µs, median {result['median_us']:.2f}, "
            f"99% {result['p99_us']:.2f}, 99.9% {result['p999_us']:.2f}, worst {result['worst_us']:.0f}; "
            f"{result['share_of_100ms_percent']:.4f}% of a 100 ms step"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
