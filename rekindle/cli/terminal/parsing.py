"""The command line's parser: what is misspelt is answered with what was probably meant.

argparse, because importing click, cyclopts, or typer takes 0.2 to 0.3 s of a command that may take one, and the
monitor's installation needs nothing but boto3.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, NoReturn

from rekindle.client.table import clean

MAX_SUGGESTED: Final = 3
# Source: argparse._check_value of Python 3.11 to 3.14; the newer ones leave the quotes away.
_CHOICE: Final = re.compile(
    r"(?P<where>argument .*: )?invalid choice: '?(?P<given>.*?)'? \(choose from (?P<known>.*)\)$"
)


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`; did you mean a or b?`, or nothing where no name is near."""
    near = difflib.get_close_matches(given, list(known), n=MAX_SUGGESTED)
    return f"; did you mean {' or '.join(clean(name) for name in near)}?" if near else ""


class Parser(argparse.ArgumentParser):
    """argparse's, with suggestions. The parsers of its commands are of this class too."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's; an option that no parser knows is answered by the command that it was given to."""
        found, left = self.parse_known_args(args, namespace)
        if left:
            _leaf(self, found)._refuse(left)
        return found

    def error(self, message: str) -> NoReturn:
        """One line that names the argument, and exit code 2."""
        choice = _CHOICE.match(message)
        if choice is not None:
            known = [name.strip().strip("'") for name in choice["known"].split(",")]
            near = did_you_mean(choice["given"], known)
            if near:
                message = f"{choice['where'] or ''}invalid choice: {choice['given']!r}{near}"
        super().error(clean(message))

    def _refuse(self, left: Sequence[str]) -> NoReturn:
        option = next((word for word in left if word.startswith("-")), "")
        self.error(
            f"unrecognized arguments: {' '.join(left)}"
            + did_you_mean(option.partition("=")[0], self._option_string_actions if option else ())
        )


def described(commands: Any, name: str, help_: str, description: str) -> argparse.ArgumentParser:
    """A command whose own help prints `description` with its line breaks."""
    made: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help_,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    return made


def _leaf(parser: Parser, found: argparse.Namespace) -> Parser:
    """The parser of the command that was given."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            inner = action.choices.get(getattr(found, action.dest, None) or "")
            if isinstance(inner, Parser):
                return _leaf(inner, found)
    return parser
