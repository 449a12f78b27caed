"""Commands that order something: checkpoint, resubmit, cancel, register, pause, unpause, quarantine redrive.

Each order carries an Idempotency-Key, so that repeating it with the same --key orders nothing twice. Orders that end
something say first what they will do, and ask; a script says --yes.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Mapping
from typing import Any

from rekindle.cli.client import path
from rekindle.cli.errors import CommandFailed, Exit
from rekindle.cli.reading import out, out_json, wants_json
from rekindle.cli.shapes import member, step, word
from rekindle.cli.table import clean
from rekindle.cli.target import connected

_CLOSED = ("recovered", "stopped", "handed_over")


def _key(args: argparse.Namespace) -> str:
    return str(args.key or secrets.token_hex(16))


def checkpoint(args: argparse.Namespace) -> int:
    """Ask a run for a checkpoint now."""
    with connected(args, only_look=False) as client:
        answer = client.order("POST", path("jobs", args.job, "checkpoint"), {}, key=_key(args))
    return _taken(args, answer)


def resubmit(args: argparse.Namespace) -> int:
    """Save, stop and submit again, after asking."""
    body: dict[str, Any] = {}
    if args.from_step is not None:
        body["from_step"] = args.from_step
    if args.skip:
        body["skip"] = [list(window) for window in args.skip]
    with connected(args, only_look=False) as client:
        job = client.get(path("jobs", args.job))
        _ask(args, _resubmission(job, args))
        answer = client.order("POST", path("jobs", args.job, "resubmit"), body, key=_key(args))
    return _taken(args, answer)


def _resubmission(job: Mapping[str, Any], args: argparse.Namespace) -> str:
    name, number = word(job, "current_attempt"), member(job, "attempt_number")
    following = f"attempt {number + 1}" if isinstance(number, int) else "a new attempt"
    where = "from the newest verified checkpoint"
    if args.from_step is not None:
        where += f" at or before step {args.from_step}"
    lines = [
        f"Resubmit {clean(word(job, 'job_id'))}:",
        f"  1. ask {clean(name)} for a checkpoint, if it still runs",
        f"  2. stop {clean(name)}",
        f"  3. start {following} {where}",
    ]
    lines += [f"     without the data of steps {low} to {high - 1}" for low, high in args.skip or ()]
    if member(job, "open_incident"):
        incident = clean(word(job, "open_incident"))
        lines.append(f"  Incident {incident} is open: once it has begun to act, it goes on as it is.")
    return "\n".join(lines)


def cancel(args: argparse.Namespace) -> int:
    """End an Incident, after asking."""
    with connected(args, only_look=False) as client:
        incident = client.get(path("incidents", args.incident))
        if member(incident, "phase") in _CLOSED:
            raise CommandFailed(f"{clean(args.incident)} is closed already: {clean(word(incident, 'phase'))}")
        _ask(args, _cancellation(incident))
        answer = client.order("POST", path("incidents", args.incident, "cancel"), {}, key=_key(args))
    return _taken(args, answer)


def _cancellation(incident: Mapping[str, Any]) -> str:
    phase = word(incident, "phase")
    lines = [
        f"Cancel {clean(word(incident, 'incident_id'))} ({clean(word(incident, 'fault'))}, now {clean(phase)}):",
        "  its next look closes it; what has been done stays done, nothing more is done",
    ]
    if phase in ("stopping", "resubmitting"):
        lines.append(f"  {clean(word(incident, 'attempt'))} may be stopped by now, and nothing starts in its place")
    target = step(incident, "target_step")
    lines.append(f"  the run had reached step {clean(target)}")
    return "\n".join(lines)


def register(args: argparse.Namespace) -> int:
    """Protect a training job, or a Slurm job."""
    body: dict[str, Any] = {"training_job": args.training_job}
    if args.slurm is not None:
        cluster, number = args.slurm
        body = {"slurm_job": {"cluster": cluster, "job": number}}
    if args.policy is not None:
        body["policy"] = args.policy
    if args.mailbox is not None:
        body["mailbox"] = args.mailbox
    with connected(args, only_look=False) as client:
        job = client.order("POST", "/jobs", body, key=_key(args))
    if wants_json(args):
        out_json(job)
    else:
        out(f"{clean(word(job, 'job_id'))} is protected by policy {clean(word(job, 'policy'))}.")
        limits = member(job, "limits")
        for limit in limits if isinstance(limits, list) else ():
            out(f"  but: {clean(limit)}")
    return Exit.OK


def set_paused(args: argparse.Namespace) -> int:
    """Set or lift the global pause; `args.paused` says which."""
    with connected(args, only_look=False) as client:
        answer = client.order("PUT", "/pause", {"paused": args.paused}, key=_key(args))
    if wants_json(args):
        out_json(answer)
    elif member(answer, "paused") is True:
        out("Paused: Incidents are opened and watched, nothing is done. Lift it with `rekindle unpause`.")
    else:
        out("Not paused: Incidents go on at their next look.")
    return Exit.OK


def redrive(args: argparse.Namespace) -> int:
    """Feed quarantined events in again. Fails if any went back, so that a script can tell."""
    with connected(args, only_look=False) as client:
        answer = client.order("POST", "/quarantine/redrive", {}, key=_key(args))
    again = member(answer, "quarantined_again")
    if wants_json(args):
        out_json(answer)
    else:
        out(f"{clean(word(answer, 'taken'))} events fed in again, {clean(again)} went back to quarantine.")
    return Exit.FAILED if again else Exit.OK


def _ask(args: argparse.Namespace, what: str) -> None:
    """Show what will be done and ask for it.

    Raises:
        CommandFailed: the person said no, or there is nobody to ask and no --yes.
    """
    if args.yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandFailed("this order is asked back on a terminal; in a script say --yes")
    print(f"{what}\nGo on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandFailed("nothing was ordered")


def _taken(args: argparse.Namespace, answer: Mapping[str, Any]) -> int:
    what, incident = member(answer, "what"), member(answer, "incident_id")
    refused = what == "dropped"
    if wants_json(args):
        out_json(answer)
        return Exit.FAILED if refused else Exit.OK
    if refused:
        raise CommandFailed(f"not taken: {clean(word(answer, 'reason'))}")
    said = {"opened": "Ordered", "joined": "Ordered", "duplicate": "Ordered before with this key"}
    if member(answer, "replayed") is True:
        what = "duplicate"
    follow = f"; follow it with: rekindle show {clean(incident)}" if incident else ""
    out(f"{said.get(str(what), clean(word(answer, 'what')))}{follow}")
    return Exit.OK
