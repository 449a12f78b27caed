"""What the monitor knows of a loss: as it was at its step, in time for a save, from the rank that has it."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.detectors.health import Health
from rekindle.monitor import Monitor
from rekindle.monitor.base.run import Identity, Run
from rekindle.monitor.base.settings import Config
from rekindle.monitor.base.state import ACT_AFTER, LASTING, BadSteps, BadStretch, RunState
from rekindle.monitor.base.values import Unreadable, _OwnCopies, capture, is_pending, is_ready, read
from rekindle.monitor.loss.judging_rank import MIN_CALLS, JudgingRank, LossNews, RemoteLoss
from rekindle.monitor.loss.scaler import CALM_STEPS, SKIPS_IN_A_ROW, ScaleWatch
from rekindle.monitor.mail.exchange import BoxExchange
from rekindle.protocol.mailbox import LossState, ReplyOutcome
from tests.monitor.boxes import PATIENCE_S, QUICK, ObservedBox, start_monitor


@pytest.fixture
def box(tmp_path: Path) -> ObservedBox:
    return ObservedBox(tmp_path / "mailbox")


@pytest.fixture
def started() -> Iterator[list[Monitor]]:
    monitors: list[Monitor] = []
    yield monitors
    for monitor in monitors:
        monitor.finish(timeout_s=PATIENCE_S)


def start(started: list[Monitor], box: ObservedBox, **more: Any) -> Monitor:
    env = {"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1"}
    monitor = start_monitor(mailbox=box, **{"config": QUICK, "env": env} | more)
    assert not monitor.is_silent
    started.append(monitor)
    return monitor


def a_file(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(b"weights")
    return path


class OnADevice:
    """What the monitor sees of a jax.Array: computed some time after it was handed over, and never changed."""

    shape = ()

    def __init__(self, value: float) -> None:
        self._value = value
        self.is_computed = threading.Event()

    def is_ready(self) -> bool:
        return self.is_computed.is_set()

    def item(self) -> float:
        self.is_computed.wait(PATIENCE_S)
        return self._value


OnADevice.__module__ = "jaxlib.xla_extension"


class OddError(BaseException):
    """As torch's CheckpointException: no Exception, and yet an error."""


class Odd:
    def __float__(self) -> float:
        raise OddError


# ---- values --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (3, 3.0),
        (True, 1.0),
        (np.float32(1.5), 1.5),
        (np.array(2.5), 2.5),
        (np.array([[4]]), 4.0),
        (np.ma.array(2.0), 2.0),
        (np.float16("inf"), math.inf),
    ],
)
def test_one_number_of_any_kind_is_read_at_once(value: object, number: float) -> None:
    assert capture(value) == number


