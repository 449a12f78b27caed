"""A store that answers late or never, and hosts whose clocks are wrong: neither holds a run up, nor changes a reply."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import moto.s3.models
import pytest
from botocore.config import Config
from moto.server import ThreadedMotoServer

from rekindle.detectors.points import Verdict
from rekindle.monitor.base.aws import Clients
from rekindle.monitor.base.run import Identity, Run, SystemClock
from rekindle.monitor.base.settings import Config as Settings
from rekindle.monitor.liveness.reporter import Reporter
from rekindle.monitor.mail.bounded import Budget, TooSlow
from rekindle.monitor.mail.boxes import BoxAround, DirectoryBox, S3Box
from rekindle.monitor.mail.requests import Requests
from rekindle.monitor.mail.requests import Verdict as Judgement
from rekindle.protocol.keys import request_key
from rekindle.protocol.mailbox import CheckpointRequest, ReplyOutcome
from rekindle.protocol.reports import RankReport, ReportKind
from rekindle.protocol.wire import Place
from tests.monitor.boxes import PATIENCE_S, QUICK, ObservedBox, start_monitor

pytestmark = pytest.mark.long

ENV = {"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1"}
KEYS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-west-2",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class SilentBox(DirectoryBox):
    """Answers nothing until the test is over."""

    def __init__(self, directory: Path) -> None:
        super().__init__(str(directory))
        self.is_over = threading.Event()
        self.asked = threading.Event()

    def _hang(self, *_: object, **__: object) -> Any:
        self.asked.set()
        self.is_over.wait()
        raise OSError("the test is over")

    get = get_aged = written_at = put = put_new = replace = names = _hang


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[SilentBox]:
    box = SilentBox(tmp_path / "mailbox")
    yield box
    box.is_over.set()


@contextmanager
def black_hole() -> Iterator[str]:
    """An endpoint that takes connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    taken.append(server.accept()[0])
                except OSError:  # closed
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    for connection in taken:
        connection.close()


def saved(tmp_path: Path, step: int) -> Path:
    path = tmp_path / f"step-{step}.bin"
    path.write_bytes(b"weights")
    return path


# ---- start and finish ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_repeat", [False, True])
def test_a_start_and_a_finish_return_while_the_mailbox_has_answered_nothing(
    silent: SilentBox, tmp_path: Path, is_repeat: bool
) -> None:
    env = ENV | {"REKINDLE_RESUME_STEP": "5", "REKINDLE_RESUME_URI": str(saved(tmp_path, 5))}
    env |= {"REKINDLE_RESUME_MANIFEST": f"{tmp_path}/mailbox/rekindle/manifests/step-000000000005-run-1.json"}
    env |= {"REKINDLE_ATTEMPT": "2", "REKINDLE_CHECKPOINT_DIR": str(tmp_path)} if is_repeat else {}
    monitor = start_monitor(mailbox=silent, config=QUICK, env=env)
    assert not monitor.is_silent
    assert (monitor.resume.step, monitor.resume.uri) == (5, env["REKINDLE_RESUME_URI"]), "as the environment says"
    monitor.step(6, loss=1.0)
    monitor.saved(saved(tmp_path, 6), 6)
    assert silent.asked.is_set()
    monitor.finish()
    assert not silent.is_over.is_set()


