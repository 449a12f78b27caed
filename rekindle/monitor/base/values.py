"""A value as it was when it was handed to the monitor: a number at once, or a copy that its device makes in order.

`capture` runs on the training thread. It never waits for a device and keeps nothing alive but a copy of one element, so
that a tensor may be changed, and its storage freed, as soon as `capture` has returned:

- numbers, NumPy scalars and one-element arrays, CPU tensors: read at once;
- a CUDA (or ROCm) tensor: `to("cpu", non_blocking=True)` on the device's current stream, behind the kernels that
  compute it and before any that overwrite it, and an event after it. `collect` reads the copies that are there, on the
  thread that began them: any other one that asks about an event while this one captures a CUDA graph ends the capture
  (source: cudaStreamBeginCapture, cudaStreamCaptureModeGlobal, which is what torch.cuda.graph uses);
- a tensor on another device, a CuPy array: copied on the device, read later;
- an array of JAX or TensorFlow: immutable, so that a reference is enough; read later. So is any other object with
  `__float__`, whatever that does.

Everything else (vectors, sparse and complex tensors, tensors without data, tensors spread over ranks, strings) is
`Unreadable`: a value that is not known. PyTorch and NumPy are looked for among the loaded modules, never imported.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from rekindle.monitor.base.guard import PASS

_NOT_REAL = "cMmSUO"  # dtype kinds of NumPy that are no real number: complex, times, texts, objects


class Pending(Protocol):
    """One element that its device has yet to deliver."""

    def is_ready(self) -> bool:
        """Whether `read` returns without waiting. True as well where the library cannot tell."""
        ...

    def read(self) -> float:
        """The number; called once, on a thread that may wait. May raise what the library raises."""
        ...


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A value that is no single real number, or cannot be read here. `why` names what it was."""

    why: str


Captured = float | Pending | Unreadable | None


def capture(value: object) -> Captured:
    """What `value` is now. None stays None. Raises nothing but `PASS`."""
    if value is None or type(value) is float:
        return value
    try:
        return _captured(value)
    except PASS:
        raise
    except BaseException as err:  # a value of the user's: whatever its class raises, the value is not known
        return Unreadable(f"{type(value).__name__} ({type(err).__name__})")


def read(value: Captured) -> float | None:
    """The number behind it, on a thread that may wait; None where it is not known. Raises nothing but `PASS`."""
    if value is None or isinstance(value, float):
        return value
    if isinstance(value, Unreadable):
        return None
    try:
        return float(value.read())
    except PASS:
        raise
    except BaseException:  # a device that failed: its values are not known
        return None


def is_pending(value: Captured) -> bool:
    return not (value is None or isinstance(value, float | Unreadable))


def is_ready(value: Captured) -> bool:
    """Whether `read` returns without waiting, as far as the value's library can tell."""
    if value is None or isinstance(value, float | Unreadable):
        return True
    try:
        return value.is_ready()
    except PASS:
        raise
    except BaseException:  # a device that failed: `read` finds out
        return True


def _captured(value: object) -> Captured:
    if isinstance(value, float):
        return float.__float__(value)  # not what a subclass makes of it, which may take its time
    if isinstance(value, int):
        return int.__float__(value)  # one above 1.8e308 raises OverflowError
    if isinstance(value, str | bytes | bytearray):
        return Unreadable(type(value).__name__)
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)
    if tensor is not None and isinstance(value, tensor):
        return _of_tensor(torch, value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic | numpy.ndarray):
        return _of_array(numpy, value)
    library = type(value).__module__.partition(".")[0]
    if library in ("jax", "jaxlib", "tensorflow"):
        return _FixedValue(value) if _elements(value) == 1 else Unreadable(f"an array of {library}")
    if library == "cupy":
        return _FixedValue(value.copy()) if _elements(value) == 1 else Unreadable("an array of cupy")  # type: ignore[attr-defined]
    if type(value).__module__ in ("fractions", "decimal", "_pydecimal"):
        return float(value)  # type: ignore[arg-type]
    # What `__float__` does is not known: it may ask another machine, and no step waits for that.
    return _FixedValue(value) if hasattr(type(value), "__float__") else Unreadable(type(value).__name__)


