"""Make the folder of the agent, with the wheels in it."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from infra.lifecycle import FOLDER, POLICY, ROOT, SETTINGS, LifecycleError, ServiceLocation, locked, write
from infra.lifecycle.own_wheel import own_wheel

_STACK_ID: Final = re.compile(r"arn:(?P<partition>[a-z-]+):cloudformation:(?P<region>[a-z0-9-]+):(?P<account>\d{12}):")


def make(options: argparse.Namespace) -> None:
    """Write the folder that `options` describe, and say where it is.

    Raises:
        LifecycleError, MailboxError, OSError: it cannot be made; the message says why.
    """
    make_at(options, place_of(options), options.out)
    print(f"{options.out / FOLDER}: put it beside on_create.sh; {SETTINGS} in it holds the agent's settings")
    print(f"{options.out / POLICY}: add it to the execution role of the controller group")


def make_at(options: argparse.Namespace, place: ServiceLocation, out: Path) -> None:
    """Write the folder and the policy below `out`. Raises: LifecycleError, OSError."""
    with tempfile.TemporaryDirectory(prefix="rekindle-lifecycle-") as scratch:
        write(place, out, wheels=_wheels(Path(scratch)), python=options.python)


def place_of(options: argparse.Namespace) -> ServiceLocation:
    """Where the service is: as the options say, else as the stack does. Raises: LifecycleError, MailboxError."""
    names = ("bucket", "bus", "region", "account")
    given = {name: getattr(options, name) for name in (*names, "partition") if getattr(options, name)}
    if any(name not in given for name in names):
        given = _of_stack(options.stack, options.region) | given
    return ServiceLocation(cluster=options.cluster, stack=options.stack, **given)


def _of_stack(stack: str, region: str | None) -> dict[str, str]:
    """From the stack's own description. Raises: LifecycleError."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        client: Any = boto3.session.Session(region_name=region).client("cloudformation")
        [found] = client.describe_stacks(StackName=stack)["Stacks"]
    except (BotoCoreError, ClientError) as err:
        raise LifecycleError(
            f"the stack {stack} cannot be read ({err}): give --bucket, --bus, --region, --account"
        ) from err
    outputs = {item["OutputKey"]: item["OutputValue"] for item in found.get("Outputs", ())}
    read = _STACK_ID.match(found["StackId"])
    if read is None or "BucketName" not in outputs or "BusName" not in outputs:
        raise LifecycleError(f"the stack {stack} has no outputs BucketName and BusName: is it Rekindle's?")
    return {"bucket": outputs["BucketName"], "bus": outputs["BusName"], **read.groupdict()}


def _wheels(scratch: Path) -> list[Path]:
    """Our own wheel, and those of what the agent needs. Raises: LifecycleError."""
    held = scratch / "requirements.txt"
    held.write_text(locked((ROOT / "requirements.txt").read_text(encoding="utf-8")), encoding="utf-8")
    own_wheel(scratch)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "-q"]
    command += ["download", "--no-deps", "--only-binary=:all:", "--dest", str(scratch)]
    command += ["--require-hashes", "--requirement", str(held)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LifecycleError(f"pip download failed: {done.stderr.strip()[-500:]}")
    return sorted(scratch.glob("*.whl"))
