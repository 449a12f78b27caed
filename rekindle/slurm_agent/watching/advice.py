"""Advice about Slurm's settings that may cause trouble later, as the agent's `--check` prints it. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

from rekindle.protocol.cluster.queue_place import will_lose_text
from rekindle.slurm_agent.base.ports import Advice
from rekindle.slurm_agent.reading.nodes import Node, Settings

DEFAULT_FIRST: Final = 1  # Source: slurm.conf(5), FirstJobId
TESTED: Final = ((22, 5), (26, 5))  # the oldest and the newest release of Slurm that the tests run on
CLOCKS_APART: Final = timedelta(seconds=60)
LOCAL_ID: Final = (1 << 26) - 1  # in a federation the bits above are the cluster's. Source: slurm.h, MAX_JOB_ID


def numbering(settings: Settings, highest: int) -> str:
    """What is wrong with the numbers that slurmctld gives to jobs; "" where nothing is. `highest`: known so far."""
    if have_begun_again(settings, highest):
        return (
            f"Slurm's next job is number {settings.next_job}, and job {highest} is known: numbers have begun again. Set"
            " FirstJobId in slurm.conf above every number that was ever given, and restart slurmctld"
        )
    if settings.first_job == DEFAULT_FIRST:
        return (
            "FirstJobId is 1: should StateSaveLocation be lost, new jobs get the numbers of known ones and are not"
            " protected. Then set FirstJobId above every number that was ever given before slurmctld starts again"
        )
    return ""


def have_begun_again(settings: Settings, highest: int) -> bool:
    """Whether the next job gets a number that was given before. highest: of jobs known before `settings` was read."""
    return settings.next_job is not None and 0 < settings.next_job & LOCAL_ID <= highest & LOCAL_ID


def advice(
    settings: Settings,
    nodes: Iterable[Node],
    *,
    cluster: str,
    highest: int,
    now: datetime,
    reads_state: bool,
    is_hyperpod: bool,
) -> Iterator[Advice]:
    """One Advice for each subject, also where all is well.

    cluster: as the agent names it. reads_state: whether the agent's user may read StateSaveLocation.
    """
    text = numbering(settings, highest)
    yield _advice("job numbers", text, f"FirstJobId is {settings.first_job}")
    yield _advice("versions", _versions(settings, nodes), f"Slurm {settings.version} everywhere")
    if not is_hyperpod:  # which names the cluster on every node, and reboots by itself
        yield _advice("name", _name(settings, cluster), f"Slurm says {cluster}, too")
        text = "" if settings.reboot_program else "RebootProgram is not set: no node can be rebooted through Slurm"
        yield _advice("reboot", text, settings.reboot_program)
    where = settings.state_location or "StateSaveLocation"
    text = f"{where} cannot be read: jobs whose arguments or environment are not known are not submitted again"
    yield _advice("state of jobs", "" if reads_state else text, f"{where} can be read")
    yield _advice("accounting", _accounting(settings), settings.accounting)
    yield _advice("queue", will_lose_text(settings.queue_losses), "a new start keeps its place in the queue")
    yield _advice("copies", _copies(settings), "no plug-in changes what is submitted")
    yield _advice("Slurm's clock", _clock(settings, now), "the same as this host's")


def _advice(what: str, problem: str, all_well: str) -> Advice:
    return Advice(what=what, text=problem or all_well, is_ok=None if problem else True)


def _name(settings: Settings, cluster: str) -> str:
    if settings.cluster in ("", cluster):
        return ""
    return (
        f"jobs know this cluster as {settings.cluster}, not as {cluster}, and the monitors in them name their runs so:"
        f" the agent does not find them. Write {cluster} to /etc/rekindle/cluster on every node, or leave out --cluster"
        " and REKINDLE_CLUSTER"
    )


def _versions(settings: Settings, nodes: Iterable[Node]) -> str:
    match = re.match(r"(\d+)\.(\d+)", settings.version)
    if match is None:
        return f"slurmctld does not tell its version: {settings.version!r}"
    low, high = TESTED
    found = (int(match[1]), int(match[2]))
    tried = f"tried from {low[0]}.{low[1]:02} to {high[0]}.{high[1]:02}"
    if not low <= found <= high:
        return f"Slurm {settings.version} is {'older' if found < low else 'newer'} than what was {tried}"
    others = Counter(node.version for node in nodes if node.version and node.version != settings.version)
    listed = ", ".join(f"{version} on {count}" for version, count in others.most_common(4))
    return f"slurmctld is {settings.version}; nodes run other versions: {listed}" if others else ""


def _accounting(settings: Settings) -> str:
    if settings.has_accounting:
        return ""
    if settings.has_history:
        return f"no accounting; how forgotten jobs ended is read from {settings.job_comp}"
    return "no accounting: once slurmctld has forgotten a job (MinJobAge), how it ended is not known"


def _copies(settings: Settings) -> str:
    if not settings.submit_plugins:
        return ""
    return (
        f"what {settings.submit_plugins} changes of a submission is known only once a copy is submitted: it waits "
        "held, and is cancelled if it is not the same job. `sbatch --test-only`, which is asked when a job is first "
        "seen, shows only what is refused"
    )


def _clock(settings: Settings, now: datetime) -> str:
    if settings.asked_at is None or abs(settings.asked_at - now) < CLOCKS_APART:
        return ""
    apart = abs(settings.asked_at - now).total_seconds()
    return f"slurmctld's clock and this host's are {apart:.0f} s apart: set both by chrony"
