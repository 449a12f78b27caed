"""The text of a lab's slurm.conf, and the record that Slurm keeps of what has ended. Pure.

Source of each line: slurm.conf(5) of 22.05, and measurement on Debian's packages, whose build can run several slurmd
with one host name (MULTIPLE_SLURMD).
"""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """What takes minutes on a cluster takes seconds here.

    A dead node is noticed after about `slurmd_timeout_s` + 2 x `message_timeout_s`. A requeued job waits
    `cred_expire_s` + 1 before it starts; 5 is the least that Slurm takes, its own default 120.
    """

    slurmd_timeout_s: int = 5
    message_timeout_s: int = 2
    cred_expire_s: int = 5
    kill_wait_s: int = 5
    min_job_age_s: int = 300


def conf_text(
    *,
    folder: Path,
    cluster: str,
    port: int,
    nodes: Sequence[str],
    spares: Sequence[str],
    cpus: int,
    timers: Timers,
    with_munge: bool,
    extra: Sequence[str],
    gpus: int = 0,
    backup: str = "",
    accounting: Sequence[str] | None = None,
) -> str:
    """slurm.conf: the controller on `port`, the nodes on those after it, all on the loopback device.

    backup: the name of the host on which a second slurmctld runs, with an address of its own. accounting: what stands
    there where slurmdbd runs.
    """
    me = getpass.getuser()
    auth = "munge" if with_munge else "none"
    lines = [
        f"ClusterName={cluster}",
        f"SlurmctldHost={socket.gethostname().partition('.')[0]}(127.0.0.1)",
        *([f"SlurmctldHost={backup}(127.0.0.2)", "CommunicationParameters=NoCtldInAddrAny"] if backup else []),
        f"SlurmctldPort={port}",
        f"SlurmUser={me}",
        f"SlurmdUser={me}",
        f"AuthType=auth/{auth}",
        f"CredType=cred/{auth}",
        f"AuthInfo=cred_expire={timers.cred_expire_s},socket={folder}/run/munge.socket",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool/%n",
        f"SlurmctldPidFile={folder}/run/slurmctld.pid",
        f"SlurmdPidFile={folder}/run/slurmd-%n.pid",
        f"SlurmctldLogFile={folder}/log/slurmctld.log",
        f"SlurmdLogFile={folder}/log/slurmd-%n.log",
        f"PlugStackConfig={folder}/etc/plugstack.conf",
        # no cgroups, no affinity, no MPI, no switch: nothing that would need root or hardware
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "MpiDefault=none",
        "SwitchType=switch/none",
        "JobAcctGatherType=jobacct_gather/none",
        "PropagateResourceLimits=NONE",
        "SlurmdParameters=config_overrides",  # nodes may claim more CPUs than the machine has
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1",
        f"SlurmdTimeout={timers.slurmd_timeout_s}",
        f"MessageTimeout={timers.message_timeout_s}",
        "SlurmctldTimeout=10",
        f"KillWait={timers.kill_wait_s}",
        f"MinJobAge={timers.min_job_age_s}",
        "InactiveLimit=0",
        "Waittime=0",
        "ReturnToService=1",
        "JobRequeue=1",
        # history without slurmdbd: one line for each start of each job
        *(["AccountingStorageType=accounting_storage/none"] if accounting is None else accounting),
        "JobCompType=jobcomp/filetxt",
        f"JobCompLoc={folder}/log/jobcomp.txt",
        *(["GresTypes=gpu"] if gpus else []),
        *extra,
    ]
    for number, node in enumerate(nodes, start=1):
        feature = " Feature=spare" if node in spares else ""
        at = f"NodeHostname=localhost NodeAddr=127.0.0.1 Port={port + number}"
        lines.append(f"NodeName={node} {at} CPUs={cpus} State=UNKNOWN{feature}{f' Gres=gpu:{gpus}' if gpus else ''}")
    lines.append(f"PartitionName=main Nodes={','.join(nodes)} Default=YES MaxTime=INFINITE State=UP")
    return "\n".join(lines) + "\n"


def jobcomp_lines(text: str) -> list[dict[str, str]]:
    """The fields of each whole line; a value may hold spaces."""
    return [dict(re.findall(r"(\S+?)=(.*?)(?= \S+?=|\s*$)", line)) for line in text.rpartition("\n")[0].splitlines()]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One start of one job, as Slurm wrote it down when it ended (jobcomp/filetxt)."""

    job: int
    state: str
    nodes: tuple[str, ...]
    fields: Mapping[str, str]


def records_of(text: str) -> list[JobRecord]:
    """Of Slurm's file of what has ended, oldest first."""
    return [
        JobRecord(
            job=int(fields["JobId"]),
            state=fields["JobState"],
            nodes=tuple(fields.get("NodeList", "").split(",")),
            fields=fields,
        )
        for fields in jobcomp_lines(text)
    ]
