"""Nothing of the monitor is raised into training: bad values, bad environments, full limits, broken logging."""

from __future__ import annotations

import inspect
import logging
import math
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rekindle.protocol.launch_orders as launch_orders
from rekindle.monitor import Monitor, Ranks
from rekindle.monitor.base.guard import must_pass
from rekindle.monitor.base.settings import VARIABLES
from rekindle.monitor.base.trouble import Trouble
from rekindle.monitor.base.worker import Worker
from rekindle.monitor.live import LiveMonitor
from rekindle.monitor.starting import start_in
from rekindle.protocol.wire import MAX_STEP
from tests.monitor.boxes import PATIENCE_S, QUICK, ObservedBox, start_monitor
from tests.monitor.processes import Script
from tests.sizes import examples

pytestmark = pytest.mark.long

JOB = {"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1"}


class CheckpointFailed(BaseException):
    """As torch.distributed.checkpoint.CheckpointException: no Exception."""


class Hostile:
    """Whatever is asked of it raises."""

    def __init__(self, error: type[BaseException]) -> None:
        object.__setattr__(self, "_error", error)

    def _raise(self, *_: object, **__: object) -> Any:
        raise object.__getattribute__(self, "_error")("hostile")

    __float__ = __int__ = __index__ = __str__ = __repr__ = __bool__ = __len__ = __iter__ = __fspath__ = _raise
    __eq__ = __lt__ = __gt__ = __getattr__ = __call__ = __getitem__ = _raise  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


class Tensor:
    """Has `detach`, and can be read as a number only on some days."""

    def __init__(self, value: object) -> None:
        self._value = value

    def detach(self) -> Tensor:
        return self

    def __float__(self) -> float:
        if isinstance(self._value, type):
            raise self._value("a tensor with 3 elements cannot be converted to a number")
        return float(self._value)  # type: ignore[arg-type]


ERRORS = st.sampled_from([ValueError, RuntimeError, MemoryError, RecursionError, StopIteration, CheckpointFailed])
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -1, MAX_STEP, MAX_STEP + 1, math.nan, math.inf, -math.inf, 1e308, -0.0]),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.sampled_from(["saving", "evaluation", "startup", "nan", "s3://", "\udcff", "x" * 100_000]),
    st.lists(st.integers(), max_size=3),
    st.just(object()),
    ERRORS.map(Hostile),
    st.one_of(ERRORS, st.floats()).map(Tensor),
    st.just({"a": {1}, 2: object()}),
)
NAMES = st.one_of(st.text(max_size=5), st.sampled_from(["self", "Loss", "", " ", ":", "é", "\udcff", "n" * 300]))
CALLS = st.one_of(
    st.tuples(
        st.just("step"),
        st.tuples(VALUES),
        st.fixed_dictionaries(
            {}, optional={"loss": VALUES, "grad_norm": VALUES, "tokens": VALUES, "work_s": VALUES}
        ).flatmap(lambda known: st.dictionaries(NAMES, VALUES, max_size=2).map(lambda more: {**more, **known})),
    ),
    st.tuples(
        st.just("saved"),
        st.tuples(VALUES, VALUES),
        st.fixed_dictionaries({}, optional={"files": VALUES, "kind": VALUES, "data": VALUES, "took_s": VALUES}),
    ),
    st.tuples(st.just("local_non_finite"), st.tuples(VALUES, VALUES), st.fixed_dictionaries({"ranks": VALUES})),
    st.tuples(st.just("phase"), st.tuples(VALUES), st.just({})),
    st.tuples(st.just("should_skip"), st.tuples(VALUES), st.just({})),
    st.tuples(st.just("alive"), st.just(()), st.just({})),
    st.tuples(st.just("health"), st.just(()), st.just({})),
)


