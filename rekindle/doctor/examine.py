"""All checks together, on what was given: files, a live cluster, a batch script. Nothing stops at a first finding."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from rekindle.doctor.aws import cluster_state
from rekindle.doctor.aws import gather as reads
from rekindle.doctor.aws.account import Account
from rekindle.doctor.aws.shapes import request_findings
from rekindle.doctor.base.facts import AccountFacts, Missing, NotInspected, ScriptFacts
from rekindle.doctor.base.findings import Finding, in_order, quoted
from rekindle.doctor.base.reading import Unreadable, json_object, of_its_kind, read_file
from rekindle.doctor.base.subject import Kind, Subject, from_described, from_request
from rekindle.doctor.batch.layers import layers_of
from rekindle.doctor.batch.rules import batch_findings
from rekindle.doctor.batch.script import Batch, read_batch
from rekindle.doctor.cluster import provisioning as legacy
from rekindle.doctor.cluster.access import role_findings
from rekindle.doctor.cluster.capacity import plan_findings, quota_findings
from rekindle.doctor.cluster.live import (
    agent_findings,
    agent_heartbeat,
    cluster_exists,
    cluster_findings,
    difference_findings,
)
from rekindle.doctor.cluster.network import network_findings
from rekindle.doctor.cluster.provisioning import Provisioning
from rekindle.doctor.cluster.request import cluster_rules, request_rules
from rekindle.doctor.cluster.storage import PROVISIONING_NAME, fsx_findings, script_findings

_CLUSTER: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")  # botocore, ClusterName
_ARN: Final = re.compile(r"arn:aws[a-z-]*:sagemaker:[a-z0-9-]+:\d{12}:cluster/[a-z0-9]{12}")  # botocore, ClusterArn


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamineInputs:
    """What to examine. None: not given. `now` is the moment that ends of plans and silence are measured from."""

    now: datetime
    config: Path | None = None
    provisioning: Path | None = None
    script: Path | None = None
    live: str | None = None
    stack: str = "rekindle"
    bucket: str | None = None


def examine(given: ExamineInputs, account: Account) -> list[Finding]:
    """Every finding, errors first."""
    return in_order(_examine(given, account))


def layers_at(script: Path) -> tuple[str, ...]:
    """Which recovery layers may act on a batch script's job; empty where it cannot be read."""
    batch, _ = _script(script)
    return layers_of(batch) if batch is not None and batch.content.strip() else ()


def _examine(given: ExamineInputs, account: Account) -> Iterator[Finding]:
    batch = subject = None
    if given.script is not None:
        batch, findings = _script(given.script)
        yield from findings
    if given.config is not None:
        request, findings = _json(given.config, "--config")
        yield from findings
        if request is not None:
            subject = from_request(request, str(given.config))
            yield from request_findings(request, subject.label)
            yield from request_rules(request, subject)
    wire = provisioning = None
    if given.provisioning is not None:
        wire, findings = _json(given.provisioning, "--provisioning")
        yield from findings
        if wire is not None:
            provisioning = legacy.from_wire(wire, str(given.provisioning))
            yield from legacy.provisioning_findings(wire, provisioning.label)
    live, findings = _live(given, account)
    yield from findings
    if provisioning is not None:
        yield from legacy.pair_findings(provisioning, subject or live)
    run_time = batch.time_limit if batch is not None else None
    for side in (subject, live):
        if side is not None:
            with_file = provisioning if side is subject or subject is None else None
            yield from _account(side, with_file, wire, given, account, run_time)
    if subject is None and live is None and provisioning is not None:
        alone = Subject(label=provisioning.label)
        facts = reads.gather(account, alone, provisioning.mounts)
        yield from fsx_findings(alone, facts, tuple((provisioning.label, mount) for mount in provisioning.mounts))
    if subject is not None and live is not None:
        yield from difference_findings(subject, live)


def _json(path: Path, option: str) -> tuple[dict[str, Any] | None, list[Finding]]:
    try:
        return json_object(of_its_kind(read_file(path, str(path)), str(path), option), str(path)), []
    except Unreadable as err:
        return None, [err.finding]


