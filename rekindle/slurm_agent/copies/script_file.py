"""The batch script of a submission, as a file for sbatch.

Its folder's name carries the attempt's. slurmctld shows the path as the job's `Command`, which no tool changes and no
job inherits: by it a submission is known whose comment another tool has overwritten.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from rekindle.protocol.cluster.documents import SlurmState
from rekindle.protocol.cluster.names import is_slurm
from rekindle.slurm_agent.base.ports import SlurmUnavailable
from rekindle.slurm_agent.reading.jobs import ENDED, Job
from rekindle.slurm_agent.reading.run import As

FOLDER: Final = "rekindle-sbatch-"
LEFT_BEHIND_S: Final = 3600.0  # no sbatch takes that long
_NAME: Final = "batch"
# mkdtemp puts eight characters behind the prefix. Source: Python's tempfile, _RandomNameSequence.
_COMMAND: Final = re.compile(
    rf"/(?:[^ ]*/)?{FOLDER}(?P<attempt>[A-Za-z0-9._-]{{1,128}})\.[a-z0-9_]{{8}}/{_NAME}(?= |\Z)"
)


def attempt_of(command: str) -> str | None:
    """The attempt as which the agent has submitted a job with this `Command`; None for any other job."""
    found = _COMMAND.match(command)
    return found["attempt"] if found is not None and is_slurm(found["attempt"]) else None


def never_ran_as(job: Job) -> str | None:
    """The attempt as which the agent has submitted a job that has had no start so far; None for any other job."""
    has_no_start = job.state in ENDED | {SlurmState.PENDING} and job.restart == 0 and not job.node_list
    return attempt_of(job.command) if has_no_start else None


@contextmanager
def script_file(script: str, who: As, attempt: str) -> Iterator[str]:
    """The script, readable by its user, replaceable by no one, for as long as sbatch needs it.

    Raises: SlurmUnavailable.
    """
    folder: Path | None = None
    try:
        _sweep()
        folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER}{attempt}."))
        path = folder / _NAME
        path.write_text(script, encoding="utf-8", errors="surrogateescape")
        path.chmod(0o700)
        if who.uid != os.geteuid():
            os.chown(path, who.uid, who.gid)
            folder.chmod(0o711)  # it stays ours: its user can get at the file, and put nothing beside it
        yield str(path)
    except OSError as err:
        raise SlurmUnavailable(f"sbatch: the script cannot be written down: {err}"[:300]) from err
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _sweep() -> None:
    """Take away what an agent that was killed in the middle of a submission left behind."""
    oldest = time.time() - LEFT_BEHIND_S
    with suppress(OSError):
        for folder in itertools.islice(Path(tempfile.gettempdir()).glob(f"{FOLDER}*"), 100):
            seen = folder.lstat()  # any user may make a folder of that name, and fill it with what cannot be removed
            if seen.st_uid == os.geteuid() and seen.st_mtime < oldest:
                shutil.rmtree(folder, ignore_errors=True)
