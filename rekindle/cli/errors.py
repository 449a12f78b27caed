"""How a command ends: exit codes, and the errors that carry them.

CliError
├── CommandFailed     1  refused by the service, by the person, or failed
│   └── ServiceFailed    the service failed, not the order; a watch waits it out
├── Misused           2  the command line or a setting is wrong
├── NotFound          3  no such Job, Incident or training job
├── Unreachable       4  the service cannot be found or reached
└── TryAgain          5  the same command may work later
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes; docs/cli.md lists them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    TRY_AGAIN = 5
    PERSON_NEEDED = 6
    INTERRUPTED = 130  # 128 + SIGINT, as shells have it


class CliError(Exception):
    """A command cannot be carried out; the message is one line for a person."""

    code: Exit = Exit.FAILED


class CommandFailed(CliError):
    """Refused, or failed."""


class ServiceFailed(CommandFailed):
    """The service itself failed (HTTP 5xx)."""


class Misused(CliError):
    """Wrong usage."""

    code = Exit.USAGE


class NotFound(CliError):
    """What was named does not exist."""

    code = Exit.NOT_FOUND


class Unreachable(CliError):
    """No service, or no way to it."""

    code = Exit.UNREACHABLE


class TryAgain(CliError):
    """Not now."""

    code = Exit.TRY_AGAIN
