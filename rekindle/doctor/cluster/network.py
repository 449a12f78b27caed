"""Subnets, zones, addresses, security groups and the way to S3, for all groups of a cluster. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from rekindle.doctor.base.checks import EC2_API, PREREQUISITES, Area, check
from rekindle.doctor.base.facts import (
    NOT_ASKED,
    AccountFacts,
    Missing,
    NotInspected,
    Rule,
    SecurityGroupFacts,
    SubnetFacts,
    TypeFacts,
)
from rekindle.doctor.base.findings import Finding, error, listed, unknown, warning
from rekindle.doctor.base.subject import Group, Kind, Subject
from rekindle.doctor.cluster.request import ACCELERATED

# One address per network card on Slurm; on EKS the addresses of one interface's pods besides. Source:
# docs/facts-sagemaker.md#cluster-requests: 32 cards, and on EKS 50 - 1 addresses for pods besides, which is 81.
P5: Final = "ml.p5.48xlarge"
P5_CARDS, P5_ADDRESSES_PER_INTERFACE = 32, 50
ANYWHERE: Final = ("0.0.0.0/0", "::/0")
# With EFA for certain, where EC2 could not be asked. Source: EC2 user guide, EFA supported instance types.
_EFA: Final = ("ml.p4d", "ml.p5", "ml.p6", "ml.trn", "ml.g5.48", "ml.g6e.48", "ml.g6.48")


def network_findings(subject: Subject, facts: AccountFacts) -> Iterator[Finding]:
    """Everything about the network, every subnet and every security group."""
    used = _uses(subject, is_subnet=True)
    yield from _subnets_exist(facts, used)
    yield from _private(facts, used)
    yield from _one_vpc(subject, facts, used)
    yield from _ways(facts, used)
    yield from _zones(subject, facts)
    yield from _addresses(subject, facts)
    yield from _security_groups_exist(subject, facts)
    yield from _efa(subject, facts)


def addresses_needed(name: str, facts: TypeFacts | NotInspected | None, kind: Kind) -> int | None:
    """IPv4 addresses that one instance takes from its subnet; None: not known."""
    cards = facts.cards if isinstance(facts, TypeFacts) else None
    per_interface = facts.addresses_per_interface if isinstance(facts, TypeFacts) else None
    if name == P5:
        cards, per_interface = cards or P5_CARDS, per_interface or P5_ADDRESSES_PER_INTERFACE
    if cards is None:
        return None
    if kind is Kind.SLURM:
        return cards
    return None if per_interface is None else cards + per_interface - 1


def _uses(subject: Subject, *, is_subnet: bool) -> dict[str, str]:
    """Each id that is named, with where it is named first: the cluster's own and every group's."""
    member = "Subnets" if is_subnet else "SecurityGroupIds"
    named = [(f"VpcConfig.{member}", subject.subnets if is_subnet else subject.security_groups)]
    for group in subject.groups:
        ids = group.subnets if is_subnet else group.security_groups
        named.append((f"{group.at}.OverrideVpcConfig.{member}", ids))
    found: dict[str, str] = {}
    for at, ids in named:
        for index, identity in enumerate(ids):
            found.setdefault(identity, subject.path(f"{at}[{index}]"))
    return found


@check("subnet-exists", Area.ACCOUNT, EC2_API, twin="subnet; all of them")
def _subnets_exist(facts: AccountFacts, used: Mapping[str, str]) -> Iterator[Finding]:
    """Every subnet of VpcConfig and of every OverrideVpcConfig exists.

    No node starts.
    """
    for subnet, where in used.items():
        match facts.subnets.get(subnet, NOT_ASKED):
            case Missing():
                yield error(where, f"{subnet} does not exist in this account and region")
            case NotInspected(why):
                yield unknown(where, f"{subnet} was not looked at: {why}")


@check("subnet-private", Area.ACCOUNT, PREREQUISITES, twin="subnet; all of them")
def _private(facts: AccountFacts, used: Mapping[str, str]) -> Iterator[Finding]:
    """None of them gives public addresses at launch.

    Cluster creation fails in a public subnet.
    """
    for subnet, where in used.items():
        match facts.subnets.get(subnet):
            case SubnetFacts(gives_public=True):
                yield error(
                    where,
                    f"{subnet} gives public addresses at launch (MapPublicIpOnLaunch); cluster creation fails in it",
                )


@check("subnet-vpc", Area.ACCOUNT, EC2_API)
def _one_vpc(subject: Subject, facts: AccountFacts, used: Mapping[str, str]) -> Iterator[Finding]:
    """All subnets are in one VPC.

    Nodes in two VPCs do not reach each other.
    """
    vpcs: dict[str, list[str]] = {}
    for subnet in used:
        match facts.subnets.get(subnet):
            case SubnetFacts(vpc=vpc):
                vpcs.setdefault(vpc, []).append(subnet)
    if len(vpcs) > 1:
        parts = listed(f"{vpc}: {listed(ids, 3)}" for vpc, ids in sorted(vpcs.items()))
        yield error(subject.path("VpcConfig.Subnets"), f"subnets lie in {len(vpcs)} VPCs ({parts})")


@check("s3-route", Area.ACCOUNT, PREREQUISITES)
def _ways(facts: AccountFacts, used: Mapping[str, str]) -> Iterator[Finding]:
    """Every subnet reaches S3: gateway endpoint, interface endpoint, or a way out that is no internet gateway.

    Lifecycle scripts cannot be fetched.
    """
    for identity, where in used.items():
        if not isinstance(facts.subnets.get(identity), SubnetFacts):
            continue
        way = facts.ways.get(identity, NOT_ASKED)
        if isinstance(way, NotInspected):
            yield unknown(where, f"{identity}: its way to S3 was not looked at: {way.why}")
        elif way.by is None:
            yield error(
                where,
                f"{identity} has no way to S3: no gateway endpoint in its route table, no interface endpoint, no "
                "NAT; lifecycle "
                "scripts cannot be fetched (an internet gateway alone does not help a node without a public address)",
            )


@check("subnet-zone", Area.ACCOUNT, "EC2, DescribeInstanceTypeOfferings")
def _zones(subject: Subject, facts: AccountFacts) -> Iterator[Finding]:
    """The zones of a group's subnets offer its instance type.

    Capacity never comes where it is not offered.
    """
    for group in subject.groups:
        zones = _zones_of(subject, group, facts)
        for name in group.types:
            where = subject.path(f"{group.at}.InstanceType")
            known = facts.types.get(name, NOT_ASKED)
            offered = known.zones if isinstance(known, TypeFacts) else known
            if isinstance(offered, NotInspected):
                yield unknown(where, f"where {name} is offered was not looked at: {offered.why}")
            elif not offered:
                yield error(where, f"{name} is offered in no zone of this region")
            elif zones:
                without = sorted({f"{s.id} in {s.zone_id}" for s in zones if s.zone_id not in offered})
                message = f"{name} is offered in {listed(sorted(offered))}, not where {listed(without)} lies"
                if len(without) == len({s.id for s in zones}):
                    yield error(where, message)
                elif without:
                    yield warning(where, message)


def _zones_of(subject: Subject, group: Group, facts: AccountFacts) -> list[SubnetFacts]:
    found = (facts.subnets.get(subnet) for subnet in subject.subnets_of(group))
    return [subnet for subnet in found if isinstance(subnet, SubnetFacts)]


@check("subnet-addresses", Area.ACCOUNT, PREREQUISITES)
def _addresses(subject: Subject, facts: AccountFacts) -> Iterator[Finding]:
    """Free addresses for all instances that are to start (P5: 32 each on Slurm, 81 on EKS; others by network cards).

    The last nodes fail to start.
    """
    wanted: dict[frozenset[str], int] = {}
    starting = [group for group in subject.groups if group.to_start and subject.subnets_of(group)]
    for group in starting:
        needs = [addresses_needed(name, facts.types.get(name), subject.kind) for name in group.types]
        known = [need for need in needs if need is not None]
        if not known or len(known) < len(needs):
            name = group.types[needs.index(None)] if needs else "its instances"
            yield _need_not_known(subject.path(f"{group.at}.InstanceCount"), name, facts)
        if known:
            subnets = frozenset(subject.subnets_of(group))
            wanted[subnets] = wanted.get(subnets, 0) + max(known) * (group.to_start or 0)
    where = subject.path("VpcConfig.Subnets")
    for subnets in {*wanted, frozenset().union(*wanted)} if wanted else ():
        need = sum(count for other, count in wanted.items() if other <= subnets)
        free = _free_addresses(subnets, facts)
        if free is not None and need > free:
            yield error(where, f"{listed(sorted(subnets))}: {free} addresses are free, {need} are needed to start")


def _need_not_known(where: str, name: str, facts: AccountFacts) -> Finding:
    why = facts.types.get(name)
    because = f": {why.why}" if isinstance(why, NotInspected) else ""
    return unknown(where, f"how many addresses {name} needs is not known{because}")


def _free_addresses(subnets: frozenset[str], facts: AccountFacts) -> int | None:
    """Of all the subnets together; None where one of them was not seen, which subnet-exists reports."""
    rows = [row for row in map(facts.subnets.get, subnets) if isinstance(row, SubnetFacts)]
    return sum(row.free for row in rows) if len(rows) == len(subnets) else None


@check("security-group-exists", Area.ACCOUNT, EC2_API, twin="security group")
def _security_groups_exist(subject: Subject, facts: AccountFacts) -> Iterator[Finding]:
    """Every security group exists, in the subnets' VPC.

    No node starts.
    """
    vpcs = {subnet.vpc for subnet in facts.subnets.values() if isinstance(subnet, SubnetFacts)}
    for identity, where in _uses(subject, is_subnet=False).items():
        match facts.security_groups.get(identity, NOT_ASKED):
            case Missing():
                yield error(where, f"{identity} does not exist in this account and region")
            case NotInspected(why):
                yield unknown(where, f"{identity} was not looked at: {why}")
            case SecurityGroupFacts() as found:
                if vpcs and found.vpc not in vpcs:
                    message = f"{identity} is in {found.vpc}, the subnets are in {listed(sorted(vpcs))}"
                    yield error(where, message)


@check(
    "security-group-efa",
    Area.ACCOUNT,
    "EC2 guide, efa-start",
    twin="security group; all of them, both ways, and no pass without a rule",
)
def _efa(subject: Subject, facts: AccountFacts) -> Iterator[Finding]:
    """Every group's security groups allow all traffic from and to themselves, by a rule that names them.

    EFA's health check fails; an open outbound rule does not let EFA traffic out.
    """
    seen = set()
    for group in subject.groups:
        ids = subject.security_groups_of(group)
        at = f"{group.at}.OverrideVpcConfig" if group.overrides_vpc else "VpcConfig"
        rows = [row for row in map(facts.security_groups.get, ids) if isinstance(row, SecurityGroupFacts)]
        needs_efa = any(_has_efa(name, facts.types.get(name)) for name in group.types)
        if rows and len(rows) == len(ids) and (ids, needs_efa) not in seen:
            seen.add((ids, needs_efa))
            yield from _talk(rows, subject.path(f"{at}.SecurityGroupIds"), needs_efa=needs_efa)


def _has_efa(name: str, facts: TypeFacts | NotInspected | None) -> bool:
    """HyperPod checks EFA on the types that train; a controller's type may have it, unused."""
    if isinstance(facts, TypeFacts) and facts.has_efa is not None:
        return facts.has_efa and ACCELERATED.match(name) is not None
    return name.startswith(_EFA)


