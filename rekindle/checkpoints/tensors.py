"""Numbers of a checkpoint's tensors, sampled: weights that are NaN are nothing to resume from.

A few kilobytes of a few tensors are read. Only tensors of two and more dimensions count: a scalar or a row of metrics
may be NaN by intent, a weight matrix is not. Where there are none (the flat partitions of DeepSpeed and of FSDP), all
that are sampled must hold NaN. Infinity is not looked for: attention masks are saved with it.

Sources: torch.serialization and torch._utils (a tensor in the pickle is `_rebuild_tensor_v2` of a persistent id
("storage", type, key, device, elements), then its offset and its shape), torch 2.13; safetensors' format; torch DCP
stores each item as a torch archive of its own, or as safetensors.
"""

from __future__ import annotations

import json
import pickletools
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from rekindle.checkpoints.found import Folder
from rekindle.checkpoints.zips import LOCAL, Table, data_start

SAMPLE_BYTES: Final = 4096
MAX_PICKLE_BYTES: Final = 512 * 1024  # some thousand tensors
_ITEM_BYTES: Final = 8192
MAX_HEADER_BYTES: Final = 8 * 1024 * 1024  # of a safetensors file; a longer one is not read
_GLOBAL: Final = "\0"  # before the name of a class or function, which is no text of the file's
METADATA: Final = "__metadata__"  # the entry of a safetensors header that is no tensor

_T = TypeVar("_T")
_PUTS: Final = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_GETS: Final = frozenset({"GET", "BINGET", "LONG_BINGET"})
_NUMBERS: Final = frozenset({"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"})

# Per type: bytes of a number, the mask that leaves its exponent and mantissa, and the highest of these that is no NaN.
_Type = tuple[str, int, int]
_TYPES: Final[dict[str, _Type]] = {
    "F64": ("Q", 0x7FFF_FFFF_FFFF_FFFF, 0x7FF0_0000_0000_0000),
    "F32": ("I", 0x7FFF_FFFF, 0x7F80_0000),
    "F16": ("H", 0x7FFF, 0x7C00),
    "BF16": ("H", 0x7FFF, 0x7F80),
}
_STORAGES: Final = {
    "torch DoubleStorage": "F64",
    "torch FloatStorage": "F32",
    "torch HalfStorage": "F16",
    "torch BFloat16Storage": "BF16",
    "torch LongStorage": "I64",
    "torch IntStorage": "I32",
    "torch ShortStorage": "I16",
    "torch CharStorage": "I8",
    "torch ByteStorage": "U8",
    "torch BoolStorage": "BOOL",
}
# Bytes of one number, by type.
ITEM_SIZES: Final = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
# What torch's optimizers name their tensors. Source: torch.optim (adam, adamw, sgd, adagrad, rmsprop, adafactor, muon)
SLOTS: Final = frozenset(
    {
        *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "sum", "square_avg", "grad_avg", "exp_inf"),
        *("acc_delta", "row_var", "col_var", "variance", "prev", "step_size", "step"),
    }
)
_OPTIMIZER_KEYS: Final = (b"param_groups", b"exp_avg", b"momentum_buffer", b"optimizer_states")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor as the file names it. `key` is its member in a torch archive; `type` None where it is not known."""

    name: str
    type: str | None
    key: str
    dimensions: int
    elements: int  # of its storage


def has_nan(raw: bytes, type_: str) -> bool:
    """Whether little-endian numbers of that type hold a NaN. Bytes at the end that are no whole number are ignored."""
    code, mask, highest = _TYPES[type_]
    numbers = array(code)
    numbers.frombytes(raw[: len(raw) // numbers.itemsize * numbers.itemsize])
    return any(number & mask > highest for number in numbers)


def may_be_nan(tensor: Tensor) -> bool:
    return tensor.type in _TYPES


def tensors_in(raw: bytes) -> tuple[Tensor, ...]:
    """The tensors that a torch archive's data.pkl names, in its order, as far as `raw` goes. Nothing is unpickled."""
    return tuple(_walk(raw[:MAX_PICKLE_BYTES]))


class _PickleWalk:
    """One pass over a pickle's opcodes: texts and types are remembered until the persistent id that they belong to."""

    def __init__(self) -> None:
        self._memo: dict[int, str | None] = {}
        self._last: str | None = None  # the text or type on top
        self._before = ""
        self._name = ""
        self._type: str | None = None
        self._key: str | None = None
        self._is_storage = False
        self._elements = 0
        self._numbers: int | None = None  # since the persistent id: its offset, then its shape

    def see(self, kind: str, value: object) -> Tensor | None:
        """The tensor that this opcode completes the shape of."""
        if kind in _PUTS and isinstance(value, int):
            self._memo[value] = self._last
            return None
        if kind == "MEMOIZE":
            self._memo[len(self._memo)] = self._last
            return None
        text = value if isinstance(value, str) else None
        if kind == "GLOBAL" and text is not None:
            text = _GLOBAL + text
        if kind in _GETS and isinstance(value, int):
            text = self._memo.get(value)
        self._last = text
        if text is not None:
            self._text(text)
        elif kind == "BINPERSID":
            self._is_storage, self._numbers = False, 0
        elif self._is_storage and isinstance(value, int):
            self._elements = value
        elif self._numbers is not None and kind in _NUMBERS:
            self._numbers += 1
        elif self._numbers is not None and "TUPLE" in kind:
            dimensions, self._numbers = max(self._numbers - 1, 0), None
            if self._key is not None:
                return Tensor(
                    name=self._name,
                    type=self._type,
                    key=self._key,
                    dimensions=dimensions,
                    elements=self._elements,
                )
        return None

    def _text(self, text: str) -> None:
        if text == "storage":
            self._name, self._is_storage, self._key, self._type = self._before, True, None, None
        elif text.startswith(_GLOBAL):
            self._type = _STORAGES.get(text[len(_GLOBAL) :]) if self._is_storage else None
        elif not self._is_storage:
            self._before = text
        elif self._key is None:
            self._key = text


