"""Commands that change a Job, an Incident or the quarantine: checkpoint, stop, resubmit, cancel, register, redrive.

Each request carries an Idempotency-Key, so that repeating a command with the same --key has no second effect. Each
command first prints what it will do and asks for confirmation, which --yes gives.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from rekindle.cli.terminal.confirm import Order, ordering
from rekindle.cli.terminal.names import Kind, read
from rekindle.cli.terminal.output import answer
from rekindle.client.api import path
from rekindle.client.errors import CommandFailed, Exit, UsageError
from rekindle.client.shapes import member, step, texts, word
from rekindle.client.table import clean

_CLOSED = ("recovered", "stopped", "handed_over")


def checkpoint(args: argparse.Namespace) -> int:
    """Ask the running attempt of a Job for a checkpoint now. Asks for confirmation.

    Raises: CommandFailed where the Job is over.
    """
    with ordering(args) as order:
        attempt = clean(word(_running(order, args.job), "current_attempt"))
        order.confirm(f"Checkpoint of {clean(args.job)}:\n  {attempt} is asked to save now, and continues")
        return order.outcome(order.send("POST", path("jobs", args.job, "checkpoint"), {}))


def stop(args: argparse.Namespace) -> int:
    """Save and stop a Job, which then stays stopped. Asks for confirmation.

    Raises: CommandFailed where the Job is over.
    """
    with ordering(args) as order:
        order.confirm(_stop_summary(_running(order, args.job), args))
        body = {"checkpoint": not args.no_checkpoint}
        return order.outcome(order.send("POST", path("jobs", args.job, "stop"), body))


def _job(order: Order, name: str) -> Mapping[str, Any]:
    """The Job of this whole name, and what holds orders about it. Raises: NotFound."""
    _, job = read(order.client, Kind.JOB, name, whole=True)
    order.held_by(job_id=name)
    return job


def _running(order: Order, name: str) -> Mapping[str, Any]:
    """The same of a Job that is not over. What is repeated with its key is left to the service, which knows the order.

    Raises: NotFound, CommandFailed.
    """
    job = _job(order, name)
    if order.args.key is None and member(job, "active") is False and not member(job, "open_incident"):
        raise CommandFailed(f"{clean(name)} is over: nothing of it runs, and nothing was ordered")
    return job


def _stop_summary(job: Mapping[str, Any], args: argparse.Namespace) -> str:
    """What `stop` will do, for the confirmation."""
    attempt = clean(word(job, "current_attempt"))
    save = f"  1. ask {attempt} for a checkpoint, if it still runs"
    if args.no_checkpoint:
        save = "  1. ask for no checkpoint: what was done since the last one is lost"
    return "\n".join(
        [
            f"Stop {clean(word(job, 'job_id'))}, to stay stopped:",
            save,
            f"  2. stop {attempt}",
            "  3. start nothing in its place, whatever happens to it; `rekindle resubmit` starts it again",
        ]
    )


def resubmit(args: argparse.Namespace) -> int:
    """Save, stop and resubmit a Job. Asks for confirmation."""
    body: dict[str, Any] = {}
    if args.from_step is not None:
        body["from_step"] = args.from_step
    if args.skip:
        body["skip"] = [list(window) for window in args.skip]
    excluded = [node for nodes in args.exclude or () for node in nodes]
    if excluded:
        body["exclude"] = excluded
    with ordering(args) as order:
        order.confirm(_resubmit_summary(_job(order, args.job), args))
        return order.outcome(order.send("POST", path("jobs", args.job, "resubmit"), body))


def _resubmit_summary(job: Mapping[str, Any], args: argparse.Namespace) -> str:
    """What `resubmit` will do, for the confirmation."""
    attempt, number = clean(word(job, "current_attempt")), member(job, "attempt_number")
    next_attempt = f"attempt {number + 1}" if isinstance(number, int) else "a new attempt"
    checkpoint_text = "from the newest verified checkpoint"
    if args.from_step is not None:
        checkpoint_text += f" at or before step {args.from_step}"
    lines = [
        f"Resubmit {clean(word(job, 'job_id'))}:",
        f"  1. ask {attempt} for a checkpoint, if it still runs",
        f"  2. stop {attempt}",
        f"  3. start {next_attempt} {checkpoint_text}",
    ]
    lines += [f"     without the data of steps {low} to {high - 1}" for low, high in args.skip or ()]
    excluded = [clean(node) for nodes in args.exclude or () for node in nodes]
    if excluded:
        lines.append(f"     not on {', '.join(excluded)}")
    if member(job, "open_incident"):
        incident = clean(word(job, "open_incident"))
        lines.append(f"  Incident {incident} is open: once it has begun to act, it continues as it is.")
    return "\n".join(lines)


def cancel(args: argparse.Namespace) -> int:
    """Cancel an open Incident. Asks for confirmation.

    Raises: CommandFailed where it is closed already.
    """
    with ordering(args) as order:
        args.incident, incident = read(order.client, Kind.INCIDENT, args.incident, whole=args.yes)
        if member(incident, "phase") in _CLOSED:
            raise CommandFailed(f"{clean(args.incident)} is closed already: {clean(word(incident, 'phase'))}")
        order.confirm(_cancel_summary(incident))
        return order.outcome(order.send("POST", path("incidents", args.incident, "cancel"), {}))


def _cancel_summary(incident: Mapping[str, Any]) -> str:
    """What `cancel` will do, for the confirmation."""
    phase = word(incident, "phase")
    lines = [
        f"Cancel {clean(word(incident, 'incident_id'))} ({clean(word(incident, 'fault'))}, now {clean(phase)}):",
        "  its next observation closes it; what has been done stays done, nothing more is done",
    ]
    if phase in ("stopping", "resubmitting"):
        lines.append(f"  {clean(word(incident, 'attempt'))} may be stopped by now, and nothing starts in its place")
    target = step(incident, "target_step")
    lines.append(f"  the run had reached step {clean(target)}")
    return "\n".join(lines)


def register(args: argparse.Namespace) -> int:
    """Protect a training job, or a Slurm job. Asks for confirmation: from then on it may be stopped and started.

    Raises: UsageError for an option that does not apply to Slurm jobs.
    """
    body = _registration(args)
    run = args.training_job if args.slurm is None else f"Slurm job {args.slurm[1]} of {args.slurm[0]}"
    policy = f"policy {args.policy}" if args.policy is not None else "the policy of its tag, or default"
    text = f"Protect {clean(run)}:\n  {clean(policy)} says when it is saved, stopped, and started again by itself"
    with ordering(args) as order:
        order.confirm(text)
        job = order.send("POST", "/jobs", body)
    lines = [f"{clean(word(job, 'job_id'))} is protected by policy {clean(word(job, 'policy'))}."]
    lines += [f"  but: {clean(limit)}" for limit in texts(job, "limits")]
    return answer(args, job, "\n".join(lines))


def _registration(args: argparse.Namespace) -> dict[str, Any]:
    """The body of POST /jobs. Raises: UsageError for an option that does not apply to Slurm jobs."""
    body: dict[str, Any] = {"training_job": args.training_job}
    if args.slurm is not None:
        cluster, number = args.slurm
        body = {"slurm_job": {"cluster": cluster, "job": number}}
    if args.policy is not None:
        body["policy"] = args.policy
    if args.mailbox is not None:
        body["mailbox"] = args.mailbox
    if args.slurm is not None and (args.alarms or args.hang_minutes or args.metric):
        raise UsageError("--alarms, --hang-minutes and --metric are for training jobs; Slurm jobs have an agent")
    if args.alarms is not None:
        body["alarms"] = args.alarms
    if args.hang_minutes is not None:
        body["hang_minutes"] = args.hang_minutes
    if args.metric:
        body["metrics"] = dict(args.metric)
    return body


def redrive(args: argparse.Namespace) -> int:
    """Process the quarantined events again, after asking. A failure where any went back to quarantine."""
    with ordering(args) as order:
        text = "Feed the quarantined events in again:\n  each opens or joins its Incident, as if it came now"
        order.confirm(text)
        done = order.send("POST", "/quarantine/redrive", {})
    again = member(done, "quarantined_again")
    answer(args, done, f"{clean(word(done, 'taken'))} events fed in again, {clean(again)} went back to quarantine.")
    return Exit.FAILED if again else Exit.OK
