"""`report.json`: the demo's figures for machines, the same ones that the table shows to people."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from localcloud.demo.story import AttemptSeen, Comparison, Recovery

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a whole demo went. `problem` is empty unless it broke off."""

    seed: int
    workers: int
    job_id: str
    started_at: datetime
    ended_at: datetime
    recoveries: tuple[Recovery, ...]
    wanted: tuple[str, ...]
    attempts: tuple[AttemptSeen, ...]
    comparison: Comparison | None
    final_status: str
    problem: str = ""

    @property
    def ok(self) -> bool:
        """Every wanted recovery happened, and every loss is what it would have been."""
        done = tuple(row.fault.value for row in self.recoveries)
        equal = self.comparison is not None and self.comparison.equal
        return not self.problem and done == self.wanted and all(row.ok for row in self.recoveries) and equal


def as_json(result: Result) -> dict[str, Any]:
    """The report as one JSON object. Durations are seconds, steps are step numbers, null is "does not apply"."""
    return {
        "schema": SCHEMA,
        "ok": result.ok,
        "problem": result.problem or None,
        "seed": result.seed,
        "workers": result.workers,
        "job_id": result.job_id,
        "started_at": result.started_at.isoformat(),
        "wall_s": round((result.ended_at - result.started_at).total_seconds(), 3),
        "python": platform.python_version(),
        "final_status": result.final_status,
        "faults": [_recovery(row) for row in result.recoveries],
        "attempts": [_attempt(attempt) for attempt in result.attempts],
        "same_loss_at_same_step": _comparison(result.comparison),
    }


def write(result: Result, path: Path) -> None:
    """Write the report where `path` says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(as_json(result), indent=2) + "\n")


def _recovery(row: Recovery) -> dict[str, Any]:
    incident = row.incident
    return {
        "fault": row.fault.value,
        "what": row.injection.what,
        "injected_at": row.injection.at.isoformat(),
        "injected_step": row.injection.step,
        "incident_id": incident.incident_id if incident else None,
        "diagnosis": incident.fault if incident else None,
        "outcome": incident.phase if incident else None,
        "rule": incident.outcome if incident else None,
        "recovered": row.ok,
        "mttd_s": _rounded(row.mttd_s),
        "mttr_s": _rounded(row.mttr_s),
        "steps_lost": row.steps_lost,
        "resumed_at_step": row.resumed_at_step,
        "emergency_checkpoint": {
            "asked": bool(incident and incident.ask),
            "answer": incident.ask["outcome"] if incident and incident.ask else None,
            "steps_saved": row.saved.steps,
            "why": row.saved.why,
        },
        "attempts": list(row.attempts),
    }


def _attempt(attempt: AttemptSeen) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "name": attempt.name,
        "status": attempt.status,
        "resumed_at_step": attempt.resumed_from,
        "skipped": [list(window) for window in attempt.skips],
        "first_step": attempt.first_step,
        "last_step": attempt.last_step,
        "last_good_step": attempt.last_good_step,
    }


def _comparison(comparison: Comparison | None) -> dict[str, Any] | None:
    if comparison is None:
        return None
    return {
        "equal": comparison.equal,
        "steps_compared": comparison.steps_compared,
        "first_difference_at_step": comparison.first_difference,
        "last_step": comparison.last_step,
        "last_loss": comparison.last_loss,
        "steps_not_compared": list(comparison.not_compared),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
