"""Subnets, zones, addresses, security groups and the way to S3, for all groups of a cluster. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from rekindle.doctor.base.facts import (
    AccountFacts,
    Missing,
    NotInspected,
    Rule,
    SecurityGroupFacts,
    SubnetFacts,
    TypeFacts,
)
from rekindle.doctor.base.findings import Finding, error, listed, unknown, warning
from rekindle.doctor.base.ids import Id
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
    yield from _subnets(subject, facts.subnets, used)
    yield from _ways(facts, used)
    yield from _zones(subject, facts)
    yield from _addresses(subject, facts)
    yield from _security_groups(subject, facts)


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
        for index, one in enumerate(ids):
            found.setdefault(one, subject.path(f"{at}[{index}]"))
    return found


def _subnets(
    subject: Subject, subnets: Mapping[str, SubnetFacts | Missing | NotInspected], used: Mapping[str, str]
) -> Iterator[Finding]:
    vpcs: dict[str, list[str]] = {}
    for one, where in used.items():
        match subnets.get(one, NotInspected("not asked")):
            case Missing():
                yield error(Id.SUBNET_EXISTS, where, f"{one} does not exist in this account and region")
            case NotInspected(why):
                yield unknown(Id.SUBNET_EXISTS, where, f"{one} was not looked at: {why}")
            case SubnetFacts() as facts:
                vpcs.setdefault(facts.vpc, []).append(one)
                if facts.gives_public:
                    yield error(
                        Id.SUBNET_PRIVATE,
                        where,
                        f"{one} gives public addresses at launch (MapPublicIpOnLaunch); cluster creation fails in it",
                    )
    if len(vpcs) > 1:
        parts = listed(f"{vpc}: {listed(ids, 3)}" for vpc, ids in sorted(vpcs.items()))
        yield error(Id.SUBNET_VPC, subject.path("VpcConfig.Subnets"), f"subnets lie in {len(vpcs)} VPCs ({parts})")


def _ways(facts: AccountFacts, used: Mapping[str, str]) -> Iterator[Finding]:
    for one, where in used.items():
        if not isinstance(facts.subnets.get(one), SubnetFacts):
            continue
        way = facts.ways.get(one, NotInspected("not asked"))
        if isinstance(way, NotInspected):
            yield unknown(Id.S3_ROUTE, where, f"{one}: its way to S3 was not looked at: {way.why}")
        elif way.by is None:
            yield error(
                Id.S3_ROUTE,
                where,
                f"{one} has no way to S3: no gateway endpoint in its route table, no interface endpoint, no "
                "NAT; lifecycle "
                "scripts cannot be fetched (an internet gateway alone does not help a node without a public address)",
            )


def _zones(subject: Subject, facts: AccountFacts) -> Iterator[Finding]:
    """Some zone of the group's subnets must offer its instance type."""
    for group in subject.groups:
        zones = _zones_of(subject, group, facts)
        for name in group.types:
            where = subject.path(f"{group.at}.InstanceType")
            known = facts.types.get(name, NotInspected("not asked"))
            offered = known.zones if isinstance(known, TypeFacts) else known
            if isinstance(offered, NotInspected):
                yield unknown(Id.SUBNET_ZONE, where, f"where {name} is offered was not looked at: {offered.why}")
            elif not offered:
                yield error(Id.SUBNET_ZONE, where, f"{name} is offered in no zone of this region")
            elif zones:
                without = sorted({f"{s.id} in {s.zone_id}" for s in zones if s.zone_id not in offered})
                message = f"{name} is offered in {listed(sorted(offered))}, not where {listed(without)} lies"
                if len(without) == len({s.id for s in zones}):
                    yield error(Id.SUBNET_ZONE, where, message)
                elif without:
                    yield warning(Id.SUBNET_ZONE, where, message)


