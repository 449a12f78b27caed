"""Durable executions: started by name, woken early, crashed anywhere, and carried over the death of the process."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aws_durable_execution_sdk_python import DurableContext, durable_execution
from aws_durable_execution_sdk_python.config import CallbackConfig, CompletionConfig, Duration, ParallelConfig

from chalicelib import bootstrap
from localcloud.aws.clock import SIM_EPOCH, RealClock, SimClock
from localcloud.cloud import Cloud
from localcloud.engine.engine import AlreadyStarted, CallbackClosed, Crash, DurableEngine, NoSuchExecution
from localcloud.stack import deploy_rekindle

MINUTE = timedelta(minutes=1)


@contextmanager
def engine_for(handler: Callable[..., Any], **options: Any) -> Iterator[tuple[DurableEngine, SimClock]]:
    clock = SimClock()
    engine = DurableEngine(clock=clock, resolve=lambda _: handler, **options)
    engine.open()
    try:
        yield engine, clock
    finally:
        engine.close()


def looking(callbacks: dict[int, str], seen: list[str], clock: Callable[[], SimClock], looks: int = 3) -> Any:
    """A recovery in miniature: look, then wait 20 minutes or until woken."""

    @durable_execution
    def handler(event: Any, context: DurableContext) -> list[str]:
        out = []
        for turn in range(looks):
            out.append(context.step(lambda _: clock().now().isoformat(), name=f"look-{turn}"))

            def wake(branch: DurableContext, turn: int = turn) -> Any:
                config = CallbackConfig(timeout=Duration.from_hours(24))
                callback = branch.create_callback(name=f"wake-{turn}", config=config)
                branch.step(lambda _: callbacks.__setitem__(turn, callback.callback_id), name=f"publish-{turn}")
                return callback.result()

            def sleep(branch: DurableContext, turn: int = turn) -> None:
                branch.wait(Duration.from_minutes(20), name=f"sleep-{turn}")

            config = ParallelConfig(completion_config=CompletionConfig.first_successful())  # type: ignore[no-untyped-call]
            context.parallel([wake, sleep], name=f"race-{turn}", config=config)
            seen.append(f"passed {turn}")
        return out

    return handler


def test_three_looks_of_twenty_minutes_take_an_hour_of_virtual_time_only() -> None:
    holder: list[SimClock] = []
    with engine_for(looking({}, [], lambda: holder[0])) as (engine, clock):
        holder.append(clock)
        arn = engine.start(function="recover", name="i-1", payload="{}").arn
        assert clock.run_until(lambda: engine.status(arn) == "SUCCEEDED", limit=timedelta(hours=2))
        assert clock.now() == SIM_EPOCH + 60 * MINUTE


def test_a_callback_between_now_and_the_end_of_the_wait_ends_it_at_its_own_moment() -> None:
    holder: list[SimClock] = []
    callbacks: dict[int, str] = {}
    with engine_for(looking(callbacks, [], lambda: holder[0])) as (engine, clock):
        holder.append(clock)
        arn = engine.start(function="recover", name="i-1", payload="{}").arn
        clock.after(25 * MINUTE, lambda: engine.succeed(callbacks[1], b'"woken"'))
        assert clock.run_until(lambda: engine.status(arn) == "SUCCEEDED", limit=timedelta(hours=2))
        looks = json.loads(engine.load(arn).result.result)  # type: ignore[union-attr,arg-type]
        assert looks == [(SIM_EPOCH + minutes * MINUTE).isoformat() for minutes in (0, 20, 25)]
        assert clock.now() == SIM_EPOCH + 45 * MINUTE


def test_a_callback_timeout_runs_in_virtual_time_too() -> None:
    @durable_execution
    def handler(event: Any, context: DurableContext) -> str:
        callback = context.create_callback(name="approve", config=CallbackConfig(timeout=Duration.from_hours(4)))
        try:
            callback.result()
        except Exception as err:
            return type(err).__name__
        return "answered"

    with engine_for(handler) as (engine, clock):
        arn = engine.start(function="recover", name="i-1", payload="{}").arn
        assert clock.run_until(lambda: engine.status(arn) == "SUCCEEDED", limit=timedelta(hours=5))
        assert clock.now() == SIM_EPOCH + timedelta(hours=4)


@durable_execution
def _at_once(event: Any, context: DurableContext) -> Any:
    return event


def test_the_same_name_and_payload_find_the_same_execution_also_when_it_is_closed() -> None:
    with engine_for(_at_once) as (engine, clock):
        first = engine.start(function="recover", name="i-1", payload='{"incident_id": "i"}')
        clock.settle()
        again = engine.start(function="recover", name="i-1", payload='{"incident_id":"i"}')
        assert first.is_new
        assert not again.is_new
        assert again.arn == first.arn
        assert engine.status(again.arn) == "SUCCEEDED"


def test_the_same_name_with_another_payload_is_refused() -> None:
    with engine_for(_at_once) as (engine, clock):
        engine.start(function="recover", name="i-1", payload='{"incident_id": "i"}')
        clock.settle()
        with pytest.raises(AlreadyStarted):
            engine.start(function="recover", name="i-1", payload='{"incident_id": "j"}')


def test_executions_are_listed_by_function_and_status() -> None:
    holder: list[SimClock] = []
    with engine_for(looking({}, [], lambda: holder[0])) as (engine, clock):
        holder.append(clock)
        one = engine.start(function="recover", name="i-1", payload="{}").arn
        engine.start(function="other", name="i-2", payload="{}")
        clock.settle()
        assert [e.durable_execution_arn for e in engine.executions(function="recover")] == [one]
        running = engine.executions(statuses=frozenset({"RUNNING"}))
        assert [e.start_input.execution_name for e in running] == ["i-1", "i-2"]
        assert engine.executions(statuses=frozenset({"SUCCEEDED"})) == []


def test_a_callback_answered_twice_or_of_nobody_is_refused() -> None:
    holder: list[SimClock] = []
    callbacks: dict[int, str] = {}
    with engine_for(looking(callbacks, [], lambda: holder[0])) as (engine, clock):
        holder.append(clock)
        engine.start(function="recover", name="i-1", payload="{}")
        clock.settle()
        engine.succeed(callbacks[0], b"")
        clock.settle()
        with pytest.raises(CallbackClosed):
            engine.succeed(callbacks[0], b"")
        with pytest.raises(NoSuchExecution):
            engine.succeed("bm9ib2R5", b"")


def _crashed_at(moment: str, crash_at: int) -> tuple[int, list[str], str]:
    """Run a small recovery that dies at its n-th checkpoint. Checkpoints seen, side effects, status."""
    effects: list[str] = []
    seen = 0

    @durable_execution
    def handler(event: Any, context: DurableContext) -> str:
        for step in ("stop", "clone"):
            context.step(lambda _, step=step: effects.append(step), name=step)
            context.wait(Duration.from_seconds(30), name=f"after-{step}")
        return "recovered"

    def crash(arn: str, updates: Any) -> None:
        nonlocal seen
        if updates:
            seen += 1
            if seen == crash_at:
                raise Crash("killed here")

    with engine_for(handler) as (engine, clock):
        engine.hook(**{moment: crash})
        arn = engine.start(function="recover", name="i-1", payload="{}").arn
        clock.run_until(lambda: engine.status(arn) != "RUNNING", limit=timedelta(hours=1))
        return seen, effects, engine.status(arn)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_invocation_killed_at_any_checkpoint_comes_back_and_ends_the_same(moment: str) -> None:
    """A side effect happens once more only where the crash fell between it and its checkpoint."""
    checkpoints, _, _ = _crashed_at(moment, crash_at=0)
    assert checkpoints >= 4
    for crash_at in range(1, checkpoints + 1):
        _, effects, status = _crashed_at(moment, crash_at)
        assert status == "SUCCEEDED"
        assert sorted(set(effects), key=effects.index) == ["stop", "clone"]
        assert len(effects) <= (3 if moment == "before" else 2)


PROGRAM = """
import sys
from datetime import timedelta
from pathlib import Path
from aws_durable_execution_sdk_python import durable_execution
from aws_durable_execution_sdk_python.config import CallbackConfig, CompletionConfig, Duration, ParallelConfig
from localcloud.aws.clock import RealClock
from localcloud.engine.engine import DurableEngine

