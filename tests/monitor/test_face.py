"""What the public face promises beyond the monitor at work: its end, its silence, its words to the script."""

from __future__ import annotations

import inspect
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rekindle.monitor as rekindle
from rekindle.monitor import Monitor, NotWatched
from rekindle.monitor.starting import start_in
from rekindle.protocol.keys import manifest_key, reply_key
from rekindle.protocol.mailbox import CheckpointReply
from tests.monitor.boxes import PATIENCE_S, QUICK, ObservedBox, start_monitor

JOB = {"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1"}


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Callable[..., Monitor]]:
    made: list[Monitor] = []

    def begin(env: dict[str, str] | None = None, **more: Any) -> Monitor:
        made.append(start_monitor(mailbox=ObservedBox(tmp_path), config=QUICK, env=JOB | (env or {}), **more))
        return made[-1]

    yield begin
    for monitor in made:
        monitor.finish()


def test_start_takes_no_more_than_eight_things() -> None:
    assert len(inspect.signature(rekindle.start).parameters) <= 8


def test_a_with_block_finishes_the_run_and_says_what_ended_it(watched: Callable[..., Monitor], tmp_path: Path) -> None:
    with watched() as monitor:
        monitor.step(1, loss=1.0)
    assert monitor.is_silent
    events: list[tuple[str, dict[str, Any]]] = []
    with pytest.raises(ZeroDivisionError), watched(on_event=lambda *event: events.append(event)) as monitor:
        raise ZeroDivisionError
    assert monitor.is_silent
    assert events[-1][0] == "Rekindle Monitor Finished"
    assert events[-1][1]["why"] == "died of ZeroDivisionError"


def test_a_function_of_the_script_hears_every_event_and_may_fail(watched: Callable[..., Monitor]) -> None:
    events: list[str] = []

    def hear(name: str, fields: dict[str, Any]) -> None:
        events.append(name)
        assert fields["job_id"] == "job"
        raise RuntimeError("the script's own mistake")

    monitor = watched(on_event=hear)
    for step in range(1, 6):
        monitor.step(step, loss=math.nan)
    monitor.finish()
    assert events == ["Rekindle Monitor Started", "Rekindle Non-Finite Loss", "Rekindle Monitor Finished"]
    assert monitor.health()["inner_error.on_event"] == 3


def test_a_loss_that_stays_non_finite_is_said_once_where_it_begins_and_where_it_ends(
    watched: Callable[..., Monitor], caplog: pytest.LogCaptureFixture
) -> None:
    monitor = watched()
    with caplog.at_level(logging.WARNING, "rekindle.monitor"):
        for step in range(1, 400):
            monitor.step(step, loss=math.nan if 20 <= step < 361 else 1.0)
    said = [record.getMessage() for record in caplog.records if "finite" in record.getMessage()]
    assert said == [
        "The loss is not finite since step 20",
        "The loss of step 361 is finite; values were not since step 20",
    ]


def test_a_metric_that_cannot_be_read_is_named(
    watched: Callable[..., Monitor], caplog: pytest.LogCaptureFixture
) -> None:
    monitor = watched()
    for step in range(1, 4):
        monitor.step(step, loss=1.0, perplexity="high", accuracy=[1])
    said = [record.getMessage() for record in caplog.records]
    assert [sum(name in text for text in said) for name in ("perplexity", "accuracy")] == [1, 1]


def test_validation_is_a_word_for_evaluation(watched: Callable[..., Monitor]) -> None:
    monitor = watched()
    with monitor.phase("validation"):
        pass
    assert "bad_phase" not in monitor.health()


@pytest.mark.parametrize(
    ("env", "level", "words"),
    [
        ({}, logging.INFO, "REKINDLE_JOB_ID"),
        ({"REKINDLE_JOB_ID": "job", "REKINDLE_MAILBX": "/shared"}, logging.WARNING, "unknown: REKINDLE_MAILBX"),
        ({"REKINDLE_MAILBOX": "/shared"}, logging.WARNING, "not set: REKINDLE_JOB_ID"),
        ({"REKINDLE_JOB_ID": "job", "REKINDLE_MAILBOX": "x", "REKINDLE_MONITOR": "off"}, logging.INFO, "off"),
    ],
)
def test_a_silence_that_somebody_did_not_mean_is_a_warning_and_may_be_an_error(
    env: dict[str, str], level: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "rekindle.monitor"):
        assert start_in(env).is_silent
    [record] = [record for record in caplog.records if "silent" in record.getMessage()]
    assert (record.levelno, words in record.getMessage()) == (level, True)
    with pytest.raises(NotWatched, match=words):
        start_in(env, required=True)


def test_a_resume_plan_that_cannot_be_read_is_said_once(
    watched: Callable[..., Monitor], caplog: pytest.LogCaptureFixture
) -> None:
    monitor = watched(JOB | {"REKINDLE_SKIP": "[[22"})
    assert monitor.resume.step is None
    assert sum("resume plan cannot be read" in record.getMessage() for record in caplog.records) == 1


def test_a_monitor_that_cannot_start_is_an_error_where_it_is_required() -> None:
    with pytest.raises(NotWatched, match="could not start"):
        start_in(JOB, mailbox="s3://", required=True)


