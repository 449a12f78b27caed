"""What is asked of Slurm, as typed questions. Each is one command."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final, Protocol

from rekindle.protocol.cluster.orders import check_node
from rekindle.slurm_agent.base.ports import SlurmUnavailable, UnknownJob, UnknownNode
from rekindle.slurm_agent.copies.capture import MAX_SCRIPT_BYTES
from rekindle.slurm_agent.reading import text
from rekindle.slurm_agent.reading.jobs import (
    CODE_COLUMNS,
    COLUMNS,
    LEAN_COLUMNS,
    STEP_COLUMNS,
    Job,
    PastStart,
    format_of,
    parse_codes,
    parse_detail,
    parse_details,
    parse_jobs,
    parse_steps,
    parse_why_waiting,
)
from rekindle.slurm_agent.reading.nodes import Node, Settings, in_maintenance, parse_nodes, parse_settings
from rekindle.slurm_agent.reading.run import MAX_OUTPUT_BYTES, TooMuch, Unreadable

SEVERAL: Final = 8  # jobs; so many are asked about at once: one answer about all costs slurmctld less than theirs
MAX_JSON_BYTES: Final = 256 << 20  # 22.05 prints all jobs, whichever is asked for; 4 kB each
ANSWERS_S: Final = 15.0  # what a command of Slurm's takes to give up by itself: MessageTimeout, 10 s; see slurm.conf(5)
HISTORY_REST: Final = 3  # times as long as sacct took to fail, until it is asked again


class SlurmReader(Protocol):
    """See `Runner`."""

    def read(self, args: Sequence[str], *, limit: int = MAX_OUTPUT_BYTES) -> str:
        """What a command that changes nothing prints. Raises: SlurmError."""
        ...


class CopyReads:
    """Raises: SlurmError, from every method."""

    def __init__(self, runner: SlurmReader, now: Callable[[], datetime]) -> None:
        self._runner = runner
        self.now = now
        self.commands = 0  # that were run so far
        self._history_from = 0.0  # by time.monotonic

    def _ask(self, args: Sequence[str], *, limit: int = MAX_OUTPUT_BYTES) -> str:
        self.commands += 1
        return self._runner.read(args, limit=limit)

    def _ask_of_one(self, args: Sequence[str], *, limit: int = MAX_OUTPUT_BYTES) -> str:
        """Once more where a busy slurmctld has not answered: an order that is given up asks for all of that again."""
        began = time.monotonic()
        try:
            return self._ask(args, limit=limit)
        except SlurmUnavailable:
            if time.monotonic() - began > ANSWERS_S:
                raise
            return self._ask(args, limit=limit)

    def printed(self, args: Sequence[str], limit: int) -> str:
        """By one of the commands below."""
        return self._ask(args, limit=limit)

    def jobs(self) -> tuple[Job, ...]:
        """All jobs that slurmctld knows, the ended ones too (MinJobAge)."""
        return self._squeue()

    def job(self, job: int) -> Job | None:
        """None where slurmctld does not know it."""
        try:
            found = self._squeue("--jobs", str(job))
        except UnknownJob:
            return None
        return next((shown for shown in found if shown.job == job), None)

    def jobs_on(self, node: str) -> tuple[int, ...]:
        """The jobs that hold the node."""
        printed = self._ask(
            ["squeue", "--noheader", "--all", "--local", "--nodelist", check_node(node), "-O", "JobID:#"]
        )
        return tuple(sorted({int(part) for part in printed.replace("#", " ").split() if text.is_number(part)}))

    def _squeue(self, *more: str) -> tuple[Job, ...]:
        """A queue that holds more than is read is read without what can be that long: one user's jobs must not keep
        other users' from being seen."""
        try:
            return self._listed(COLUMNS, more)
        except TooMuch:
            return self._listed(LEAN_COLUMNS, more)

    def _listed(self, columns: Sequence[str], more: Sequence[str]) -> tuple[Job, ...]:
        wanted, between, end = format_of(columns, secrets.token_hex(6))
        args = ["squeue", "--noheader", "--all", "--local", "--states=all", *more, "-O", wanted]
        printed = self._ask_of_one(args) if more else self._ask(args)
        return parse_jobs(printed, between, end, self.now(), columns)

    def steps(self) -> dict[str, int]:
        """How many numbered steps run, by `Job.step_key`."""
        wanted, between, end = format_of(STEP_COLUMNS, secrets.token_hex(6))
        args = ["squeue", "--noheader", "--all", "--local", "--steps", "-O", wanted]
        return parse_steps(self._ask(args), between, end)

    def step_codes(self, job: int) -> tuple[int | None, int | None]:
        """Exit code and signal of the steps of a job that has ended; None where nothing tells them.

        Source: squeue(1), DerivedEC: the highest exit code of all steps.
        """
        wanted, between, end = format_of(CODE_COLUMNS, secrets.token_hex(6))
        args = ["squeue", "--noheader", "--all", "--local", "--states=all", "--jobs", str(job), "-O", wanted]
        try:
            return parse_codes(self._ask(args), between, end, job)
        except UnknownJob:
            return None, None

    def why_waiting(self, job: int) -> str:
        """slurmctld's own reason for which a job waits. Text shows what was written beside the first hold instead (seen
        on 22.05, 24.11, 26.05: "job requeued in held state", also where an administrator holds it now)."""
        args = ["squeue", "--all", "--local", "--states=all", "--jobs", str(job), "--json"]
        return parse_why_waiting(self._ask(args, limit=MAX_JSON_BYTES), job)

    def detail(self, job: Job) -> Mapping[str, str]:
        """The pairs of scontrol show job."""
        return parse_detail(self._ask_of_one(["scontrol", "--all", "-o", "show", "job", str(job.job)]), job)

    def details(self, jobs: Sequence[Job]) -> Mapping[int, Mapping[str, str]]:
        """The same of several, by one command, of those whose record is surely theirs; the others are asked singly."""
        return parse_details(self._ask(["scontrol", "--all", "-o", "show", "job"]), jobs)

    def nodes(self) -> tuple[Node, ...]:
        """All nodes, also those of hidden partitions."""
        return parse_nodes(self._ask(["scontrol", "--all", "-o", "show", "node"]))

    def node(self, name: str) -> Node | None:
        """None: no such node. One in a maintenance reservation that has begun is in maintenance, whatever it shows:
        slurmctld sets the node's state up to some seconds later."""
        try:
            found = parse_nodes(self._ask(["scontrol", "--all", "-o", "show", "node", check_node(name)], limit=1 << 20))
        except UnknownNode:
            return None
        reserved = self._ask(["scontrol", "--all", "-o", "show", "reservation"], limit=4 << 20)
        return next((in_maintenance(node, reserved) for node in found if node.name == name), None)

    def settings(self) -> Settings:
        """Of slurmctld."""
        return parse_settings(self._ask(["scontrol", "show", "config"], limit=4 << 20))

    def script(self, job: int) -> str:
        """The batch script as it was submitted."""
        found = self._ask(["scontrol", "write", "batch_script", str(job), "-"], limit=2 * MAX_SCRIPT_BYTES)
        if not found.startswith("#!"):
            raise Unreadable(f"job {job} has no batch script")
        return found

    def history(self, job: int, settings: Settings) -> tuple[PastStart, ...]:
        """Each start that the accounting or job completion log still knows, in order.

        slurmdbd that accepts connections and does not answer costs one sacct its whole time: what follows is not asked
        for a while. Raises: SlurmUnavailable, then as well.
        """
        if time.monotonic() < self._history_from:
            raise SlurmUnavailable("sacct has not answered: it is asked again later")
        source = [] if settings.has_accounting else ["--completion"]
        more = ["--duplicates", "--allocations"] if settings.has_accounting else []
        # The code of its steps is asked of slurmdbd alone. Source: sacct(1), DerivedExitCode.
        columns_ = "--format=JobID,State,ExitCode,NodeList" + (",DerivedExitCode" if settings.has_accounting else "")
        how = ["--noheader", "--parsable2", "--delimiter=|", "--jobs", str(job), columns_]
        began = time.monotonic()
        try:
            printed = self._ask(["sacct", *source, *more, *how], limit=1 << 20)
        except SlurmUnavailable:
            self._history_from = time.monotonic() + HISTORY_REST * (time.monotonic() - began)
            raise
        found = []
        for line in printed.splitlines():
            columns = line.split("|")
            if len(columns) in (4, 5) and columns[0].strip() == str(job):
                found.append(PastStart(*(column.strip() for column in columns[1:])))
        return tuple(found)
