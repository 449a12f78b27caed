"""A value as it was when it was handed to the monitor: a number at once, or a copy that its device makes in order.

`capture` runs on the training thread. It never waits for a device and keeps nothing alive but a copy of one element, so
that a tensor may be changed, and its storage freed, as soon as `capture` has returned:

- numbers, NumPy scalars and one-element arrays, CPU tensors: read at once;
- a CUDA (or ROCm) tensor: one element is copied to pinned host memory on the device's current stream, behind the
  kernels that compute it and before any that overwrite it; the memory itself shows when the copy is there;
- a tensor on another device, a CuPy array: copied on the device, read later;
- an array of JAX or TensorFlow: immutable, so that a reference is enough; read later. So is any other object with
  `__float__`, whatever that does.

Everything else (vectors, sparse and complex tensors, tensors without data, tensors spread over ranks, strings) is
`Unreadable`: a value that is not known. PyTorch and NumPy are looked for among the loaded modules, never imported.
"""

from __future__ import annotations

import ctypes
import math
import numbers
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from rekindle.monitor.base.guard import PASS

SLOTS = 4096  # copies that may be outstanding: 32 KiB of pinned memory, made at the first CUDA tensor
_NOT_REAL = "cMmSUO"  # dtype kinds of NumPy that are no real number: complex, times, texts, objects
# A slot that no copy has reached: as float64 and, in its lower half, as float32, a NaN that no arithmetic produces.
_EMPTY: Final = 0x7FF4_5EED_7FA5_5EED
_LOWER: Final = 0xFFFF_FFFF


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
    if isinstance(value, int | float):
        return float(value)  # an int above 1.8e308 raises OverflowError
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
    if isinstance(value, numbers.Number):
        return float(value)  # type: ignore[arg-type]  # a Fraction, a Decimal
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
    slots = _cuda_slots(torch)
    if slots is None:
        return _FixedValue(value.clone())
    if value.dtype is torch.float32 or value.dtype is torch.float64:
        return slots.copy(value, is_wide=value.dtype is torch.float64)
    return slots.copy(value.to(torch.float64), is_wide=True)


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


class Slots:
    """Host memory, one slot per outstanding copy. `copy` is for the training thread, the rest for any other one.

    Whether a copy is there is read from its slot, without a call of CUDA: by its rules an event that any thread asks
    about while another one captures a graph ends that capture. (Source: cudaStreamBeginCapture,
    cudaStreamCaptureModeGlobal, which is what torch.cuda.graph uses.) A copy of 4 or 8 aligned bytes arrives whole.

    memory: one word per slot. wide, narrow: the slots as tensors of one float64, and of one float32 in its lower half;
    pinned where a GPU copies into them.
    """

    def __init__(self, memory: Any, wide: Sequence[Any], narrow: Sequence[Any]) -> None:
        self._memory = memory
        self._cells = {True: wide, False: narrow}
        self._made: dict[tuple[bool, int], Any] = {}
        self._free = deque(range(len(memory)))

    def copy(self, value: Any, *, is_wide: bool) -> Captured:
        """Have the current stream copy a tensor of one float64, or float32. Unreadable where every slot is taken."""
        try:
            slot = self._free.pop()
        except IndexError:
            return Unreadable("a tensor, while too many others are still to be read")
        cell = self._made.get((is_wide, slot))
        if cell is None:
            cell = self._made[is_wide, slot] = self._cells[is_wide][slot]
        self._memory[slot] = _EMPTY
        cell.copy_(value if value.dim() == 0 else value.reshape(()), non_blocking=True)
        return _SlotValue(self, slot, is_wide)

    def word(self, slot: int) -> int:
        """The 64 bits of a slot as they are now."""
        return int(self._memory[slot])

    def free(self, slot: int) -> None:
        """Give back a slot whose copy was read."""
        self._free.append(slot)


class _SlotValue:
    def __init__(self, slots: Slots, slot: int, is_wide: bool) -> None:
        self._slots = slots
        self._slot = slot
        self._is_wide = is_wide

    def is_ready(self) -> bool:
        word = self._slots.word(self._slot)
        return word != _EMPTY if self._is_wide else word & _LOWER != _EMPTY & _LOWER

    def read(self) -> float:
        """Call it once it is ready. Of a device that failed it never is; the slot then stays taken."""
        raw = struct.pack("<Q", self._slots.word(self._slot))
        self._slots.free(self._slot)
        number: float = struct.unpack("<d", raw)[0] if self._is_wide else struct.unpack_from("<f", raw)[0]
        return number


_lock = threading.RLock()  # a signal handler of the script may call the monitor inside itself
_made: list[Slots | None] = []


def slots_in(torch: Any, host: Any) -> Slots:
    """Slots in a contiguous one-dimensional float64 tensor, which they keep alive."""
    memory = (ctypes.c_uint64 * len(host)).from_address(host.data_ptr())
    return Slots(memory, host, host.view(torch.float32)[::2])


def _cuda_slots(torch: Any) -> Slots | None:
    """The process's slots; None where no pinned memory can be had."""
    if not _made:
        with _lock:
            if not _made:
                try:
                    _made.append(slots_in(torch, torch.empty(SLOTS, dtype=torch.float64, pin_memory=True)))
                except Exception:
                    _made.append(None)
    return _made[0]
