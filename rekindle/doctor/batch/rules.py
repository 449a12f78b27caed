"""What of a batch script will not survive a failure: its text, its options, its output. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from rekindle.doctor.base.checks import AUTO_RESUME_GUIDE, OURS, SBATCH, Area, check
from rekindle.doctor.base.findings import Finding, error, listed, warning
from rekindle.doctor.batch.layers import hang_rules
from rekindle.doctor.batch.rendezvous import rendezvous_findings
from rekindle.doctor.batch.run import auto_resume, has_auto_resume, run_findings, steps
from rekindle.doctor.batch.script import Batch
from rekindle.slurm_agent.reading.comment import KEYS

# A resumed step waits 20 to 30 minutes for the new node, within the time limit. Source:
# docs/facts-slurm.md#hyperpod-on-slurm.
SHORT: Final = timedelta(minutes=120)


def batch_findings(batch: Batch) -> Iterator[Finding]:
    """Everything about one script."""
    if not batch.content.strip():
        yield from _text(batch)
        return
    for examine in (_text, _shebang, _options, _late_options, _exclusive, _time):
        yield from examine(batch)
    for examine in (_output, _comment, _requeue, _resubmit, hang_rules):
        yield from examine(batch)
    if not batch.is_read:
        yield from auto_resume(batch)
        yield from steps(batch)
        return
    yield from run_findings(batch)
    yield from rendezvous_findings(batch)


@check("batch-text", Area.SCRIPT, SBATCH)
def _text(batch: Batch) -> Iterator[Finding]:
    """Not empty, no NUL, Unix line ends, UTF-8.

    sbatch refuses the script.
    """
    if not batch.content.strip():
        yield error(batch.label, "is empty: sbatch refuses it")
        return
    if b"\0" in batch.content:
        yield error(batch.label, "holds a NUL character: it is no text, and sbatch refuses it")
    crlf = batch.content.find(b"\r\n")
    if crlf >= 0:
        line = batch.content.count(b"\n", 0, crlf) + 1
        yield error(batch.at(line), "has DOS line ends (CRLF): sbatch refuses it; dos2unix fixes it")
    try:
        batch.content.decode()
    except UnicodeDecodeError as err:
        line = batch.content.count(b"\n", 0, err.start) + 1
        yield warning(batch.at(line), "is not UTF-8 here: what stands there is not read")


@check("batch-shebang", Area.SCRIPT, SBATCH)
def _shebang(batch: Batch) -> Iterator[Finding]:
    """The first line names an interpreter.

    sbatch refuses the script.
    """
    first = batch.lines[0] if batch.lines else ""
    if not first.startswith("#!"):
        yield error(batch.at(1), "the first line must begin with #! and name the interpreter")
    elif not first[2:].strip():
        yield error(batch.at(1), "#! names no interpreter")


@check("batch-options", Area.SCRIPT, SBATCH)
def _options(batch: Batch) -> Iterator[Finding]:
    """Every `#SBATCH` option is one, unambiguous, with a value where it needs one.

    sbatch refuses the script.
    """
    for trouble in batch.troubles:
        say = error if trouble.is_refused else warning
        yield say(batch.at(trouble.line), trouble.message)


@check("batch-late-options", Area.SCRIPT, SBATCH)
def _late_options(batch: Batch) -> Iterator[Finding]:
    """No `#SBATCH` line after the first command.

    sbatch does not read it.
    """
    for line in batch.late[:20]:
        yield error(
            batch.at(line),
            "stands after the first command, where sbatch does not read options any more: it has no effect",
        )


@check("batch-exclusive", Area.SCRIPT, AUTO_RESUME_GUIDE)
def _exclusive(batch: Batch) -> Iterator[Finding]:
    """--exclusive.

    Auto-resume needs it; a repair ends whatever else runs on the node.
    """
    if batch.option("exclusive") is None:
        yield warning(
            batch.label,
            "no --exclusive: auto-resume needs nodes of its own, and a repair would end other people's jobs too",
        )


@check("batch-time", Area.SCRIPT, AUTO_RESUME_GUIDE)
def _time(batch: Batch) -> Iterator[Finding]:
    """--time is two hours or more with auto-resume.

    A resumed step waits half an hour for its node.
    """
    limit, option = batch.time_limit, batch.option("time")
    if limit is not None and option is not None and limit < SHORT and has_auto_resume(batch):
        yield warning(
            batch.at(option.line),
            f"--time={option.value}: a resumed step waits 20 to 30 minutes for its node within this limit; use "
            "2 hours or more",
        )


@check("batch-output", Area.SCRIPT, "sbatch(1), --open-mode")
def _output(batch: Batch) -> Iterator[Finding]:
    """--open-mode=append.

    A requeued job overwrites its output.
    """
    mode = batch.option("open-mode")
    if mode is None or (mode.value or "").lower()[:1] != "a":
        yield warning(
            batch.at(mode.line) if mode is not None else batch.label,
            "no --open-mode=append: when the job is requeued, its output begins again and what led to the "
            "failure is gone",
        )


@check("batch-comment", Area.SCRIPT, OURS)
def _comment(batch: Batch) -> Iterator[Finding]:
    """--comment=rekindle…, well formed.

    The agent finds protected jobs by it.
    """
    option = batch.option("comment")
    found = batch.comment
    if option is None or found is None:
        where = batch.label if option is None else batch.at(option.line)
        yield warning(
            where,
            "no --comment=rekindle: unless it is submitted through `rekindle run sbatch`, Rekindle does not "
            "protect the job",
        )
        return
    for problem in found.problems:
        yield error(batch.at(option.line), f"{problem}: Rekindle passes it over")
    if found.others:
        message = f"{listed(key for key, _ in found.others)}: no key of Rekindle's comment ({listed(KEYS)})"
        yield warning(batch.at(option.line), message)


@check("batch-requeue", Area.SCRIPT, AUTO_RESUME_GUIDE)
def _requeue(batch: Batch) -> Iterator[Finding]:
    """No --no-requeue.

    Auto-resume on GPU nodes is a requeue.
    """
    refused = batch.option("no-requeue")
    asked = batch.option("requeue")
    if refused is not None and (asked is None or asked.line <= refused.line):
        yield warning(
            batch.at(refused.line),
            "--no-requeue: after a lost node Slurm ends the job for good, and auto-resume on GPU nodes, which "
            "is a requeue, cannot work; Rekindle has to submit it as a new job",
        )


@check("batch-resubmit", Area.SCRIPT, OURS)
def _resubmit(batch: Batch) -> Iterator[Finding]:
    """No array, no heterogeneous job.

    It cannot be submitted again as it was.
    """
    for name, what in (("array", "an array"), ("hetjob", "a heterogeneous job")):
        option = batch.option(name)
        if option is not None:
            message = f"this is {what}, which cannot be submitted again as it was: Rekindle only watches it"
            yield warning(batch.at(option.line), message)
