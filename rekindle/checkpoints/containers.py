"""Whether one file is whole, by a few bytes of it (torch's archives, .npz, .safetensors), and its step.

Sources: PKWARE APPNOTE 4.3 (end of central directory, zip64 locator); torch's serialization writes a zip whose first
entry is an uncompressed data.pkl, seen on torch 2.13; safetensors' format (8 bytes little-endian header length, JSON
header with data_offsets).
"""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import dataclass
from typing import Any, Final

from rekindle.checkpoints.found import Folder
from rekindle.checkpoints.old_torch import MAGIC, object_in, old_archive
from rekindle.checkpoints.pickles import MAX_WALK_BYTES, numbers_of
from rekindle.checkpoints.tensors import MAX_HEADER_BYTES as MAX_HEADER_BYTES_READ
from rekindle.checkpoints.tensors import METADATA, header_of, torch_contents
from rekindle.checkpoints.zips import LOCAL, NO_END, table_of
from rekindle.protocol.wire import MAX_STEP

_HEAD_BYTES: Final = 256 * 1024
MAX_HEADER_BYTES: Final = 100_000_000  # Source: safetensors, the header's own limit
_JSON_END_BYTES: Final = 64
_FRAME: Final = b"\x95"  # and its length in 8 bytes. Source: PEP 3154
MAX_DIMENSIONS: Final = 64  # Source: torch's c10::TensorImpl; NumPy 2 allows as many
MAX_HEADER_COUNT: Final = 2**63  # larger ones are no sizes, and their product would take time
_OPTIMIZER_WORD: Final = re.compile(r"optim|exp_avg|momentum|adam")

_ZIPS: Final = (".pt", ".pth", ".ckpt", ".bin", ".pkl", ".npz", ".pth.tar")
# In this order: Lightning and Hugging Face write global_step, Megatron iteration, nanoGPT iter_num, fairseq
# num_updates, people step.
STEP_KEYS: Final = ("global_step", "global_steps", "iteration", "iter_num", "num_updates", "step")


@dataclass(frozen=True, slots=True)
class FileProblem:
    """What is wrong with one file. `is_unsure`: it may as well be whole, in a format that does not show it."""

    text: str
    is_unsure: bool = False


def problem_of(folder: Folder, path: str) -> FileProblem | None:
    """What is wrong with one file of a checkpoint, None for nothing that can be seen."""
    size = folder.files.get(path)
    if size is None:
        return FileProblem(f"{path} is missing")
    if size == 0:
        return FileProblem(f"{path} is empty")
    if path.endswith(".safetensors"):
        problem = _safetensors(folder, path, size)
        return None if problem is None else FileProblem(problem)
    if path.endswith(".json"):
        return _json(folder, path, size)
    return _archive(folder, path, size) if path.endswith(_ZIPS) else None


def _json(folder: Folder, path: str, size: int) -> FileProblem | None:
    """Only its two ends are looked at: it may be long, and of any kind of JSON."""
    head = folder.read(path, 0, _JSON_END_BYTES)
    tail = folder.read(path, max(size - _JSON_END_BYTES, 0), _JSON_END_BYTES)
    opened, closed = (head or b"").strip()[:1], (tail or b"").strip()[-1:]
    is_closed = {b"{": b"}", b"[": b"]", b'"': b'"'}.get(opened, closed) == closed
    return None if is_closed else FileProblem(f"{path} is cut short")


def _archive(folder: Folder, path: str, size: int) -> FileProblem | None:
    """A zip ends with its own table of contents: a file that does not has been cut short, or is no zip."""
    table = table_of(folder, path, size)
    if table is None:
        return FileProblem(f"{path} cannot be read")
    if table.problem is None:
        return None
    head = folder.read(path, 0, 16) or b""
    if head.startswith(b"PK\x03\x04"):
        cause = "cut short" if table.problem == NO_END else "damaged"
        return FileProblem(f"{path} is {cause}: {table.problem}")
    if head and head.startswith(MAGIC[: len(head)]):
        return _old_archive(folder, path, size)
    if path.endswith((".pkl", ".bin")) and head.startswith(b"\x80"):
        first = int.from_bytes(head[3:11], "little") if head[2:3] == _FRAME else 0
        if folder.read(path, size - 1, 1) == b"." and 11 + first <= size:
            return None  # a plain pickle, closed by its STOP
        if path.endswith(".pkl"):
            return FileProblem(f"{path} is cut short: the end of its pickle is not there")
    return FileProblem(f"{path} is no archive that torch or NumPy wrote", is_unsure=True)


