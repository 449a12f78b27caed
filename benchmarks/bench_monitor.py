"""What the monitor costs the training process, with all of its threads at work.

    make bench ARGS=monitor          python -m benchmarks.bench_monitor [--steps 3000] [--pace-ms 2]

Four worlds: a directory as mailbox; and S3 mailbox, bus and metrics at an AWS that cannot be reached, that never
answers, or that denies everything. For each: processor time of `Monitor.step` on the training thread and its share of a
100 ms step; the wall-clock time of a call (median and 99th percentile: on a busy machine these hold other processes'
time too); processor time of all the monitor's other threads, as a share of one core; the monitor's memory
(tracemalloc's peak, boto3's import included where AWS is in use); and the warnings that a person would see.

A step comes every 2 ms, fifty times busier than the 100 ms that it is held against, and all rhythms are quicker too.
Processors and their caches are then warm for it; `--steps 300 --pace-ms 100` measures what a step costs a real run.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from rekindle.monitor.base.settings import Config
from rekindle.monitor.starting import start_in

STEP_MS = 100.0  # a short step of a large run; longer ones make the share smaller
GOAL_PERCENT = 0.05
AWS = {
    "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
    "AWS_DEFAULT_REGION": "us-west-2",
    "AWS_EC2_METADATA_DISABLED": "true",
}
DENIAL = (
    b"<?xml version='1.0'?><ErrorResponse><Error><Code>AccessDenied</Code><Message>no</Message></Error></ErrorResponse>"
)


class _Denies(BaseHTTPRequestHandler):
    """Every call is refused, as by a missing IAM permission."""

    def _refuse(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(403)
        self.send_header("Content-Length", str(len(DENIAL)))
        self.send_header("x-amzn-errortype", "AccessDeniedException")
        self.end_headers()
        self.wfile.write(DENIAL)

    do_GET = do_PUT = do_POST = do_HEAD = _refuse

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@contextmanager
def directory() -> Iterator[str | None]:
    yield None


@contextmanager
def away() -> Iterator[str | None]:
    yield "http://127.0.0.1:9"  # the discard port: refused at once, and no network is needed


@contextmanager
def silent() -> Iterator[str | None]:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:  # connects, and never gets an answer
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def denying() -> Iterator[str | None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Denies)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


WORLDS = {
    "directory mailbox": directory,
    "AWS away": away,
    "AWS silent": silent,
    "AWS denying": denying,
}


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@dataclass(frozen=True)
class Costs:
    """Nanoseconds: the training thread's processor time in all steps, each call's wall time, the other threads'."""

    step_cpu_ns: int
    wall_ns: list[int]
    others_cpu_ns: int
    run_ns: int


def run(steps: int, endpoint: str | None, pace_s: float) -> Costs:
    with tempfile.TemporaryDirectory() as folder:
        config = replace(Config(), heartbeat_s=1.0, poll_s=1.0, metrics_s=5.0)  # busier than in life
        env = {"REKINDLE_JOB_ID": "bench", "REKINDLE_METRICS": "off"}
        if endpoint is not None:
            os.environ |= AWS | {"AWS_ENDPOINT_URL": endpoint}
            env = {"REKINDLE_JOB_ID": "bench", "REKINDLE_BUS": "bench"}
        mailbox = folder if endpoint is None else "s3://bench-bucket/run"
        monitor = start_in(env, mailbox=mailbox, config=config)
        wall, cpu, pause = time.perf_counter_ns, time.thread_time_ns, threading.Event()
        walls = [0] * steps
        inside = 0
        began, process_began, thread_began = wall(), time.process_time_ns(), cpu()
        for step in range(steps):
            loss = 2.5 + (step % 7) * 0.01
            wall_before, cpu_before = wall(), cpu()
            monitor.step(step, loss=loss, grad_norm=1.0, tokens=4096)
            inside += cpu() - cpu_before
            walls[step] = wall() - wall_before
            pause.wait(pace_s)
        others = (time.process_time_ns() - process_began) - (cpu() - thread_began)
        took = wall() - began
        monitor.finish(timeout_s=2.0)
    return Costs(inside, walls, others, took)


def measure(steps: int, world: str, pace_s: float) -> dict[str, float]:
    """Figures of one world: times without tracing, memory with it."""
    heard = _Warnings()
    logger = logging.getLogger("rekindle.monitor")
    logger.addHandler(heard)
    logger.propagate = False
    try:
        with WORLDS[world]() as endpoint:
            costs = run(steps, endpoint, pace_s)
            warnings = len(heard.texts)
            tracemalloc.start()
            try:
                run(min(steps, 1_000), endpoint, 0.002)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
    finally:
        logger.removeHandler(heard)
        logger.propagate = True
    mean_us = costs.step_cpu_ns / steps / 1000
    walls = sorted(costs.wall_ns)
    return {
        "steps": float(steps),
        "cpu_us": mean_us,
        "share_of_100ms_percent": mean_us / (STEP_MS * 1000) * 100,
        "wall_median_us": walls[steps // 2] / 1000,
        "wall_p99_us": walls[steps * 99 // 100] / 1000,
        "other_threads_percent_of_a_core": costs.others_cpu_ns / costs.run_ns * 100,
        "peak_memory_mb": peak / 1e6,
        "warnings": float(warnings),
    }


def main(argv: Sequence[str] = ()) -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--steps", type=int, default=3_000)
    arguments.add_argument("--pace-ms", type=float, default=2.0, help="from step to step (2)")
    given = arguments.parse_args(argv)
    print_worlds({world: measure(given.steps, world, given.pace_ms / 1000) for world in WORLDS})
    return 0


def print_worlds(results: dict[str, dict[str, float]]) -> None:
    print("Monitor.step         CPU µs   % of 100 ms   wall median   wall 99%   other threads   peak MB   warnings")
    for world, found in results.items():
        print(
            f"{world:<18} {found['cpu_us']:>8.2f} {found['share_of_100ms_percent']:>13.4f} "
            f"{found['wall_median_us']:>10.2f} µs {found['wall_p99_us']:>7.1f} µs "
            f"{found['other_threads_percent_of_a_core']:>13.2f} % {found['peak_memory_mb']:>9.1f} "
            f"{found['warnings']:>10.0f}"
        )
    worst = max(found["share_of_100ms_percent"] for found in results.values())
    print(f"goal: below {GOAL_PERCENT} % of a 100 ms step; the worst world is at {worst:.4f} %")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
