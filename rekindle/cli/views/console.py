"""`rekindle console`: the service as a web page on this machine."""

from __future__ import annotations

import argparse
import os
import stat
import sys
import webbrowser
from pathlib import Path
from typing import Any, Final

from rekindle.cli.service.target import add_options, connected
from rekindle.client.errors import UsageError

MIN_TOKEN_CHARS: Final = 32
_HELP: Final = "the service as a web page on this machine; nothing of it is public"


def register(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("console", help=_HELP, description=_HELP, allow_abbrev=False)
    parser.add_argument("--port", type=_port, default=0, metavar="N", help="on 127.0.0.1 (default: a free one)")
    parser.add_argument("--no-browser", action="store_true", help="print the link, open nothing")
    parser.add_argument("--look-only", action="store_true", help="no orders from this console")
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"the key to the console, at least {MIN_TOKEN_CHARS} characters, readable by you alone; a program that "
        "reads /metrics sends it as a bearer token (default: a random one each time)",
    )
    add_options(parser)
    parser.set_defaults(run=console, extra="console")


def console(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C.

    Raises:
        UsageError: jinja2 is missing, the port is taken, the token's file is no secret.
    """
    try:
        from rekindle.console.server import running
    except ImportError as err:
        raise UsageError(f"the console needs {err.name}: pip install 'rekindle[console]'") from err
    token = _token(args.token_file) if args.token_file is not None else None
    with connected(args, only_look=args.look_only) as client:
        try:
            serving = running(client, port=args.port, token=token, can_order=not args.look_only)
            with serving as site:
                print(f"Rekindle's console: {site.link}\nAnyone who has this link may do what you may. Ctrl-C ends it.")
                sys.stdout.flush()
                if not args.no_browser:
                    webbrowser.open(site.link_for_once())
                site.wait()
        except OSError as err:
            raise UsageError(f"--port {args.port}: {err.strerror or err}") from err
    return 0


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 65_535):
        raise argparse.ArgumentTypeError("must be a port from 0 to 65535")
    return int(text)


def _token(file: Path) -> str:
    """The token in a file that only its owner can read."""
    try:
        mode = file.stat().st_mode
        text = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as err:
        raise UsageError(f"--token-file {file}: cannot be read ({type(err).__name__})") from None
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(f"--token-file {file}: others may read it; chmod 600")
    if len(text) < MIN_TOKEN_CHARS or not all(char.isalnum() or char in "-_" for char in text):
        raise UsageError(f"--token-file {file}: must hold {MIN_TOKEN_CHARS} or more letters, digits, - and _")
    return text