@pytest.mark.parametrize(
    "value",
    [
        "1.0",
        b"1",
        10**400,
        object(),
        [1.0],
        {},
        1j,
        np.zeros(2),
        np.zeros(0),
        np.complex64(1),
        np.datetime64("2026-01-01"),
        np.array(["1"]),
        np.array([None]),
        np.ma.masked,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_single_real_number_is_not_known_and_raises_nothing(value: object) -> None:
    assert isinstance(capture(value), Unreadable)


def test_an_object_of_any_class_is_read_later_and_not_known_where_it_raises() -> None:
    assert is_pending(value := capture(Odd()))
    assert read(value) is None


def test_what_a_subclass_makes_of_its_float_is_not_called_in_a_step() -> None:
    class Asks(int):
        def __float__(self) -> float:
            raise KeyboardInterrupt

    assert capture(Asks(3)) == 3.0


def test_a_value_that_changes_after_its_step_is_known_as_it_was(started: list[Monitor], box: ObservedBox) -> None:
    monitor = start(started, box)
    total = np.zeros(100_000)
    for step in range(1, 201):
        total[7] += math.nan if step == 150 else step
        monitor.step(step, loss=total[7:8], grad_norm=total[7:8])
        total[:] = 0.0
    losses = [monitor._state.loss_at(step) for step in range(1, 201)]  # type: ignore[attr-defined]
    assert [step for step, loss in enumerate(losses, start=1) if loss != step] == [150]
    assert math.isnan(losses[149] or 0.0)


class Stream:
    """Stands for a device's stream: what was queued on it is done when the test says so."""

    device_index = 0

    def __init__(self) -> None:
        self.asked_by: list[int] = []
        self.made = self.queued = self.done = 0
        self.has_failed = self.is_capturing = False

    def event(self) -> Event:
        self.made += 1
        return Event(self)


class Event:
    def __init__(self, stream: Stream) -> None:
        self._stream, self._after = stream, 0

    def record(self, stream: Stream) -> None:
        self._after = stream.queued

    def query(self) -> bool:
        self._stream.asked_by.append(threading.get_ident())
        if self._stream.has_failed:
            raise RuntimeError("the device has failed")
        return self._stream.done >= self._after


class OnTheDevice:
    device = "cuda:0"

    def __init__(self, number: float, stream: Stream) -> None:
        self._number, self._stream = number, stream

    def to(self, where: str, *, non_blocking: bool) -> float:
        assert (where, non_blocking) == ("cpu", True)
        self._stream.queued += 1
        return self._number


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    stream = Stream()
    cuda = SimpleNamespace(
        current_stream=lambda _: stream,
        Event=stream.event,
        is_current_stream_capturing=lambda: stream.is_capturing,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
    return stream


def test_copies_are_read_by_the_thread_that_began_them_and_their_events_are_used_again(stream: Stream) -> None:
    torch, own = sys.modules["torch"], _OwnCopies()
    copies = [own.begin(torch, OnTheDevice(float(number), stream)) for number in (1, 2, 3)]
    assert own.collect()
    assert not any(map(is_ready, copies))
    stream.done = 2
    other = threading.Thread(target=own.collect)
    other.start()
    other.join()
    assert not any(map(is_ready, copies))
    stream.is_capturing = True
    asked = len(stream.asked_by)
    assert own.collect()
    assert len(stream.asked_by) == asked, "a question would end the capture"
    stream.is_capturing = False
    assert own.collect()
    assert [(is_ready(copy), read(copy)) for copy in copies[:2]] == [(True, 1.0), (True, 2.0)]
    assert not is_ready(copies[2])
    own.begin(torch, OnTheDevice(4.0, stream))
    stream.done = 4
    assert not own.collect()
    assert stream.made == 3
    assert set(stream.asked_by) == {threading.get_ident()}


def test_a_value_of_a_device_that_failed_is_not_known_and_nothing_waits_for_it(stream: Stream) -> None:
    own = _OwnCopies()
    copy = own.begin(sys.modules["torch"], OnTheDevice(1.0, stream))
    stream.has_failed = True
    assert not own.collect()
    assert is_ready(copy)
    assert read(copy) is None


# ---- what is not finite --------------------------------------------------------------------------------------------


def bad(step: int) -> BadStretch:
    return BadStretch(step=step, loss_state=LossState.NAN, metric="loss", own=False, alone=None)


def test_a_value_that_is_finite_again_at_the_next_step_is_no_more_than_news() -> None:
    state = RunState()
    reports = [state.see_loss(step, math.nan if step % 50 == 0 else 1.0)[0] for step in range(1, 400)]
    assert not any(reports)
    assert state.newest_loss() == (1.0, LossState.FINITE)


def test_the_third_bad_step_in_a_row_reports_the_first_and_no_later_one_does() -> None:
    state = RunState()
    reports = [state.see_loss(step, math.inf if step >= 5 else 1.0)[0] for step in range(1, 50)]
    [(at, report)] = [(step, found) for step, found in enumerate(reports, start=1) if found is not None]
    assert (at, report.step, report.loss_state) == (5 + ACT_AFTER - 1, 5, LossState.INF)


def test_the_heartbeat_never_has_an_older_loss_or_a_finite_one_while_the_newest_is_bad() -> None:
    state = RunState()
    state.see_loss(1, 2.0)
    state.see_loss(2, math.nan)
    assert state.newest_loss() == (None, LossState.NONE)
    state.see_loss(3, math.nan)
    state.see_loss(4, math.nan)
    assert state.newest_loss() == (None, LossState.NAN)
    state.see_loss(5, 2.0)
    assert state.newest_loss() == (2.0, LossState.FINITE)


def test_bad_steps_that_come_back_again_and_again_are_reported_though_each_passes() -> None:
    steps = BadSteps()
    reports = []
    for step in range(60):
        if step % 4 == 0:
            reports.append(steps.bad(bad(step)))
        else:
            steps.good()
    assert [found.step for found in reports if found is not None] == [4 * (LASTING[0] - 1)]


def test_what_a_run_ends_with_is_reported_however_short_it_was() -> None:
    state = RunState()
    state.see_loss(8, math.nan)
    assert (found := state.bad_at_the_end()) is not None
    assert found.step == 8
    assert state.bad_at_the_end() is None


def test_a_bad_gradient_and_the_losses_that_follow_from_it_are_one_stretch() -> None:
    state = RunState()
    state.see_loss(9, 1.0)
    assert state.see_own_bad(10, "gradient", True) == (None, True)
    assert state.see_loss(10, 1.0) == (None, False)
    assert state.is_poisoned
    assert state.see_loss(11, math.nan) == (None, False)
    report, _ = state.see_loss(12, math.nan)
    assert report is not None
    assert (report.step, report.metric, report.own, report.alone) == (10, "gradient", True, True)


@given(st.lists(st.sampled_from([1.0, math.nan, math.inf]), min_size=1, max_size=40), st.integers(0, 39))
def test_weights_may_be_poisoned_from_the_step_before_the_bad_losses_that_no_good_one_has_followed(
    losses: list[float], saved: int
) -> None:
    state = RunState()
    for step, loss in enumerate(losses):
        state.see_loss(step, loss)
    saved = min(saved, len(losses) - 1)
    bad_since = len(losses)
    while bad_since and not math.isfinite(losses[bad_since - 1]):
        bad_since -= 1
    expected = bad_since < len(losses) and saved >= bad_since - 1
    assert state.may_be_poisoned_at(saved) is expected


# ---- saves and seals -----------------------------------------------------------------------------------------------


def test_a_save_waits_for_the_loss_of_its_own_step_and_none_is_made_of_poisoned_weights(
    started: list[Monitor], box: ObservedBox, tmp_path: Path
) -> None:
    saves: list[int] = []

    def save(step: int, kind: str) -> Path:
        saves.append(step)
        return a_file(tmp_path, f"{step}.bin")

    monitor = start(started, box, save=save)
    monitor.step(1, loss=2.0)
    box.ask("r1", "run-1")
    box.wait_polls()
    loss = OnADevice(math.nan)
    threading.Timer(0.2, loss.is_computed.set).start()
    monitor.step(2, loss=loss)
    assert box.reply("r1").outcome is ReplyOutcome.CANNOT
    assert "not finite" in box.reply("r1").why
    assert (saves, box.manifests) == ([], [])


def test_a_manifest_has_the_loss_of_its_own_step_read_when_it_is_sealed(
    started: list[Monitor], box: ObservedBox, tmp_path: Path
) -> None:
    monitor = start(started, box)
    monitor.step(1, loss=2.0)
    loss = OnADevice(1.25)
    monitor.step(2, loss=loss)
    monitor.saved(a_file(tmp_path, "2.bin"), 2)
    loss.is_computed.set()
    monitor.step(3, loss=1.0)
    monitor.saved(a_file(tmp_path, "1.bin"), 1)
    assert monitor.flush(PATIENCE_S)
    assert {box.manifest(key).step: box.manifest(key).loss for key in box.manifests} == {1: 2.0, 2: 1.25}


def test_a_checkpoint_whose_loss_turns_out_bad_when_it_is_read_is_sealed_as_poisoned(
    started: list[Monitor], box: ObservedBox, tmp_path: Path
) -> None:
    monitor = start(started, box)
    monitor.step(1, loss=2.0)
    loss = OnADevice(math.nan)
    monitor.step(2, loss=loss)
    monitor.saved(a_file(tmp_path, "2.bin"), 2)
    loss.is_computed.set()
    assert monitor.flush(PATIENCE_S)
    manifest = box.manifest(box.manifests[0])
    assert (manifest.poisoned, manifest.loss) == (True, None)


def test_a_manifest_has_no_loss_where_its_step_had_none(
    started: list[Monitor], box: ObservedBox, tmp_path: Path
) -> None:
    monitor = start(started, box)
    monitor.step(1, loss=2.0)
    monitor.step(2)
    monitor.saved(a_file(tmp_path, "2.bin"), 2)
    assert monitor.flush(PATIENCE_S)
    assert box.manifest(box.manifests[0]).loss is None


def test_values_that_cannot_be_read_are_noted_once_and_training_goes_on(
    started: list[Monitor], box: ObservedBox, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = start(started, box)
    for step in range(50):
        monitor.step(step, loss=np.zeros(3), grad_norm=object(), tokens="many", accuracy=np.complex64(1))
    monitor.step(50, loss=1.0)
    assert box.wait_heartbeat("run-1", lambda heartbeat: heartbeat.step == 50).loss == 1.0
    noted = [record.message for record in caplog.records if "is not known" in record.message]
    assert len(noted) == 4, noted


# ---- the gradient scaler -------------------------------------------------------------------------------------------


def test_a_skip_of_the_scaler_is_counted_and_a_collapse_of_its_scale_is_reported_once() -> None:
    watch = ScaleWatch()
    scale, reports, skips = 65536.0, [], 0
    for step in range(100):
        scale = scale / 2 if step % 30 == 0 or step >= 60 else scale
        found = watch.see(step, scale)
        skips += watch.skipped
        if found is not None:
            reports.append((step, found.step))
    assert skips == 1 + 40, "the first value that is seen is compared with nothing"
    [(at, first)] = reports
    assert first == 60
    assert at <= 60 + SKIPS_IN_A_ROW
    for step in range(100, 100 + CALM_STEPS):
        assert watch.see(step, 65536.0) is None
    assert watch.see(200, 0.5) is not None


def test_a_run_whose_scale_has_collapsed_makes_no_update_until_the_first_step_without_a_skip() -> None:
    watch, scale = ScaleWatch(), 65536.0
    for step in range(60):
        scale = scale / 2 if step >= 10 else scale
        watch.see(step, scale)
        is_told = watch.no_update_since == 10
        assert is_told is (step - 10 >= 16), "65,536 halved seventeen times is below 1"
    watch.see(60, scale)
    assert watch.no_update_since is None
    for step in range(61, 65):  # a scale that is below 1 and skips now and then: updates are made
        watch.see(step, scale / 2 if step == 63 else scale)
    assert watch.no_update_since is None


def test_the_heartbeat_says_so_while_the_loss_is_a_number(started: list[Monitor], box: ObservedBox) -> None:
    monitor, scaler = start(started, box), Scaler()
    monitor.scaler(scaler)
    for step in range(1, 40):
        monitor.step(step, loss=2.0)
        scaler._scale = scaler._scale / 2 if step >= 5 else scaler._scale
    beat = monitor._accounts.heartbeat()  # type: ignore[attr-defined]
    assert (beat.loss, beat.loss_state, beat.loss_health, beat.onset_step) == (None, "inf", "non_finite", 6)
    monitor.step(40, loss=2.0)
    monitor.step(41, loss=2.0)
    beat = monitor._accounts.heartbeat()  # type: ignore[attr-defined]
    assert (beat.loss, beat.loss_state) == (2.0, "finite")


class Scaler:
    """What is used of a torch.amp.GradScaler."""

    _scale: Any = 65536.0

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled

    def is_enabled(self) -> bool:
        return self._enabled

    def get_scale(self) -> float:
        raise AssertionError("it waits for the device")


def test_gradients_before_unscaling_are_not_judged_and_a_scaler_that_is_off_changes_nothing(
    started: list[Monitor], box: ObservedBox
) -> None:
    monitor = start(started, box)
    monitor.scaler(Scaler(enabled=False))
    monitor.scaler(None)
    monitor.scaler(42)
    monitor.local_non_finite(1, "gradient")
    assert "scaled_gradients_not_finite" not in monitor.health()
    monitor.step(2, loss=1.0)
    monitor.scaler(Scaler())
    for step in range(3, 10):
        monitor.local_non_finite(step, "gradient")
    assert monitor.health()["scaled_gradients_not_finite"] == 7
    assert not monitor._state.is_poisoned  # type: ignore[attr-defined]


# ---- which rank judges ---------------------------------------------------------------------------------------------


class Ranks:
    """Seats of one run, each with an exchange of its own over one directory."""

    def __init__(self, box: ObservedBox, world_size: int, session: str = "s") -> None:
        self.states = [RunState() for _ in range(world_size)]
        self.news = [LossNews() for _ in range(world_size)]
        self.session = session
        self.learned: list[int] = []
        self.seats = [
            JudgingRank(
                Run(
                    identity=Identity(
                        job_id="job", attempt="run-1", attempt_number=1, rank=rank, world_size=world_size
                    ),
                    config=Config(heartbeat_s=0.0),
                    state=self.states[rank],
                ),
                news=lambda rank=rank: self.news[rank],  # type: ignore[misc]
                on_news=lambda rank=rank: self.learned.append(rank),  # type: ignore[misc]
            )
            for rank in range(world_size)
        ]
        self.exchanges = [BoxExchange(box, attempt="run-1", world_size=world_size) for _ in range(world_size)]

    def step(self, losses: dict[int, float]) -> None:
        for rank, seat in enumerate(self.seats):
            seat.given(losses.get(rank))

    def turn(self) -> None:
        for seat, exchange in zip(self.seats, self.exchanges, strict=True):
            seat.turn(exchange, self.session)

    def turn_until(self, is_so: Any) -> None:
        pause = threading.Event()
        for _ in range(int(PATIENCE_S / 0.05)):
            self.turn()
            if is_so():
                return
            pause.wait(0.05)
        raise AssertionError("still not so")

    def judging(self) -> list[int]:
        return [rank for rank, seat in enumerate(self.seats) if seat.is_mine]


def test_rank_0_judges_where_it_is_given_a_loss(box: ObservedBox) -> None:
    ranks = Ranks(box, 4)
    for _ in range(MIN_CALLS + 1):
        ranks.step(dict.fromkeys(range(4), 1.0))
    for _ in range(5):
        ranks.turn()
    assert ranks.judging() == [0]


def test_exactly_one_of_the_ranks_that_have_the_loss_judges_and_rank_0_learns_what_it_found(box: ObservedBox) -> None:
    ranks = Ranks(box, 8)
    for step in range(1, MIN_CALLS + 1):
        ranks.step({6: 1.0, 7: 1.0})
        for rank in (6, 7):
            ranks.states[rank].see_loss(step, math.nan)
    ranks.news[6] = ranks.news[7] = LossNews(Health.SPIKING, 3, None, 1.5, 9)
    ranks.turn_until(lambda: ranks.seats[0].remote is not None)
    [judge] = ranks.judging()
    remote = ranks.seats[0].remote
    assert remote is not None
    assert judge in (6, 7)
    assert (remote.rank, remote.loss_state, remote.bad_step, remote.news) == (judge, LossState.NAN, 1, ranks.news[6])
    assert ranks.learned == [0]


def test_a_run_that_starts_again_over_the_same_exchange_decides_again(box: ObservedBox) -> None:
    before = Ranks(box, 3, "first")
    for _ in range(MIN_CALLS):
        before.step({2: 1.0})
    before.turn_until(lambda: before.seats[0].remote is not None)
    again = Ranks(box, 3, "second")
    for _ in range(MIN_CALLS):
        again.step(dict.fromkeys(range(3), 1.0))
    for _ in range(3):
        again.turn()
    assert again.judging() == [0]
    assert again.seats[0].remote is None


@given(st.text(max_size=60) | st.just("{}") | st.just("[]") | st.just('{"loss_state": "nan", "health": 3}'))
def test_what_another_rank_says_is_read_whole_or_not_at_all(text: str) -> None:
    with pytest.raises(ValueError):
        RemoteLoss.from_text(text)


def test_the_heartbeat_of_a_pipelines_first_rank_has_what_its_last_rank_found(
    started: list[Monitor], box: ObservedBox
) -> None:
    config = QUICK
    first, last = (start(started, box, rank=rank, world_size=2, config=config) for rank in (0, 1))
    pause = threading.Event()
    step = 0
    while (heartbeat := box.heartbeat("run-1")) is None or heartbeat.loss_state is not LossState.NAN:
        step += 1
        first.step(step)
        last.step(step, loss=2.0 if step < 20 else math.nan)
        assert not pause.wait(0.02)
        assert step < PATIENCE_S / 0.02
    assert heartbeat.rank == 0