def _script(path: Path) -> tuple[Batch | None, list[Finding]]:
    try:
        content = read_file(path, str(path))
        if not content.startswith((b"#", b"{")):
            of_its_kind(content, str(path), "--script")
    except Unreadable as err:
        return None, [err.finding]
    batch = read_batch(content, str(path))
    return batch, [*batch_findings(batch)]


def _live(given: ExamineInputs, account: Account) -> tuple[Subject | None, list[Finding]]:
    if given.live is None:
        return None, []
    label = f"cluster {given.live[:80]}"
    if _CLUSTER.fullmatch(given.live) is None and _ARN.fullmatch(given.live) is None:
        return None, [cluster_exists.row.error(label, "is neither a cluster's name nor its ARN")]
    answer = account.ask("sagemaker", "describe_cluster", ClusterName=given.live)
    if isinstance(answer, Missing):
        return None, [*cluster_exists(answer, label, account.region)]
    if isinstance(answer, NotInspected):
        return None, [*cluster_exists(answer, label, account.region), *_own_side(given.live, label, given, account)]
    subject = from_described(answer, label)
    name = subject.name or given.live
    findings = [
        *cluster_rules(subject),
        *cluster_findings(subject, reads.read_nodes(account, given.live)),
        *(_own_side(name, label, given, account) if subject.kind is Kind.SLURM else ()),
    ]
    return subject, findings


def _own_side(name: str, label: str, given: ExamineInputs, account: Account) -> Iterator[Finding]:
    if _CLUSTER.fullmatch(name) is None:
        yield agent_heartbeat.row.unknown(label, f"the agent was not looked for: {quoted(name)} is no cluster's name")
        return
    bucket = cluster_state.find_bucket(account, given.stack, given.bucket)
    yield from agent_findings(
        label,
        cluster_state.read_agent(account, bucket, name),
        cluster_state.read_queue(account, given.stack, name),
        cluster_state.read_slurm_nodes(account, bucket, name),
        now=given.now,
    )


def _account(
    subject: Subject,
    provisioning: Provisioning | None,
    wire: dict[str, Any] | None,
    given: ExamineInputs,
    account: Account,
    run_time: timedelta | None,
) -> Iterator[Finding]:
    """The checks that need the account, for a request or for a live cluster."""
    mounts = provisioning.mounts if provisioning is not None else ()
    facts = reads.gather(account, subject, mounts)
    if provisioning is None and subject.kind is Kind.SLURM and not subject.has_slurm_config:
        provisioning, findings = _from_bucket(subject, facts)
        yield from findings
        if provisioning is not None:
            more = {mount.dns: reads.read_file_system(account, mount.dns) for mount in provisioning.mounts}
            facts = replace(facts, file_systems={**facts.file_systems, **more})
            mounts = provisioning.mounts
    label = provisioning.label if provisioning is not None else ""
    yield from network_findings(subject, facts)
    yield from script_findings(subject, facts, wire)
    yield from role_findings(subject, facts)
    yield from fsx_findings(subject, facts, tuple((label, mount) for mount in mounts))
    yield from plan_findings(subject, facts, now=given.now, run_time=run_time)
    yield from quota_findings(subject, facts)


def _from_bucket(subject: Subject, facts: AccountFacts) -> tuple[Provisioning | None, list[Finding]]:
    """The copy beside the lifecycle scripts, where no local one was given: it is the one that counts."""
    for uri, found in facts.scripts.items():
        content = found.contents.get(PROVISIONING_NAME) if isinstance(found, ScriptFacts) else None
        if not isinstance(content, bytes):
            continue
        label = f"{uri.rstrip('/')}/{PROVISIONING_NAME}"
        try:
            wire = json_object(content, label)
        except Unreadable as err:
            return None, [err.finding]
        read = legacy.from_wire(wire, label)
        return read, [*legacy.provisioning_findings(wire, label), *legacy.pair_findings(read, subject)]
    if subject.is_live:
        return None, []
    where = subject.path("InstanceGroups")
    text = (
        f"{PROVISIONING_NAME} was neither given (--provisioning) nor read from S3, so its group names are not compared"
    )
    return None, [legacy.groups.row.unknown(where, text)]