def call(monitor: Monitor, name: str, values: tuple[object, ...], named: dict[str, object]) -> None:
    named.pop("step", None)
    result = getattr(monitor, name)(*values, **named)
    if name == "phase":
        with result, result:
            pass
    if name == "should_skip":
        assert result is False
    assert monitor.should_stop in (True, False)
    assert monitor.superseded in (True, False)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A mailbox named by a bare word is a folder below the current one; and a Slurm job goes on ignoring SIGUSR1."""
    monkeypatch.chdir(tmp_path)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def started() -> Iterator[list[Monitor]]:
    monitors: list[Monitor] = []
    yield monitors
    for monitor in monitors:
        monitor.finish(timeout_s=PATIENCE_S)


def test_every_method_and_property_of_the_public_face_is_guarded() -> None:
    names = [name for name in vars(Monitor) if not name.startswith("_")]
    assert {"step", "saved", "phase", "finish", "flush", "should_stop"} <= set(names)
    # `resume_path` is read before the first step, and raises: a run whose checkpoint cannot be opened must not start
    # over. What a loader raises passes through `batches`.
    for name in set(names) - {"resume_path", "batches"}:
        found = inspect.getattr_static(LiveMonitor, name)
        function = found.fget if isinstance(found, property) else found
        assert hasattr(function, "guarded_as"), f"{name} could raise into training"


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(calls=st.lists(CALLS, max_size=25), error=st.one_of(st.none(), ERRORS), returned=VALUES)
def test_no_call_with_any_value_raises_ends_a_thread_or_leaves_the_run_unseen(
    tmp_path: Path, calls: list[Any], error: type[BaseException] | None, returned: object
) -> None:
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    box = ObservedBox(folder)

    def save(step: int, kind: str) -> Any:
        if error is not None:
            raise error("no space left on device")
        return returned

    monitor = start_monitor(save=save, mailbox=box, config=QUICK, env=JOB)
    assert isinstance(monitor, LiveMonitor)
    before = {thread.name for thread in threading.enumerate()}
    try:
        monitor.step(1, loss=1.0)
        for number, (name, values, named) in enumerate(calls):
            if number == len(calls) // 2:
                box.ask(f"r{number}", "run-1")
            call(monitor, name, values, named)
        monitor.step(777, loss=2.0)
        box.wait_heartbeat("run-1", lambda heartbeat: heartbeat.step == 777)
        assert {thread.name for thread in threading.enumerate()} >= before, "a thread has died"
        assert monitor.flush(Hostile(CheckpointFailed)) in (True, False)  # type: ignore[arg-type]
    finally:
        monitor.finish(Hostile(CheckpointFailed), 2.0)  # type: ignore[arg-type]
    assert monitor.is_silent
    assert box.heartbeat("run-1").phase == "finished"
    monitor.step(778)
    monitor.finish()


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    arguments=st.fixed_dictionaries(
        {},
        optional={
            "save": VALUES,
            "mailbox": VALUES,
            "job_id": VALUES,
            "ranks": st.one_of(VALUES, st.builds(Ranks, rank=VALUES, world_size=VALUES, exchange=VALUES, share=VALUES)),
            "signals": VALUES,
            "loss_kind": VALUES,
            "on_event": VALUES,
            "attempt": VALUES,
            "config": VALUES,
            "env": st.one_of(VALUES, st.dictionaries(st.sampled_from(sorted(JOB)), VALUES)),
            "clock": VALUES,
        },
    )
)
def test_start_with_any_argument_gives_a_monitor_and_leaves_no_handler_behind(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    before = [signal.getsignal(number) for number in sorted(signal.valid_signals())]
    given = {"mailbox": str(tmp_path)} | arguments
    monitor = start_in(given.pop("env", JOB), **given)
    monitor.step(1, loss=1.0)
    assert monitor.should_stop is False
    monitor.finish(timeout_s=0.1)
    assert [signal.getsignal(number) for number in sorted(signal.valid_signals())] == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_program_passes_from_a_save_and_leaves_the_monitor_usable(
    started: list[Monitor], tmp_path: Path, error: type[BaseException]
) -> None:
    box = ObservedBox(tmp_path)
    errors = [error]

    def save(step: int, kind: str) -> Path:
        if errors:
            raise errors.pop()("by the script")
        (tmp_path / "weights.bin").write_bytes(b"x")
        return tmp_path / "weights.bin"

    monitor = start_monitor(save=save, mailbox=box, config=QUICK, env=JOB)
    started.append(monitor)
    monitor.step(1, loss=1.0)
    box.ask("r1", "run-1")
    box.wait_polls()
    with pytest.raises(error, match="by the script"):
        monitor.step(2, loss=1.0)
    assert isinstance(monitor, LiveMonitor)
    box.wait_heartbeat("run-1", lambda heartbeat: heartbeat.phase == "training" and heartbeat.step == 2)
    box.ask("r2", "run-1")
    for step in range(3, 10_000):
        monitor.step(step, loss=1.0)
        if (tmp_path / "weights.bin").exists():
            break
        box.wait_polls()
    assert box.reply("r2").outcome == "saved"


@pytest.mark.process
def test_an_error_that_a_handler_of_the_script_raises_passes_through_the_monitor() -> None:
    class TimeIsUp(Exception):
        pass

    def handler(*_: object) -> None:
        raise TimeIsUp

    def raised() -> BaseException | None:
        try:
            signal.raise_signal(signal.SIGALRM)
        except BaseException as err:
            return err
        return None

    before = signal.signal(signal.SIGALRM, handler)
    try:
        err = raised()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert err is not None
    assert not must_pass(err), "the handler is not installed any more"
    signal.signal(signal.SIGALRM, handler)
    try:
        assert must_pass(err)
        assert not must_pass(ValueError("of the monitor"))
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, CheckpointFailed, ValueError])
def test_no_error_ends_a_worker_thread(error: type[BaseException]) -> None:
    turns: list[int] = []
    again = threading.Event()

    def turn() -> float:
        turns.append(1)
        if len(turns) == 1:
            raise error("in a thread")
        again.set()
        return 3600.0

    worker = Worker("test", turn, trouble := Trouble())
    worker.start()
    worker.wake()
    assert again.wait(PATIENCE_S)
    worker.end(time.monotonic() + PATIENCE_S)
    assert not worker._thread.is_alive()
    assert trouble.snapshot() == {"inner_error.test": 1}


def test_a_log_handler_that_raises_does_not_reach_training(started: list[Monitor], tmp_path: Path) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise CheckpointFailed("the log server is away")

    broken = Broken()
    log = logging.getLogger("rekindle.monitor")
    log.addHandler(broken)
    try:
        monitor = start_monitor(mailbox=ObservedBox(tmp_path), config=QUICK, env=JOB | {"REKINDLE_HEARTBEAT_S": "x"})
        started.append(monitor)
        assert not monitor.is_silent
        monitor.step("no number", loss=[1])  # type: ignore[arg-type]
        monitor.step(1, loss=object())
        with monitor.phase("no phase"):
            pass
        assert monitor.health()["inner_error.step"] == 1
        assert monitor.health()["bad_phase"] == 1
    finally:
        log.removeHandler(broken)


# ---- environments ----

TRAINS = """
mon = start(**ARGUMENTS)
for step in range(1, 20):
    if mon.should_skip(step): continue
    mon.step(step, loss=1.0, work_s=0.01)
