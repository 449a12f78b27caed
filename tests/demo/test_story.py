"""The demo's figures and lines, from hand-made observations."""

import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from localcloud.demo.report import Result, write
from localcloud.demo.story import (
    AttemptSeen,
    Fault,
    IncidentSeen,
    Injection,
    Line,
    StepSeen,
    compare,
    measure,
)
from localcloud.demo.view import DemoState, LineView, WorkerSeen, results
from localcloud.demo.watch import Trace
from rekindle.client.table import Style

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def attempt(
    number: int,
    *,
    resumed: int | None = None,
    first: int | None = 1,
    last: int | None = 50,
    good: int | None = None,
) -> AttemptSeen:
    return AttemptSeen(
        name=f"demo-r{number}",
        number=number,
        status="InProgress",
        resumed_from=resumed,
        skips=(),
        first_step=first,
        last_step=last,
        last_good_step=last if good is None else good,
    )


def incident(**changes: object) -> IncidentSeen:
    values: dict[str, object] = {
        "incident_id": "inc-demo-1",
        "fault": "software_crash",
        "phase": "recovered",
        "outcome": "verify.recovered",
        "opened_at": at(11.0),
        "closed_at": at(18.5),
        "ask": None,
        "tries": ("demo-r2",),
        "mttd_s": 1.0,
        "mttr_s": 8.5,
        "steps_lost": 10,
        "steps_saved": 23,
        "lines": (Line(at=at(11), phase="resubmitting", rule="playbook.restart", text="the worker died"),),
    }
    return IncidentSeen(**{**values, **changes})  # type: ignore[arg-type]


def injection(fault: Fault = Fault.KILL) -> Injection:
    return Injection(fault=fault, at=at(10), step=50, attempt="demo-r1", what="SIGKILL to rank 1")


def test_a_recovery_shows_the_ledgers_figures() -> None:
    attempts = [attempt(1), attempt(2, resumed=40, first=41, last=90)]
    row = measure(injection(), incident(), attempts)
    assert (row.mttd_s, row.mttr_s) == (1.0, 8.5)
    assert (row.steps_lost, row.resumed_at_step) == (10, 40)
    assert row.attempts == ("demo-r1", "demo-r2")
    assert row.saved.steps is None
    assert row.ok


def test_an_emergency_checkpoint_saves_what_lies_beyond_the_last_periodic_one() -> None:
    ask = {"outcome": "saved", "step": 63}
    attempts = [attempt(1, last=63), attempt(2, resumed=63, first=64)]
    row = measure(injection(Fault.NODE), incident(ask=ask), attempts)
    assert row.saved.steps == 23


@pytest.mark.parametrize("outcome", ["cannot", "late", None])
def test_an_unanswered_emergency_checkpoint_saves_nothing_and_says_so(outcome: str | None) -> None:
    row = measure(injection(Fault.FREEZE), incident(ask={"outcome": outcome, "step": None}), [])
    assert row.saved.steps is None
    assert "asked" in row.saved.why


@pytest.mark.parametrize("phase", ["handed_over", "stopped", "verifying"])
def test_an_incident_that_did_not_end_recovered_is_a_failure(phase: str) -> None:
    assert not measure(injection(), incident(phase=phase), []).ok
    assert not measure(injection(), None, []).ok


def seen(step: int, exact: str, number: int = 1) -> StepSeen:
    return StepSeen(attempt=f"demo-r{number}", number=number, step=step, exact=exact, at=at(step))


def test_every_finite_loss_is_compared_and_the_first_difference_is_named() -> None:
    reference = {1: "0x1.8p+1", 2: "0x1.4p+1", 4: "0x1.2p+1"}
    same = [seen(1, "0x1.8p+1"), seen(2, "0x1.4p+1"), seen(3, "nan"), seen(2, "0x1.4p+1", 2), seen(4, "0x1.2p+1", 2)]
    verdict = compare(same, reference)
    assert verdict.equal
    assert (verdict.steps_compared, verdict.last_step, verdict.last_loss) == (4, 4, 2.25)
    assert verdict.not_compared == (3,)
    different = compare([*same, seen(4, "0x1.20001p+1", 3)], reference)
    assert not different.equal
    assert different.first_difference == 4


