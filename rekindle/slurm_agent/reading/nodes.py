"""Nodes as `scontrol -o show node` prints them, and slurmctld's settings as `scontrol show config` does.

`scontrol -o show node` prints all nodes at once, and in all versions of Slurm it is the only command that gives the
address, the instance id and the whole list of state flags: `%T` of sinfo folds the flags into one word (`drained`,
`fail*`), differently from version to version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from rekindle.protocol.cluster.node_states import read_state
from rekindle.protocol.cluster.orders import check_node
from rekindle.protocol.cluster.queue_place import QueueFact
from rekindle.protocol.wire import MailboxError
from rekindle.slurm_agent.reading import text
from rekindle.slurm_agent.reading.run import Unreadable

# A reason, without the `[user@time]` that Slurm appends.
_REASON: Final = re.compile(r"^(?P<reason>.*?)(?:(?<!\S)\[(?P<by>[^\[\]]*)@(?P<at>[^\[\]]*)\])?$", re.DOTALL)
_INSTANCE_ID: Final = re.compile(r"i-[0-9a-f]{8,17}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node. An empty text stands for what Slurm does not print.

    `state` and `flags`: the base state and the other states, as `node_states.read_state` returns them.
    `instance_id`: None unless slurmd was given it (`InstanceId=`, Slurm 24.05 or newer).
    `extra`: the administrator's free text (`Extra=`). `booted`: when the node's operating system started.
    `version`: of its slurmd. `reason_at`, `reason_by`: when and by which user the reason was given. `features`: all
    that it can have.
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
    reason_at: datetime | None = None
    reason_by: str = ""
    partitions: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()


def parse_nodes(output: str) -> tuple[Node, ...]:
    """The nodes of `scontrol -o show node`; those with a name that Slurm cannot have are left out.

    Raises: Unreadable where something was printed and there is no node in it.
    """
    parsed = [_node(line) for line in output.splitlines() if line.startswith("NodeName=")]
    found = [node for node in parsed if node is not None]
    if not found and output.strip() and "no nodes" not in output.lower():
        raise Unreadable("scontrol shows no node")
    return tuple(found)


def _node(line: str) -> Node | None:
    """The node of one line; None where its name is invalid."""
    fields = text.fields(line)
    try:
        name = check_node(fields.get("NodeName"))
    except MailboxError:
        return None
    state, flags = read_state(fields.get("State", ""))
    reason = _REASON.match(fields.get("Reason", ""))
    instance_id = fields.get("InstanceId", "")
    return Node(
        name=name,
        state=state,
        flags=flags,
        reason=text.value(reason["reason"] if reason else "")[:1000],
        address=text.value(fields.get("NodeAddr")),
        host=text.value(fields.get("NodeHostName")),
        instance_id=instance_id if _INSTANCE_ID.fullmatch(instance_id) else None,
        extra=text.value(fields.get("Extra"))[:4000],
        booted=text.moment(fields.get("BootTime")),
        version=text.value(fields.get("Version"))[:64],
        reason_at=text.moment(reason["at"]) if reason else None,
        reason_by=text.value(reason["by"] if reason else "")[:64],
        partitions=frozenset(text.value(fields.get("Partitions")).split(",")) - {""},
        features=frozenset(text.value(fields.get("AvailableFeatures")).split(",")) - {""},
    )


def in_maintenance(node: Node, reservations: str) -> Node:
    """The node with that flag where one of `scontrol -o show reservation` says so."""
    for line in reservations.splitlines():
        fields = text.fields(line)
        is_maintenance = "MAINT" in fields.get("Flags", "").split(",") and fields.get("State") == "ACTIVE"
        if is_maintenance and node.name in text.hosts(text.value(fields.get("Nodes"))):
            return replace(node, flags=tuple(dict.fromkeys((*node.flags, "maintenance"))))
    return node


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """slurmctld's settings and state, from `scontrol show config`. None or an empty text: not printed.

    `asked_at` and `booted_at` are by slurmctld's own clock: when it answered, and when it started.
    `accounting` and `job_comp`: the plugins for accounting and for records of completed jobs.
    `slurm_uid`: that of SlurmUser, under which slurmctld itself runs. `submit_plugins`: what may change a submission.
    `priority_moves`: by how much a job's priority may move by itself, by age and fairshare; None: that is not known.
    `age_weight`: how much of it is age.
    `first_job` and `next_job`: the range of job ids begins at the one; the other is assigned next.
    """

    version: str = ""
    cluster: str = ""
    state_location: str = ""
    asked_at: datetime | None = None
    booted_at: datetime | None = None
    accounting: str = ""
    job_comp: str = ""
    first_job: int | None = None
    next_job: int | None = None
    reboot_program: str = ""
    slurm_uid: int | None = None
    submit_plugins: str = ""
    priority_moves: int | None = None
    age_weight: int | None = None

    @property
    def queue_losses(self) -> tuple[QueueFact, ...]:
        """What a new start loses: priority/basic sorts by submission, and an administrator's priority cannot be told
        from its own."""
        found = [QueueFact.WAITING_SINCE] if self.age_weight != 0 else []
        return (*found, QueueFact.PRIORITY) if self.priority_moves is None else tuple(found)

    @property
    def has_history(self) -> bool:
        """Whether sacct can show ended jobs."""
        return self.has_accounting or "filetxt" in self.job_comp

    @property
    def has_accounting(self) -> bool:
        """Whether jobs are recorded in an accounting database."""
        return bool(self.accounting) and not self.accounting.endswith("/none")

    @property
    def up_s(self) -> float:
        """Seconds since slurmctld started; 0 where it is not known."""
        if self.asked_at is None or self.booted_at is None:
            return 0.0
        return max(0.0, (self.asked_at - self.booted_at).total_seconds())


def parse_settings(output: str) -> Settings:
    """The settings of `scontrol show config`. Raises: Unreadable where the output is no configuration."""
    fields = text.table(output)
    if "SLURM_VERSION" not in fields and "ClusterName" not in fields:
        raise Unreadable("scontrol shows no configuration")
    printed_at = output.partition("\n")[0].partition(" as of ")[2]
    return Settings(
        version=text.value(fields.get("SLURM_VERSION"))[:64],
        cluster=text.value(fields.get("ClusterName")),
        state_location=text.value(fields.get("StateSaveLocation")),
        asked_at=text.moment(printed_at),
        booted_at=text.moment(fields.get("BOOT_TIME")),
        accounting=text.value(fields.get("AccountingStorageType")),
        job_comp=text.value(fields.get("JobCompType")),
        first_job=text.whole(fields.get("FirstJobId")),
        next_job=text.whole(fields.get("NEXT_JOB_ID")),
        reboot_program=text.value(fields.get("RebootProgram")),
        submit_plugins=",".join(
            plugins for key in ("CliFilterPlugins", "JobSubmitPlugins") if (plugins := text.value(fields.get(key)))
        ),
        slurm_uid=text.whole(fields.get("SlurmUser", "").partition("(")[2].partition(")")[0]),
        priority_moves=_priority_moves(fields),
        age_weight=text.whole(fields.get("PriorityWeightAge")) if _is_multifactor(fields) else None,
    )


def _priority_moves(fields: Mapping[str, str]) -> int | None:
    """Source: slurm.conf(5), PriorityType, PriorityWeightAge, PriorityWeightFairShare, PrioritySiteFactorPlugin."""
    weights = [text.whole(fields.get(f"PriorityWeight{name}")) for name in ("Age", "FairShare")]
    is_known = _is_multifactor(fields) and not text.value(fields.get("PrioritySiteFactorPlugin"))
    return sum(weight or 0 for weight in weights) if is_known and None not in weights else None


def _is_multifactor(fields: Mapping[str, str]) -> bool:
    return fields.get("PriorityType") == "priority/multifactor"