with mon.phase("saving"): pass
mon.saved(here / "none", 19)
mon.finish(timeout_s=1.0)
os.write(1, b'{"trained": true}' + bytes((10,)))
"""
GARBAGE = ("", " ", "x", "-1", "nan", "0", "é\x01", "s3://", "file:", "//", "a" * 5000)
NAMES_OF_ENV = sorted(
    set(VARIABLES)
    | {value for name, value in vars(launch_orders).items() if name.startswith("ENV_") and isinstance(value, str)}
    | {"REKINDLE_MONITOR", "REKINDLE_CLUSTER", "NODE_NAME", "REKINDLE_METRICS"}
    | {"REKINDLE_CLUSTER_FILE", "SAGEMAKER_RESOURCE_CONFIG_PATH", "RANK", "WORLD_SIZE", "GLOO_SOCKET_IFNAME"}
    | {"SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_CLUSTER_NAME"}
    | {"TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE", "LOCAL_RANK"}
)


@settings(max_examples=examples(80), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(env=st.dictionaries(st.sampled_from(NAMES_OF_ENV), st.sampled_from((*GARBAGE, "\udcff\udcfe")), max_size=8))
def test_a_garbled_environment_gives_a_silent_or_a_working_monitor(tmp_path: Path, env: dict[str, str]) -> None:
    monitor = start_monitor(env={"REKINDLE_MAILBOX": str(tmp_path)} | JOB | env)
    monitor.step(1, loss=1.0)
    assert monitor.should_skip(1) in (True, False)
    monitor.finish(timeout_s=0.05)


@pytest.mark.process
@pytest.mark.parametrize(
    ("before", "arguments"),
    [
        ("os.mkdir(here / 'gone'); os.chdir(here / 'gone'); os.rmdir(here / 'gone')", ""),
        ("os.environ.pop('HOME', None); os.environ['PATH'] = ''", ""),
        ("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))", "signals=('TERM', 'USR1')"),
        ("import rekindle.monitor; threading.stack_size(1 << 46)", "signals=('TERM', 'USR1')"),
        ("import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))", ""),
        (
            "for file in (sys.stdin, sys.stdout, sys.stderr): file.close()",
            "signals=('NONE', 'TERM', 'USR1')",
        ),
        ("os.close(2)", "signals=('NONE',)"),
        ("", "mailbox='/proc/no/such/place'"),
        ("", "mailbox='s3://'"),
        ("", "mailbox='http://[::1'"),
        ("(here / 'file').write_text('')", "mailbox=str(here / 'file')"),
        ("os.environ.update({'SLURM_JOB_ID': '1'})", "env={'SLURM_JOB_ID': '1', 'REKINDLE_CLUSTER': ' '}"),
    ],
)
def test_a_bad_environment_does_not_stop_training(tmp_path: Path, before: str, arguments: str) -> None:
    script = Script(tmp_path, f"{before}\n" + TRAINS.replace("**ARGUMENTS", arguments))
    try:
        assert script.heard() == {"trained": True}
        code, errors = script.ended()
        assert code == 0, errors
    finally:
        script.end()


@pytest.mark.process
@pytest.mark.parametrize("name", ["REKINDLE_MAILBOX", "REKINDLE_JOB_ID", "NODE_NAME", "REKINDLE_RESUME_URI"])
def test_bytes_that_are_no_text_in_the_environment_do_not_stop_training(tmp_path: Path, name: str) -> None:
    script = Script(
        tmp_path,
        f"""
        os.environb[{name.encode()!r}] = bytes(range(128, 200))
        os.environ.setdefault("REKINDLE_JOB_ID", "job"); os.environ.setdefault("REKINDLE_MAILBOX", str(here))
        import rekindle.monitor as rekindle
        mon = rekindle.start()
        mon.step(1, loss=1.0)
        mon.finish(timeout_s=1.0)
        say(trained=True)
        """,
    )
    try:
        assert script.heard() == {"trained": True}
        assert script.ended()[0] == 0
    finally:
        script.end()


@pytest.mark.process
def test_a_process_that_may_have_no_more_threads_keeps_its_handlers_and_no_half_started_monitor(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        """
        import rekindle.monitor
        real, left = threading.stack_size, 3
        start_thread = threading.Thread.start
        def start_some(self):
            global left
            left -= 1
            if left < 0:
                threading.stack_size(1 << 46)  # the kernel refuses such a stack: "can't start new thread"
            start_thread(self)
        threading.Thread.start = start_some
        mon = start(signals=("TERM", "USR1"))
        default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        for step in range(1, 20): mon.step(step, loss=1.0)
        mon.finish()
        say(silent=mon.is_silent, default=default)
        """,
    )
    try:
        assert script.heard() == {"silent": True, "default": True}
        code, errors = script.ended()
        assert code == 0
        assert errors.count("could not start") == 1
    finally:
        script.end()


@pytest.mark.process
def test_the_thread_that_judges_losses_is_begun_later_where_the_process_may_have_none_at_first(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        """
        import rekindle.monitor
        saved = []
        mon = start(save=lambda step, kind: saved.append(step) or str(here / "step"), signals=("USR1",))
        (here / "step").write_bytes(b"weights")
        threading.stack_size(1 << 46)  # the kernel refuses such a stack: "can't start new thread"
        mon.step(1, loss=1.0)
        threading.stack_size(0)
        mon.step(2, loss=1.0)
        os.kill(os.getpid(), signal.SIGUSR1)
        mon.step(3, loss=1.0)
        mon.finish()
        say(saved=saved)
        """,
    )
    try:
        assert script.heard() == {"saved": [3]}
        code, errors = script.ended()
        assert code == 0
        assert errors.count("failed in late") == 1
    finally:
        script.end()
