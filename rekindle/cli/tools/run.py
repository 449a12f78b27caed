"""`rekindle run sbatch …`: submit a batch script so that it is protected from its first second on.

It adds what a person forgets: the comment that the cluster's agent looks for, the mailbox in the environment, a log
that is appended to and a job that may be requeued. It needs Slurm's own commands and no AWS.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rekindle.cli.tools.sbatch import Sbatch, read_command
from rekindle.client.errors import CommandFailed, Exit, UsageError
from rekindle.client.table import clean
from rekindle.protocol.cluster.cluster_name import cluster_named
from rekindle.protocol.cluster.names import (
    ENV_CLUSTER,
    ENV_SLURM_ATTEMPT,
    ENV_SUBMITTED_ON,
    check_cluster,
    first_attempt,
)
from rekindle.protocol.launch_orders import ENV_ATTEMPT_NAME, ENV_BUS, ENV_CHECKPOINT_DIR, ENV_MAILBOX, ENV_NAMES
from rekindle.protocol.wire import MailboxError, Place
from rekindle.slurm_agent.reading import comment as comments

_POLICY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SUBMITTED: Final = re.compile(r"(?:Submitted batch job )?([0-9]{1,10})(?:;\S+)?(?: on cluster \S+)?")
# A run that starts now is nobody's next attempt, even if its submitter sits inside one.
_OF_ANOTHER_RUN: Final = frozenset({*ENV_NAMES, ENV_ATTEMPT_NAME, ENV_SLURM_ATTEMPT, ENV_SUBMITTED_ON}) - {
    ENV_MAILBOX,
    ENV_BUS,
}
_INTERACTIVE: Final = ("srun", "salloc")


def register(commands: Any) -> None:
    """Add the command to the parser of `rekindle`."""
    parser = commands.add_parser(
        "run",
        help="submit a protected job to Slurm: rekindle run [OPTIONS] sbatch [SBATCH OPTIONS] SCRIPT [ARGUMENTS]",
        description=__doc__.partition("\n")[0],
        usage="rekindle run [OPTIONS] sbatch [SBATCH OPTIONS] SCRIPT [ARGUMENTS]",
        allow_abbrev=False,
    )
    parser.add_argument("--policy", metavar="NAME", help="which policy (default: default)")
    parser.add_argument(
        "--mailbox",
        metavar="URI",
        help="where the run and Rekindle meet: s3://… or a shared path (or REKINDLE_MAILBOX)",
    )
    parser.add_argument("--checkpoints", metavar="URI", help="where the run's checkpoints appear")
    parser.add_argument("--signal", metavar="NAME", help="a signal that makes the run save: USR1; B:USR1 to the script")
    parser.add_argument("--dry-run", action="store_true", help="show what would be run, and run nothing")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("launch", nargs=argparse.REMAINDER, metavar="sbatch …")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Submit; returns sbatch's exit code. Raises: UsageError, CommandFailed."""
    command = _asked(args.launch)
    option, text = _says(args, command)
    comment = comments.parse(text)
    cluster = _cluster(os.environ)
    environment = _environment(args, comment.mailbox if comment else "", cluster)
    arguments = [
        *([] if command.says("open-mode") else ["--open-mode=append"]),
        *([] if command.says("requeue", "no-requeue") else ["--requeue"]),
        f"--{option}={text}",
        *command.exporting(sorted(environment)),
        *([] if command.has_argument("parsable") else ["--parsable"]),
    ]
    line = command.with_options(arguments)
    for warning in _warnings(command, environment, bool(comment and comment.signal)):
        print(f"rekindle: {warning}", file=sys.stderr)
    if args.dry_run:
        print(_shown(args, environment, line))
        return Exit.OK
    print(f"rekindle: {shlex.join(line)}", file=sys.stderr)
    kept = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_RUN}
    return _submit(args, line, kept | environment, cluster)


def _asked(launch: Sequence[str]) -> Sbatch:
    words = list(launch[1:] if launch[:1] == ["--"] else launch)
    name = os.path.basename(words[0]) if words else ""
    if name in _INTERACTIVE:
        raise UsageError(
            f"{name} starts an interactive job, which cannot be submitted again: put it into a batch script"
        )
    if name != "sbatch":
        raise UsageError(f"rekindle run takes sbatch and its arguments, not {clean(name) or 'nothing'}")
    return read_command(words, os.environ)


def _says(args: argparse.Namespace, command: Sbatch) -> tuple[str, str]:
    """Which of sbatch's options says it, and what: options override the script's. The comment, unless that is taken.

    Raises: UsageError where neither is free.
    """
    own = {name: command.value(name) or "" for name in ("comment", "extra")}
    option = next((name for name, text in own.items() if comments.parse(text) is not None), None)
    if option is None:
        option = next(
            (name for name, text in own.items() if not text and (name == "comment" or _has_extra(command))), None
        )
    if option is None:
        raise UsageError(
            f"the job has a comment of its own ({clean(own['comment'])[:60]!r}), Slurm keeps one per job, and "
            "--extra (Slurm 23.11) is not free: remove one, or make it begin with 'rekindle'"
        )
    return option, _text(args, comments.parse(own[option]) or comments.Comment(), option)