def test_nothing_compared_is_not_equal() -> None:
    assert not compare([seen(1, "nan")], {1: "0x1p+1"}).equal
    assert not compare([], {}).equal


def picture(**changes: object) -> DemoState:
    values: dict[str, object] = {
        "started_at": START,
        "at": at(20),
        "act": "killing rank 1",
        "attempts": (attempt(1), attempt(2, resumed=40)),
        "workers": (WorkerSeen(rank=0, pid=1, state="running"), WorkerSeen(rank=1, pid=2, state="frozen")),
        "steps": [seen(step, float(5 - step / 40).hex()) for step in range(1, 60)],
        "incidents": (incident(),),
    }
    return DemoState(**{**values, **changes})  # type: ignore[arg-type]


def test_the_plain_view_tells_each_thing_once() -> None:
    stream = io.StringIO()
    view = LineView(stream)
    view.show(picture())
    view.show(picture())
    view.show(picture(at=at(26)))
    text = stream.getvalue()
    assert text.count("the worker died") == 1
    assert text.count(">>> killing rank 1") == 1
    assert text.count("attempt 2 InProgress: step 50") == 2


def test_the_trace_is_read_as_it_grows_and_never_half_a_line(tmp_path: Path) -> None:
    line = json.dumps({"attempt_number": 1, "step": 1, "loss": "0x1.8p+1", "at": 1.0}) + "\n"
    path = tmp_path / "demo-r1.jsonl"
    trace = Trace(tmp_path)
    assert trace.read() == []
    path.write_text(line + line[:20])
    assert [item.step for item in trace.read()] == [1]
    path.write_text(line + line)
    assert [item.exact for item in trace.read()] == ["0x1.8p+1", "0x1.8p+1"]
    assert trace.range_of("demo-r1") == (1, 1)
    assert trace.range_of("demo-r2") is None


def result(**changes: object) -> Result:
    row = measure(injection(), incident(), [attempt(1), attempt(2, resumed=40)])
    values: dict[str, object] = {
        "seed": 7,
        "workers": 2,
        "job_id": "demo",
        "started_at": START,
        "ended_at": at(60),
        "recoveries": (row,),
        "wanted": ("kill",),
        "attempts": (attempt(1), attempt(2, resumed=40)),
        "comparison": compare([seen(1, "0x1.8p+1")], {1: "0x1.8p+1"}),
        "final_status": "Stopped",
    }
    return Result(**{**values, **changes})  # type: ignore[arg-type]


def test_a_demo_is_only_a_success_if_everything_wanted_recovered_and_every_loss_is_the_same() -> None:
    failed = measure(injection(), incident(phase="handed_over"), [])
    assert result().ok
    assert not result(recoveries=(failed,)).ok
    assert not result(recoveries=()).ok
    assert not result(wanted=("kill", "nan")).ok
    assert not result(problem="waited 30 s").ok
    assert not result(comparison=None).ok
    assert not result(comparison=compare([seen(1, "0x1.8p+1")], {1: "0x1.9p+1"})).ok


def test_the_report_is_json_and_holds_the_figures_of_the_table(tmp_path: Path) -> None:
    write(result(), tmp_path / "new" / "report.json")
    report = json.loads((tmp_path / "new" / "report.json").read_text())
    assert report["ok"]
    assert report["wall_s"] == 60
    (row,) = report["faults"]
    figures = [row[key] for key in ("mttd_s", "mttr_s", "steps_lost", "resumed_at_step")]
    assert figures == [1.0, 8.5, 10, 40]
    assert [(item["first_step"], item["last_step"]) for item in report["attempts"]] == [(1, 50), (1, 50)]
    assert report["same_loss_at_same_step"]["equal"]


def test_the_table_has_a_row_for_each_recovery_and_at_eighty_columns_no_word_of_it_is_cut() -> None:
    rows = [measure(injection(), incident(), [])]
    assert all(word in results(rows, Style()) for word in ("a worker is killed", "8.5 s", "recovered"))
    text = results(rows, Style(columns=80))
    assert "…" not in text
    assert all(word in text for word in ("recovered", "checkpoint", "emergency"))
