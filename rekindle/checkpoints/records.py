"""CRC-32 of the records in the archives that torch, DeepSpeed and NumPy write: which part of a file has changed.

Reads whole files. A writer may leave the sums out (`torch.serialization.set_crc32_options(False)`): then none is right.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from typing import Final

CHUNK_BYTES: Final = 4 * 1024 * 1024


def broken_record(path: str | os.PathLike[str]) -> str | None:
    """The first record whose content is not what its sum says; None where all are right, or the file has no sums.

    Raises: OSError; zipfile.BadZipFile for what is no archive; ValueError: no file can have such a path.
    """
    with zipfile.ZipFile(path) as archive:
        broken: str | None = None
        right = 0
        for record in archive.infolist():
            if record.file_size == 0:
                continue
            if _is_right(archive, record):
                right += 1
            elif broken is None:
                broken = record.filename
        return broken if right else None


def _is_right(archive: zipfile.ZipFile, record: zipfile.ZipInfo) -> bool:
    try:
        with archive.open(record) as content:
            while content.read(CHUNK_BYTES):
                pass
    except (zipfile.BadZipFile, zlib.error):
        return False
    return True