def _old_archive(folder: Folder, path: str, size: int) -> FileProblem | None:
    archive = old_archive(folder, path)
    if archive is None:
        return FileProblem(f"{path} is in torch's old format, and its pickles are cut short or long", is_unsure=True)
    if size < archive.least_bytes:
        return FileProblem(f"{path} is cut short: {size} bytes, of which its tensors need {archive.least_bytes}")
    return None


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
    if header_bytes > MAX_HEADER_BYTES_READ:
        return None  # too long to read here; the length of the data stays unchecked
    raw = folder.read(path, 8, header_bytes)
    try:
        header = json.loads(raw or b"")
        places = [_placed(entry) for name, entry in header.items() if name != METADATA]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, OverflowError):
        return f"{path} is no safetensors file: its header cannot be read"
    needed = 8 + header_bytes + max((end for _, end in places), default=0)
    if needed != size:
        return f"{path} has {size} bytes, its header says {needed}"
    return None


def _placed(entry: Any) -> tuple[int, int]:
    """(start, end) of a tensor in the data. Raises: ValueError where they are none, or not as long as its shape."""
    start, end = (int(place) for place in entry["data_offsets"])
    bits = re.search(r"[0-9]+", str(entry["dtype"]))
    shape = [int(count) for count in entry["shape"]]
    if len(shape) > MAX_DIMENSIONS or any(count > MAX_HEADER_COUNT for count in shape):
        raise ValueError("no tensor has this shape")
    length = math.prod(shape) * (int(bits[0]) if bits else 8)
    if not 0 <= start <= end or (end - start) * 8 != length:
        raise ValueError("a tensor's place does not fit its shape")
    return start, end


def contents(folder: Folder, path: str) -> tuple[bool | None, bool | None]:
    """(has weights, has an optimizer's state) of one file; None where that is unknown."""
    if path.endswith(".safetensors"):
        found = header_of(folder, path)
        names = [] if found is None else [name.lower() for name in found[1] if name != METADATA]
        return (True, any("optim" in name or name.endswith("exp_avg") for name in names)) if names else (None, None)
    if path.endswith(".npz"):
        table = table_of(folder, path, folder.files.get(path, 0))
        names = [] if table is None else [member.name.lower() for member in table.members]
        return None, True if any(_OPTIMIZER_WORD.search(name) for name in names) else None
    raw = pickle_in(folder, path)
    return (None, None) if raw is None else torch_contents(raw)


def pickle_in(folder: Folder, path: str) -> bytes | None:
    """The beginning of the data.pkl in a torch archive, uncompressed as torch writes it, or of the object in one of the
    old format. None where there is none.
    """
    raw = folder.read(path, 0, _HEAD_BYTES)
    if raw is not None and raw.startswith(MAGIC):
        return object_in(raw)
    start = _pickle_start(raw or b"")
    if raw is None or start is None:
        return None
    # torch closes the entry with a data descriptor; where that lies beyond the first read, a second one goes further.
    if folder.files.get(path, 0) > _HEAD_BYTES and b"PK\x07\x08" not in raw[start:]:
        raw = folder.read(path, 0, start + MAX_WALK_BYTES) or raw
    return raw[start:]


def _pickle_start(raw: bytes) -> int | None:
    if len(raw) < LOCAL.size:
        return None
    mark, _, _, method, _, _, _, _, _, name_chars, extra_bytes = LOCAL.unpack(raw[: LOCAL.size])
    name = raw[LOCAL.size : LOCAL.size + name_chars]
    if mark != b"PK\x03\x04" or method != 0 or not name.endswith(b"data.pkl"):
        return None
    return int(LOCAL.size + name_chars + extra_bytes)


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
