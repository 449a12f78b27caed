"""NaN in what is no tensor of torch's, NumPy's archives and pickles of arrays and of lists of numbers; their steps.

Sources: numpy.lib.format (a member is its magic, the length of its header, a dict as text, the numbers); pickles of
NumPy 1.26 and 2.4 (a dtype is built of its short name, the numbers are one run of bytes).
"""

from __future__ import annotations

import ast
import math
import pickletools
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from rekindle.checkpoints.found import Folder
from rekindle.checkpoints.pickle_values import MAX_OPCODES, outermost
from rekindle.checkpoints.tensors import SAMPLE_BYTES, has_nan, nan_among
from rekindle.checkpoints.zips import LOCAL, Member, Table, data_start, table_of

MAX_HEADER_BYTES: Final = 16 * 1024  # of a member; numpy.lib.format's own limit is 10,000 characters
_MAGIC: Final = b"\x93NUMPY"
_DTYPES: Final = {"f2": "F16", "f4": "F32", "f8": "F64"}  # big-endian ones are not looked into
MIN_NUMBERS: Final = 16  # a shorter list is no weight
MAX_ROWS: Final = 64
MAX_DEPTH: Final = 4
_BYTES: Final = frozenset({"BINBYTES", "BINBYTES8", "SHORT_BINBYTES", "BYTEARRAY8", "BINSTRING", "SHORT_BINSTRING"})


@dataclass(frozen=True, slots=True)
class _Array:
    name: str
    type: str  # without its byte order
    numbers: bytes
    dimensions: int


def nan_in_npz(folder: Folder, path: str, table: Table, samples: int) -> str | None:
    """The name of an array that holds NaN, in an archive of NumPy's; `samples` are looked into."""
    read = (_array(folder, path, member) for member in table.members if member.name.endswith(".npy"))
    there = [
        (array, array.name, array.dimensions)
        for array in islice(read, samples)
        if array is not None and array.type in _DTYPES
    ]
    return nan_among(there, lambda array: has_nan(array.numbers, _DTYPES[array.type]), samples)


def numbers_in_npz(folder: Folder, path: str, keys: Collection[str]) -> dict[str, int]:
    """The whole numbers that an archive of NumPy's holds under these keys."""
    table = table_of(folder, path, folder.files.get(path, 0))
    found: dict[str, int] = {}
    for member in () if table is None else table.members:
        array = _array(folder, path, member) if member.name.removesuffix(".npy") in keys else None
        if array is not None and array.dimensions == 0 and array.type[:1] in ("i", "u"):
            found[array.name] = int.from_bytes(array.numbers, "little", signed=array.type[0] == "i")
    return found


def _array(folder: Folder, path: str, member: Member) -> _Array | None:
    raw = folder.read(path, member.at, LOCAL.size + 1024 + MAX_HEADER_BYTES + SAMPLE_BYTES) or b""
    start = data_start(raw)
    if start is None:
        return None
    packed = raw[start : start + member.bytes]
    try:
        plain = packed if member.is_stored else zlib.decompressobj(-15).decompress(packed, len(raw))
        size = 2 if plain[6:7] == b"\1" else 4
        begin = 8 + size + int.from_bytes(plain[8 : 8 + size], "little")
        header = ast.literal_eval(plain[8 + size : begin].decode("latin-1").strip())
        type_ = str(header["descr"]).lstrip("<=|")
        dimensions = len(header["shape"])
    except (zlib.error, ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError):
        return None
    if not plain.startswith(_MAGIC):
        return None
    return _Array(member.name.removesuffix(".npy"), type_, plain[begin : begin + SAMPLE_BYTES], dimensions)


def nan_in_pickle(raw: bytes) -> str | None:
    """What a pickle that is no archive holds nothing but NaN in: all of its arrays, and all of its lists of numbers.

    A single one may be of metrics that were never computed.
    """
    lists = [found for value in outermost(raw).values() if (found := _is_list_of_nan(value)) is not None]
    types, runs = set[str](), list[bytes]()
    try:
        for opcode, value, _ in islice(pickletools.genops(raw), MAX_OPCODES):
            if isinstance(value, str) and value in _DTYPES:
                types.add(_DTYPES[value])
            elif opcode.name in _BYTES and value is not None and len(value) >= 8 * MIN_NUMBERS:
                runs.append(value.encode("latin-1") if isinstance(value, str) else bytes(value))
    except Exception:  # noqa: S110 - hostile, or cut short: what came before it stands
        pass
    if runs and len(types) != 1:
        return None
    each = [*lists, *(_has_only_nan(numbers, type_) for type_ in types for numbers in runs)]
    return "all of its numbers" if each and all(each) else None


def _has_only_nan(numbers: bytes, type_: str) -> bool:
    size = int(type_[1:]) // 8
    middle = len(numbers) // 2 // size * size
    return all(has_nan(numbers[at : at + size], type_) for at in (0, middle, len(numbers) // size * size - size))


def _is_list_of_nan(value: Any, depth: int = 0) -> bool | None:
    """Whether a list of at least MIN_NUMBERS numbers, or all such lists in it, are nothing but NaN; None for none."""
    inner = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(inner, list) or depth > MAX_DEPTH:
        return None
    if len(inner) >= MIN_NUMBERS and all(isinstance(number, float) for number in inner):
        return all(math.isnan(number) for number in inner)
    found = [
        is_nan for item in inner[:MAX_ROWS] if (is_nan := _is_list_of_nan(item, depth + 1)) is not None
    ]  # rows of a matrix, or what a dict holds
    return all(found) if found else None