folder = Path(sys.argv[1])

@durable_execution
def handler(event, context):
    def note(text):
        with (folder / "effects").open("a") as file:
            file.write(text + "\\n")
        return text
    context.step(lambda _: note("stopped"), name="stop")
    context.wait(Duration.from_seconds(1), name="short")
    def wake(branch):
        callback = branch.create_callback(name="wake", config=CallbackConfig(timeout=Duration.from_hours(1)))
        branch.step(lambda _: (folder / "callback").write_text(callback.callback_id), name="publish")
        return callback.result()
    race = ParallelConfig(completion_config=CompletionConfig.first_successful())
    context.parallel([wake, lambda branch: branch.wait(Duration.from_hours(1), name="long")], name="race", config=race)
    context.step(lambda _: note("cloned"), name="clone")
    return "recovered"

clock = RealClock()
engine = DurableEngine(clock=clock, resolve=lambda _: handler, store=folder / "durable.sqlite")
engine.open()
print("resumed", len(engine.resume("recover")), flush=True)
arn = engine.start(function="recover", name="i-1", payload="{}").arn
for line in sys.stdin:
    if line.strip() == "wake":
        engine.succeed((folder / "callback").read_text(), b"")
    if line.strip() == "finish":
        clock.run_until(lambda: engine.status(arn) != "RUNNING", limit=timedelta(minutes=4))
        print(engine.status(arn), flush=True)
        break
    if line.strip() == "published":
        def is_published():
            return any(op.name == "publish" and op.status.value == "SUCCEEDED" for op in engine.load(arn).operations)
        clock.run_until(is_published, limit=timedelta(minutes=4))
        print("yes", flush=True)
