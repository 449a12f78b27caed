"""Which service a command speaks to: an API's URL, the account's own stack, or the store of an embedded cloud.

In this order: --api, --store, REKINDLE_API, REKINDLE_STORE, the CloudFormation stack, ./build/demo.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rekindle.cli.client import Client, check_url, signer
from rekindle.cli.embedded import serving
from rekindle.cli.errors import Misused, Unreachable
from rekindle.cli.table import clean

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
        help="an embedded cloud's store (or REKINDLE_STORE)",
    )
    group.add_argument(
        "--stack",
        metavar="NAME",
        default=argparse.SUPPRESS,
        help=f"the CloudFormation stack to ask for the API (or REKINDLE_STACK; {DEFAULT_STACK})",
    )


@contextmanager
def connected(args: argparse.Namespace, *, only_look: bool) -> Iterator[Client]:
    """A client of the chosen service, for as long as the block lasts.

    Raises:
        Misused: a setting is wrong.
        Unreachable: no service could be found.
    """
    url, store = _chosen(args)
    if url is not None:
        url = check_url(url)
        yield Client(url=url, sign=signer(url))
        return
    assert store is not None  # noqa: S101  _chosen gives exactly one of both; this tells the type checker
    with serving(store, only_look=only_look) as url:
        yield Client(url=check_url(url))


def _chosen(args: argparse.Namespace) -> tuple[str | None, Path | None]:
    api, store = getattr(args, "api", None), getattr(args, "store", None)
    if api is not None and store is not None:
        raise Misused("--api and --store name two services; give one")
    if api is not None or store is not None:
        return api, store
    if os.environ.get("REKINDLE_API"):
        return os.environ["REKINDLE_API"], None
    if os.environ.get("REKINDLE_STORE"):
        return None, Path(os.environ["REKINDLE_STORE"])
    named = getattr(args, "stack", None) or os.environ.get("REKINDLE_STACK")
    url, why_not = _of_stack(named or DEFAULT_STACK)
    if url is not None:
        return url, None
    if named is None and DEMO_STORE.is_dir():
        print(f"rekindle: {why_not}; looking at the embedded cloud's store {DEMO_STORE}", file=sys.stderr)
        return None, DEMO_STORE
    raise Unreachable(f"no service: {why_not}. Name one with --api URL, --stack NAME or --store DIR")


def _of_stack(stack: str) -> tuple[str | None, str]:
    """The API's URL in a stack's outputs, or why there is none."""
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
        said = str(err.response.get("Error", {}).get("Message", err))
        missing = "does not exist" in said
        return None, f"no stack {clean(stack)!r} in this account and region" if missing else clean(said)[:200]
    except BotoCoreError as err:
        return None, clean(err)[:200]
    return _url_in(answer), f"stack {clean(stack)!r} names no API"


def _url_in(answer: Any) -> str | None:
    for stack in answer.get("Stacks", []):
        outputs = {item.get("OutputKey"): item.get("OutputValue") for item in stack.get("Outputs", [])}
        for key in OUTPUT_KEYS:
            if outputs.get(key):
                return str(outputs[key])
    return None
