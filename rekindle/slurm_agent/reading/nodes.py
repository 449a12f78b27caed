"""Nodes as `scontrol -o show node` shows them.

One command for all nodes, and the only one that gives the address, the instance id and the whole list of state flags
in all versions: sinfo's `%T` folds them into one word (`drained`, `fail*`), differently from version to version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rekindle.protocol.cluster.node_states import read_state
from rekindle.protocol.cluster.orders import check_node
from rekindle.protocol.wire import MailboxError
from rekindle.slurm_agent.reading import text
from rekindle.slurm_agent.reading.run import Unreadable

_BY: Final = re.compile(r"^(?P<reason>.*?)(?:(?<!\S)\[[^\[\]]*@[^\[\]]*\])?$", re.DOTALL)
_INSTANCE: Final = re.compile(r"i-[0-9a-f]{8,17}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node. `state` and `flags` in the words of `node_states`.

    `instance_id` where slurmd was given it (`InstanceId=`, 24.05+).
    """

    name: str
    state: str
    flags: tuple[str, ...] = ()
    reason: str = ""
    address: str = ""
    host: str = ""
    instance_id: str | None = None
    extra: str = ""
    booted: datetime | None = None
    version: str = ""


def parse_nodes(output: str) -> tuple[Node, ...]:
    """Raises: Unreadable where something was printed and no node is in it."""
    found = []
    for line in output.splitlines():
        if line.startswith("NodeName="):
            node = _node(line)
            if node is not None:
                found.append(node)
    if not found and output.strip() and "no nodes" not in output.lower():
        raise Unreadable("scontrol shows no node")
    return tuple(found)


def _node(line: str) -> Node | None:
    at = text.fields(line)
    try:
        name = check_node(at.get("NodeName"))
    except MailboxError:
        return None
    state, flags = read_state(at.get("State", ""))
    by = _BY.match(at.get("Reason", ""))
    instance = at.get("InstanceId", "")
    return Node(
        name=name,
        state=state,
        flags=flags,
        reason=text.value(by["reason"] if by else "")[:1000],
        address=text.value(at.get("NodeAddr")),
        host=text.value(at.get("NodeHostName")),
        instance_id=instance if _INSTANCE.fullmatch(instance) else None,
        extra=text.value(at.get("Extra"))[:4000],
        booted=text.moment(at.get("BootTime")),
        version=text.value(at.get("Version"))[:64],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What `scontrol show config` says that matters here. `asked_at` and `booted_at` are slurmctld's own times."""

    version: str = ""
    cluster: str = ""
    state_location: str = ""
    asked_at: datetime | None = None
    booted_at: datetime | None = None
    accounting: str = ""
    job_comp: str = ""
    kill_wait_s: int | None = None
    first_job: int | None = None
    next_job: int | None = None
    reboot_program: str = ""

    @property
    def has_history(self) -> bool:
        """Whether sacct can tell of ended jobs."""
        return self.has_accounting or "filetxt" in self.job_comp

    @property
    def has_accounting(self) -> bool:
        return bool(self.accounting) and not self.accounting.endswith("/none")

    @property
    def up_s(self) -> float:
        """How long slurmctld has been up; 0 where it does not say."""
        if self.asked_at is None or self.booted_at is None:
            return 0.0
        return max(0.0, (self.asked_at - self.booted_at).total_seconds())


def parse_settings(output: str) -> Settings:
    """Raises: Unreadable where it is no configuration."""
    at = text.table(output)
    if "SLURM_VERSION" not in at and "ClusterName" not in at:
        raise Unreadable("scontrol shows no configuration")
    head = output.partition("\n")[0].partition(" as of ")[2]
    return Settings(
        version=text.value(at.get("SLURM_VERSION"))[:64],
        cluster=text.value(at.get("ClusterName")),
        state_location=text.value(at.get("StateSaveLocation")),
        asked_at=text.moment(head),
        booted_at=text.moment(at.get("BOOT_TIME")),
        accounting=text.value(at.get("AccountingStorageType")),
        job_comp=text.value(at.get("JobCompType")),
        kill_wait_s=text.whole(at.get("KillWait", "").partition(" ")[0]),
        first_job=text.whole(at.get("FirstJobId")),
        next_job=text.whole(at.get("NEXT_JOB_ID")),
        reboot_program=text.value(at.get("RebootProgram")),
    )
