"""Runs `rekindle slurm-agent` on the head node: locally, or through a session of Systems Manager.

HyperPod's nodes accept SSM sessions only (SendCommand cannot address them), and a session reports no exit
code and does not guarantee that all output arrives. So the script's output is enclosed in two random markers drawn for
each call, and the last one carries the exit code. Without the last marker the result is unknown; every verb may be run
again. The folder travels through the stack's bucket, and its sha256 is verified on the node.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from botocore.exceptions import BotoCoreError, ClientError

from infra.lifecycle import FOLDER, SCRIPT
from rekindle.client.errors import CommandFailed, NotFound, TryAgain, Unreachable, UsageError
from rekindle.client.table import clean
from rekindle.protocol.cluster.names import cluster_prefix

INSTALLED: Final = f"/opt/rekindle/{SCRIPT}"
ENV_ROOT: Final = "REKINDLE_ROOT"  # of the head node's files, see the script
SESSION_S: Final = 1500.0  # longer than the time limits of all that the script does there
DOCUMENT: Final = "AWS-StartNonInteractiveCommand"
NOT_INSTALLED: Final = 3  # the script's own exit code, and the command's
_AWAY: Final = ("TargetNotConnected", "InvalidInstanceId", "not connected")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptResult:
    """How the script ended there."""

    code: int
    output: str


class HeadNodeAccess(Protocol):
    """A way onto a head node. `name` tells several apart."""

    name: str

    def run(self, arguments: Sequence[str], folder: Path | None) -> ScriptResult:
        """The folder's script, or without a folder the one that is installed.

        Raises: UsageError, Unreachable, TryAgain, CommandFailed.
        """
        ...


class ThisMachine:
    """This machine."""

    name = "this machine"

    def run(self, arguments: Sequence[str], folder: Path | None) -> ScriptResult:
        script = folder / SCRIPT if folder else Path(f"{os.environ.get(ENV_ROOT, '')}{INSTALLED}")
        if not script.exists():
            raise NotFound(f"no agent is installed here: there is no {script}")
        # --here states that this is the head node.
        role = ["--controller"] if folder else []
        command = ["bash", str(script), *arguments, *role]
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=SESSION_S
            )
        except subprocess.TimeoutExpired as err:
            raise TryAgain(f"{script} did not end within {SESSION_S:g} s") from err
        return ScriptResult(code=done.returncode, output=done.stdout.decode("utf-8", "replace"))


class Session:
    """A session of Systems Manager to `target`. `bucket` takes the folder, under the cluster's own prefix."""

    def __init__(self, *, target: str, region: str | None, s3: Any, bucket: str, cluster: str) -> None:
        self.name = self._target = target
        self._region = region
        self._s3 = s3
        self._bucket = bucket
        self._cluster = cluster

    def run(self, arguments: Sequence[str], folder: Path | None) -> ScriptResult:
        missing = [name for name in ("aws", "session-manager-plugin") if shutil.which(name) is None]
        if missing:
            raise UsageError(f"{' and '.join(missing)} not found: install it, or run this on the head node with --here")
        words = shlex.join([*arguments, "--controller"] if folder else arguments)
        script = self._fetched(folder, words) if folder else _installed(words)
        mark = secrets.token_hex(8)
        whole = f"echo begin-{mark}; ( {script} ) 2>&1; echo end-{mark}-$?"
        # The agent on the node splits the words without a shell, so what it runs is one word of harmless letters.
        encoded = base64.b64encode(whole.encode()).decode()
        parameters = json.dumps({"command": [f'bash -c "echo {encoded} | base64 -d | bash"']})
        command = ["aws", "ssm", "start-session", "--target", self._target, "--document-name", DOCUMENT]
        command += ["--parameters", parameters, *(["--region", self._region] if self._region else [])]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=SESSION_S
            )
        except subprocess.TimeoutExpired as err:
            raise TryAgain(f"no end of the session with {self._target} within {SESSION_S:g} s") from err
        return _read(done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"), mark, self._target)

    def _fetched(self, folder: Path, words: str) -> str:
        """Puts the folder into the bucket; what fetches, checks and runs it on the node."""
        archive = packed(folder)
        digest = hashlib.sha256(archive).hexdigest()
        key = f"{cluster_prefix(self._cluster)}install/{digest}.tar.gz"
        try:
            self._s3.put_object(Bucket=self._bucket, Key=key, Body=archive)
        except (BotoCoreError, ClientError) as err:
            raise CommandFailed(f"the folder cannot be put into s3://{self._bucket}/{key}: {clean(str(err))}") from err
        return (
            "d=$(mktemp -d) && trap 'rm -rf \"$d\"' EXIT && "
            f'aws s3 cp --only-show-errors s3://{self._bucket}/{key} "$d/b.tar.gz" && '
            f'echo "{digest}  $d/b.tar.gz" | sha256sum -c --quiet && tar -xzf "$d/b.tar.gz" -C "$d" && '
            f'bash "$d/{FOLDER}/{SCRIPT}" {words}'
        )


def _installed(words: str) -> str:
    script = f'"${{{ENV_ROOT}:-}}"{INSTALLED}'
    return f"[ -e {script} ] || {{ echo 'no agent is installed there'; exit {NOT_INSTALLED}; }}; bash {script} {words}"


def _read(output: str, errors: str, mark: str, target: str) -> ScriptResult:
    """Raises: Unreachable, TryAgain."""
    begun = re.search(rf"^begin-{mark}\r?$", output, re.MULTILINE)
    ended = re.search(rf"^end-{mark}-(\d+)\r?$", output, re.MULTILINE)
    if begun is None and ended is None:
        stated = " ".join((errors or output).split())[-300:]
        if any(word in stated for word in _AWAY):
            raise Unreachable(f"{target} cannot be reached: {clean(stated)}")
        raise TryAgain(f"no session with {target} came about: {clean(stated) or 'it printed nothing'}")
    text = output[begun.end() if begun else 0 : ended.start() if ended else None].strip("\r\n")
    if ended is None:
        for line in text.splitlines():
            print(clean(line), file=sys.stderr)
        raise TryAgain("the session broke off and it is not known how it ended: run it again, or ask with `status`")
    return ScriptResult(code=int(ended[1]), output=text)


def packed(folder: Path) -> bytes:
    """The folder as a tar.gz, the same for the same content: one object in the bucket for each version."""
    raw = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                entry = archive.gettarinfo(path, f"{FOLDER}/{path.relative_to(folder).as_posix()}")
                entry.uid = entry.gid = entry.mtime = 0
                entry.uname = entry.gname = "root"
                with path.open("rb") as file:
                    archive.addfile(entry, file)
    return raw.getvalue()


def targets_of(sagemaker: Any, cluster: str, group: str | None) -> list[str]:
    """The sessions' targets: the running instances of the controller group, oldest first.

    Raises: NotFound, UsageError where it is not known which group that is, CommandFailed.
    """
    try:
        described = sagemaker.describe_cluster(ClusterName=cluster)
        wanted = group or _controllers(described.get("InstanceGroups", ()))
        found: list[Mapping[str, Any]] = []
        for page in sagemaker.get_paginator("list_cluster_nodes").paginate(ClusterName=cluster):
            found += page["ClusterNodeSummaries"]
    except ClientError as err:
        text = clean(str(err))
        if err.response.get("Error", {}).get("Code") in ("ResourceNotFound", "ValidationException"):
            raise NotFound(f"{text}; off HyperPod run this on the head node with --here") from err
        raise CommandFailed(text) from err
    except BotoCoreError as err:
        raise Unreachable(clean(str(err))) from err
    nodes = [node for node in found if node.get("InstanceGroupName") == wanted]
    running = sorted(
        (node for node in nodes if node.get("InstanceStatus", {}).get("Status") == "Running"),
        key=lambda node: str(node["LaunchTime"]),
    )
    if not running:
        raise Unreachable(f"no instance of the group {wanted} runs in {cluster} ({len(nodes)} there)")
    prefix = f"sagemaker-cluster:{described['ClusterArn'].rpartition('/')[2]}_{wanted}"
    return [f"{prefix}-{node['InstanceId']}" for node in running]


def _controllers(groups: Sequence[Mapping[str, Any]]) -> str:
    """Newer clusters say it; in older ones only a file beside the lifecycle scripts does. Raises: UsageError."""
    named = [
        str(group["InstanceGroupName"])
        for group in groups
        if (group.get("SlurmConfig") or {}).get("NodeType") == "Controller"
    ]
    if len(named) != 1:
        listed = ", ".join(str(group.get("InstanceGroupName")) for group in groups)
        raise UsageError(f"which group has the head node? say --group NAME, one of: {listed}")
    return named[0]
