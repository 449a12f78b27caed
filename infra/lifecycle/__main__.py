"""`python -m infra.lifecycle --cluster NAME [--stack NAME] [--out DIR]`: see `infra.lifecycle`."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from infra.lifecycle import FOLDER, POLICY, ROOT, SETTINGS, LifecycleError, Place, locked, write
from rekindle.wire import MailboxError

_STACK_ID: Final = re.compile(r"arn:(?P<partition>[a-z-]+):cloudformation:(?P<region>[a-z0-9-]+):(?P<account>\d{12}):")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.lifecycle", description="The agent's folder for a cluster.")
    parser.add_argument("--cluster", required=True, help="the HyperPod cluster's name, or Slurm's ClusterName")
    parser.add_argument("--stack", default="rekindle", help="the service's stack (rekindle)")
    parser.add_argument("--out", type=Path, default=Path("build/lifecycle"), help="where to write (build/lifecycle)")
    by_hand = parser.add_argument_group("where the service is; by default the stack is asked")
    for name in ("bucket", "bus", "region", "account", "partition"):
        by_hand.add_argument(f"--{name}")
    parser.add_argument("--no-wheels", action="store_true", help="leave the packages to pip on the node: see --package")
    parser.add_argument("--package", help="with --no-wheels: what pip installs, such as a wheel's https or file URL")
    options = parser.parse_args(arguments)
    if options.no_wheels != bool(options.package):
        parser.error("--no-wheels and --package belong together")
    try:
        place = _place(options)
        with tempfile.TemporaryDirectory(prefix="rekindle-lifecycle-") as scratch:
            wheels = [] if options.no_wheels else _wheels(Path(scratch))
            write(place, options.out, package=options.package or "", wheels=wheels)
    except (LifecycleError, MailboxError, OSError) as err:
        print(f"infra.lifecycle: {err}", file=sys.stderr)
        return 1
    print(f"{options.out / FOLDER}: put it beside on_create.sh; {SETTINGS} in it holds the agent's settings")
    print(f"{options.out / POLICY}: add it to the execution role of the controller group")
    return 0


def _place(options: argparse.Namespace) -> Place:
    """Raises: LifecycleError."""
    names = ("bucket", "bus", "region", "account")
    given = {name: getattr(options, name) for name in (*names, "partition") if getattr(options, name)}
    if any(name not in given for name in names):
        given = _of_stack(options.stack, options.region) | given
    return Place(cluster=options.cluster, stack=options.stack, **given)


def _of_stack(stack: str, region: str | None) -> dict[str, str]:
    """From the stack's own description. Raises: LifecycleError."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        client: Any = boto3.session.Session(region_name=region).client("cloudformation")
        [found] = client.describe_stacks(StackName=stack)["Stacks"]
    except (BotoCoreError, ClientError) as err:
        raise LifecycleError(
            f"the stack {stack} cannot be asked ({err}): give --bucket, --bus, --region, --account"
        ) from err
    outputs = {item["OutputKey"]: item["OutputValue"] for item in found.get("Outputs", ())}
    read = _STACK_ID.match(found["StackId"])
    if read is None or "BucketName" not in outputs or "BusName" not in outputs:
        raise LifecycleError(f"the stack {stack} has no outputs BucketName and BusName: is it Rekindle's?")
    return {"bucket": outputs["BucketName"], "bus": outputs["BusName"], **read.groupdict()}


def _wheels(scratch: Path) -> list[Path]:
    """The project's own wheel, and those of what the agent needs. Raises: LifecycleError."""
    held = scratch / "requirements.txt"
    held.write_text(locked((ROOT / "requirements-dev.txt").read_text(encoding="utf-8")), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "-q"]
    wanted = ["--require-hashes", "--requirement", str(held)]
    source = scratch / "source"  # a copy: building in place would leave its own folder behind, and pack what lies in it
    for name in ("pyproject.toml", "README.md"):
        source.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    for name in ("rekindle", "chalicelib", "localcloud"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for command in (
        [*pip, "wheel", "--no-deps", "--wheel-dir", str(scratch), str(source)],
        [*pip, "download", "--no-deps", "--only-binary=:all:", "--dest", str(scratch), *wanted],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LifecycleError(f"{' '.join(command[2:6])} failed: {done.stderr.strip()[-500:]}")
    return sorted(scratch.glob("*.whl"))


if __name__ == "__main__":
    sys.exit(main())
