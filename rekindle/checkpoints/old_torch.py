"""torch's old format: five pickles one after the other, then of each storage how many numbers it has, and these.

Source: torch.serialization._legacy_save. The pickles are a magic number, the protocol, the machine, the object that was
saved, and the keys of its storages, in their order.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rekindle.checkpoints.found import Folder
from rekindle.checkpoints.tensors import (
    ITEM_SIZES,
    MAX_PICKLE_BYTES,
    SAMPLE_BYTES,
    Tensor,
    has_nan,
    may_be_nan,
    nan_among,
    tensors_in,
)

MAGIC: Final = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # torch.serialization.MAGIC_NUMBER, pickled
_COUNT_BYTES: Final = 8  # before each storage's numbers


@dataclass(frozen=True, slots=True)
class OldArchive:
    """places: where a storage's numbers begin, by its key. least_bytes: how long the file is at least."""

    tensors: tuple[Tensor, ...]
    places: Mapping[str, int]
    least_bytes: int


def object_in(raw: bytes) -> bytes | None:
    """From where the pickle of the saved object begins; None where `raw` does not begin as such a file."""
    stream = io.BytesIO(raw)
    is_there = raw.startswith(MAGIC) and all(_skip(stream) is not None for _ in range(3))
    return raw[stream.tell() :] if is_there else None


def old_archive(folder: Folder, path: str) -> OldArchive | None:
    """None for another file, and for one whose pickles are too long to be read here."""
    raw = folder.read(path, 0, MAX_PICKLE_BYTES) or b""
    saved = object_in(raw)
    if saved is None:
        return None
    stream = io.BytesIO(saved)
    keys = _skip(stream) is not None and _skip(stream)
    if not keys:
        return None
    tensors = tensors_in(saved)
    storages = {tensor.key: tensor for tensor in tensors}
    places: dict[str, int] = {}
    end = len(raw) - len(saved) + stream.tell()
    for key in keys:
        size = ITEM_SIZES.get(storages[key].type or "") if key in storages else None
        if size is None:  # of a type that is not known here: where the next one lies is not, either
            break
        places[key] = end + _COUNT_BYTES
        end = places[key] + storages[key].elements * size
    return OldArchive(tensors, places, end)


def nan_in_old(folder: Folder, path: str, archive: OldArchive, samples: int) -> str | None:
    """The name of a tensor that holds NaN; `samples` are looked into."""

    def is_nan(tensor: Tensor) -> bool:
        size = min(tensor.elements * ITEM_SIZES[tensor.type or ""], SAMPLE_BYTES)
        return has_nan(folder.read(path, archive.places[tensor.key], size) or b"", tensor.type or "")

    there = [tensor for tensor in archive.tensors if may_be_nan(tensor) and tensor.key in archive.places]
    return nan_among([(tensor, tensor.name, tensor.dimensions) for tensor in there], is_nan, samples)


def _skip(stream: io.BytesIO) -> list[str] | None:
    """The texts in the next pickle; None where it does not end."""
    try:
        return [value for _, value, _ in pickletools.genops(stream) if isinstance(value, str)]
    except Exception:  # hostile, or cut short
        return None