def _of_array(numpy: Any, value: Any) -> Captured:
    if value.size != 1 or value.dtype.kind in _NOT_REAL:
        return Unreadable(f"NumPy {value.dtype} of shape {value.shape}")
    if isinstance(value, numpy.ma.MaskedArray) and numpy.ma.getmaskarray(value).any():
        return Unreadable("a masked value")
    return float(value.item())


def _elements(value: Any) -> int:
    return math.prod(int(size) for size in value.shape)


def _of_tensor(torch: Any, value: Any) -> Captured:
    kind = type(value)
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return _of_spread(torch, value)
    if value.layout is not torch.strided or value.is_complex() or value.numel() != 1 or value.is_meta:
        return Unreadable(f"a tensor {value.dtype}, {value.layout}, of shape {tuple(value.shape)} on {value.device}")
    device = value.device.type
    value = value.detach()
    if device == "cpu":
        return float(value.item())
    if device != "cuda":
        return _FixedValue(value.clone())
    if torch.cuda.is_current_stream_capturing():  # a graph would repeat the copy into a slot of another step
        return Unreadable("a tensor inside a CUDA graph's capture")
    return _own.begin(torch, value)


def _of_spread(torch: Any, value: Any) -> Captured:
    """A DTensor that is the same on all ranks has its number here; every other subclass may need a collective."""
    placements = getattr(value, "placements", None)
    if placements is None or not all(placement.is_replicate() for placement in placements):
        return Unreadable(f"a {type(value).__name__}, which may have no data here")
    return _of_tensor(torch, value.detach().to_local())


class _FixedValue:
    """A value that nothing changes any more; reading it may wait for the device."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def is_ready(self) -> bool:
        ask: Callable[[], Any] | None = getattr(self._value, "is_ready", None)  # jax.Array
        return bool(ask()) if callable(ask) else True

    def read(self) -> float:
        value, self._value = self._value, None
        return float(value.item() if hasattr(value, "item") else value)


class _Copy:
    """One element on its way to the host. `arrive` is for the thread that began it, the rest for any."""

    def __init__(self, host: Any, event: Any) -> None:
        self._host = host
        self._event = event
        self._number: float | None = None

    def is_ready(self) -> bool:
        return self._event is None

    def read(self) -> float:
        if self._number is None:
            raise ValueError("the device did not deliver it")
        return self._number

    def arrive(self) -> Any:
        """The event, which can be used again, once the number is there or its device has failed; None before."""
        event = self._event
        try:
            if not event.query():
                return None
            self._number = float(self._host)
        except PASS:
            raise
        except BaseException:  # a device that failed: its values are not known
            self._number = None
        self._host = self._event = None
        return event


class _OwnCopies(threading.local):
    """Of one thread: what it has begun to copy, the oldest first, and each device's events that are free again."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[_Copy, list[Any]]] = deque()
        self._events: dict[int, list[Any]] = {}

    def begin(self, torch: Any, value: Any) -> _Copy:
        stream = torch.cuda.current_stream(value.device)
        host = value.to("cpu", non_blocking=True)
        free = self._events.setdefault(stream.device_index, [])
        event = free.pop() if free else torch.cuda.Event()  # making one takes longer than recording
        event.record(stream)
        copy = _Copy(host, event)
        self._waiting.append((copy, free))
        return copy

    def collect(self) -> bool:
        waiting = self._waiting
        if waiting and not sys.modules["torch"].cuda.is_current_stream_capturing():
            while waiting and (event := waiting[0][0].arrive()) is not None:
                waiting.popleft()[1].append(event)
        return bool(waiting)


_own = _OwnCopies()


def collect() -> bool:
    """Read what this thread has begun to copy and is there now, without a wait. Returns whether some is not."""
    return _own.collect()
