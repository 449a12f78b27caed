"""Which service a command speaks to: an API's URL, the account's own stack, or the store of an embedded cloud.

In this order: what the command line names (--api, --store or --stack, one of them), what the environment names
(REKINDLE_API, REKINDLE_STACK, the first that is set), the stack `rekindle`; for a command that only looks also
./build/demo, which is said first. An order never goes to a store that nobody named.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rekindle.cli.service.files import service_root
from rekindle.client.api import Client, check_url, region_of, signer
from rekindle.client.errors import Unreachable, UsageError
from rekindle.client.table import clean

DEMO_STORE = Path("build/demo")
DEFAULT_STACK = "rekindle"
OUTPUT_KEYS = ("ApiUrl", "EndpointURL")  # the merge template's own output, and the one Chalice writes by itself


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of every command that speaks to the service. Absent ones leave no trace, so they may stand twice."""
    group = parser.add_argument_group("which service")
    group.add_argument("--api", metavar="URL", default=argparse.SUPPRESS, help="the REST API (or REKINDLE_API)")
    group.add_argument(
        "--store",
        metavar="DIR",
        type=Path,
        default=argparse.SUPPRESS,
        help="an embedded cloud's store",
    )
    group.add_argument(
        "--stack",
        metavar="NAME",
        default=argparse.SUPPRESS,
        help=f"the CloudFormation stack to ask for the API (or REKINDLE_STACK; {DEFAULT_STACK})",
    )


@dataclass(frozen=True, slots=True)
class Target:
    """One service: its API's URL or an embedded cloud's store, and what people call it."""

    name: str
    url: str | None = None
    store: Path | None = None


@contextmanager
def connected(args: argparse.Namespace, *, only_look: bool) -> Iterator[Client]:
    """A client of the chosen service, for as long as the block lasts. Before an order the service is named.

    Raises:
        UsageError: a setting is wrong.
        Unreachable: no service could be found.
    """
    target = _chosen(args, only_look=only_look)
    url = check_url(target.url) if target.url is not None else ""
    if not only_look:
        print(f"rekindle: target: {target.name}", file=sys.stderr, flush=True)
    if url:
        yield Client(url=url, sign=signer(url))
        return
    assert target.store is not None  # noqa: S101  a target has one of both; this tells the type checker
    with serving(target.store, only_look=only_look) as url:
        yield Client(url=check_url(url))


def _chosen(args: argparse.Namespace, *, only_look: bool) -> Target:
    """The service to call: the command line before the environment, the environment before the default."""
    given = {name: getattr(args, name, None) for name in ("api", "store", "stack")}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise UsageError(f"{' and '.join(f'--{name}' for name in named)} name {len(named)} services; give one")
    if not named:
        given |= {"api": os.environ.get("REKINDLE_API") or None, "stack": os.environ.get("REKINDLE_STACK") or None}
    if given["api"] is not None:
        return _of_url(str(given["api"]))
    if given["store"] is not None:
        return _of_store(Path(given["store"]))
    stack = given["stack"]
    target, why_not = _of_stack(str(stack) if stack is not None else DEFAULT_STACK)
    if target is not None:
        return target
    if only_look and stack is None and DEMO_STORE.is_dir():
        print(f"rekindle: {why_not}; looking at the embedded cloud's store {DEMO_STORE}", file=sys.stderr)
        return _of_store(DEMO_STORE)
    raise Unreachable(f"no service: {why_not}. Name one with --api URL, --stack NAME or --store DIR")


def _of_url(url: str) -> Target:
    region = region_of(check_url(url))
    return Target(f"API {clean(url)}" + (f" in {region}" if region else ""), url=url)


def _of_store(store: Path) -> Target:
    return Target(f"embedded store {clean(store)}", store=store)


def _of_stack(stack: str) -> tuple[Target | None, str]:
    """The service of a stack, or why there is none."""
    # Only here: boto3's import takes longer than most commands.
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    quick = Config(connect_timeout=3, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 2})
    try:
        session = boto3.session.Session()
        if session.get_credentials() is None:
            return None, "no AWS credentials"
        answer = session.client("cloudformation", config=quick).describe_stacks(StackName=stack)
    except ClientError as err:
        stated = str(err.response.get("Error", {}).get("Message", err))
        missing = "does not exist" in stated
        return None, f"no stack {clean(stack)!r} in this account and region" if missing else clean(stated)[:200]
    except BotoCoreError as err:
        return None, clean(err)[:200]
    return _stack_in(answer), f"stack {clean(stack)!r} names no API"


