"""Gates for tests of the parts behind them."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rekindle.slurm_agent.copies.hashes import OF_THIS_PROCESS, ValueHashes
from rekindle.slurm_agent.copies.reads import CopyReads
from rekindle.slurm_agent.files.user_files import UserFiles
from rekindle.slurm_agent.privileged.caps import Caps
from rekindle.slurm_agent.privileged.changes import Change, ChangeKind, command
from rekindle.slurm_agent.privileged.gate import Gate
from rekindle.slurm_agent.privileged.submissions import Captures, Copies
from rekindle.slurm_agent.reading.nodes import Settings
from rekindle.slurm_agent.reading.run import Runner


def open_gate(runner: Runner, reads: CopyReads, kind: type[Gate] = Gate) -> Gate:
    """Everything is allowed that is where no file says otherwise, on HyperPod."""
    folder = Path(tempfile.mkdtemp(prefix="rekindle-gate-"))
    caps = Caps(folder / "caps.json")
    return kind(runner=runner, reads=reads, caps=caps, path=str(folder / "none"), is_hyperpod=lambda: True)


def parts(
    runner: Runner,
    reads: CopyReads,
    settings: Callable[[], Settings],
    kind: type[Gate] = Gate,
    hashes: ValueHashes = OF_THIS_PROCESS,
) -> dict[str, Any]:
    """What `Commands` has besides its reads."""
    gate, files = open_gate(runner, reads, kind), UserFiles()
    copies = Copies(runner=runner, reads=reads, gate=gate, settings=settings, files=files, hashes=hashes)
    captures = Captures(reads)
    return {"gate": gate, "files": files, "captures": captures, "copies": copies}


class NoGate(Gate):
    """Runs what it is given, for tests of the commands themselves."""

    def make(self, change: Change) -> None:
        is_read = change.job is not None and change.kind is not ChangeKind.CANCEL_WAITING  # as in the records
        job = self._reads.job(change.job) if is_read and change.job is not None else None
        key = job.step_key if job is not None and job.is_array_task and not job.is_lump else str(change.job or "")
        self._runner.change(command(change, key))
