"""A day of faults on a real Slurm with slurmdbd, and what sacct says of it afterwards: docs/slurm-costs.md.

`SLURM_ROOT=... python -m tests.slurm.day_of_faults` plays all of it and prints the table.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from rekindle.protocol.cluster.orders import OrderResult, Outcome, Verb
from tests.slurm.head import Head, bucket, script, until
from tests.slurm.lab.conf import Timers
from tests.slurm.lab.lab import SlurmLab

FIELDS: Final = "JobID,JobName,State,Submit,Start,End,QOS,AdminComment%-90"


class Day:
    """Each method is one fault with its recovery, ordered of the agent; `jobs` are those that it was about."""

    def __init__(self, head: Head) -> None:
        self.head, self.lab = head, head.lab
        self.jobs: list[int] = []

    def node_fault(self) -> None:
        """The node is drained, the run is put back and starts elsewhere, the node is given back."""
        job, name = self._run("train-a", "sleep 600", "--requeue")
        node = self.lab.nodes_of(job)[0]
        self._done(Verb.DRAIN, node=node, incident_id="inc-node")
        self._done(Verb.HOLD, attempt=name, slurm_job=job, incident_id="inc-a")
        self._wait(job, "PENDING")
        again = {"attempt": name, "slurm_job": job, "new_attempt": f"{name}.r1", "incident_id": "inc-a"}
        self._done(Verb.REQUEUE, **again)
        self._wait(job, "RUNNING")
        assert self.lab.nodes_of(job) != [node]
        self._done(Verb.RESUME, node=node, incident_id="inc-node")
        self._done(Verb.CANCEL, attempt=f"{name}.r1", slurm_job=job, incident_id="inc-a2")

    def crash(self) -> None:
        """It ends by itself with an error, is put back, and comes to its end."""
        body = 'if [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then sleep 4; exit 7; fi; sleep 1'
        job, name = self._run("train-b", body, "--requeue")
        self._wait(job, "FAILED")
        self.head.look()
        again = {"attempt": name, "slurm_job": job, "new_attempt": f"{name}.r1", "incident_id": "inc-b"}
        self._done(Verb.REQUEUE, **again)
        self._wait(job, "COMPLETED")

    def copy(self) -> None:
        """What Slurm may not requeue is canceled and submitted again."""
        job, name = self._run("train-c", "sleep 600", "--no-requeue")
        spec = self._spec(name)
        self._done(Verb.CANCEL, attempt=name, slurm_job=job, incident_id="inc-c")
        self._wait(job, "CANCELLED")
        more = {"attempt": name, "slurm_job": job, "new_attempt": f"{name}-a2", "spec": spec, "incident_id": "inc-c"}
        copy = self._done(Verb.SUBMIT, **more).slurm_job or 0
        self.jobs.append(copy)
        self._wait(copy, "RUNNING")
        self.lab.run("scancel", str(copy))  # its user has seen enough

    def drain(self) -> None:
        """A node is taken out of service under a job, which comes to its end there."""
        job, _ = self._run("train-d", "sleep 6")
        node = self.lab.nodes_of(job)[0]
        self._done(Verb.DRAIN, node=node, incident_id="inc-d")
        self._wait(job, "COMPLETED")
        self._done(Verb.RESUME, node=node, incident_id="inc-d")

    def others(self) -> None:
        """An administrator cancels a protected run."""
        job, _ = self._run("train-e", "sleep 600")
        self.lab.run("scancel", str(job))
        self._wait(job, "CANCELLED")

    def rows(self) -> list[dict[str, str]]:
        """One for each start, as sacct has them once the last one is over."""
        wanted = ",".join(map(str, self.jobs))

        def read() -> list[dict[str, str]]:
            printed = self.lab.run("sacct", "-D", "-X", "-P", "-j", wanted, "-o", FIELDS.partition("%")[0]).stdout
            first, *rest = [line.split("|") for line in printed.splitlines()]
            return [dict(zip(first, row, strict=True)) for row in rest]

        until(lambda: all(row["End"] != "Unknown" for row in read()), "the ends in the accounting")
        return read()

    def table(self) -> str:
        self.rows()
        wanted = ",".join(map(str, self.jobs))
        return str(self.lab.run("sacct", "-D", "-X", "-j", wanted, "-o", FIELDS).stdout)

    # ---- parts

    def _run(self, name: str, body: str, *options: str) -> tuple[int, str]:
        path = script(self.lab, f"{name}.sh", body)
        job = self.lab.submit(path, "-N1", f"--job-name={name}", "--comment=grant=NSF-42", *options, environ=PROTECTED)
        self.jobs.append(job)
        self._spec(f"slurm.lab.{job}")
        self._wait(job, "RUNNING")
        self.head.look()
        return job, f"slurm.lab.{job}"

    def _spec(self, name: str) -> str:
        def spec() -> str | None:
            doc = self.head.doc(name)
            return doc.spec if doc is not None else None

        return str(until(spec, "its spec", self.head.look))

    def _wait(self, job: int, state: str) -> None:
        until(lambda: self.lab.job_state(job) == state, f"job {job} to be {state}", self.head.look)

    def _done(self, verb: Verb, **about: Any) -> OrderResult:
        answer = self.head.carry_out(verb, **about)
        assert answer.outcome is Outcome.DONE, answer
        return answer


PROTECTED: Final[Mapping[str, str]] = {"REKINDLE_PROTECT": "rekindle"}
WHOLE: Final[tuple[Callable[[Day], None], ...]] = (Day.node_fault, Day.crash, Day.copy, Day.drain, Day.others)


def main() -> None:
    nodes, timers = ("n1", "n2"), Timers(kill_wait_s=1)
    with (
        tempfile.TemporaryDirectory() as folder,
        SlurmLab(nodes=nodes, cpus=16, timers=timers, with_accounting=True) as lab,
        bucket() as s3,
    ):
        day = Day(Head(lab, s3, Path(folder) / "state"))
        for fault in WHOLE:
            fault(day)
        print(day.table())


if __name__ == "__main__":
    main()
