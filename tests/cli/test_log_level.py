"""What an order leaves in the log, at the level that production logs at."""

from __future__ import annotations

import ast
import io
import json
import logging
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from chalicelib.config import PRODUCTION_LOG_LEVEL
from chalicelib.observability import Observability
from chalicelib.services.reporting.outcome import Outcome, OutcomeKind
from localcloud.stack import deploy_rekindle
from tests.cli.conftest import Run
from tests.cli.service import FakeService

ROOT = Path(__file__).parents[2]
RESERVED = {*vars(logging.makeLogRecord({})), "message", "asctime"}


@pytest.mark.parametrize("scope", [("--job", "lm"), ("--everywhere",)])
@pytest.mark.parametrize("state", ["on", "off"])
def test_shadow_mode_is_answered_as_done_and_logged(
    rekindle: Run, service: FakeService, scope: tuple[str, ...], state: str
) -> None:
    service.protect("lm")
    ended = rekindle("shadow", state, *scope, "--yes")
    assert (ended.code, ended.out.split(" (")[0]) == (0, f"Shadow mode {state}")
    line = json.loads(service.log.getvalue().splitlines()[0])
    assert line["reason"] == f"shadow mode {state}"


@pytest.mark.parametrize("fact", sorted({*RESERVED, "what", "job_id"}))
def test_no_fact_of_an_outcome_can_break_or_hide_its_log_line(fact: str) -> None:
    written = io.StringIO()
    with redirect_stdout(written):
        watched = Observability(service=f"fact-{fact}", level=PRODUCTION_LOG_LEVEL)
        watched.record(Outcome(what=OutcomeKind.SWITCHED, reason="because", job_id="lm", facts={fact: "theirs"}))
    line = json.loads(written.getvalue().splitlines()[0])
    assert (line["what"], line["reason"], line["job_id"], line[f"fact_{fact}"]) == (
        "switched",
        "because",
        "lm",
        "theirs",
    )


def test_no_log_call_of_the_service_names_a_key_that_logging_reserves() -> None:
    """Such a call raises in production and is silent at a higher level, so no other test would see it."""
    found, calls = [], 0
    files = [ROOT / "app.py", *(ROOT / "chalicelib").rglob("*.py"), *(ROOT / "localcloud").rglob("*.py")]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "extra" and isinstance(node.value, ast.Dict):
                calls += 1
                keys = {key.value for key in node.value.keys if isinstance(key, ast.Constant)}
                found += [f"{file.name}:{node.value.lineno}: {key}" for key in keys & RESERVED]
    assert calls > 20
    assert found == []


def test_the_embedded_cloud_logs_at_the_level_of_production() -> None:
    assert (deploy_rekindle.__kwdefaults__ or {})["log_level"] == PRODUCTION_LOG_LEVEL == "INFO"
