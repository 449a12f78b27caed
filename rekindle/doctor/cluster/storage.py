"""Lifecycle scripts in S3, and FSx file systems. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rekindle.doctor.base.checks import REFERENCE, Area, check
from rekindle.doctor.base.facts import (
    NOT_ASKED,
    AccountFacts,
    FileSystemFacts,
    Found,
    Missing,
    NotInspected,
    ScriptFacts,
    SubnetFacts,
)
from rekindle.doctor.base.findings import Finding, error, listed, quoted, unknown, warning
from rekindle.doctor.base.subject import Group, Kind, Mount, Storage, Subject

PROVISIONING_NAME: Final = "provisioning_parameters.json"  # HyperPod reads it under this name: sagemaker-hyperpod-ref
_READY: Final = ("AVAILABLE", "UPDATING")  # FSx lifecycle states in which a file system can be mounted


def script_findings(
    subject: Subject, facts: AccountFacts, provisioning: Mapping[str, Any] | None = None
) -> Iterator[Finding]:
    """The folder of each group's lifecycle scripts. `provisioning` is the local file, to be compared with the copy."""
    looked: set[str] = set()
    for group in subject.groups:
        if group.source_uri is None:
            continue
        where = subject.path(f"{group.at}.LifeCycleConfig.SourceS3Uri")
        found = facts.scripts.get(group.source_uri, NOT_ASKED)
        yield from _objects(group, found, subject, where)
        if isinstance(found, ScriptFacts) and group.source_uri not in looked:
            looked.add(group.source_uri)
            yield from _contents(group.source_uri, found, subject)
            yield from _provisioning(group.source_uri, found, subject, provisioning, where)


@check("script-objects", Area.ACCOUNT, REFERENCE)
def _objects(group: Group, found: Found[ScriptFacts], subject: Subject, where: str) -> Iterator[Finding]:
    """The folder has objects, OnCreate is among them, provisioning_parameters.json beside it is the local one.

    The usual reason why a cluster is rolled back.
    """
    match found:
        case Missing(why):
            yield error(where, f"{quoted(group.source_uri)} cannot be listed: {why or 'no such bucket'}")
        case NotInspected(why):
            yield unknown(where, f"the lifecycle scripts were not looked at: {why}")
        case ScriptFacts():
            yield from _folder(group, found, subject, where)


def _folder(group: Group, found: ScriptFacts, subject: Subject, where: str) -> Iterator[Finding]:
    at = f"{group.at}.LifeCycleConfig"
    if not found.names:
        yield error(where, f"nothing lies below {quoted(group.source_uri)}")
    elif group.on_create is not None and group.on_create not in found.names and not found.is_cut:
        message = f"{quoted(group.on_create)} does not lie below {quoted(group.source_uri)}"
        yield error(subject.path(f"{at}.OnCreate"), message)


@check("script-content", Area.ACCOUNT, "execve(2)")
def _contents(folder: str, found: ScriptFacts, subject: Subject) -> Iterator[Finding]:
    """Lifecycle scripts have Unix line ends and name their interpreter.

    The kernel cannot run them.
    """
    first = {group.on_create for group in subject.groups if group.source_uri == folder}
    for name, content in sorted(found.contents.items()):
        where = f"{folder.rstrip('/')}/{name}"
        if isinstance(content, NotInspected):
            yield unknown(where, f"was not read: {content.why}")
            continue
        is_shell = name.endswith(".sh") or name in first
        if b"\r\n" in content and is_shell:
            yield error(where, "has DOS line ends (CRLF): the kernel looks for an interpreter named 'bash\\r'")
        if name in first and not content.startswith(b"#!"):
            yield error(where, "is run when a node is made, and its first line names no interpreter (#!)")
        elif is_shell and not content.startswith(b"#!"):
            yield warning(where, "its first line names no interpreter (#!)")


@_objects.also
def _provisioning(
    folder: str, found: ScriptFacts, subject: Subject, local: Mapping[str, Any] | None, where: str
) -> Iterator[Finding]:
    if subject.kind is not Kind.SLURM or subject.has_slurm_config or not found.names:
        return
    copy = f"{folder.rstrip('/')}/{PROVISIONING_NAME}"
    if PROVISIONING_NAME not in found.names:
        if not found.is_cut:
            message = f"{PROVISIONING_NAME} does not lie beside the scripts, and no group has SlurmConfig"
            yield error(where, message)
        return
    content = found.contents.get(PROVISIONING_NAME)
    if local is None or not isinstance(content, bytes):
        return
    try:
        same = json.loads(content) == local
    except (ValueError, RecursionError):
        same = False
    if not same:
        yield warning(copy, "is not what the local file says; nodes read this copy")


def fsx_findings(subject: Subject, facts: AccountFacts, more: tuple[tuple[str, Mount], ...] = ()) -> Iterator[Finding]:
    """Every file system that is mounted. `more` are those of provisioning_parameters.json, with the file's name."""
    vpcs = {subnet.vpc for subnet in facts.subnets.values() if isinstance(subnet, SubnetFacts)}
    every = [(subject.label, mount) for group in subject.groups for mount in group.mounts] + list(more)
    for label, mount in every:
        where = f"{label}:{mount.at}"
        found = facts.file_systems.get(mount.dns, NOT_ASKED)
        yield from _exists(mount, found, where)
        if isinstance(found, FileSystemFacts):
            yield from _mount_name(mount, found, where)
            yield from _vpc(found, where, vpcs)


@check("fsx-exists", Area.ACCOUNT, "FSx API", twin="FSx DNS name; OpenZFS too")
def _exists(mount: Mount, found: Found[FileSystemFacts], where: str) -> Iterator[Finding]:
    """Every file system exists, is of the right kind, and available.

    Nodes fail to mount.
    """
    match found:
        case Missing():
            yield error(where, f"no file system has the DNS name {quoted(mount.dns)}")
        case NotInspected(why):
            yield unknown(where, f"{quoted(mount.dns)} was not looked at: {why}")
        case FileSystemFacts():
            yield from _suits(mount, found, where)


def _suits(mount: Mount, found: FileSystemFacts, where: str) -> Iterator[Finding]:
    if found.dns != mount.dns:
        yield error(where, f"{found.id} has the DNS name {quoted(found.dns)}, not {quoted(mount.dns)}")
    if found.storage is not None and found.storage is not mount.storage:
        yield error(where, f"{found.id} is {found.storage}, not {mount.storage}")
    if found.state and found.state not in _READY:
        yield error(where, f"{found.id} is {found.state}")


@check("fsx-mount-name", Area.ACCOUNT, "FSx API", twin="FSx mount name")
def _mount_name(mount: Mount, found: FileSystemFacts, where: str) -> Iterator[Finding]:
    """FSx for Lustre has the mount name that is given.

    Nodes fail to mount.
    """
    if mount.storage is Storage.LUSTRE and found.mount_name is not None and found.mount_name != mount.mount_name:
        message = f"{found.id} has the mount name {quoted(found.mount_name)}, not {quoted(mount.mount_name)}"
        yield error(where, message)


@check("fsx-vpc", Area.ACCOUNT, "FSx API")
def _vpc(found: FileSystemFacts, where: str, vpcs: set[str]) -> Iterator[Finding]:
    """It is in the subnets' VPC.

    Nodes fail to mount.
    """
    if vpcs and found.vpc and found.vpc not in vpcs:
        yield error(where, f"{found.id} is in {found.vpc}, the subnets are in {listed(sorted(vpcs))}")