def _talk(rows: list[SecurityGroupFacts], where: str, *, needs_efa: bool) -> Iterator[Finding]:
    """Nodes with these groups must reach each other with every protocol, both ways.

    An interface has all groups of the list at once, so one rule of one of them that names one of them is enough. EFA
    traffic has no IP address: a rule for 0.0.0.0/0 does not let it out. Source: EC2 user guide,
    efa-start.
    """
    ids = {row.id for row in rows}
    shown = listed(sorted(ids))
    inbound = any(_refers(row.inbound, identity) for row in rows for identity in ids)
    outbound = any(_refers(row.outbound, identity) for row in rows for identity in ids)
    is_open = any(rule.is_all and set(ANYWHERE) & set(rule.ranges) for row in rows for rule in row.outbound)
    if not inbound:
        yield error(where, f"{shown}: no inbound rule allows all traffic from itself; nodes cannot talk")
    if not outbound and (needs_efa or not is_open):
        open_too = " (the open outbound rule does not count: EFA traffic has no IP address)" if is_open else ""
        yield error(where, f"{shown}: no outbound rule allows all traffic to itself{open_too}")
    if inbound and outbound:
        alone = [row.id for row in rows if not (_refers(row.inbound, row.id) and _refers(row.outbound, row.id))]
        if alone:
            yield warning(
                where,
                f"{listed(alone)} does not refer to itself both ways; it is the rules beside it that let nodes talk",
            )


def _refers(rules: tuple[Rule, ...], group: str) -> bool:
    return any(rule.is_all and group in rule.groups for rule in rules)
