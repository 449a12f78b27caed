"""The smoke test's training job: one weight, a checkpoint every ten steps, and a deliberate crash.

The first attempt crashes; one that resumes from a checkpoint does not. Rekindle's own package lies beside this file.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from typing import Any
from urllib.parse import urlsplit

import boto3

import rekindle.monitor


def main() -> int:
    """Train; 0 when all steps are done."""
    steps, pace_s = int(os.environ["SMOKE_STEPS"]), float(os.environ["SMOKE_PACE_S"])
    dies_at = int(os.environ["SMOKE_DIES_AT"])
    place = urlsplit(os.environ["REKINDLE_MAILBOX"])
    s3 = boto3.client("s3")
    state: dict[str, Any] = {"weight": 0.0, "step": 0}

    def save(step: int, kind: str) -> str:
        """Called by the monitor for emergency checkpoints, and by the loop below for periodic ones."""
        key = f"{place.path.strip('/')}/checkpoints/step-{step:06d}.json"
        s3.put_object(Bucket=place.netloc, Key=key, Body=json.dumps({**state, "kind": kind}).encode())
        return f"s3://{place.netloc}/{key}"

    mon = rekindle.monitor.start(save=save, signals=("TERM",))
    if mon.resume.uri is not None:
        at = urlsplit(mon.resume.uri)
        state = json.loads(s3.get_object(Bucket=at.netloc, Key=at.path.lstrip("/"))["Body"].read())
    is_first = state["step"] == 0
    for step in range(state["step"] + 1, steps + 1):
        x = random.Random(step).uniform(-1, 1)  # noqa: S311  a batch that belongs to its step, no secret
        error = state["weight"] * x - 3 * x
        state = {"weight": state["weight"] - 0.1 * error * x, "step": step}
        time.sleep(pace_s)
        mon.step(step, loss=error * error)
        if step % 10 == 0:
            mon.saved(save(step, "periodic"), step)
        if is_first and step == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if mon.should_stop:
            mon.finish("stopped")
            return 0
    mon.finish()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