def _has_extra(command: Sbatch) -> bool:
    """Source: Slurm's release notes, 23.11."""
    try:
        told = subprocess.run(
            [command.words[0], "--version"], capture_output=True, text=True, check=False, timeout=60
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    found = re.match(r"slurm\S* (\d{2})\.(\d{2})", told)
    return found is not None and (int(found[1]), int(found[2])) >= (23, 11)


def _text(args: argparse.Namespace, stated: comments.Comment, option: str) -> str:
    """Raises: UsageError."""
    if stated.problems:
        raise UsageError(f"--{option}: {clean(stated.problems[0])}")
    if args.policy is not None and _POLICY.fullmatch(args.policy) is None:
        raise UsageError("--policy: must be 1 to 64 characters of A-Z a-z 0-9 . _ -")
    sent = args.signal if args.signal is not None else f"{'B:' if stated.signal_batch else ''}{stated.signal or ''}"
    keys = {
        "job": stated.job,
        "mailbox": _place(args.mailbox or os.environ.get(ENV_MAILBOX) or stated.mailbox, "--mailbox"),
        "checkpoints": _place(args.checkpoints or stated.checkpoints, "--checkpoints"),
        "signal": sent.upper().replace("SIG", "") or None,
    }
    text = comments.render(args.policy or stated.policy, keys, stated.others)
    again = comments.parse(text)
    if again is None or again.problems:
        raise UsageError("--signal: must be USR1, USR2 or TERM, or B:USR1 for the batch script's own trap")
    return text


def _place(uri: str, option: str) -> str | None:
    if not uri:
        return None
    try:
        Place.parse(uri, option)
    except MailboxError as err:
        raise UsageError(str(err)) from err
    if "," in uri or not uri.isprintable() or " " in uri:
        raise UsageError(f"{option}: must hold no comma and no space, which the job's comment cannot carry")
    return uri


def _environment(args: argparse.Namespace, mailbox: str, cluster: str) -> dict[str, str]:
    environment = {ENV_CLUSTER: cluster}
    if mailbox:
        environment[ENV_MAILBOX] = mailbox
    if os.environ.get(ENV_BUS):
        environment[ENV_BUS] = os.environ[ENV_BUS]
    if args.checkpoints and Place.parse(args.checkpoints).bucket is None:
        environment[ENV_CHECKPOINT_DIR] = Place.parse(args.checkpoints).path
    return environment


def _cluster(env: Mapping[str, str]) -> str:
    """The name that the cluster's agent uses too. Raises: CommandFailed where nothing says it."""
    try:
        if named := cluster_named(env, passes_over=True):
            return named[0]
        shown = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, check=True, timeout=60)
        found = re.search(r"^ClusterName\s*=\s*(\S+)", shown.stdout, re.MULTILINE)
        return check_cluster(found[1] if found else None, ENV_CLUSTER)
    except (OSError, subprocess.SubprocessError, MailboxError) as err:
        raise CommandFailed(f"the cluster's name is not known: set {ENV_CLUSTER} ({clean(err)[:160]})") from err


def _warnings(command: Sbatch, environment: Mapping[str, str], has_signal: bool) -> list[str]:
    found = []
    if ENV_MAILBOX not in environment:
        lost = "its steps are not seen" if has_signal else "nothing can ask the run for a checkpoint"
        found.append(f"no --mailbox: Slurm's states are watched, but {lost}")
    if command.says("array"):
        found.append("a job array cannot be submitted again faithfully: its tasks are watched, not resubmitted")
    if command.says("no-requeue") and not command.has_argument("requeue"):
        found.append("--no-requeue: every recovery is a new job at the end of the queue, and a node failure ends it")
    if (command.value("open-mode") or "append").startswith("t"):
        found.append("--open-mode=truncate: a requeue wipes the log of the attempt before it")
    return found


def _shown(args: argparse.Namespace, environment: Mapping[str, str], line: Sequence[str]) -> str:
    if args.json:
        return json.dumps({"environment": dict(environment), "command": list(line)})
    return "\n".join(
        [*(f"export {name}={shlex.quote(value)}" for name, value in environment.items()), shlex.join(line)]
    )


def _submit(args: argparse.Namespace, line: Sequence[str], env: Mapping[str, str], cluster: str) -> int:
    """sbatch with our terminal: its complaints are its own, and a script on standard input reaches it."""
    submitted = False
    try:
        with subprocess.Popen(line, env=dict(env), stdout=subprocess.PIPE, text=True, errors="replace") as sbatch:
            assert sbatch.stdout is not None  # noqa: S101 - a pipe was asked for; this tells the type checker
            for printed in sbatch.stdout:  # one by one: with --wait the id comes long before the end
                found = _SUBMITTED.fullmatch(printed.strip())
                if found is None:
                    print(printed, end="", flush=True)
                    continue
                submitted = True
                _print_submission(args, int(found[1]), cluster)
    except OSError as err:
        raise CommandFailed(f"{clean(line[0])} cannot be run ({err.strerror}): is this a node of the cluster?") from err
    if sbatch.returncode and not submitted:
        raise CommandFailed(f"sbatch refused the job (exit code {sbatch.returncode})")
    return sbatch.returncode


def _print_submission(args: argparse.Namespace, slurm_job: int, cluster: str) -> None:
    attempt = first_attempt(cluster, slurm_job).name
    if args.json:
        print(json.dumps({"slurm_job": slurm_job, "attempt": attempt}), flush=True)
    else:
        print(f"Submitted batch job {slurm_job}, protected as {attempt}", flush=True)
