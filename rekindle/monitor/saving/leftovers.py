"""What killed saves leave behind, removed at the next start: only what has a name that only Rekindle gives.

.step-100.pt.rekindle-4711                    a file that `write_file` was writing
.rekindle-clock-1f0c22ab.tmp                  a file that shows the file system's time, or (trial) whether it takes one
step-100.tmp-rekindle-run-a2-0f-1             a folder that all ranks were writing (`rekindle.integrations.folder_save`)
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from rekindle.monitor.base.trouble import logger
from rekindle.monitor.saving.file_clock import written_now

FILE_MARK: Final = ".rekindle-"
FOLDER_MARK: Final = ".tmp-rekindle-"
MAX_ENTRIES: Final = 100_000
_FILE: Final = re.compile(r"\.(?:.+\.rekindle-\d+|rekindle-(?:clock|trial)-[\w-]+(?:\.tmp)?)\Z", re.ASCII)
_FOLDER: Final = re.compile(r".+\.tmp-rekindle-[\w.-]+\Z", re.ASCII)

_STARTED: Final = time.monotonic()


def name_beside(target: Path) -> Path:
    """Where a file is written before it gets its name."""
    return target.with_name(f".{target.name}{FILE_MARK}{os.getpid()}")


def remove_leftovers(directory: str | os.PathLike[str]) -> list[str]:
    """Remove what earlier processes left directly in it, and in its folders; what that was. Never raises.

    What was written since this process began is left alone: an earlier attempt that still lives may be writing it. That
    is measured by the file system's own clock, for the host's may be minutes apart from it.
    """
    removed: list[str] = []
    try:
        before = written_now(os.fspath(directory)) - (time.monotonic() - _STARTED)
        for path, is_folder in _found(Path(directory)):
            # One by one: what is being saved now changes and gets its name meanwhile, and what is gone is no trouble.
            with suppress(OSError):
                if _last_written(path) < before:
                    shutil.rmtree(path, ignore_errors=True) if is_folder else path.unlink()
                    removed.append(str(path))
    except OSError as err:
        logger.info("What killed saves left in %s could not be looked for: %s", directory, err)
    if removed:
        logger.info("Removed %d unfinished saves of earlier processes from %s", len(removed), directory)
    return removed


def _found(directory: Path) -> Iterator[tuple[Path, bool]]:
    folders = [directory]
    seen = 0
    while folders and seen < MAX_ENTRIES:
        folder = folders.pop()
        with suppress(OSError), os.scandir(folder) as entries:  # one that is not, or no longer, to be read
            for entry in entries:
                seen += 1
                is_folder = entry.is_dir(follow_symlinks=False)
                if is_folder and _FOLDER.match(entry.name):
                    yield Path(entry.path), True
                elif is_folder and folder == directory:
                    folders.append(Path(entry.path))
                elif entry.is_file(follow_symlinks=False) and _FILE.match(entry.name):
                    yield Path(entry.path), False


def _last_written(path: Path) -> float:
    """Of a file, or of a folder with all that is below it."""
    return max(entry.lstat().st_mtime for entry in (path, *path.rglob("*")))
