"""The ranks of torch.distributed, and what they share: its own store, which needs no further connection.

Nothing here is a collective. A rank that waits for the others, in a save of the script's own, waits for a bounded time.
"""

from __future__ import annotations

import secrets
import threading
import time
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist

from rekindle.monitor import Exchange, Monitor
from rekindle.monitor import start as start_monitor
from rekindle.monitor.saving import SaveFunction

SHARE_S: Final = 60.0  # for what rank 0 knows at the start: the ranks start within seconds of each other
PARTS_S: Final = 1800.0  # for the slowest rank's part of a save
LOOK_S: Final = 0.01
RECONNECT: Final = timedelta(seconds=10)
DCP_TIMEOUT = timedelta(minutes=30)  # a rank may be late by its own part of a save

# SageMaker kills 120 s after SIGTERM; a seal takes seconds. Source: developer guide, StopTrainingJob
SEAL_TIMEOUT_S = 90.0

_dcp: tuple[Any, Any] | None = None  # the world, and its group for DCP
_shared: tuple[Any, TorchStore] | None = None  # the world, and what its ranks share
_counts: dict[str, int] = {}  # how often this process called a function that all ranks call equally often


def is_gang() -> bool:
    return bool(dist.is_available() and dist.is_initialized())


def rank_and_world() -> tuple[int, int]:
    """(0, 1) where torch.distributed is not initialised."""
    return (dist.get_rank(), dist.get_world_size()) if is_gang() else (0, 1)


