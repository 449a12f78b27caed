"""`show INCIDENT`: its story, or with --report a link to its page or the page in a file."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from rekindle.cli.service.target import connected
from rekindle.cli.terminal.names import Kind, read
from rekindle.cli.terminal.output import answer
from rekindle.cli.views import overview
from rekindle.client.api import is_loopback, pool
from rekindle.client.errors import CommandFailed, TryAgain, UsageError
from rekindle.client.shapes import day_and_time, word
from rekindle.client.table import clean

MAX_PAGE_BYTES: Final = 5_000_000


def show(args: argparse.Namespace) -> int:
    """One Incident's story, or its page.

    Raises:
        UsageError: options that do not go together, or a file that cannot be made.
        CommandFailed, TryAgain: the page cannot be read.
    """
    if not args.report:
        if args.save is not None:
            raise UsageError("--save: is for the page; give --report as well")
        return overview.show(args)
    if getattr(args, "watch", None) is not None:
        raise UsageError("--watch: what --report prints is printed once")
    return _report(args)


def _report(args: argparse.Namespace) -> int:
    with connected(args, only_look=True) as client:
        _, body = read(client, Kind.INCIDENT, args.incident, "report")
        url = _checked(word(body, "url"))
        if args.save is not None:
            _save(_page(url), args.save)
    written = day_and_time(body, "written_at")
    answer(args, body, url if args.save is None else f"{clean(args.save)}: the page as it was written {clean(written)}")
    if args.save is None:
        ends = f"it opens for anyone who has it, until {clean(day_and_time(body, 'until'))} at the latest"
        print(f"rekindle: written {clean(written)}; {ends}", file=sys.stderr)
        if is_loopback(url):
            print(
                "rekindle: this link is of this machine's own cloud, and may end with it; --save FILE", file=sys.stderr
            )
    return 0


def _checked(url: str) -> str:
    """What a browser may be given: https, or http on this machine, and no character that a terminal would obey."""
    try:
        parts = urlsplit(url)
        is_good = bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(url)))
    except ValueError:
        is_good = False
    if not is_good or clean(url) != url or not url.isascii() or " " in url:
        raise CommandFailed("the answer holds no link: is this the address of a Rekindle API?")
    return url


def _page(url: str) -> bytes:
    import urllib3  # only here, as in client.py

    try:
        answer = pool().request("GET", url, redirect=False, preload_content=False)
        try:
            content: bytes = answer.read(MAX_PAGE_BYTES + 1, decode_content=True)
        finally:
            answer.release_conn()
    except (urllib3.exceptions.HTTPError, OSError) as err:
        raise TryAgain(f"the page cannot be read: {type(err).__name__}") from err
    if answer.status != 200 or len(content) > MAX_PAGE_BYTES:
        raise CommandFailed(f"the page cannot be read: HTTP {answer.status}")
    return content


def _save(content: bytes, path: Path) -> None:
    """For the owner alone; a file that is there is not written over."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
    except FileExistsError:
        raise UsageError(f"--save: {clean(path)} exists") from None
    except (OSError, ValueError) as err:
        raise UsageError(f"--save: {clean(path)}: {getattr(err, 'strerror', None) or err}") from err
