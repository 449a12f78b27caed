"""The ranks of torch.distributed and what they exchange, through its own store, which needs no further connection.

The integrations start and finish the monitor through it (`start`, `finish`); a script's own save waits for the parts of
other ranks (`all_ready`, `all_done`, `gathered`), for a bounded time. Nothing here is a collective.
"""

from __future__ import annotations

import itertools
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist

from rekindle.integrations.versions import is_seen
from rekindle.monitor import Exchange, Monitor, Ranks
from rekindle.monitor import start as start_monitor
from rekindle.monitor.base.settings import process_environment
from rekindle.monitor.saving.saved import SaveFunction

SHARE_S: Final = 120.0  # for what rank 0 knows at the start, where it may look at many checkpoints first
PARTS_S: Final = 1800.0  # for the slowest rank's part of a save
LOOK_S: Final = 0.01
RECONNECT: Final = timedelta(seconds=10)
DCP_TIMEOUT = timedelta(minutes=30)  # a rank may be late by its own part of a save

_dcp: tuple[int, Any] | None = None  # the number of a world, and a reference to its group for DCP
_world: tuple[Any, int] | None = None  # a reference to the newest world, and how many there were before it
_shared: tuple[int, TorchStore] | None = None  # the number of a world, and what its ranks share
_ended_as: tuple[int, int] | None = None  # rank and world size, once this process has ended its collectives
_monitor: weakref.ref[Monitor] | None = None
_gathered: set[str] = set()  # keys that rank 0 has read
_counts: dict[str, int] = {}  # how often this process called a function that all ranks call equally often


def is_distributed() -> bool:
    return bool(dist.is_available() and dist.is_initialized())


def rank_and_world() -> tuple[int, int]:
    """(0, 1) where torch.distributed is not initialised."""
    if is_distributed():
        return dist.get_rank(), dist.get_world_size()
    return _ended_as or (0, 1)


def end_collectives() -> None:
    """Give up this process's groups: a save in which ranks wait for each other was abandoned.

    Its own collectives fail from now on. A rank that waits in one with NCCL comes out of it by its own call of this;
    with gloo, which knows no abort, when the connections of the rank that it waits for are closed: here, or at the
    latest when that process ends. Source: torch 2.13, ProcessGroupGloo has no abort of its own; measured in
    tests/train/test_given_up.py.
    """
    global _ended_as
    if is_distributed():
        _ended_as = rank_and_world()
        if is_seen("torch", "a save that is given up ends at the timeout of its groups"):
            dist.distributed_c10d._abort_process_group()  # all groups at once: `abort` of one by one may lock up
        else:
            if hasattr(dist.group.WORLD, "abort"):
                dist.group.WORLD.abort()
            dist.destroy_process_group()


