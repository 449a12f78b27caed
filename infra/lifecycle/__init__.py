"""What a cluster's nodes need to run Rekindle's agent: `rekindle slurm-agent bundle --cluster NAME` makes it.

OUT/rekindle/             to be put beside on_create.sh in the bucket of the lifecycle scripts
    rekindle_agent.sh       installs; called at the end of on_create.sh, on every node
    rekindle-agent.service  the systemd unit
    rekindle.env            the agent's settings
    allow.conf              what the agent may do; observe until an administrator says otherwise. Kept where it is there
    requirements.txt        exact versions, with the hashes of the wheels
    wheels/                 the package and all it needs: nothing comes from the network at install time
    python.tar.gz           the Python that runs it, where --python names one
OUT/iam-head-node.json    the policy for the role of the controller group
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, Final

from rekindle.protocol.cluster.names import check_cluster, queue_name

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent.parent
FOLDER: Final = "rekindle"
SCRIPT: Final = "rekindle_agent.sh"
UNIT: Final = "rekindle-agent.service"
POLICY: Final = "iam-head-node.json"
SETTINGS: Final = "rekindle.env"
ALLOWED: Final = "allow.conf"
REQUIREMENTS: Final = "requirements.txt"
WHEELS: Final = "wheels"
PYTHON: Final = "python.tar.gz"
# What the agent imports, and what that needs in turn, at the versions that it is tested with.
NEEDED: Final = ("boto3", "botocore", "jmespath", "python-dateutil", "s3transfer", "six", "urllib3")


class LifecycleError(Exception):
    """The folder cannot be made; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLocation:
    """Where the service is, and which cluster is meant."""

    cluster: str
    stack: str
    bucket: str
    bus: str
    region: str
    account: str
    partition: str = "aws"

    def __post_init__(self) -> None:
        """Raises: LifecycleError naming what is wrong; MailboxError for a cluster's name that cannot be one."""
        check_cluster(self.cluster)
        for name, pattern in (
            ("stack", r"[A-Za-z][A-Za-z0-9-]{0,127}"),
            ("bucket", r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"),
            ("bus", r"[A-Za-z0-9._/-]{1,256}"),
            ("region", r"[a-z0-9-]{5,32}"),
            ("account", r"[0-9]{12}"),
            ("partition", r"aws[a-z-]{0,20}"),
        ):
            if re.fullmatch(pattern, getattr(self, name)) is None:
                raise LifecycleError(f"--{name}: {getattr(self, name)!r} cannot be one")


def policy(place: ServiceLocation) -> dict[str, Any]:
    """The policy of the head node's role: its own queue, its own part of the bucket, and news on the bus."""
    filled = Template((HERE / POLICY).read_text(encoding="utf-8")).substitute(
        Partition=place.partition,
        Region=place.region,
        Account=place.account,
        Bucket=place.bucket,
        Bus=place.bus,
        Cluster=place.cluster,
        Queue=queue_name(place.stack, place.cluster),
    )
    read: dict[str, Any] = json.loads(filled)
    return read


def settings(place: ServiceLocation) -> str:
    """The environment file. The cluster's name is a fallback: on HyperPod the node's own file says it."""
    values = {
        "REKINDLE_STACK": place.stack,
        "REKINDLE_BUCKET": place.bucket,
        "REKINDLE_BUS": place.bus,
        "REKINDLE_CLUSTER": place.cluster,
        "AWS_DEFAULT_REGION": place.region,
    }
    return "".join(f"{name}={value}\n" for name, value in values.items())


def locked(text: str) -> str:
    """The lines of requirements.txt on what the agent needs, with hashes. Raises: LifecycleError."""
    blocks = re.findall(r"^(?:[A-Za-z0-9._-]+)==[^\n]*(?:\n[ ]+--hash=[^\n]*)+", text, re.MULTILINE)
    found = {block.split("==", 1)[0]: block for block in blocks}
    missing = [name for name in NEEDED if name not in found]
    if missing:
        raise LifecycleError(f"requirements.txt holds no hash of {', '.join(missing)}: make lock")
    return "".join(f"{found[name]}\n" for name in NEEDED)


def requirements(wheels: Sequence[Path]) -> str:
    """requirements.txt: a line for each wheel, with its hash."""
    lines = []
    for wheel in sorted(wheels):
        name, version = wheel.name.split("-")[:2]  # Source: binary distribution format, file name convention
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        lines.append(f"{name}=={version} --hash=sha256:{digest}\n")
    return "".join(lines)


def write(place: ServiceLocation, out: Path, *, wheels: Sequence[Path], python: Path | None = None) -> None:
    """Write the folder and the policy, over earlier ones. `python`: see --python. Raises: OSError, LifecycleError."""
    folder = out / FOLDER
    kept = (folder / ALLOWED).read_bytes() if (folder / ALLOWED).exists() else (HERE / ALLOWED).read_bytes()
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    for name in (SCRIPT, UNIT):
        shutil.copy(HERE / name, folder / name)
    (folder / ALLOWED).write_bytes(kept)
    (folder / SETTINGS).write_text(settings(place), encoding="utf-8")
    (folder / WHEELS).mkdir()
    for wheel in wheels:
        shutil.copy(wheel, folder / WHEELS / wheel.name)
    if python is not None:
        shutil.copy(python, folder / PYTHON)
    (folder / REQUIREMENTS).write_text(requirements(wheels), encoding="utf-8")
    (out / POLICY).write_text(json.dumps(policy(place), indent=2) + "\n", encoding="utf-8")