class TorchStore:
    """torch.distributed's default store as an `Exchange`, through the connection that the process has anyway.

    A client of torch's TCPStore serves one call at a time: hence nothing here waits for a key in the store.
    """

    def __init__(self, store: Any, space: str, world_size: int) -> None:
        """space: a text that all ranks of this start have, and no other start."""
        self._bare, self._space, self._world_size = store, space, world_size
        self._store = dist.PrefixStore(f"rekindle/{space}", store)
        self.poll_s = max(0.5, 0.0005 * world_size)
        self.quick_s = max(LOOK_S, 0.0001 * world_size)

    def reconnected(self) -> TorchStore:
        """The same content over a connection of its own, where it is reached by TCP."""
        bare = self._bare
        if isinstance(bare, dist.TCPStore):
            bare = dist.TCPStore(bare.host, bare.port, is_master=False, wait_for_workers=False, timeout=RECONNECT)
        return TorchStore(bare, self._space, self._world_size)

    def get(self, key: str) -> str | None:
        return self._store.get(key).decode("utf-8", "replace") if self._store.check([key]) else None

    def put(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def put_new(self, key: str, value: str) -> str:
        held: bytes = self._store.compare_set(key, "", value)
        return held.decode("utf-8", "replace")

    def add(self, key: str) -> int:
        return int(self._store.add(key, 1))

    def counted(self, key: str) -> int:
        return int(self._store.add(key, 0))

    def forget(self, key: str) -> None:
        """Free what a value took."""
        self._store.delete_key(key)


def store() -> TorchStore:
    """What the ranks share. Call it on every rank, first on the thread that initialised torch.distributed.

    Raises: RuntimeError where torch.distributed is not initialised; TimeoutError where rank 0 does not come within a
    minute; what torch's store raises.
    """
    global _shared
    world: Any = dist.group.WORLD
    if _shared is not None and _shared[0] is world:
        return _shared[1]
    rank, world_size = rank_and_world()
    default: Any = dist.distributed_c10d._get_default_store()
    first = TorchStore(default, f"start-{_count('start')}", world_size)
    if rank == 0:
        first.put("space", secrets.token_hex(8))
    made = TorchStore(_bare(default), wait_for(first, "space", SHARE_S), world_size)
    _shared = (world, made)
    return made


def _bare(store: Any) -> Any:
    """The store below torch's own prefixes, which a second connection could not know."""
    return getattr(store, "_underlying_non_prefix_store", store)


class Opener:
    """Opens the ranks' store for a monitor: first over torch's own connection, after a failure over a new one."""

    def __init__(self) -> None:
        self._has_opened = False

    def __call__(self) -> Exchange:
        """Raises what torch's store raises."""
        shared = store()
        has_opened, self._has_opened = self._has_opened, True
        return shared.reconnected() if has_opened else shared


def wait_for(exchange: Exchange, key: str, timeout_s: float) -> str:
    """The value under a key, once there is one. Raises: TimeoutError."""
    until = time.monotonic() + timeout_s
    pause = threading.Event()
    while (value := exchange.get(key)) is None:
        if time.monotonic() > until:
            raise TimeoutError(f"the other ranks did not come for {timeout_s:.0f} s ({key})")
        pause.wait(exchange.quick_s)
    return value


def all_done(failure: str | None = None) -> str | None:
    """Until every rank's part of a save is over; call it on every rank. None, or the first failure of any rank.

    failure: why this rank's part failed. Where one failed, all ranks hear of it at once; where one does not come
    within half an hour, or the store is broken, that is the failure.
    """
    rank, world = rank_and_world()
    if world == 1:
        return failure
    try:
        shared, key = store(), f"parts-{_count('parts')}"
        if failure is not None:
            shared.put_new(f"{key}/over", f"rank {rank}: {failure}")
        if shared.add(f"{key}/done") >= world:
            shared.put_new(f"{key}/over", "")
        return wait_for(shared, f"{key}/over", PARTS_S) or None
    except Exception as err:
        return failure or f"rank {rank}: the ranks' store failed: {err!r}"


def gathered(text: str, timeout_s: float, name: str = "") -> list[str]:
    """All ranks' texts, in order, on rank 0; an empty list elsewhere. Call it on every rank; only rank 0 waits.

    name: the same on all ranks, such as a step; by default the number of calls. Raises: TimeoutError on
    rank 0; what torch's store raises.
    """
    rank, world = rank_and_world()
    if world == 1:
        return [text]
    shared = store()
    key = f"gathered-{name}" if name else f"gathered/{_count('gathered')}"
    if rank != 0:
        shared.put(f"{key}/{rank}", text)
        return []
    until = time.monotonic() + timeout_s
    texts = [text]
    for other in range(1, world):
        texts.append(wait_for(shared, f"{key}/{other}", max(0.0, until - time.monotonic())))
        shared.forget(f"{key}/{other}")
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


def dcp_group() -> Any:
    """A gloo group of all ranks for torch.distributed.checkpoint, made at the first call, which all ranks must make.

    Its collectives are on the CPU, and a background save must not share its group with the training thread. None when
    alone.
    """
    global _dcp
    if not is_gang():
        return None
    world: Any = dist.group.WORLD
    if _dcp is None or _dcp[0] is not world:
        _dcp = (world, dist.new_group(backend="gloo", timeout=DCP_TIMEOUT))
    return _dcp[1]


def start(*, save: SaveFunction | None, **more: Any) -> Monitor:
    """`rekindle.monitor.start`, told by torch.distributed who this is and how all agree. Call it on every rank.

    SIGTERM means: save at the step that all agree on, then `should_stop`; SIGUSR1: save, and go on. more: further
    arguments of `rekindle.monitor.start`.
    """
    rank, world_size = rank_and_world()
    if world_size > 1:  # alone here does not mean alone: then the launcher's variables speak
        more = {"rank": rank, "world_size": world_size, "exchange": Opener(), "share": share} | more
    more.setdefault("handle_signals", True)
    return start_monitor(save=save, **more)


def finish(monitor: Monitor, why: str = "") -> None:
    """End a run: first seal what was saved last, whatever its size, then `Monitor.finish`."""
    monitor.flush(SEAL_TIMEOUT_S)
    monitor.finish(why or ("stopped" if monitor.should_stop else "finished"))


def _count(what: str) -> int:
    _counts[what] = _counts.get(what, 0) + 1
    return _counts[what]
