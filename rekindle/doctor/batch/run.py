"""How a batch script runs its step: auto-resume, signals, checkpoints, exit codes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from rekindle.doctor.base.checks import AUTO_RESUME_GUIDE, Area, check
from rekindle.doctor.base.findings import Finding, error, listed, quoted, unknown, warning
from rekindle.doctor.batch.exit_code import exit_code
from rekindle.doctor.batch.options import AUTO_RESUME
from rekindle.doctor.batch.payloads import LAUNCHERS, MAX_NAME, flags, foreground, payloads
from rekindle.doctor.batch.script import MAX_COMMANDS, MAX_SHELL_BYTES, Batch
from rekindle.sbatch.shell import LATER, Command

HYPERPOD_MARK: Final = "/opt/sagemaker_cluster"  # exists on HyperPod's nodes only
_SIGNALS: Final = re.compile(r"(?:SIG)?(?:USR1|USR2|TERM|INT|HUP)|10|12|15|2|1", re.IGNORECASE)
_OTHER_SCRIPT: Final = re.compile(r"\S+\.(?:sh|bash|py|sbatch)")
_SHELL_SCRIPT: Final = re.compile(r"\S+\.(?:sh|bash|sbatch)")
_CONFIG: Final = re.compile(r"\S+\.(?:ya?ml|json|toml|cfg|ini|gin)")
_CHECKPOINT: Final = re.compile(
    r"(?:.*[._])?(?:checkpoints?|ckpts?|chkpt|save|saves|resume|load)(?:[._].*)?|.*(?:checkpoint|ckpt)[a-z]*"
    r"|(?:.*[._])?(?:output|out|save|results?|exp)_?(?:dir|path|folder|directory)|default_root_dir"
)
_NOT_A_PLACE: Final = re.compile(r"(?:true|false|yes|no|none|null|latest|auto|\d[\d.e+-]*)?", re.IGNORECASE)
_SHARED: Final = re.compile(
    r"s3://|gs://|/(?:fsx|efs|lustre|shared|nfs|gpfs|home|mnt/(?:fsx|efs|lustre|shared))(?:/|$)"
)
# Lost with the node. Source: docs/facts-sagemaker.md#node-repair.
_LOCAL: Final = re.compile(
    # /scratch and the like are shared on most sites: not known.
    r"/(?:tmp|var/tmp|dev/shm|run|local|nvme\w*|opt/sagemaker|opt/dlami/nvme|mnt/(?:nvme|local)\w*|root)(?:/|$)"
)


def has_auto_resume(batch: Batch) -> bool:
    """True if some step may run with --auto-resume=1."""
    return any(_resumes(batch, step) for step in batch.steps)


def run_findings(batch: Batch) -> Iterator[Finding]:
    """Everything about the steps."""
    examined = (auto_resume, _portable, steps, exit_code, _bad_exit, signal_handled, trap_runs, _wait, _checkpoints)
    for examine in examined:
        yield from examine(batch)


def _resumes(batch: Batch, step: Command) -> bool:
    for word in batch.words(step):
        name, equals, value = word.partition("=")
        if name == f"--{AUTO_RESUME}":
            return not equals or value != "0"
    return False


def _no_step(batch: Batch) -> Iterator[Finding]:
    others = [
        command for command in batch.shell.commands if any(_OTHER_SCRIPT.fullmatch(word) for word in command.words[:3])
    ]
    launched = [command for command in batch.shell.commands if LAUNCHERS.fullmatch(command.program)]
    if others and not launched:
        text = f"no srun here; what {quoted(others[0].program)} does was not looked at"
        yield unknown(batch.at(others[0].line), text)
    else:
        where = batch.at(launched[0].line) if launched else batch.label
        yield warning(
            where, "no srun: without a step there is nothing that auto-resume could run again or a signal reach"
        )


@check("batch-auto-resume", Area.SCRIPT, AUTO_RESUME_GUIDE)
def auto_resume(batch: Batch) -> Iterator[Finding]:
    """srun has --auto-resume=1; it stands on no `#SBATCH` line.

    HyperPod runs the step again after a bad node only then.
    """
    misplaced = batch.option(AUTO_RESUME)
    if misplaced is not None:
        yield error(
            batch.at(misplaced.line),
            "--auto-resume is an option of srun: on an #SBATCH line it is lost on HyperPod, and refused elsewhere",
        )
    elif batch.is_read and batch.steps and not has_auto_resume(batch):
        yield warning(
            batch.at(batch.steps[-1].line),
            "srun without --auto-resume=1: HyperPod does not run the step again after a bad node, only Rekindle does",
        )


@check("batch-auto-resume-portable", Area.SCRIPT, AUTO_RESUME_GUIDE)
def _portable(batch: Batch) -> Iterator[Finding]:
    """It is given only where /opt/sagemaker_cluster exists.

    srun refuses it elsewhere.
    """
    if not has_auto_resume(batch):
        return
    asks = any(HYPERPOD_MARK in word for command in batch.shell.commands for word in command.words)
    if not asks:
        yield warning(
            batch.at(next(step.line for step in batch.steps if _resumes(batch, step))),
            f"--auto-resume is given without asking whether {HYPERPOD_MARK} exists: outside HyperPod srun refuses it",
        )


@check("batch-steps", Area.SCRIPT, AUTO_RESUME_GUIDE)
def steps(batch: Batch) -> Iterator[Finding]:
    """One srun holds everything.

    Only a step is run again.
    """
    if not batch.is_read:
        large = f"has more than {MAX_SHELL_BYTES} bytes or {MAX_COMMANDS} commands"
        text = f"{large if batch.is_shell else 'is no shell script'}: its commands were not read"
        yield unknown(batch.label, text)
        return
    if not batch.steps:
        yield from _no_step(batch)
    if len(batch.steps) > 1 and has_auto_resume(batch):
        lines = listed(step.line for step in batch.steps)
        yield warning(
            batch.at(batch.steps[1].line),
            f"{len(batch.steps)} sruns (lines {lines}): auto-resume runs one step again, not what stood before it",
        )


@check("batch-signal", Area.SCRIPT, "sbatch(1), --signal")
def signal_handled(batch: Batch) -> Iterator[Finding]:
    """The script handles a signal: a trap, --signal, the monitor.

    No emergency checkpoint otherwise.
    """
    traps = _has_trap(batch)
    option = batch.option("signal")
    comment = batch.comment
    sent = (option.value or "").rpartition(":")[2].partition("@")[0] if option is not None else ""
    is_asked_for = comment is not None and bool(comment.signal or comment.mailbox)
    if option is not None and re.match(r"R?B[^:]*:", option.value or "") and not _handles(batch, sent):
        yield error(
            batch.at(option.line),
            f"--signal={option.value} goes to the batch shell alone, which {_unhandled(batch, sent)}",
        )
    elif comment is not None and comment.signal_batch and not _handles(batch, comment.signal or ""):
        given = batch.option("comment")
        yield error(
            batch.at(given.line if given is not None else None),
            f"the comment's signal=B:… goes to the batch shell alone, which {_unhandled(batch, comment.signal or '')}",
        )
    elif not (traps or option is not None or is_asked_for or _is_monitored(batch)):
        yield warning(
            batch.label,
            "no trap, no --signal, no Rekindle monitor: nothing can ask the run for a checkpoint before its "
            "node is taken; if the program itself traps a signal, say so with --comment=rekindle,signal=USR1",
        )


def _is_monitored(batch: Batch) -> bool:
    names_rekindle = any("rekindle" in word.lower() for command in batch.shell.commands for word in command.words)
    return names_rekindle or any(name.startswith("REKINDLE_") for name in batch.shell.values)


@check("batch-trap", Area.SCRIPT, "bash(1), SIGNALS")
def trap_runs(batch: Batch) -> Iterator[Finding]:
    """A trap can run: what trains is in the background, and waited for until it is gone.

    bash runs a trap when the command in the foreground has ended; a signal ends a `wait`.
    """
    foreground = [step for step in payloads(batch) if not step.is_background]
    if foreground and _has_trap(batch, that_runs=True):
        yield warning(
            batch.at(foreground[-1].line),
            "bash runs a trap only when the command in the foreground has ended: start srun with &, then `wait $!`",
        )
    waits = [command for command in batch.shell.commands if command.program == "wait" and not command.is_inner]
    if not foreground and len(waits) == 1 and not _loops_around_a_wait(batch) and _has_trap(batch, that_runs=True):
        yield warning(
            batch.at(waits[0].line),
            "a signal ends this `wait`, and with the script the step: `while kill -0 $PID 2>/dev/null; do wait $PID || "
            "true; done; wait $PID`",
        )


def _loops_around_a_wait(batch: Batch) -> bool:
    is_inside = False
    for line in batch.lines:
        is_inside |= re.search(r"(?:^|[;&|({]|\bdo|\bthen)\s*(?:while|until)\b", line) is not None
        if is_inside and re.search(r"\bwait\b", line):
            return True
        is_inside &= re.search(r"\bdone\b", line) is None
    return False


@check("batch-wait", Area.SCRIPT, "bash(1), wait")
def _wait(batch: Batch) -> Iterator[Finding]:
    """What runs in the background is waited for.

    The job ends with the script.
    """
    if any(command.program == "wait" for command in batch.shell.commands):
        return
    scripts = [
        command for command in batch.shell.commands if any(_OTHER_SCRIPT.fullmatch(word) for word in command.words[:3])
    ]
    for command in payloads(batch) or scripts:
        if command.is_background and not foreground(batch, command):
            yield error(
                batch.at(command.line),
                f"{command.program} runs in the background and nothing waits for it: the script ends, and the job with "
                "it",
            )


def _handles(batch: Batch, sent: str) -> bool:
    """A trap names this very signal, or one that is known to a run only, and does something."""
    return any(command.words[1:2] not in (("",), ("-",)) for command in _traps_for(batch, sent))


def _unhandled(batch: Batch, sent: str) -> str:
    if any(command.words[1:2] == ("",) for command in _traps_for(batch, sent)):
        return "ignores it: nothing asks the run for a checkpoint"
    return "has no trap for it: the shell dies, the job ends"


def _traps_for(batch: Batch, sent: str) -> Iterator[Command]:
    wanted = _plain(sent)
    for command in batch.shell.commands:
        if command.program == "trap":
            names = batch.shell.expanded(command.words[2:])
            if any(name.startswith("$") or _plain(name) == wanted for name in names):
                yield command


def _plain(signal: str) -> str:
    """`SIGUSR1`, `usr1` and `10` are `USR1`. Source: signal(7), x86 and ARM."""
    name = signal.upper().removeprefix("SIG")
    return {"10": "USR1", "12": "USR2", "15": "TERM", "2": "INT", "1": "HUP"}.get(name, name)


def _has_trap(batch: Batch, *, that_runs: bool = False) -> bool:
    """that_runs: `trap ''` and `trap -` do not count; they ignore a signal, or give it its effect back."""
    traps = (command.words for command in batch.shell.commands if command.program == "trap")
    counted = (words[2:] for words in traps if not that_runs or words[1:2] not in (("",), ("-",)))
    return any(_SIGNALS.fullmatch(word) for words in counted for word in words)


@check("batch-bad-exit", Area.SCRIPT, "srun(1)")
def _bad_exit(batch: Batch) -> Iterator[Finding]:
    """srun has --kill-on-bad-exit=1.

    The others wait for a dead task until a time-out.
    """
    many = batch.nodes != 1 or batch.option("ntasks") is not None or batch.option("ntasks-per-node") is not None
    kills = "SLURM_KILL_BAD_EXIT" in batch.shell.values
    for step in batch.steps:
        words = batch.words(step)
        if many and not kills and not any(re.fullmatch(r"-\w*K1?|--kill-on-bad-exit(?:=1)?", word) for word in words):
            yield warning(
                batch.at(step.line),
                "srun without --kill-on-bad-exit=1: when one task dies, the others wait for it until a time-out",
            )


@check("batch-checkpoint", Area.SCRIPT, "SageMaker API, BatchReplaceClusterNodes")
def _checkpoints(batch: Batch) -> Iterator[Finding]:
    """A checkpoint path, on shared storage.

    A replaced node's disks are gone.
    """
    places = list(dict.fromkeys((*_places(batch), *_places_in_comment(batch))))
    if any(_SHARED.match(value) for _, value, _ in places):
        return
    local = [(name, value, line) for name, value, line in places if _LOCAL.match(value)]
    for name, value, line in local[:3]:
        message = f"{name} {quoted(value)} lies on the node itself: it is gone when the node is replaced; use FSx or S3"
        yield error(batch.at(line), message)
    if not local and places:
        name, value, line = places[0]
        message = f"{name} {quoted(value)}: whether that is shared storage is not visible in the script"
        yield unknown(batch.at(line), message)
    elif not places:
        yield _unnamed_checkpoint(batch)


def _unnamed_checkpoint(batch: Batch) -> Finding:
    """The script names no place; a configuration or another script that it starts may."""
    runs = [
        command for command in batch.shell.commands if command.program == "srun" or LAUNCHERS.fullmatch(command.program)
    ]
    words = [word for command in runs for word in batch.words(command)]
    called = [command.program for command in batch.shell.commands if _SHELL_SCRIPT.fullmatch(command.program)]
    config = next(
        (word for word in [*words, *called] if _CONFIG.fullmatch(word) or _SHELL_SCRIPT.fullmatch(word)), None
    )
    if config is not None:
        text = f"no checkpoint path here; {quoted(config)} may name one and was not looked at"
        return unknown(batch.label, text)
    message = "no checkpoint path on shared storage (FSx, S3) is named: after a failure the run begins at step 0"
    return warning(batch.label, message)


def _places_in_comment(batch: Batch) -> Iterator[tuple[str, str, int]]:
    comment, option = batch.comment, batch.option("comment")
    if comment is not None and option is not None:
        for key, value in (("checkpoints", comment.checkpoints), ("mailbox", comment.mailbox)):
            if value:
                yield f"--comment {key}", value.removeprefix("file://"), option.line


def _places(batch: Batch) -> Iterator[tuple[str, str, int]]:
    """Options and variables that name a place for checkpoints, with the place."""
    for command in batch.shell.commands:
        if command.is_inner or command.program in ("trap", "echo", "printf", "[", "[[", "test"):
            continue
        # First as its quotes have it: of all values that a word may have, each part at a blank is a word of its own.
        quoted_ones = {
            name: " ".join(batch.shell.expanded([value])) for name, value in flags(command.words) if value is not None
        }
        for name, value in (*quoted_ones.items(), *flags(batch.words(command))):
            place = (value or "").replace(LATER, "$")
            is_cut = name in quoted_ones and value != quoted_ones[name]
            if _CHECKPOINT.fullmatch(name) and not is_cut and _looks_like_place(place):
                yield name, place, command.line
    for name, values in batch.shell.values.items():
        if len(name) <= MAX_NAME and _CHECKPOINT.fullmatch(name.lower()):
            for value in values:
                full = " ".join(batch.shell.expanded([value]))
                if _looks_like_place(full):
                    yield name, full, batch.shell.lines[name]


def _looks_like_place(value: str) -> bool:
    if _NOT_A_PLACE.fullmatch(value):
        return False
    return "/" in value or value.startswith((".", "$"))