def _walk(raw: bytes) -> Iterator[Tensor]:
    walk = _PickleWalk()
    try:
        for opcode, value, _ in pickletools.genops(raw):
            tensor = walk.see(opcode.name, value)
            if tensor is not None:
                yield tensor
    except Exception:  # hostile, or cut short by the limit: what came before it stands
        return


def torch_contents(raw: bytes) -> tuple[bool | None, bool | None]:
    """(has weights, has an optimizer's state) of a torch archive, by its data.pkl; None where that cannot be
    determined.
    """
    tensors = tensors_in(raw)
    is_seen = bool(tensors) and len(raw) < MAX_PICKLE_BYTES
    has_weights = any(tensor.name not in SLOTS for tensor in tensors)
    has_optimizer = any(key in raw for key in _OPTIMIZER_KEYS)
    return (has_weights or (False if is_seen else None)), (has_optimizer or (False if is_seen else None))


# ---- sampling ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor's numbers begin, and how many bytes of them there are."""

    name: str
    type: str
    at: int
    bytes: int


def nan_in_archive(folder: Folder, path: str, table: Table, raw: bytes, samples: int) -> str | None:
    """The name of a tensor that holds NaN, in a torch archive with that data.pkl; `samples` are looked into."""
    members = {member.name.rpartition("/data/")[2]: member for member in table.members if "/data/" in member.name}

    def is_nan(tensor: Tensor) -> bool:
        member = members[tensor.key]
        head = folder.read(path, member.at, LOCAL.size + 512 + SAMPLE_BYTES) or b""
        start = data_start(head)
        if start is None or not member.is_stored:
            return False
        return has_nan(head[start : start + min(member.bytes, SAMPLE_BYTES)], tensor.type or "")

    there = [tensor for tensor in tensors_in(raw) if may_be_nan(tensor) and tensor.key in members]
    return nan_among([(tensor, tensor.name, tensor.dimensions) for tensor in there], is_nan, samples)


def nan_in_safetensors(folder: Folder, path: str, samples: int) -> str | None:
    """The same of a safetensors file, whose header is whole."""
    found = header_of(folder, path)
    if found is None:
        return None
    base, header = found

    def is_nan(place: _Place) -> bool:
        middle = place.at + max(place.bytes - SAMPLE_BYTES, 0) // 2 // 8 * 8
        raw = folder.read(path, base + middle, min(SAMPLE_BYTES, place.at + place.bytes - middle)) or b""
        return has_nan(raw, place.type)

    there = []
    for name, entry in header.items():
        if name != METADATA and entry.get("dtype") in _TYPES:
            start, end = (int(place) for place in entry["data_offsets"])
            place = _Place(name, str(entry["dtype"]), start, end - start)
            there.append((place, name, len(entry.get("shape", ()))))
    return nan_among(there, is_nan, samples)


def nan_among(there: Sequence[tuple[_T, str, int]], is_nan: Callable[[_T], bool], samples: int) -> str | None:
    """The name of one that is NaN, by the rule above. there: (tensor, its name, its dimensions)."""
    matrices = [(tensor, name) for tensor, name, dimensions in there if dimensions >= 2]
    if matrices:
        return next((name for tensor, name in _spread(matrices, samples) if is_nan(tensor)), None)
    rows = _spread([(tensor, name) for tensor, name, dimensions in there if dimensions == 1], samples)
    return rows[0][1] if rows and all(is_nan(tensor) for tensor, _ in rows) else None


def header_of(folder: Folder, path: str) -> tuple[int, dict[str, Any]] | None:
    """(where the data begin, the header) of a safetensors file; None where it cannot be read, or is too long to."""
    head = folder.read(path, 0, 8) or b""
    length = int.from_bytes(head, "little")
    if len(head) < 8 or length > MAX_HEADER_BYTES:
        return None
    try:
        header = json.loads(folder.read(path, 8, length) or b"")
    except (ValueError, RecursionError):
        return None
    return (8 + length, header) if isinstance(header, dict) else None


def nan_in_items(folder: Folder, items: Sequence[tuple[str, int, int]], samples: int) -> str | None:
    """A shard of a DCP folder with a tensor that holds NaN. items: (shard, offset, bytes), as `.metadata` says."""
    larger = sorted(items, key=lambda item: (-item[2], item))[: len(items) // 2 + 1]  # the rest is no matrix
    for shard, offset, length in _spread(larger, samples):
        raw = folder.read(shard, offset, min(length, _ITEM_BYTES)) or b""
        at = raw.find(b"/data/0")  # torch pads its headers, and names the archive after nothing in particular
        start = raw.rfind(b"PK\x03\x04", 0, max(at, 0))
        begins = data_start(raw[start:]) if start > 0 else None
        pickled = data_start(raw)
        if begins is None or pickled is None:
            continue
        for tensor in tensors_in(raw[pickled:start])[:1]:
            if tensor.type is None or not may_be_nan(tensor) or tensor.dimensions < 2:
                continue
            first = start + begins
            if has_nan(raw[first : first + tensor.elements * array(_TYPES[tensor.type][0]).itemsize], tensor.type):
                return shard
    return None


def _spread(worth: Sequence[_T], count: int) -> list[_T]:
    """At most so many of them, evenly, with the first and the last."""
    if len(worth) <= count:
        return list(worth)
    if count < 2:
        return list(worth[:count])
    return [worth[index * (len(worth) - 1) // (count - 1)] for index in range(count)]
