"""`rekindle completion`: what a shell needs to complete our command line, made from the parser itself by shtab."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

from rekindle.cli.terminal.output import out
from rekindle.client.errors import Exit, UsageError

SHELLS: Final = ("bash", "zsh", "fish")
_HELP: Final = "completion for a shell: rekindle completion bash > ~/.local/share/bash-completion/completions/rekindle"
_FILES: Final = frozenset({"FILE", "PATH", "DIR", "OUT.png|OUT.svg"})  # metavars that stand for a file's name


def register(commands: Any, whole_parser: Callable[[], argparse.ArgumentParser]) -> None:
    """Add the command. `whole_parser` builds the parser that is completed."""
    parser = commands.add_parser("completion", help="completion for bash, zsh or fish", description=_HELP)
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=lambda args: _completion(args, whole_parser()))


def _completion(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    try:
        import shtab
    except ImportError as err:
        raise UsageError("completion needs shtab: pip install 'rekindle[completion]'") from err
    _complete_files(parser, shtab.FILE)
    out(shtab.complete(parser, args.shell).rstrip("\n"))
    return Exit.OK


def _complete_files(parser: argparse.ArgumentParser, files: Any) -> None:
    """Say of every argument that names a file that it does."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                _complete_files(inner, files)
        elif action.metavar in _FILES:
            action.complete = files  # type: ignore[attr-defined]  # shtab's own way to say so
