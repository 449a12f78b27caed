"""How a command ends: the table of exit codes, and the errors that carry them.

CliError
├── CommandFailed     1  refused by the service, by the person, or failed
│   └── ServiceFailed    the service failed, not the order; a watch waits it out
├── UsageError           2  the command line or a setting is wrong
│   └── BadFile          a file that was given cannot be used
├── NotFound          3  a named Job, Incident, training job, cluster, policy, drill, or folder does not exist
├── Unreachable       4  the service cannot be found or reached
└── TryAgain          5  the same command may work later
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final


class Exit(IntEnum):
    """The same for every command; `MEANINGS` says what each means."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    TRY_AGAIN = 5
    PERSON_NEEDED = 6
    INTERRUPTED = 130  # 128 + SIGINT, as shells have it


# The one table: `rekindle --help` prints it, docs/cli.md holds it (tests/cli/test_exit_codes.py).
MEANINGS: Final[Mapping[Exit, str]] = {
    Exit.OK: "done",
    Exit.FAILED: "refused by the service or the person, or failed",
    Exit.USAGE: "wrong usage: an option, setting, or file cannot be used",
    Exit.NOT_FOUND: "a named Job, Incident, training job, cluster, policy, drill, or folder does not exist",
    Exit.UNREACHABLE: "no service, or no way to it",
    Exit.TRY_AGAIN: "try again later",
    Exit.PERSON_NEEDED: "(drill) a person would be called, or the rehearsal did not end",
    Exit.INTERRUPTED: "Ctrl-C",
}


class CliError(Exception):
    """A command cannot be carried out; the message is one line for a person."""

    code: Exit = Exit.FAILED


class CommandFailed(CliError):
    """Refused, or failed."""


class ServiceFailed(CommandFailed):
    """The service itself failed (HTTP 5xx)."""


class UsageError(CliError):
    """Wrong usage."""

    code = Exit.USAGE


class BadFile(UsageError):
    """A file that was given cannot be read, or is not what the command takes; the message names it."""


class NotFound(CliError):
    """What was named does not exist."""

    code = Exit.NOT_FOUND


class Unreachable(CliError):
    """No service, or no way to it."""

    code = Exit.UNREACHABLE


class TryAgain(CliError):
    """Not now."""

    code = Exit.TRY_AGAIN