@pytest.mark.parametrize("is_watched", [True, False])
def test_batches_belong_to_their_steps_whatever_is_left_out(watched: Callable[..., Monitor], is_watched: bool) -> None:
    plan = {"REKINDLE_RESUME_STEP": "2", "REKINDLE_SKIP": "[[4,6]]"}
    monitor = watched(plan) if is_watched else start_in(plan)
    data = [f"batch {step}" for step in range(3, 8)]  # a loader that was resumed after step 2; an epoch has five
    assert list(monitor.batches(data, 9)) == [
        (3, "batch 3"),
        (6, "batch 6"),
        (7, "batch 7"),
        (8, "batch 3"),
        (9, "batch 4"),
    ]
    assert list(monitor.batches([], 9)) == []


def test_batches_end_where_the_run_should_stop(watched: Callable[..., Monitor], tmp_path: Path) -> None:
    monitor = watched(save=lambda step, kind: None)
    seen = []
    for step, batch in monitor.batches(range(1, 100), 99):
        monitor.step(step, loss=1.0)
        seen.append(batch)
        if step == 5:
            monitor._stopping.should_stop = True  # type: ignore[attr-defined]  # what the ranks agree on
    assert seen == [1, 2, 3, 4, 5]


def test_what_the_loader_raises_passes(watched: Callable[..., Monitor]) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise OSError("disk")

    class Loader:
        def __iter__(self) -> Iterator[int]:
            return broken()

    with pytest.raises(OSError, match="disk"):
        list(watched().batches(Loader(), 9))


@pytest.mark.parametrize(
    ("more", "threads"),
    [
        ({}, {"watch", "mail", "report", "seal", "hash", "late"}),
        ({"rank": 1, "world_size": 2}, {"watch", "agree", "report", "late"}),
        ({"on_event": lambda *_: None}, {"watch", "mail", "report", "seal", "hash", "late", "events"}),
        ({"signals": ("TERM",)}, {"watch", "mail", "report", "seal", "hash", "late", "signals"}),
    ],
)
def test_a_monitor_has_the_threads_that_its_page_gives_reasons_for(
    watched: Callable[..., Monitor], tmp_path: Path, more: dict[str, Any], threads: set[str]
) -> None:
    def running() -> set[str]:
        return {thread.name.removeprefix("rekindle-") for thread in threading.enumerate() if "rekindle-" in thread.name}

    before = running()
    monitor = watched(save=lambda step, kind: None, **more)
    monitor.step(1, loss=1.0)
    assert running() - before == threads
    (tmp_path / "weights.pt").write_bytes(b"weights")
    monitor.saved(tmp_path / "weights.pt", 1)
    monitor.step(2, loss=1.0)
    assert running() - before == threads
    page = (Path(__file__).parents[2] / "docs" / "monitor.md").read_text("utf-8")
    assert all(f"`{name}`" in page for name in threads)


class Lazy:
    """A value whose number takes long to get, as a remote one's."""

    def __float__(self) -> float:
        time.sleep(2.0)
        return 1.0


def test_no_step_waits_for_a_value_that_takes_long_to_get(watched: Callable[..., Monitor]) -> None:
    monitor = watched()
    began = time.monotonic()
    monitor.step(1, loss=Lazy(), grad_norm=Lazy(), accuracy=Lazy())
    assert time.monotonic() - began < 1.0


@pytest.mark.parametrize(
    ("values", "outcome", "words"),
    [
        ({"grad_norm": math.nan}, "cannot", "the gradient is not finite"),
        ({"loss": {"total": math.nan}}, "saved", "the loss could not be read"),
        ({"grad_norm": 1.0}, "saved", ""),
    ],
)
def test_all_that_is_known_of_a_step_is_part_of_the_answer_to_a_request(
    watched: Callable[..., Monitor], tmp_path: Path, values: dict[str, Any], outcome: str, words: str
) -> None:
    def save(step: int, kind: str) -> Path:
        (tmp_path / f"{step}.bin").write_bytes(b"weights")
        return tmp_path / f"{step}.bin"

    monitor, box = watched(save=save), ObservedBox(tmp_path)
    request = box.ask("r1", "run-1")
    reply = tmp_path / reply_key(request.request_id)
    for step in range(1, 10_000):
        monitor.step(step, **({"loss": 1.0} | values))
        if reply.exists():
            break
        time.sleep(0.005)
    answer = CheckpointReply.from_json(reply.read_bytes())
    assert (answer.outcome.value, words in answer.why) == (outcome, True)
    if answer.manifest is not None:
        assert box.manifest(answer.manifest).loss_unread is isinstance(values.get("loss"), dict)


def test_a_save_right_after_a_bad_gradient_is_sealed_as_poisoned_and_one_after_a_finite_loss_is_not(
    watched: Callable[..., Monitor], tmp_path: Path
) -> None:
    monitor, box = watched(), ObservedBox(tmp_path)
    for step, grad_norm in ((1, 1.0), (2, math.inf), (3, 1.0)):
        monitor.step(step, loss=1.0, grad_norm=grad_norm)
        (tmp_path / f"{step}.bin").write_bytes(b"weights")
        monitor.saved(tmp_path / f"{step}.bin", step)
    assert monitor.flush(PATIENCE_S)
    assert [box.manifest(manifest_key(step, "run-1")).poisoned for step in (1, 2, 3)] == [False, True, False]