class TorchStore:
    """torch.distributed's default store as an `Exchange`, through the connection that the process has anyway.

    A client of torch's TCPStore serves one call at a time: hence nothing here waits for a key in the store.
    """

    def __init__(self, store: Any, space: str, world_size: int) -> None:
        """space: a text that all ranks of this start have, and no other start."""
        self._bare, self.space, self._world_size = store, space, world_size
        self._store = dist.PrefixStore(f"rekindle/{space}", store)
        self.poll_s = max(0.5, 0.0005 * world_size)
        self.quick_s = max(LOOK_S, 0.0001 * world_size)

    def reconnected(self) -> TorchStore:
        """The same content over a connection of its own, where it is reached by TCP."""
        bare = self._bare
        if isinstance(bare, dist.TCPStore):
            bare = dist.TCPStore(bare.host, bare.port, is_master=False, wait_for_workers=False, timeout=RECONNECT)
        return TorchStore(bare, self.space, self._world_size)

    def get(self, key: str) -> str | None:
        return self._store.get(key).decode("utf-8", "replace") if self._store.check([key]) else None

    def put(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def put_new(self, key: str, value: str) -> str:
        held: bytes = self._store.compare_set(key, "", value)
        return held.decode("utf-8", "replace")

    def add(self, key: str) -> int:
        """Count this rank in, which calls this at most once per key. Returns how many are in now."""
        return int(self._store.add(key, 1))

    def has_all(self, keys: Sequence[str]) -> bool:
        return bool(self._store.check(list(keys)))

    def forget(self, key: str) -> None:
        """Free what a value took."""
        self._store.delete_key(key)


def store() -> TorchStore:
    """What the ranks share. Call it on every rank, first on the thread that initialised torch.distributed.

    Raises: RuntimeError where torch.distributed is not initialised; TimeoutError where rank 0 does not come within
    two minutes; what torch's store raises.
    """
    global _shared
    number = _world_number()
    if _shared is not None and _shared[0] == number:
        return _shared[1]
    rank, world_size = rank_and_world()
    of_group = getattr(dist.group.WORLD, "get_group_store", None)  # newer than some versions of torch that are in use
    default: Any = of_group() if of_group is not None else dist.distributed_c10d._get_default_store()
    # torchrun may keep one store for all its restarts: what an earlier start wrote must not be taken for this one's.
    again = process_environment().get("TORCHELASTIC_RESTART_COUNT") or "0"
    first = TorchStore(default, f"start-{again}-{number}", world_size)
    if rank == 0:
        first.put("space", secrets.token_hex(8))
    made = TorchStore(_bare(default), wait_for(first, "space", SHARE_S), world_size)
    _shared = (number, made)
    return made


def _world_number() -> int:
    """Which initialisation of torch.distributed this is, counted equally on all ranks.

    A reference that does not keep the group alive: its connections close when the script destroys it.
    """
    global _world
    world: Any = dist.group.WORLD
    if world is None:
        raise RuntimeError("torch.distributed is not initialised")
    if _world is None or _world[0]() is not world:
        _world = (weakref.ref(world, _forget), 1 if _world is None else _world[1] + 1)
    return _world[1]


def _forget(_world_gone: object) -> None:
    """A world was destroyed: its store must close, or the next world would find the old one's keys in it."""
    global _shared
    _shared = None


def _bare(store: Any) -> Any:
    """The store below torch's own prefixes, which a second connection could not know."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


class SaveGivenUp(RuntimeError):
    """The save in which this rank waits for another rank's part cannot succeed any more."""


def opener() -> Callable[[], Exchange]:
    """Opens the ranks' store for a monitor: first over torch's own connection, after a failure over a new one."""
    tries = itertools.count()
    return lambda: store().reconnected() if next(tries) else store()


def wait_for(exchange: Exchange, key: str, timeout_s: float) -> str:
    """The value under a key, once there is one. Raises: TimeoutError; SaveGivenUp where the save is no success."""
    until = time.monotonic() + timeout_s
    pause = threading.Event()
    was_ended = _ended_as is not None
    while (value := exchange.get(key)) is None:
        if _ended_as is not None and not was_ended:
            raise SaveGivenUp(f"the save was abandoned while this rank waited for another one's part ({key})")
        monitor = None if _monitor is None else _monitor()
        if monitor is not None and monitor.save_failure is not None:
            raise SaveGivenUp(monitor.save_failure)
        if time.monotonic() > until:
            raise TimeoutError(f"the other ranks did not come for {timeout_s:.0f} s ({key})")
        pause.wait(exchange.quick_s)
    return value


def all_done(failure: str | None = None, name: str = "parts") -> str | None:
    """Wait until every rank's part of a save is over; call it on every rank. None, or the first failure of any rank.

    failure: why this rank's part failed. Where one failed, all ranks hear of it at once; where one does not come
    within half an hour, or the store is broken, that is the failure. name: the same on all ranks; calls of one name are
    counted by themselves, so that a thread's are not mistaken for another's.
    """
    rank, world = rank_and_world()
    if world == 1:
        return failure
    try:
        shared, number = store(), _count(name)
        key = f"{name}-{number}"
        if failure is not None:
            shared.put_new(f"{key}/over", f"rank {rank}: {failure}")
        if shared.add(f"{key}/done") >= world:
            shared.put_new(f"{key}/over", "")
            for what in ("over", "done"):  # of the call before, which every rank has left
                with suppress(Exception):
                    shared.forget(f"{name}-{number - 1}/{what}")
        return wait_for(shared, f"{key}/over", PARTS_S) or None
    except SaveGivenUp as err:
        return failure or str(err)
    except Exception as err:
        return failure or f"rank {rank}: the ranks' store failed: {err!r}"


@contextmanager
def all_ready() -> Iterator[None]:
    """Around what a save does before its first collective, on every rank: what raises on one rank raises on all.

    So none waits in that collective for a rank that has failed before it. Raises, on the others: RuntimeError.
    """
    try:
        yield
    except BaseException as err:
        all_done(repr(err), "ready")
        raise
    if (why := all_done(None, "ready")) is not None:
        raise RuntimeError(f"the save cannot begin: {why}")


def gathered(text: str, timeout_s: float, name: str) -> list[str]:
    """All ranks' texts, in order, on rank 0; an empty list elsewhere. Call it on every rank; only rank 0 waits.

    name: the same on all ranks, such as a step. Raises on rank 0: TimeoutError; SaveGivenUp where another rank's
    part of the save has failed. Raises what torch's store raises.
    """
    rank, world = rank_and_world()
    if world == 1:
        return [text]
    shared = store()
    key = f"gathered-{name}"
    if rank != 0:
        shared.put(f"{key}/{rank}", text)
        return []
    # A rank that comes twice under one name, as in an emergency save at the step of a periodic one, may have come for
    # the second time before this rank has read what it left first: what is read is freed under the next name only.
    for old in [old for old in _gathered if not old.startswith(f"{key}/")]:
        shared.forget(old)
        _gathered.remove(old)
    until = time.monotonic() + timeout_s
    texts = [text]
    for other in range(1, world):
        texts.append(wait_for(shared, f"{key}/{other}", max(0.0, until - time.monotonic())))
        _gathered.add(f"{key}/{other}")
    return texts


def share(text: str) -> str:
    """Rank 0's text, on every rank, as it was at this call. The same text when alone. Raises as `gathered` does."""
    rank, world = rank_and_world()
    if world == 1:
        return text
    shared, key = store(), f"shared-{_count('shared')}"
    if rank == 0:
        shared.put(key, text or " ")  # an empty value is none to torch's store
        return text
    held = wait_for(shared, key, SHARE_S)
    return "" if held == " " else held


def check_interface() -> None:
    """Raise on this rank, before the others wait for it in `dcp_group`, where a network interface does not exist.

    Raises: RuntimeError. Source: torch/csrc/distributed/c10d/init.cpp, GLOO_SOCKET_IFNAME: names, separated by commas.
    """
    if is_distributed() and (_dcp is None or _dcp[0] != _world_number()):
        for name in filter(None, process_environment().get("GLOO_SOCKET_IFNAME", "").split(",")):
            dist.ProcessGroupGloo.create_device(interface=name)


def dcp_group() -> Any:
    """A gloo group of all ranks for torch.distributed.checkpoint, made at the first call, which all ranks must make.

    Its collectives are on the CPU, and a background save must not share its group with the training thread. None when
    alone.
    """
    global _dcp
    if not is_distributed():
        return None
    number = _world_number()
    group = None if _dcp is None or _dcp[0] != number else _dcp[1]()
    if group is None:
        group = dist.new_group(backend="gloo", timeout=DCP_TIMEOUT)
        _dcp = (number, weakref.ref(group))
    return group


def start(*, save: SaveFunction | None, **more: Any) -> Monitor:
    """`rekindle.monitor.start`, with identity and agreement from torch.distributed. Call it on every rank.

    SIGTERM means: save at the step that all agree on, then `should_stop`; SIGUSR1: save, and go on. more: further
    arguments of `rekindle.monitor.start`.
    """
    rank, world_size = rank_and_world()
    if world_size > 1:  # alone here does not mean alone: then the launcher's variables speak
        given = more.get("ranks") or Ranks()
        more["ranks"] = replace(
            given,
            rank=rank,
            world_size=world_size,
            exchange=given.exchange or opener(),
            share=given.share or share,
            end_collectives=given.end_collectives or end_collectives,
        )
    more.setdefault("signals", ("TERM", "USR1"))
    global _monitor
    monitor = start_monitor(save=save, **more)
    _monitor = weakref.ref(monitor)
    return monitor


def finish(monitor: Monitor, why: str = "") -> None:
    """`Monitor.finish`, saying whether the run was stopped.

    Raises: SaveGivenUp, after all that, where this process's groups were given up with a save and no other error is on
    its way: a script that ended with 0 would be a run that has completed, which is not resubmitted.
    """
    has_failed = sys.exc_info()[0] is not None
    monitor.finish(why or ("stopped" if monitor.should_stop else "finished"))
    if _ended_as is not None and not has_failed:
        raise SaveGivenUp(
            "the run stopped before its end, with a save that was given up; the monitor's warning says why"
        )


def _count(what: str) -> int:
    _counts[what] = _counts.get(what, 0) + 1
    return _counts[what]