def test_a_finish_with_an_emergency_that_cannot_be_sealed_ends_too_and_says_so(
    silent: SilentBox, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = start_monitor(mailbox=silent, config=QUICK, env=ENV, save=lambda step, kind: saved(tmp_path, step))
    monitor.step(1, loss=1.0)
    monitor._stopping.signals.wants_save = True  # type: ignore[attr-defined]  # what the handler of SIGUSR1 sets
    step = 1
    pause = threading.Event()
    while not (tmp_path / f"step-{step}.bin").exists():
        step += 1
        monitor.step(step, loss=1.0)
        assert not pause.wait(0.01)
        assert step < PATIENCE_S / 0.01
    monitor.finish()
    assert "could not be sealed" in caplog.text


def test_a_black_hole_for_s3_holds_up_neither_start_nor_step_nor_finish(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with black_hole() as endpoint:
        for name, value in (KEYS | {"AWS_ENDPOINT_URL": endpoint}).items():
            monkeypatch.setenv(name, value)
        env = ENV | {"REKINDLE_MAILBOX": "s3://box/run", "REKINDLE_BUS": "bus", "REKINDLE_ATTEMPT": "2"}
        monitor = start_monitor(
            config=QUICK, env=env | {"REKINDLE_CHECKPOINT_DIR": str(tmp_path), "REKINDLE_RESUME_STEP": "3"}
        )
        assert monitor.resume.step == 3
        for step in range(4, 1000):
            monitor.step(step, loss=1.0)
        monitor.saved(saved(tmp_path, 999), 999)
        monitor.finish()


def test_calls_that_share_a_budget_stop_being_made_when_it_is_used_up(silent: SilentBox) -> None:
    before = set(threading.enumerate())  # calls of an earlier test that still hang
    box = BoxAround(silent, Budget(0.05).call)
    for _ in range(3):
        with pytest.raises(TooSlow):
            box.get("rekindle/fence.json")
    assert sum(thread.name == "rekindle-start" for thread in set(threading.enumerate()) - before) <= 1


def test_what_a_bounded_call_raises_and_returns_is_what_the_mailbox_does(tmp_path: Path) -> None:
    box = BoxAround(DirectoryBox(str(tmp_path)), Budget(PATIENCE_S).call)
    assert box.get("rekindle/a.json") is None
    assert box.put_new("rekindle/a.json", b"1")
    assert (box.get("rekindle/a.json"), box.names("rekindle/")) == (b"1", ("rekindle/a.json",))
    assert not box.replace("rekindle/a.json", b"3", b"2")
    assert box.replace("rekindle/a.json", b"3", b"1")
    (tmp_path / "rekindle" / "b.json").mkdir()
    with pytest.raises(IsADirectoryError):
        box.get("rekindle/b.json")


# ---- clocks --------------------------------------------------------------------------------------------------------


class WrongClock(SystemClock):
    """A host whose clock is off."""

    def __init__(self, off: timedelta) -> None:
        self._off = off

    def now(self) -> datetime:
        return super().now() + self._off


OFF = [timedelta(minutes=-17), timedelta(minutes=17), timedelta(days=-400)]


@pytest.mark.parametrize("off", OFF, ids=str)
def test_a_wrong_clock_refuses_no_request_and_bars_no_checkpoint(tmp_path: Path, off: timedelta) -> None:
    box = ObservedBox(tmp_path / "mailbox")
    monitor = start_monitor(
        save=lambda step, kind: saved(tmp_path, step), mailbox=box, config=QUICK, env=ENV, clock=WrongClock(off)
    )
    try:
        box.ask("r1", "run-1", within_s=60.0)
        box.wait_polls()
        monitor.step(1, loss=1.0)
        assert box.reply("r1").outcome is ReplyOutcome.SAVED
    finally:
        monitor.finish(timeout_s=PATIENCE_S)


def test_a_request_that_nobody_gets_to_is_answered_before_its_deadline_by_this_process_s_own_clock() -> None:
    requests = Requests(Identity(job_id="job", attempt="run-1", attempt_number=1, rank=0, world_size=1))
    request = CheckpointRequest(request_id="r", job_id="job", attempt="run-1", deadline_s=600.0, reason="")
    assert requests.offer(request, now=1000.0, age_s=100.0) is Judgement.TAKEN
    assert requests.next_due() == 1000.0 + 500.0 - 10.0
    short = replace(request, request_id="s", deadline_s=20.0)
    assert requests.offer(short, now=1000.0) is Judgement.TAKEN
    assert requests.next_due() == 1018.0
    assert requests.offer(replace(request, request_id="t"), now=0.0, age_s=600.0) is Judgement.EXPIRED


class PatientClients(Clients):
    """The monitor gives S3 up after five seconds, which moto's first answers take on a loaded machine."""

    def get(self, service: str) -> Any:
        if service not in self._made:
            config = Config(connect_timeout=PATIENCE_S, read_timeout=PATIENCE_S)
            self._made[service] = boto3.session.Session().client(service, config=config)
        return self._made[service]


@pytest.fixture
def s3(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Box]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in (KEYS | {"AWS_ENDPOINT_URL": f"http://{host}:{port}"}).items():
        monkeypatch.setenv(name, value)
    clients = PatientClients()
    bucket = f"box-{abs(hash(request.node.name))}"  # the servers of one process share what they hold
    clients.get("s3").create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    yield S3Box(Place.parse(f"s3://{bucket}/run"), clients)
    server.stop()


def test_a_request_s_age_is_told_by_s3_s_clock_alone(s3: S3Box, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(moto.s3.models, "utcnow", lambda: datetime.now(UTC).replace(tzinfo=None) - timedelta(seconds=500))
        s3.put(request_key("old"), b"old")
    s3.put(request_key("new"), b"new")
    assert 495 <= s3.get_aged(request_key("old"))[1] <= 500 + PATIENCE_S
    assert s3.get_aged(request_key("new"))[1] <= PATIENCE_S
    assert s3.get_aged(request_key("none")) == (None, 0.0)
    old, new = s3.written_at(request_key("old")), s3.written_at(request_key("new"))
    assert old is not None
    assert new is not None
    assert old < new


def test_in_s3_only_what_was_read_is_replaced(s3: S3Box) -> None:
    s3.put("rekindle/manifests/a.json", b"1")
    assert not s3.replace("rekindle/manifests/a.json", b"3", b"2")
    assert s3.replace("rekindle/manifests/a.json", b"3", b"1")
    assert s3.get("rekindle/manifests/a.json") == b"3"
    assert not s3.replace("rekindle/manifests/none.json", b"1", b"0")


@pytest.mark.parametrize("off", OFF, ids=str)
def test_the_paces_of_ranks_whose_clocks_are_wrong_are_compared(tmp_path: Path, off: timedelta) -> None:
    """And one that stops reporting is left out, whatever date its last pace bears."""
    time = Steady()
    compared: list[dict[int, float]] = []

    class Watch:
        def update(self, step: int, step_s: dict[int, float], /) -> tuple[Verdict, ...]:
            compared.append(step_s)
            return ()

    box = DirectoryBox(str(tmp_path))
    reporter = Reporter(
        Run(
            identity=Identity(job_id="job", attempt="run-1", attempt_number=1, rank=0, world_size=3, host="h"),
            config=Settings(pace_s=10.0),
            clock=time,
        ),
        box=box,
        phase=lambda: "training",
        stragglers=Watch(),  # type: ignore[arg-type]
        on_straggler=lambda verdict, paces: None,
    )
    reporter.turn(is_last=False)  # rank 0's greeting, under the name of its pace
    for window in range(6):
        for rank in (0, 1, 2):
            if rank != 2 or window < 2:
                at = datetime(2026, 1, 1, tzinfo=UTC) + off + timedelta(seconds=window)
                box.put((pace := a_pace(rank, at)).key, pace.to_json())
        time.seconds += 25.0 if window == 0 else 10.0
        reporter.turn(is_last=False)
    assert [sorted(found) for found in compared] == [[0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1], [0, 1]]


class Steady(SystemClock):
    """Time as the test says."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


def a_pace(rank: int, at: datetime) -> RankReport:
    return RankReport(
        kind=ReportKind.PACE,
        job_id="job",
        attempt="run-1",
        rank=rank,
        world_size=3,
        host="h",
        at=at,
        step=int(at.timestamp()) % 1000,
        step_s=0.5,
    )