def _zones_of(subject: Subject, group: Group, facts: AccountFacts) -> list[SubnetFacts]:
    found = (facts.subnets.get(one) for one in subject.subnets_of(group))
    return [one for one in found if isinstance(one, SubnetFacts)]


def _addresses(subject: Subject, facts: AccountFacts) -> Iterator[Finding]:
    """Free addresses against what the groups of the same subnets need together."""
    wanted: dict[frozenset[str], int] = {}
    for group in subject.groups:
        if not group.to_start or not subject.subnets_of(group):
            continue
        needs = [addresses_needed(name, facts.types.get(name), subject.kind) for name in group.types]
        known = [one for one in needs if one is not None]
        if not known or len(known) < len(needs):
            where = subject.path(f"{group.at}.InstanceCount")
            name = group.types[needs.index(None)] if needs else "its instances"
            why = facts.types.get(name) if needs else None
            because = f": {why.why}" if isinstance(why, NotInspected) else ""
            yield unknown(Id.SUBNET_ADDRESSES, where, f"how many addresses {name} needs is not known{because}")
        if known:
            of = frozenset(subject.subnets_of(group))
            wanted[of] = wanted.get(of, 0) + max(known) * group.to_start
    for of in {*wanted, frozenset().union(*wanted)} if wanted else ():
        need = sum(count for other, count in wanted.items() if other <= of)
        rows = [facts.subnets.get(one) for one in sorted(of)]
        if not all(isinstance(row, SubnetFacts) for row in rows):
            continue  # said by subnet-exists
        free = sum(row.free for row in rows if isinstance(row, SubnetFacts))
        if need > free:
            where = subject.path("VpcConfig.Subnets")
            yield error(
                Id.SUBNET_ADDRESSES,
                where,
                f"{listed(sorted(of))}: {free} addresses are free, {need} are needed to start",
            )


def _security_groups(subject: Subject, facts: AccountFacts) -> Iterator[Finding]:
    vpcs = {one.vpc for one in facts.subnets.values() if isinstance(one, SubnetFacts)}
    for one, where in _uses(subject, is_subnet=False).items():
        match facts.security_groups.get(one, NotInspected("not asked")):
            case Missing():
                yield error(Id.SECURITY_GROUP_EXISTS, where, f"{one} does not exist in this account and region")
            case NotInspected(why):
                yield unknown(Id.SECURITY_GROUP_EXISTS, where, f"{one} was not looked at: {why}")
            case SecurityGroupFacts() as found:
                if vpcs and found.vpc not in vpcs:
                    message = f"{one} is in {found.vpc}, the subnets are in {listed(sorted(vpcs))}"
                    yield error(Id.SECURITY_GROUP_EXISTS, where, message)
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
    inbound = any(_refers(row.inbound, one) for row in rows for one in ids)
    outbound = any(_refers(row.outbound, one) for row in rows for one in ids)
    is_open = any(rule.is_all and set(ANYWHERE) & set(rule.ranges) for row in rows for rule in row.outbound)
    if not inbound:
        yield error(
            Id.SECURITY_GROUP_EFA, where, f"{shown}: no inbound rule allows all traffic from itself; nodes cannot talk"
        )
    if not outbound and (needs_efa or not is_open):
        open_too = " (the open outbound rule does not count: EFA traffic has no IP address)" if is_open else ""
        yield error(Id.SECURITY_GROUP_EFA, where, f"{shown}: no outbound rule allows all traffic to itself{open_too}")
    if inbound and outbound:
        alone = [row.id for row in rows if not (_refers(row.inbound, row.id) and _refers(row.outbound, row.id))]
        if alone:
            yield warning(
                Id.SECURITY_GROUP_EFA,
                where,
                f"{listed(alone)} does not refer to itself both ways; it is the rules beside it that let nodes talk",
            )


def _refers(rules: tuple[Rule, ...], group: str) -> bool:
    return any(rule.is_all and group in rule.groups for rule in rules)
