"""What the agent has to tell survives a kill, a full disk, and AWS being away, throttled or denied."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from rekindle.protocol.cluster.documents import SlurmState
from rekindle.protocol.cluster.orders import Outcome, Verb
from rekindle.slurm_agent.base.ports import News, NewsType, Reading
from rekindle.slurm_agent.base.store import BACK_TO_DISK_S, Store
from rekindle.slurm_agent.publishing.outbox import MAX_NEWS, Outbox, OutboxLane
from rekindle.slurm_agent.publishing.publisher import HEARTBEAT
from tests.agent.ctld import START, job
from tests.agent.world import ManualClock, World, unwritten

AWAY = EndpointConnectionError(endpoint_url="https://s3.us-west-2.amazonaws.com")
DENIED = ClientError({"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}, "PutObject")
SLOW_DOWN = ClientError({"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 503}}, "PutObject")
NODES = "clusters/lab/nodes.json"


def news(number: int) -> News:
    return News(type=NewsType.JOB, at=START, detail={"v": 1, "number": number})


def doc(number: int, key: str = NODES) -> Reading:
    return Reading(documents={key: f"{number}".encode()}, news=(news(number),))


def numbers(world: World) -> list[int]:
    return [one["number"] for one in world.told("Rekindle Slurm Job")]


@pytest.mark.parametrize("error", [AWAY, SLOW_DOWN], ids=["away", "throttled"])
def test_what_was_seen_while_aws_was_away_is_told_in_order_with_each_document_in_its_last_state(
    world: World, error: Exception
) -> None:
    world.cut(error)
    for number in range(30):
        world.watcher.readings.append(doc(number))
        world.agent.watch.run_once()
        world.agent.publisher.run_once()
    world.start()  # killed, too
    assert world.read(NODES) is None
    world.cut(None)
    world.agent.publisher.run_once()
    assert world.read(NODES) == b"29"
    assert numbers(world) == list(range(30))
    assert world.agent.outbox.sizes() == {"documents": 0, "news": 0, "dropped": 0}
    assert world.network["s3"].calls.count("put_object") == 2  # the document and the heartbeat


def test_while_aws_is_away_it_is_asked_less_and_less_often(world: World) -> None:
    world.cut(AWAY)
    rests = [world.agent.publisher.run_once() for _ in range(10)]
    assert rests == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    world.cut(None)
    assert world.agent.publisher.run_once() == HEARTBEAT.total_seconds()


def test_a_document_that_is_refused_holds_up_neither_the_others_nor_the_news(world: World) -> None:
    real = world.network["s3"].client

    class Refuses:
        def put_object(self, *, Key: str, **rest: object) -> object:
            if Key == NODES:
                raise DENIED
            return real.put_object(Key=Key, **rest)

    world.network["s3"].client = Refuses()
    world.watcher.readings.append(
        Reading(
            documents={NODES: b"1", **{f"clusters/lab/attempts/{n}.json": b"x" for n in range(45)}}, news=(news(1),)
        )
    )
    world.agent.watch.run_once()
    world.agent.publisher.run_once()
    assert world.read("clusters/lab/attempts/44.json") == b"x"
    assert numbers(world) == [1]
    assert any("AccessDenied" in line for line in world.agent.problems.lines())
    world.network["s3"].client = real
    world.clock.forward(61)
    world.agent.publisher.run_once()
    assert world.read(NODES) == b"1"
    assert world.agent.problems.lines() == ()


def test_the_heartbeat_says_when_slurm_was_read_only_once_all_of_that_stands_on_the_whiteboard(world: World) -> None:
    def heartbeat() -> object:
        world.clock.forward(HEARTBEAT.total_seconds())
        world.agent.publisher.run_once()
        heartbeat = world.heartbeat()
        assert heartbeat is not None
        assert heartbeat.at == world.clock.now()
        return heartbeat.read_at

    assert heartbeat() is None
    world.agent.watch.run_once()
    first = world.clock.now()
    assert heartbeat() == first

    real = world.network["s3"].client

    class Refuses:
        def put_object(self, *, Key: str, **rest: object) -> object:
            if Key == NODES:
                raise DENIED
            return real.put_object(Key=Key, **rest)

    world.network["s3"].client = Refuses()
    world.watcher.readings.append(doc(1))
    world.agent.watch.run_once()
    heartbeat()
    world.watcher.readings.append(doc(2))  # a newer content does not make the missing one any less missing
    world.agent.watch.run_once()
    assert heartbeat() == first
    world.network["s3"].client = real
    last = world.clock.now()
    world.agent.watch.run_once()
    world.clock.forward(61)
    heartbeat()
    assert heartbeat() == last + timedelta(0)


def test_the_first_reading_is_told_at_once_also_where_nothing_has_changed(world: World) -> None:
    """Until then a cluster whose agent was restarted is unknown to the service."""

    def is_woken() -> bool:
        woken = world.agent.publisher._wake.is_set()
        world.agent.publisher._wake.clear()
        return woken

    assert world.agent.watch.run_once()
    assert is_woken()
    world.agent.watch.run_once()
    assert not is_woken()
    world.ctld.is_away = True
    world.agent.watch.run_once()
    assert not is_woken()
    world.ctld.is_away = False
    world.agent.watch.run_once()
    assert is_woken()


@pytest.mark.parametrize("away_s", [0, 600], ids=["first", "after-an-outage"])
def test_news_reach_the_service_only_after_the_time_at_which_their_slurm_was_read(world: World, away_s: int) -> None:
    """The service turns away what it is told of a cluster whose last reading looks old."""
    if away_s:
        world.agent.watch.run_once()
        world.agent.publisher.run_once()
        world.clock.forward(away_s)
        world.agent.publisher.run_once()  # the heartbeat goes on while slurmctld is away
    world.watcher.readings.append(doc(1))
    world.agent.watch.run_once()
    real, seen = world.network["events"].client, []

    class Notes:
        def put_events(self, *, Entries: list[dict[str, object]], **rest: object) -> object:
            heartbeat = world.heartbeat()
            seen.extend((entry["DetailType"], heartbeat and heartbeat.read_at) for entry in Entries)
            return real.put_events(Entries=Entries, **rest)

    world.network["events"].client = Notes()
    world.agent.publisher.run_once()
    assert seen == [("Rekindle Slurm Job", world.clock.now())]


def test_while_slurm_cannot_be_read_the_heartbeat_goes_on_and_its_read_at_stands_still(world: World) -> None:
    world.agent.watch.run_once()
    world.agent.publisher.run_once()
    read_at = world.clock.now()
    world.ctld.is_away = True
    for _ in range(3):
        world.clock.forward(HEARTBEAT.total_seconds())
        world.agent.watch.run_once()
        world.agent.publisher.run_once()
    heartbeat = world.heartbeat()
    assert heartbeat is not None
    assert (heartbeat.at, heartbeat.read_at) == (world.clock.now(), read_at)
    assert any(line.startswith("slurm:") for line in heartbeat.problems)


def test_events_that_the_bus_does_not_take_are_sent_again_and_the_others_are_not(world: World) -> None:
    real, answers = world.network["events"].client, iter([{1}, set()])

    class Picky:
        def put_events(self, *, Entries: list[dict[str, object]]) -> object:
            bad = next(answers)
            good = [entry for index, entry in enumerate(Entries) if index not in bad]
            real.put_events(Entries=good)
            return {"Entries": [{"ErrorCode": "InternalFailure"} if i in bad else {} for i in range(len(Entries))]}

    world.network["events"].client = Picky()
    world.watcher.readings.append(Reading(news=(news(1), news(2), news(3))))
    world.agent.watch.run_once()
    world.agent.publisher.run_once()
    assert sorted(numbers(world)) == [1, 3]
    world.agent.publisher.run_once()
    assert sorted(numbers(world)) == [1, 2, 3]


def test_an_event_that_the_bus_does_not_bear_is_dropped_alone(world: World) -> None:
    real = world.network["events"].client
    bad = ClientError(
        {"Error": {"Code": "ValidationException"}, "ResponseMetadata": {"HTTPStatusCode": 400}}, "PutEvents"
    )

    class Bears:
        def put_events(self, *, Entries: list[dict[str, object]]) -> object:
            if any('"number":12' in str(entry["Detail"]) for entry in Entries):
                raise bad
            return real.put_events(Entries=Entries)

    world.network["events"].client = Bears()
    world.watcher.readings.append(Reading(news=tuple(news(number) for number in range(25))))
    world.agent.watch.run_once()
    world.agent.publisher.run_once()
    assert numbers(world) == [number for number in range(25) if number != 12]
    assert world.agent.outbox.sizes() == {"documents": 0, "news": 0, "dropped": 1}


def test_a_bus_that_refuses_everything_does_not_keep_orders_from_being_answered_and_deleted(world: World) -> None:
    world.network["events"].error = DENIED
    world.ctld.put(job())
    answer = world.carry_out(world.order(Verb.CANCEL, attempt="slurm.lab.7", slurm_job=7))
    assert answer.outcome is Outcome.DONE
    assert world.left() == 0
    assert any("PutEvents" in line for line in world.agent.problems.lines())


def test_news_beyond_the_bound_are_dropped_oldest_first_and_the_count_is_told(tmp_path: Path) -> None:
    outbox = Outbox(Store(tmp_path / "agent.sqlite", clock=ManualClock()))
    outbox.keep(Reading(news=tuple(news(number) for number in range(MAX_NEWS + 7))))
    assert outbox.sizes()["news"] == MAX_NEWS
    assert outbox.sizes()["dropped"] == 7
    assert json.loads(outbox.waiting(OutboxLane.WORLD, 1)[0].detail)["number"] == 7


def test_an_answer_does_not_wait_behind_the_world(world: World) -> None:
    world.watcher.readings.append(Reading(documents={f"clusters/lab/attempts/{n}.json": b"x" for n in range(100)}))
    world.agent.watch.run_once()
    world.ctld.put(job())
    world.send(world.order(Verb.CANCEL, attempt="slurm.lab.7", slurm_job=7))
    world.agent.orders.poll(0)
    world.agent.executor.work()
    written: list[str] = []
    real = world.network["s3"].client

    class Notes:
        def put_object(self, *, Key: str, **rest: object) -> object:
            written.append(Key)
            return real.put_object(Key=Key, **rest)

    world.network["s3"].client = Notes()
    world.agent.publisher.run_once()
    assert written.index("clusters/lab/answers/order-1.json") <= 1  # behind the heartbeat
    assert len(written) == 103  # 100 attempts, the answer, and the heartbeat again once Slurm's reading stands there


def test_a_watchers_memory_and_what_it_told_are_kept_together(world: World) -> None:
    world.watcher.readings.append(Reading(documents={NODES: b"1"}, memory={"seen/7": b"running", "seen/8": b"x"}))
    world.agent.watch.run_once()
    world.watcher.readings.append(Reading(memory={"seen/8": None}))
    world.agent.watch.run_once()
    world.start()
    assert world.agent.outbox.items("seen/") == {"seen/7": b"running"}
    world.agent.publisher.run_once()
    assert world.read(NODES) == b"1"


# ---- the disk


def test_a_state_file_that_cannot_be_opened_is_told_and_orders_are_carried_out_all_the_same(
    world: World, tmp_path: Path
) -> None:
    path = tmp_path / "other" / "agent.sqlite"
    path.mkdir(parents=True)  # a directory in its place
    world.settings = world.settings.read(
        {"REKINDLE_BUCKET": world.settings.bucket, "REKINDLE_CLUSTER": "lab"}, {"state_dir": str(path.parent)}
    )
    world.start()
    world.ctld.put(job())
    order = world.order(Verb.CANCEL, attempt="slurm.lab.7", slurm_job=7)
    assert world.carry_out(order).outcome is Outcome.DONE
    world.send(order)
    world.run_once()
    assert world.ctld.commands == ["cancel 7"]
    heartbeat = world.heartbeat()
    assert heartbeat is not None
    assert any(line.startswith("disk:") for line in heartbeat.problems)

    path.rmdir()
    world.clock.forward(BACK_TO_DISK_S)
    world.run_once()
    world.clock.forward(HEARTBEAT.total_seconds())
    world.agent.watch.run_once()
    world.send(order)
    world.run_once()
    heartbeat = world.heartbeat()
    assert heartbeat is not None
    assert heartbeat.problems == ()
    world.start()  # what happened in memory is on the disk now
    world.send(order)
    world.run_once()
    assert world.ctld.commands == ["cancel 7"]


@pytest.mark.parametrize("content", [b"this is no database", b"SQLite format 3\0" + b"\xff" * 8000])
def test_a_state_file_that_is_broken_is_put_aside(world: World, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken" / "agent.sqlite"
    path.parent.mkdir()
    path.write_bytes(content)
    store = Store(path, clock=world.clock)
    assert store.problem is None
    outbox = Outbox(store)
    outbox.keep(doc(1))
    assert unwritten(Outbox(Store(path, clock=world.clock)), NODES) == b"1"
    assert [one.read_bytes() for one in path.parent.glob("*.broken-*")] == [content]


def test_a_kill_between_two_statements_of_a_transaction_leaves_nothing_of_it(tmp_path: Path) -> None:
    path = tmp_path / "agent.sqlite"
    store = Store(path, clock=ManualClock())
    outbox = Outbox(store)
    with pytest.raises(TypeError):  # in the middle: the first document is in, the second cannot be
        outbox.keep(
            Reading(documents={NODES: b"1"}, news=(news(1), News(type=NewsType.JOB, at=START, detail={"x": START})))
        )
    again = Outbox(Store(path, clock=ManualClock()))
    assert again.sizes() == {"documents": 0, "news": 0, "dropped": 0}
    assert unwritten(again, NODES) is None


def test_deeds_are_told_from_the_journal(world: World) -> None:
    journal = world.agent.journal
    world.ctld.put(job())
    world.carry_out(world.order(Verb.HOLD, attempt="slurm.lab.7", slurm_job=7))
    assert journal.has_ended("slurm.lab.7")
    assert journal.has_requeued("slurm.lab.7.r1")
    assert not journal.has_ended("slurm.lab.7.r1")
    assert not journal.has_requeued("slurm.lab.7.r2")
    world.ctld.put(job(8, state=SlurmState.FAILED))
    world.carry_out(world.order(Verb.CANCEL, "order-2", attempt="slurm.lab.8", slurm_job=8))
    assert not journal.has_ended("slurm.lab.8")  # it had ended by itself
    assert not journal.has_requeued("nonsense")


FULL_DISK = """
import resource, sys
from pathlib import Path
from rekindle.slurm_agent.publishing.outbox import Outbox
from rekindle.slurm_agent.base.ports import Reading
from rekindle.slurm_agent.base.store import Store
from tests.agent.world import ManualClock

path, clock = Path(sys.argv[1]), ManualClock()
store = Store(path, clock=clock)
outbox = Outbox(store)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
for number in range(100):
    outbox.keep(Reading(documents={f"clusters/lab/attempts/{number}.json": bytes(10_000)}))
assert store.problem, "the disk was never full"
assert outbox.sizes()["documents"] == 100
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
clock.forward(31)
outbox.keep(Reading(documents={"clusters/lab/nodes.json": b"1"}))
assert store.problem is None, store.problem
assert Outbox(Store(path, clock=clock)).sizes()["documents"] == 101
print("kept")
"""


def test_while_the_disk_is_full_everything_is_kept_in_memory_and_goes_back_when_there_is_room(tmp_path: Path) -> None:
    """A real limit on the size of files, in a process of its own: SQLite gets an error in the middle of its writes."""
    ran = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "agent.sqlite")],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "kept\n"), ran.stderr
