"""What one rank alone knows of a step: was its own gradient finite before it was averaged, how long did it work.

After the all-reduce a NaN is everybody's. Before it, it has one owner, and often a broken device. The look costs one
reduction per gradient bucket, on the device; nobody waits for its result: a thread reads it later.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist

from rekindle.monitor import Monitor

GRADIENT, LOSS = "gradient", "loss"
_READ_EVERY_S = 1.0  # values of shorter steps are read together: a thread's wake-up costs more than a reading
_PACES_KEPT = 8  # steps whose device times may be outstanding


class LocalWatch:
    """One per process, on the training thread.

    watch = LocalWatch(mon)
    watch.gradients(ddp_model)                                  # once; FSDP2 and others: watch.loss(loss) at each step
    ...
    mon.step(step, loss=loss, work_s=watch.stepped(step))       # at each step
    """

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._found: list[tuple[str, Any]] = []
        self._began: Any = None
        self._worked: Any = None
        self._paces: deque[tuple[Any, Any]] = deque(maxlen=_PACES_KEPT)
        self._unread: list[tuple[int, str, Any, Any]] = []
        self._queue: SimpleQueue[list[tuple[int, str, Any, Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._flushed_at = time.perf_counter()

    def gradients(self, model: Any, hook: Callable[[Any, Any], Any] | None = None, state: Any = None) -> None:
        """Look at each gradient bucket of a DistributedDataParallel model before it is averaged.

        hook, state: a communication hook that the script uses already; by default DDP's own average. Raises:
        RuntimeError where the model has a hook (DDP takes one only).
        """
        send = hook or _average

        def look_first(inner: Any, bucket: Any) -> Any:
            self._look(GRADIENT, bucket.buffer())
            self._worked = _now()
            return send(inner, bucket)

        look_first.__annotations__.clear()  # DDP compares them with its own types, and ours are strings
        model.register_comm_hook(state, look_first)

    def loss(self, loss: Any) -> None:
        """This rank's own loss, before any averaging over ranks. Anything but a tensor is passed over."""
        if isinstance(loss, torch.Tensor) and loss.numel() > 0:
            self._look(LOSS, loss)

    def stepped(self, step: int) -> float | None:
        """The step is over. Returns the newest known seconds of own work in a step, for `Monitor.step(work_s=...)`.

        Own work is from the end of the last step to the last gradient bucket: before a rank waits for any other. On a
        GPU the device measures it, so it is that of a step or two ago. None where no gradients are looked at.
        """
        for metric in dict.fromkeys(metric for metric, _ in self._found):
            worst = torch.stack([value for found, value in self._found if found == metric]).amax()  # amax keeps NaN
            self._hand_over(step, metric, worst)
        self._found.clear()
        if self._began is not None and self._worked is not None:
            self._paces.append((self._began, self._worked))
        self._began, self._worked = _now(), None
        return self._pace()

    def close(self) -> None:
        """Read what is outstanding, and end the thread."""
        if self._unread:
            self._flush()
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(10.0)
            self._thread = None

    def _look(self, metric: str, values: Any) -> None:
        with torch.no_grad():
            # The largest magnitude is not finite exactly where one value is not; no copy of the bucket is made for it.
            largest = torch.linalg.vector_norm(values.detach(), ord=math.inf)
            self._found.append((metric, largest.double()))

    def _hand_over(self, step: int, metric: str, worst: Any) -> None:
        ready = None
        if worst.is_cuda:
            host = torch.empty((), dtype=worst.dtype, pin_memory=True)
            host.copy_(worst, non_blocking=True)
            ready = torch.cuda.Event()
            ready.record()
            worst = host
        self._unread.append((step, metric, worst, ready))
        # On the CPU the value is there already, and bad news need not wait.
        is_bad = ready is None and not math.isfinite(float(worst))
        if is_bad or time.perf_counter() - self._flushed_at > _READ_EVERY_S:
            self._flush()

    def _flush(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._read, name="rekindle-local", daemon=True)
            self._thread.start()
        self._queue.put(self._unread)
        self._unread = []
        self._flushed_at = time.perf_counter()

    def _read(self) -> None:
        is_bad = False
        while (values := self._queue.get()) is not None:
            for step, metric, worst, ready in values:
                if ready is not None:
                    ready.synchronize()
                was_bad, is_bad = is_bad, not math.isfinite(float(worst))
                if is_bad and not was_bad:  # the first of a stretch; the weights, and so the rest, are NaN anyway
                    self._monitor.local_non_finite(step, metric)

    def _pace(self) -> float | None:
        newest = None
        while self._paces:
            began, worked = self._paces[0]
            if isinstance(began, float):
                newest = worked - began
            elif worked.query():
                newest = began.elapsed_time(worked) / 1000.0
            else:
                break
            self._paces.popleft()
        return newest


def _now() -> Any:
    """A mark on the device's own time line, or this host's clock where it computes itself."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _average(group: Any, bucket: Any) -> Any:
    """What DDP does without a hook. Source: torch.distributed.algorithms.ddp_comm_hooks.default_hooks."""
    group = group if group is not None else dist.group.WORLD
    buffer = bucket.buffer()
    buffer.div_(group.size())
    return dist.all_reduce(buffer, group=group, async_op=True).get_future().then(lambda future: future.value()[0])
