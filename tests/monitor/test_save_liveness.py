"""Whether another rank still lives: by its process where it is on this host, else by its pulse."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from rekindle.monitor.base.processes import is_gone, own_process
from rekindle.monitor.base.run import SystemClock
from rekindle.monitor.saving.agreement_terms import Bounds
from rekindle.monitor.saving.joint_save import BACK, SaveLiveness
from tests.monitor.exchanges import MemoryExchange, Shared

BOUNDS = Bounds(pulse_s=2.0, lifeless_s=60.0)
SAY_LIFE = (
    "import sys\nfrom rekindle.monitor.base.processes import own_process\n"
    "print(own_process(), flush=True)\nsys.stdin.read()"
)


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process, and what it says of itself."""
    command = [sys.executable, "-c", SAY_LIFE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
        process.kill()


def test_a_process_is_gone_once_it_was_killed_also_while_nothing_has_waited_for_it(
    other: tuple[subprocess.Popen[str], str],
) -> None:
    process, life = other
    assert not is_gone(life)
    process.kill()
    assert process.stdout is not None
    process.stdout.read()  # until its end of the pipe is closed: it is a zombie, or about to become one
    until_gone(life)
    process.wait()
    assert is_gone(life), "and when its number is free"


def until_gone(life: str) -> None:
    for _ in range(10_000):
        if is_gone(life):
            return
    raise AssertionError("it is still said to live")


def test_a_number_that_a_later_process_has_is_not_the_process_that_ended() -> None:
    assert not is_gone(own_process())
    assert is_gone(own_process() + "1")


@pytest.mark.parametrize("life", ["", "1", "1 2", "other-host/pid:[1] 1 1", "a b c", "- - -"])
def test_a_process_that_cannot_be_looked_at_is_not_said_to_be_gone(life: str) -> None:
    assert not is_gone(life)


class Seconds(SystemClock):
    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


class World:
    """Ranks in one save, in a time of their own. `lives`: what each says of itself."""

    def __init__(self, size: int, lives: dict[int, str] | None = None) -> None:
        self.shared, self.clock = Shared(), Seconds()
        self.exchange = MemoryExchange(self.shared)
        self.lives = [
            SaveLiveness("s/1", rank=rank, world_size=size, bounds=BOUNDS, clock=self.clock) for rank in range(size)
        ]
        for rank in range(size):
            self.exchange.put(f"s/1/here/{rank}", (lives or {}).get(rank, "1"))

    def goes_on(self, seconds: int, *ranks: int) -> None:
        for _ in range(seconds):
            for rank in ranks:
                self.lives[rank].turn(self.exchange)
            self.clock.now_s += 1.0

    def text(self, name: str) -> str | None:
        return self.exchange.get(f"s/1/{name}")


def test_ranks_that_count_are_alive() -> None:
    world = World(4)
    world.goes_on(600, 0, 1, 2, 3)
    assert (world.text("failed"), world.text("lifeless"), world.text("gone")) == (None, None, None)


@pytest.mark.parametrize("silent", [{1}, {0}, {1, 2}, {0, 1, 2}])
def test_a_rank_that_stops_counting_is_lifeless_after_a_minute_and_one_that_counts_again_is_back(
    silent: set[int],
) -> None:
    world = World(4)
    world.goes_on(10, 0, 1, 2, 3)
    others = [rank for rank in range(4) if rank not in silent]
    world.goes_on(55, *others)
    assert world.text("failed") is None
    world.goes_on(15, *others)
    assert world.text("lifeless") in {str(rank) for rank in silent}
    assert "did not respond in the save" in (world.text("failed") or "")
    assert world.text("gone") is None
    world.goes_on(6, 0, 1, 2, 3)
    assert world.text("lifeless") == BACK


def test_a_rank_whose_part_is_over_need_not_count() -> None:
    world = World(2)
    world.goes_on(10, 0, 1)
    world.exchange.put("s/1/done/1", "1")
    world.goes_on(600, 0)
    assert world.text("failed") is None


def test_a_rank_whose_process_has_ended_is_gone_at_the_next_look() -> None:
    world = World(3, {2: own_process() + "1"})
    world.goes_on(3, 0, 1)
    assert world.text("gone") == "2"
    assert world.text("failed") == "the process of rank 2 ended in the save"


def test_a_transport_that_takes_half_a_minute_for_a_call_makes_no_rank_lifeless() -> None:
    world = World(2)

    def wait(operation: str, key: str) -> None:
        world.clock.now_s += 30.0

    slow = MemoryExchange(world.shared, before=wait)
    for _ in range(30):
        for lives in world.lives:
            lives.turn(slow)
    assert world.text("failed") is None