engine.close()
"""


def test_an_execution_survives_the_death_of_its_process(tmp_path: Path) -> None:
    def run() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def ask(process: subprocess.Popen[str], *words: str) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("".join(f"{word}\n" for word in words))
        process.stdin.flush()
        return process.stdout.readline().strip()

    first = run()
    assert ask(first) == "resumed 0"
    assert ask(first, "published") == "yes"
    os.kill(first.pid, signal.SIGKILL)
    first.wait()

    second = run()
    assert ask(second) == "resumed 1"
    assert ask(second, "wake", "finish") == "SUCCEEDED"
    second.wait()
    assert (tmp_path / "effects").read_text().split() == ["stopped", "cloned"]


def test_an_invocation_that_is_under_way_ends_before_the_engine_is_closed() -> None:
    began, ended = threading.Event(), threading.Event()

    @durable_execution
    def slow(event: Any, context: DurableContext) -> None:
        began.set()
        threading.Event().wait(0.3)
        ended.set()

    engine = DurableEngine(clock=RealClock(), resolve=lambda _: slow)
    engine.open()
    engine.start(function="recover", name="i-1", payload="{}")
    assert began.wait(10)
    engine.close()
    assert ended.is_set()


def test_the_service_logs_to_the_standard_output_of_its_own_cloud_whatever_became_of_the_one_before() -> None:
    for text in ("first", "second"):
        with redirect_stdout(io.StringIO()) as out, Cloud() as cloud:
            service = deploy_rekindle(cloud)
            try:
                service.observability.logger.warning(text)
            finally:
                bootstrap.install(None)
            assert text in out.getvalue()
        out.close()
