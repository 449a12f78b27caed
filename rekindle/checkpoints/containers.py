"""Whether one file is whole, told from a few bytes of it (torch's archives, .npz, .safetensors), and its step.

Sources: PKWARE APPNOTE 4.3 (end of central directory, zip64 locator); torch's serialization writes a zip whose first
entry is an uncompressed data.pkl, seen on torch 2.13; safetensors' format (8 bytes little-endian header length, JSON
header with data_offsets).
"""

from __future__ import annotations

import json
import struct
from typing import Final

from rekindle.checkpoints.found import Folder
from rekindle.checkpoints.pickles import MAX_WALK_BYTES, numbers_of
from rekindle.mailbox import MAX_STEP

_EOCD: Final = struct.Struct("<4s4H2LH")
_LOCATOR: Final = struct.Struct("<4sLQL")
_EOCD64_BYTES: Final = 56
_LOCAL: Final = struct.Struct("<4s5H3L2H")
_TAIL_BYTES: Final = _EOCD64_BYTES + _LOCATOR.size + _EOCD.size
_HEAD_BYTES: Final = 256 * 1024
_OLD_TORCH: Final = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # Source: torch.serialization.MAGIC_NUMBER, pickled
MAX_HEADER_BYTES: Final = 100_000_000  # Source: safetensors, the header's own limit
_MAX_READ_HEADER_BYTES: Final = 8 * 1024 * 1024

_ZIPS: Final = (".pt", ".pth", ".ckpt", ".bin", ".pkl", ".npz", ".pth.tar")
# In this order: Lightning and Hugging Face write global_step, Megatron iteration, people step.
STEP_KEYS: Final = ("global_step", "global_steps", "iteration", "step")


def problem_of(folder: Folder, path: str) -> str | None:
    """What is wrong with one file of a checkpoint, None for nothing that can be seen."""
    size = folder.files.get(path)
    if size is None:
        return f"{path} is missing"
    if size == 0:
        return f"{path} is empty"
    if path.endswith(".safetensors"):
        return _safetensors(folder, path, size)
    return _archive(folder, path, size) if path.endswith(_ZIPS) else None


def _archive(folder: Folder, path: str, size: int) -> str | None:
    """A zip ends with its own table of contents: a file that does not has been cut short, or is no zip."""
    tail = folder.read(path, max(size - _TAIL_BYTES, 0), _TAIL_BYTES)
    if tail is None:
        return f"{path} cannot be read"
    if _ends_whole(tail, size):
        return None
    head = folder.read(path, 0, 16) or b""
    if head.startswith(b"PK\x03\x04"):
        return f"{path} is cut short: the end of its archive is not there"
    if head.startswith(_OLD_TORCH[: len(head)]) and head:
        return f"{path} is in torch's old format, of which nobody can tell whether it is whole"
    if path.endswith((".pkl", ".bin")) and head.startswith(b"\x80") and tail.endswith(b"."):
        return None  # a plain pickle, closed by its STOP
    return f"{path} is no archive that torch or NumPy wrote"


def _ends_whole(tail: bytes, size: int) -> bool:
    """The end record is the last thing in the file, and the table that it names lies directly before it."""
    if len(tail) < _EOCD.size:
        return False
    mark, _, _, _, _, table_bytes, table_at, comment = _EOCD.unpack(tail[-_EOCD.size :])
    if mark != b"PK\x05\x06" or comment:
        return False
    before = tail[: -_EOCD.size]
    end = size - _EOCD.size
    if len(before) >= _LOCATOR.size:
        locator, _, at64, _ = _LOCATOR.unpack(before[-_LOCATOR.size :])
        if locator == b"PK\x06\x07":
            return bool(at64 + _EOCD64_BYTES + _LOCATOR.size == end)
    return bool(table_at + table_bytes == end)


def _safetensors(folder: Folder, path: str, size: int) -> str | None:
    """The header says where its last tensor ends; so long must the file be, to the byte."""
    head = folder.read(path, 0, 8)
    if head is None:
        return f"{path} cannot be read"
    if len(head) < 8:
        return f"{path} is cut short: {size} bytes are no safetensors header"
    (header_bytes,) = struct.unpack("<Q", head)
    if header_bytes > MAX_HEADER_BYTES:
        return f"{path} is no safetensors file"
    if 8 + header_bytes > size:
        return f"{path} is cut short: {size} bytes, of which the header alone is {8 + header_bytes}"
    if header_bytes > _MAX_READ_HEADER_BYTES:
        return None  # too long to read here; the length of the data stays unchecked
    raw = folder.read(path, 8, header_bytes)
    try:
        header = json.loads(raw or b"")
        ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, OverflowError):
        return f"{path} is no safetensors file: its header cannot be read"
    needed = 8 + header_bytes + max(ends, default=0)
    if needed != size:
        return f"{path} has {size} bytes, its header says {needed}"
    return None


def pickle_in(folder: Folder, path: str) -> bytes | None:
    """The beginning of the data.pkl in a torch archive, uncompressed as torch writes it. None where there is none."""
    raw = folder.read(path, 0, _HEAD_BYTES)
    start = _pickle_start(raw or b"")
    if raw is None or start is None:
        return None
    # torch closes the entry with a data descriptor; where that lies beyond the first read, a second one goes further.
    if folder.files.get(path, 0) > _HEAD_BYTES and b"PK\x07\x08" not in raw[start:]:
        raw = folder.read(path, 0, start + MAX_WALK_BYTES) or raw
    return raw[start:]


def _pickle_start(raw: bytes) -> int | None:
    if len(raw) < _LOCAL.size:
        return None
    mark, _, _, method, _, _, _, _, _, name_chars, extra_bytes = _LOCAL.unpack(raw[: _LOCAL.size])
    name = raw[_LOCAL.size : _LOCAL.size + name_chars]
    if mark != b"PK\x03\x04" or method != 0 or not name.endswith(b"data.pkl"):
        return None
    return int(_LOCAL.size + name_chars + extra_bytes)


def numbers_in(folder: Folder, path: str, keys: tuple[str, ...]) -> dict[str, set[int]]:
    """Whole numbers that a torch file holds under these keys. Nothing is unpickled."""
    raw = pickle_in(folder, path)
    return {} if raw is None else numbers_of(raw, keys)


def step_of(numbers: dict[str, set[int]]) -> int | None:
    """The step that the content names; None where it names none, or several."""
    for key in STEP_KEYS:
        values = {value for value in numbers.get(key, ()) if 0 <= value <= MAX_STEP}
        if len(values) == 1:
            return next(iter(values))
        if values:
            return None
    return None