def _stack_in(answer: Any) -> Target | None:
    for stack in answer.get("Stacks", []):
        outputs = {item.get("OutputKey"): item.get("OutputValue") for item in stack.get("Outputs", [])}
        # arn:aws:cloudformation:REGION:ACCOUNT:stack/NAME/ID
        parts = [*str(stack.get("StackId")).split(":"), *[""] * 6]
        where = f"account {parts[4] or 'unknown'}, region {parts[3] or 'unknown'}"
        name = str(stack.get("StackName"))
        for key in OUTPUT_KEYS:
            if outputs.get(key):
                return Target(clean(f"stack {name}{_stage_text(name)}, {where}"), url=str(outputs[key]))
    return None


def _stage_text(stack: str) -> str:
    """The stage that a stack of our own naming belongs to; empty for any other name."""
    if stack == DEFAULT_STACK:
        return " (stage prod)"
    _, ours, stage = stack.partition(f"{DEFAULT_STACK}-")
    return f" (stage {stage})" if ours and stack.startswith(DEFAULT_STACK) else ""


START_LIMIT_S = 90.0  # importing moto and reading a store takes a few seconds; a loaded machine needs many more
STOP_LIMIT_S = 15.0
FACTS = "cloud.sqlite"  # what every store holds


@contextmanager
def serving(store: Path, *, only_look: bool) -> Iterator[str]:
    """The API's URL, for as long as the block lasts. `only_look`: nothing in the store is taken up or changed.

    Raises:
        Unreachable: there is no such store, or it does not come up.
        UsageError: the embedded cloud is not installed.
    """
    if not store.is_dir():
        raise Unreachable(f"{store}: no such store (rekindle demo leaves one in build/demo)")
    if not (store / FACTS).exists() and any(store.iterdir()):
        raise Unreachable(f"{store}: is no store, it holds no {FACTS}")  # nothing is written among other files
    root = service_root()
    if root is None or importlib.util.find_spec("moto") is None:
        raise UsageError("the embedded cloud is not installed: pip install 'rekindle[local]', or name an --api")
    # -P: the folder in which the reader stands may hold an app.py of its own.
    command = [sys.executable, "-P", "-m", "localcloud", "serve", "--store", str(store.resolve()), "--attached"]
    if only_look:
        command.append("--still")
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # it ends when this is closed, even if we are killed
            stdout=subprocess.PIPE,
            stderr=errors,
            env=_environ(root),
        )
        try:
            yield _ready(process, errors)
        finally:
            _end(process)


def _environ(root: Path) -> dict[str, str]:
    """Ours, with the folder that holds `localcloud` and `app.py` on the path, wherever the command was called."""
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{path}" if path else str(root)}


def _ready(process: subprocess.Popen[bytes], errors: IO[bytes]) -> str:
    lines: queue.Queue[bytes] = queue.Queue()
    stdout = process.stdout
    assert stdout is not None  # noqa: S101  stdout=PIPE was given; this tells the type checker

    def drain() -> None:
        # Read to the end, or a talkative process would block once the pipe is full.
        for line in stdout:
            lines.put(line)
        lines.put(b"")

    threading.Thread(target=drain, name="embedded-cloud", daemon=True).start()
    try:
        line = lines.get(timeout=START_LIMIT_S)
    except queue.Empty:
        raise Unreachable(f"the embedded cloud did not come up within {START_LIMIT_S:.0f} s") from None
    try:
        answer: Any = json.loads(line)
        return str(answer["api"])
    except (ValueError, TypeError, KeyError):
        raise Unreachable(f"the embedded cloud did not come up: {_ended_and_last_error(process, errors)}") from None


def _ended_and_last_error(process: subprocess.Popen[bytes], errors: IO[bytes]) -> str:
    _end(process)
    errors.seek(0)
    lines = [line.strip() for line in errors.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return clean(lines[-1])[:300] if lines else f"it ended with {process.returncode}"


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None and not process.stdin.closed:
        process.stdin.close()
    try:
        process.wait(timeout=STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
