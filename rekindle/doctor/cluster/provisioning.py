"""provisioning_parameters.json: its own form, and what it must share with the request. Pure.

Source: SageMaker developer guide, sagemaker-hyperpod-ref. AWS's validator demands the two FSx members,
which the guide does not, and accepts any type for the lists.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rekindle.doctor.base.checks import REFERENCE, Area, check
from rekindle.doctor.base.findings import Finding, error, listed, quoted, unfilled, unknown, warning
from rekindle.doctor.base.subject import Kind, Mount, Storage, Subject
from rekindle.doctor.cluster.request import provisioning_mode, slurm_controller

VERSION: Final = "1.0.0"  # the only one documented
_TEXTS: Final = ("version", "workload_manager", "controller_group")
_OPTIONAL: Final = ("login_group", "fsx_dns_name", "fsx_mountname", "fsx_openzfs_dns_name")
# Read by newer base lifecycle scripts for several controllers; its form is theirs, not HyperPod's.
_FREE: Final = ("slurm_configurations",)
_DNS: Final = re.compile(r"(?:fs|fc)i?-[0-9a-f]{8,}\.\S{4,253}")  # botocore, FSxLustreConfig.DnsName
_MOUNT: Final = re.compile(r"[A-Za-z0-9_-]{1,8}")  # botocore, MountName


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioning:
    """What the file says, as far as it has the right types. `workers` are (name, partition, where)."""

    label: str
    controller: str | None = None
    login: str | None = None
    workers: tuple[tuple[str, str | None, str], ...] = ()
    mounts: tuple[Mount, ...] = ()

    def groups(self) -> list[tuple[str, str]]:
        """Every group that is named, with where."""
        named = [(self.controller, "controller_group"), (self.login, "login_group")]
        return [(name, at) for name, at in named if name] + [(name, at) for name, _, at in self.workers]


def provisioning_findings(wire: Mapping[str, Any], label: str) -> Iterator[Finding]:
    """What is wrong with the file alone."""
    yield from _shape(wire, label)
    yield from _fsx_shapes(wire, label)


@check("provisioning-shape", Area.PROVISIONING, REFERENCE, twin="schema; FSx members are optional here")
def _shape(wire: Mapping[str, Any], label: str) -> Iterator[Finding]:
    """Required members, types (lists and what is in them too), known names.

    Lifecycle scripts fail on the node, twenty minutes later.
    """

    def wrong(at: str, message: str) -> Finding:
        return error(f"{label}:{at}", message)

    known = (*_TEXTS, "worker_groups", *_OPTIONAL, *_FREE)
    for name in (*_TEXTS, "worker_groups"):
        if name == "version" and name not in wire:
            yield warning(f"{label}:version", f"is missing: {VERSION}; clusters are made without it")
        elif name not in wire:
            yield wrong(name, "is required and missing")
    for name in (*_TEXTS, *_OPTIONAL):
        value = wire.get(name, "set")
        if not isinstance(value, str):
            yield wrong(name, "must be a text")
        elif not value and name not in _OPTIONAL:
            yield wrong(name, "must not be empty")
        elif problem := unfilled(value):
            yield wrong(name, problem)
    for name in (name for name in wire if name not in known):
        near = difflib.get_close_matches(name[:64], known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        yield warning(f"{label}:{name[:80]}", f"is not known and is not read{hint}")
    if isinstance(wire.get("version"), str) and wire["version"] not in ("", VERSION):
        yield warning(f"{label}:version", f"{quoted(wire['version'])} is not {VERSION}")
    if isinstance(wire.get("workload_manager"), str) and wire["workload_manager"] not in ("", "slurm"):
        yield wrong("workload_manager", f"{quoted(wire['workload_manager'])} must be 'slurm'")
    yield from _worker_shapes(wire.get("worker_groups", []), label)


def _worker_shapes(value: object, label: str) -> Iterator[Finding]:
    at = f"{label}:worker_groups"
    if not isinstance(value, list):
        yield error(at, "must be a list")
        return
    for index, worker in enumerate(value):
        if not isinstance(worker, dict):
            yield error(f"{at}[{index}]", "must be an object")
            continue
        for name in ("instance_group_name", "partition_name"):
            if not isinstance(worker.get(name), str) or not worker[name]:
                problem = "must be a text of at least one character" if name in worker else "is required and missing"
                yield error(f"{at}[{index}].{name}", problem)
            elif (left := unfilled(worker[name])) is not None:
                yield error(f"{at}[{index}].{name}", left)


@check("provisioning-fsx", Area.PROVISIONING, REFERENCE, twin="schema")
def _fsx_shapes(wire: Mapping[str, Any], label: str) -> Iterator[Finding]:
    """DNS name and mount name together and well formed; the same file system in both files.

    Nodes fail to mount.
    """
    dns, mount = wire.get("fsx_dns_name"), wire.get("fsx_mountname")
    if bool(dns) != bool(mount):
        missing = "fsx_mountname" if dns else "fsx_dns_name"
        where = f"{label}:{missing}"
        yield error(where, "is missing: FSx for Lustre needs its DNS name and its mount name")
    for name in ("fsx_dns_name", "fsx_openzfs_dns_name"):
        value = wire.get(name)
        if (
            isinstance(value, str)
            and value
            and not unfilled(value)
            and (len(value) > 275 or _DNS.fullmatch(value) is None)
        ):
            where = f"{label}:{name}"
            yield error(where, f"{quoted(value)} is no DNS name of a file system (fs-….fsx.…)")
    if isinstance(mount, str) and mount and not unfilled(mount) and _MOUNT.fullmatch(mount) is None:
        yield error(f"{label}:fsx_mountname", f"{quoted(mount)} is no mount name: 1 to 8 of A-Z a-z 0-9 _ -")


def from_wire(wire: Mapping[str, Any], label: str) -> Provisioning:
    """The file's content. By hand: what is wrong is passed over, member by member, because `provisioning_findings`
    reports it.
    """

    def text(name: str) -> str | None:
        value = wire.get(name)
        return value if isinstance(value, str) and value else None

    workers = wire.get("worker_groups")
    found = []
    for index, worker in enumerate(workers if isinstance(workers, list) else []):
        if isinstance(worker, dict) and isinstance(worker.get("instance_group_name"), str):
            partition = worker.get("partition_name")
            at = f"worker_groups[{index}].instance_group_name"
            found.append((worker["instance_group_name"], partition if isinstance(partition, str) else None, at))
    lustre, openzfs = text("fsx_dns_name"), text("fsx_openzfs_dns_name")
    mounts = []
    if lustre:
        mounts.append(Mount(storage=Storage.LUSTRE, dns=lustre, at="fsx_dns_name", mount_name=text("fsx_mountname")))
    if openzfs:
        mounts.append(Mount(storage=Storage.OPENZFS, dns=openzfs, at="fsx_openzfs_dns_name"))
    return Provisioning(
        label=label,
        controller=text("controller_group"),
        login=text("login_group"),
        workers=tuple(found),
        mounts=tuple(mounts),
    )


def pair_findings(provisioning: Provisioning, subject: Subject | None) -> Iterator[Finding]:
    """What the file and the request say about each other; `subject` None: no request was given, or none to be read."""
    yield from groups(provisioning, subject)
    if subject is not None:
        yield from _mode(provisioning.label, subject)
        if subject.kind is not Kind.EKS:
            yield from _controllers(provisioning, subject)
            yield from _same_fsx(provisioning, subject)


@provisioning_mode.also
def _mode(label: str, subject: Subject) -> Iterator[Finding]:
    if subject.kind is Kind.EKS:
        yield error(label, "is for clusters on Slurm; this one is orchestrated by EKS")
    elif subject.is_continuous:
        yield error(label, "cannot be used with NodeProvisioningMode Continuous: SlurmConfig takes its place")
    elif subject.has_slurm_config:
        yield warning(label, f"{subject.label} has SlurmConfig too: two places say which group is what")


@check("provisioning-groups", Area.PROVISIONING, REFERENCE, twin="group names; controller and login too")
def groups(provisioning: Provisioning, subject: Subject | None) -> Iterator[Finding]:
    """Controller, login and worker groups exist in the request; each group has one part; none is left out.

    HyperPod rolls the cluster back on a mismatch.
    """
    label = provisioning.label
    yield from _named_twice(provisioning)
    if subject is None:
        yield unknown(label, "no request was read (--config), so its group names are not compared")
        return
    if subject.kind is Kind.EKS:
        return
    names = {group.name for group in subject.groups if group.name is not None}
    for name, at in provisioning.groups():
        if name not in names:
            near = difflib.get_close_matches(name[:64], sorted(names), n=1)
            hint = f"; did you mean {quoted(near[0])}?" if near else ""
            yield error(f"{label}:{at}", f"{quoted(name)} is no instance group of {subject.label}{hint}")
    used = {name for name, _ in provisioning.groups()}
    for group in subject.groups:
        if group.name is not None and group.name not in used:
            where = subject.path(f"{group.at}.InstanceGroupName")
            yield error(where, f"{quoted(group.name)} is neither controller, login nor worker in {label}")


def _named_twice(provisioning: Provisioning) -> Iterator[Finding]:
    counted = Counter(name for name, _ in provisioning.groups())
    for name, at in provisioning.groups():
        if counted[name] > 1:
            where = f"{provisioning.label}:{at}"
            yield error(where, f"{quoted(name)} stands in {counted[name]} places; a group has one part")


@slurm_controller.also
def _controllers(provisioning: Provisioning, subject: Subject) -> Iterator[Finding]:
    for group in subject.groups:
        if group.name == provisioning.controller and group.count == 0:
            where = subject.path(f"{group.at}.InstanceCount")
            yield error(where, "the controller group has no instance: nothing schedules")
        elif group.name == provisioning.controller and group.count is not None and group.count > 1:
            where = subject.path(f"{group.at}.InstanceCount")
            yield warning(where, f"{group.count} controllers need shared state and accounting (multi-head Slurm)")


@_fsx_shapes.also
def _same_fsx(provisioning: Provisioning, subject: Subject) -> Iterator[Finding]:
    for mount in provisioning.mounts:
        where = f"{provisioning.label}:{mount.at}"
        same = [other for group in subject.groups for other in group.mounts if other.storage is mount.storage]
        for other in same:
            if other.dns == mount.dns and other.mount_name != mount.mount_name:
                message = (
                    f"has the mount name {quoted(mount.mount_name)} here, {quoted(other.mount_name)} in {subject.label}"
                )
                yield error(where, message)
        others = {other.dns for other in same}
        if others and mount.dns not in others:
            yield warning(
                where, f"{quoted(mount.dns)} is not the one that {subject.label} mounts: {listed(sorted(others), 3)}"
            )
