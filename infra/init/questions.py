"""What no option says is asked for on a terminal; without one it is named, all of it at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from infra.init import answers as read
from infra.init.answers import Answers, Integration, Runs, WrongAnswer
from infra.init.look import AccountState, Service
from rekindle.client.errors import CommandFailed, UsageError
from rekindle.client.table import clean
from rekindle.doctor.base.facts import NotInspected

MAX_TRIES: Final = 3
_OF_TRAINING_JOBS: Final = ("role",)
_OF_SLURM: Final = ("cluster",)


def check_options(args: argparse.Namespace, *, is_asked: bool) -> None:
    """Check the options before the account is read.

    Raises:
        UsageError: an option has a wrong value, does not belong to the others, or is missing without a terminal.
    """
    runs = Runs(args.runs) if args.runs is not None else None
    for name, check in _checks(runs).items():
        text = getattr(args, name)
        if text is not None:
            _checked(name, text, check)
    if runs is not None:
        foreign = _OF_TRAINING_JOBS if runs.is_slurm else _OF_SLURM
        for name in foreign:
            if getattr(args, name) is not None:
                raise UsageError(f"--{name}: is not for --runs {runs}")
    if not is_asked:
        wanted = ["runs", "job", *(_wanted(runs) if runs is not None else ())]
        missing = [name for name in wanted if getattr(args, name) is None]
        if missing:
            detail = ", ".join(f"--{name}" for name in missing)
            raise UsageError(f"missing: {detail} (asked for only on a terminal and without --yes)")


def ask(args: argparse.Namespace, seen: AccountState, service: Service | str, *, is_asked: bool) -> Answers:
    """The answers, from options, questions and defaults.

    Raises:
        UsageError: the mailbox is missing, and the stack's bucket is not known.
        CommandFailed: the person gave no usable answer.
    """
    asking = _Asking(args, is_asked)
    runs = Runs(asking.one_of("runs", "Where does the job run", [place.value for place in Runs], None))
    kinds = [integration.value for integration in Integration]
    integration = Integration(asking.one_of("integration", "What is it written with", kinds, Integration.PLAIN.value))
    job = asking.text("job", "The Job's name", read.job)
    role = cluster = ""
    if runs.is_slurm:
        cluster = asking.text("cluster", "The cluster's name", read.cluster, choices=_slurm(seen))
        place = ""
    else:
        role = asking.text("role", "The execution role of its training jobs", read.role, choices=_known(seen.roles))
        place = "" if isinstance(service, str) else f"s3://{service.bucket}/training/{job}"
        if not place and not is_asked and args.mailbox is None:
            raise UsageError(f"--mailbox: is needed, because the stack's bucket is not known: {clean(service)}")
    question = "The mailbox, where its monitor and Rekindle meet"
    mailbox = asking.text("mailbox", question, lambda text: read.mailbox(text, runs), default=place or None)
    elsewhere = "Its checkpoints, if they do not lie below the mailbox"
    checkpoints = asking.text("checkpoints", elsewhere, lambda text: read.checkpoints(text, runs), default="")
    return Answers(
        runs=runs,
        integration=integration,
        job=job,
        role=role,
        cluster=cluster,
        mailbox=mailbox,
        checkpoints=checkpoints,
        policy=asking.text("policy", "The policy's name", read.policy, default="default"),
        is_shadow=asking.yes("shadow", "Begin in shadow mode: decide and tell, do nothing", default=True),
        email=asking.text("email", "Who gets notices by e-mail", read.email, default=""),
        wants_slack=asking.yes("slack", "Do you use Slack", default=False),
    )


@dataclass(frozen=True, slots=True)
class _Asking:
    args: argparse.Namespace
    is_asked: bool

    def text(
        self,
        name: str,
        question: str,
        check: Callable[[str], str],
        *,
        default: str | None = None,
        choices: Sequence[str] = (),
    ) -> str:
        """An option's value, else an answer, else the default; a number answers with that one of the choices."""
        given = getattr(self.args, name)
        if given is not None:
            return _checked(name, given, check)
        if not self.is_asked:
            if default is None:
                raise UsageError(f"--{name}: is missing")
            return default
        for number, choice in enumerate(choices, 1):
            print(f"  {number}  {clean(choice)}", file=sys.stderr)
        hint = f" [{clean(default)}]" if default else " (Enter: none)" if default == "" else ""
        for _ in range(MAX_TRIES):
            answer = _line(f"{question}{hint}: ")
            if answer.isascii() and answer.isdigit() and 1 <= int(answer) <= len(choices):
                answer = choices[int(answer) - 1]
            if not answer and default is not None:
                return default
            try:
                return check(answer)
            except WrongAnswer as err:
                print(f"  {err}", file=sys.stderr)
        raise CommandFailed(f"nothing was written: no usable answer for --{name}")

    def one_of(self, name: str, question: str, choices: Sequence[str], default: str | None) -> str:
        """One of a closed list."""

        def check(text: str) -> str:
            if text not in choices:
                raise WrongAnswer(f"must be one of {', '.join(choices)}, or its number")
            return text

        return self.text(name, question, check, default=default, choices=choices)

    def yes(self, name: str, question: str, *, default: bool) -> bool:
        given = getattr(self.args, name)
        if given is not None or not self.is_asked:
            return default if given is None else bool(given)
        for _ in range(MAX_TRIES):
            text = _line(f"{question}? [{'Y/n' if default else 'y/N'}] ").lower()
            if text in ("", "y", "yes", "n", "no"):
                return default if not text else text.startswith("y")
        raise CommandFailed(f"nothing was written: no usable answer for --{name}")


def _line(question: str) -> str:
    print(question, end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:
        raise CommandFailed("nothing was written: the input ended")
    return answer.strip()


def _checks(runs: Runs | None) -> dict[str, Callable[[str], str]]:
    checks: dict[str, Callable[[str], str]] = {
        "job": read.job,
        "role": read.role,
        "cluster": read.cluster,
        "policy": read.policy,
        "email": read.email,
    }
    if runs is not None:
        checks["mailbox"] = lambda text: read.mailbox(text, runs)
        checks["checkpoints"] = lambda text: read.checkpoints(text, runs)
    return checks


def _wanted(runs: Runs) -> tuple[str, ...]:
    return (*_OF_SLURM, "mailbox") if runs.is_slurm else _OF_TRAINING_JOBS


def _checked(name: str, text: str, check: Callable[[str], str]) -> str:
    try:
        return check(text)
    except WrongAnswer as err:
        raise UsageError(f"--{name}: {clean(text)!r} {err}") from err


def _known(roles: Any) -> Sequence[str]:
    return () if isinstance(roles, NotInspected) else roles


def _slurm(seen: AccountState) -> Sequence[str]:
    if isinstance(seen.clusters, NotInspected):
        return ()
    return [cluster.name for cluster in seen.clusters if cluster.is_slurm is not False]
