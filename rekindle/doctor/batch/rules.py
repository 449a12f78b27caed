"""What of a batch script will not survive a failure: its text, its options, its output. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from rekindle.doctor.base.findings import Finding, error, listed, unknown, warning
from rekindle.doctor.base.ids import Id
from rekindle.doctor.batch.options import AUTO_RESUME
from rekindle.doctor.batch.rendezvous import rendezvous_findings
from rekindle.doctor.batch.run import has_auto_resume, run_findings
from rekindle.doctor.batch.script import MAX_COMMANDS, MAX_SHELL_BYTES, Batch
from rekindle.slurm_agent.reading.comment import KEYS

# A resumed step waits 20 to 30 minutes for the new node, within the time limit. Source:
# docs/facts-slurm.md#hyperpod-on-slurm.
SHORT: Final = timedelta(minutes=120)


def batch_findings(batch: Batch) -> Iterator[Finding]:
    """Everything about one script."""
    if not batch.content.strip():
        yield error(Id.BATCH_TEXT, batch.label, "is empty: sbatch refuses it")
        return
    yield from _text(batch)
    yield from _options(batch)
    yield from _output(batch)
    yield from _comment(batch)
    yield from _resubmission(batch)
    if not batch.is_read:
        large = f"has more than {MAX_SHELL_BYTES} bytes or {MAX_COMMANDS} commands"
        text = f"{large if batch.is_shell else 'is no shell script'}: its commands were not read"
        yield unknown(Id.BATCH_STEPS, batch.label, text)
        return
    yield from run_findings(batch)
    yield from rendezvous_findings(batch)


def _text(batch: Batch) -> Iterator[Finding]:
    """What sbatch refuses before it looks at options (tried on sbatch 22.05)."""
    if b"\0" in batch.content:
        yield error(Id.BATCH_TEXT, batch.label, "holds a NUL character: it is no text, and sbatch refuses it")
    crlf = batch.content.find(b"\r\n")
    if crlf >= 0:
        line = batch.content.count(b"\n", 0, crlf) + 1
        yield error(Id.BATCH_TEXT, batch.at(line), "has DOS line ends (CRLF): sbatch refuses it; dos2unix fixes it")
    try:
        batch.content.decode()
    except UnicodeDecodeError as err:
        line = batch.content.count(b"\n", 0, err.start) + 1
        yield warning(Id.BATCH_TEXT, batch.at(line), "is not UTF-8 here: what stands there is not read")
    first = batch.lines[0] if batch.lines else ""
    if not first.startswith("#!"):
        yield error(Id.BATCH_SHEBANG, batch.at(1), "the first line must begin with #! and name the interpreter")
    elif not first[2:].strip():
        yield error(Id.BATCH_SHEBANG, batch.at(1), "#! names no interpreter")


def _options(batch: Batch) -> Iterator[Finding]:
    for trouble in batch.troubles:
        say = error if trouble.is_refused else warning
        yield say(Id.BATCH_OPTIONS, batch.at(trouble.line), trouble.message)
    for line in batch.late[:20]:
        yield error(
            Id.BATCH_LATE_OPTIONS,
            batch.at(line),
            "stands after the first command, where sbatch does not read options any more: it has no effect",
        )
    misplaced = batch.option(AUTO_RESUME)
    if misplaced is not None:
        yield error(
            Id.BATCH_AUTO_RESUME,
            batch.at(misplaced.line),
            "--auto-resume is an option of srun: on an #SBATCH line it is lost on HyperPod, and refused elsewhere",
        )
    exclusive = batch.option("exclusive")
    if exclusive is None:
        yield warning(
            Id.BATCH_EXCLUSIVE,
            batch.label,
            "no --exclusive: auto-resume needs nodes of its own, and a repair would end other people's jobs too",
        )
    limit, option = batch.time_limit, batch.option("time")
    if limit is not None and option is not None and limit < SHORT and has_auto_resume(batch):
        yield warning(
            Id.BATCH_TIME,
            batch.at(option.line),
            f"--time={option.value}: a resumed step waits 20 to 30 minutes for its node within this limit; use "
            "2 hours or more",
        )


def _output(batch: Batch) -> Iterator[Finding]:
    mode = batch.option("open-mode")
    if mode is None or (mode.value or "").lower()[:1] != "a":
        yield warning(
            Id.BATCH_OUTPUT,
            batch.at(mode.line) if mode is not None else batch.label,
            "no --open-mode=append: when the job is requeued, its output begins again and what led to the "
            "failure is gone",
        )


def _comment(batch: Batch) -> Iterator[Finding]:
    option = batch.option("comment")
    found = batch.comment
    if option is None or found is None:
        where = batch.label if option is None else batch.at(option.line)
        yield warning(
            Id.BATCH_COMMENT,
            where,
            "no --comment=rekindle: unless it is submitted through `rekindle run sbatch`, Rekindle does not "
            "protect the job",
        )
        return
    for problem in found.problems:
        yield error(Id.BATCH_COMMENT, batch.at(option.line), f"{problem}: Rekindle passes it over")
    if found.others:
        message = f"{listed(key for key, _ in found.others)}: no key of Rekindle's comment ({listed(KEYS)})"
        yield warning(Id.BATCH_COMMENT, batch.at(option.line), message)


def _resubmission(batch: Batch) -> Iterator[Finding]:
    refused = batch.option("no-requeue")
    asked = batch.option("requeue")
    if refused is not None and (asked is None or asked.line <= refused.line):
        yield warning(
            Id.BATCH_REQUEUE,
            batch.at(refused.line),
            "--no-requeue: after a lost node Slurm ends the job for good, and auto-resume on GPU nodes, which "
            "is a requeue, cannot work; Rekindle has to submit it as a new job",
        )
    for name, what in (("array", "an array"), ("hetjob", "a heterogeneous job")):
        option = batch.option(name)
        if option is not None:
            message = f"this is {what}, which cannot be submitted again as it was: Rekindle only watches it"
            yield warning(Id.BATCH_RESUBMIT, batch.at(option.line), message)
