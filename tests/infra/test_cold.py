"""What each kind of function loads at Lambda's init. `make bench ARGS=imports` measures what that takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chalicelib.ingest.detail_types import PATTERNS
from infra.functions import FUNCTIONS

ROOT = Path(__file__).parents[2]
SDK = "aws_durable_execution_sdk_python"
SHAPES = "chalicelib.aws.s3.discovered"  # the formats of checkpoints
INCIDENTS = "chalicelib.domain.model.incident"  # with all that an Incident holds: two of three of the service's records
SWEEP = "chalicelib.services.sweep.sweep"
API = "chalicelib.api.operations.routes"
DETECTORS = "rekindle.detectors.watch"  # the judge of losses; the sweep asks it only where a Job has metrics
STATISTICS = "statistics"  # of the standard library, and not small
DECIDE = "chalicelib.domain.decide"  # all rules
INIT = """
import gc, json, sys
import app
from chalicelib import bootstrap
print(json.dumps({"modules": sorted(sys.modules), "clients": sorted(bootstrap.service().clients.made),
                  "collects": gc.isenabled(), "frozen": gc.get_freeze_count()}))
"""
FORBIDDEN = {
    "notice_event": {SDK, SHAPES, SWEEP, API, DECIDE, DETECTORS, STATISTICS},  # it draws Incidents' pages
    "deliver": {SDK, SHAPES, INCIDENTS, SWEEP, API, DETECTORS, STATISTICS},
    "monitor_event": {SDK, SHAPES, SWEEP, API, DECIDE, DETECTORS, STATISTICS},
    "sweep": {SDK, SHAPES, API, DECIDE, DETECTORS},
    "recover": {SWEEP, API, DETECTORS},
    "app": {SDK, SHAPES, SWEEP, DECIDE, DETECTORS, STATISTICS},
}
NEEDED = {
    "monitor_event": {"chalicelib.ingest.monitor"},
    "recover": {SDK, SHAPES, "chalicelib.recovery.workflow"},
    "sweep": {SWEEP},
    "app": {API},
}
_NOTIFIES = {"sqs", "ssm", "dynamodb", "s3"}
CLIENTS = {"notice_event": {*_NOTIFIES, "cloudwatch"}, "deliver": _NOTIFIES}  # cloudwatch: a page's chart


def _init(function: str) -> dict[str, Any]:
    environ = {f"REKINDLE_{one}": "x" for one in ("TABLE", "BUS", "BUCKET", "QUARANTINE_URL", "RECOVER_FUNCTION")}
    environ |= {"AWS_LAMBDA_FUNCTION_NAME": "x", "_HANDLER": f"app.{function}", "AWS_REGION": "us-west-2"}
    environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", INIT], env=environ, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.long
@pytest.mark.parametrize("kind", FORBIDDEN)
def test_a_function_loads_its_own_parts_at_init_and_no_others(kind: str) -> None:
    found = _init(kind)
    loaded = set(found["modules"])
    assert not FORBIDDEN[kind] & loaded
    assert NEEDED.get(kind, set()) <= loaded
    assert set(found["clients"]) == CLIENTS.get(kind, set(found["clients"]))
    # No garbage is looked for at init, and what was made then is never looked through again.
    assert found["collects"]
    assert found["frozen"] > 10_000


def test_every_event_function_loads_its_parser_at_init() -> None:
    """By the table of the triggers: a new one without its row would load it at its first event."""
    from chalicelib.bootstrap import FIRST

    assert {function.name for function in FUNCTIONS} >= set(FIRST)
    assert set(FIRST) - {"recover", "log_batch"} == set(PATTERNS)
