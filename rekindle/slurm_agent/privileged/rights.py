"""The parts that need root's or another user's rights, put together: in the agent's process, or in root's helper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rekindle.slurm_agent.base.ports import LeaseHolder
from rekindle.slurm_agent.base.settings import Settings as AgentSettings
from rekindle.slurm_agent.copies.kept import SpecFolder
from rekindle.slurm_agent.copies.reads import CopyReads
from rekindle.slurm_agent.files.user_files import UserFiles
from rekindle.slurm_agent.privileged.caps import Caps
from rekindle.slurm_agent.privileged.gate import Gate
from rekindle.slurm_agent.privileged.remote import RemoteCaptures, RemoteCopies, RemoteGate, RemoteNodeMap
from rekindle.slurm_agent.privileged.submissions import Captures, Copies
from rekindle.slurm_agent.reading.nodemap import NodeMap
from rekindle.slurm_agent.reading.nodes import Settings
from rekindle.slurm_agent.reading.run import Runner


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """What reads Slurm and users' files, and changes Slurm. In the agent each may be a request to root's helper."""

    reads: CopyReads
    node_map: NodeMap | RemoteNodeMap
    files: UserFiles
    gate: Gate | RemoteGate
    captures: Captures | RemoteCaptures
    copies: Copies | RemoteCopies


def rights(
    settings: AgentSettings,
    *,
    guard_fd: int | None,
    holding: LeaseHolder | None,
    now: Callable[[], datetime],
    folder: Path,
    is_leaving: bool,
    of_slurmctld: Callable[[], Settings],
    files: UserFiles,
    kept: SpecFolder,
) -> Rights:
    """guard_fd: see `lock`. folder: of the caps. of_slurmctld: its settings. Nothing is run or read yet."""
    runner = Runner(environ=settings.environ, guard_fd=guard_fd, holding=holding)
    reads = CopyReads(runner, now)
    gate = Gate(
        runner=runner,
        reads=reads,
        caps=Caps(folder / "caps.json"),
        path=settings.allow_file,
        is_hyperpod=lambda: Path(settings.resource_config).exists(),
        is_leaving=is_leaving,
    )
    copies = Copies(runner=runner, reads=reads, gate=gate, settings=of_slurmctld, files=files, hashes=kept.hashes)
    return Rights(
        reads=reads,
        node_map=NodeMap(settings.resource_config),
        files=files,
        gate=gate,
        captures=Captures(reads, kept),
        copies=copies,
    )
