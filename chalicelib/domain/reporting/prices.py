"""What an hour of an instance costs: the user's own table, or the few prices that have a public source. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, cast

from chalicelib.domain.model.codec import Record, read
from chalicelib.domain.model.errors import InvalidRequest
from chalicelib.domain.model.instances import JobSize, bare_type
from chalicelib.domain.model.known import Known, Maybe, Unknown
from rekindle.protocol.bounds import Items, Number, Text, Via, check_printable
from rekindle.protocol.wire import MailboxError

MAX_TYPES: Final = 200
MAX_USD_PER_HOUR: Final = 100_000.0
_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,40}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRow:
    """One price that we ship. `as_of` is the source's own date."""

    instance: str
    usd_per_hour: float
    as_of: str
    source: str


# Prices differ by Region, contract and day; these are for orders of magnitude until the user sets the true ones. AWS's
# two pages were not opened: each figure is what public repositories quote of them, under the date of the page, of the
# price list's publication or of its reading. SageMaker's own prices are higher as a rule.
_LIST: Final = "EC2 price list (aws.amazon.com/ec2/pricing/on-demand): Linux on demand, us-east-1"
_BLOCKS: Final = "aws.amazon.com/ec2/capacityblocks/pricing: effective hourly rate; none on demand"
DEFAULT_PRICES: Final[tuple[PriceRow, ...]] = tuple(
    PriceRow(instance=instance, usd_per_hour=usd_per_hour, as_of=as_of, source=source)
    for instance, usd_per_hour, as_of, source in (
        ("p4d.24xlarge", 21.957642, "2026-07-28", _LIST),
        ("p4de.24xlarge", 27.44705, "2026-03-04", _LIST),
        ("p5.48xlarge", 55.04, "2026-07-28", _LIST),
        ("p5e.48xlarge", 47.76, "2026-07-09", _BLOCKS),
        ("p5en.48xlarge", 63.296, "2026-09-01", _LIST),
        ("p6-b200.48xlarge", 113.9328, "2026-09-01", _LIST),
        ("p6-b300.48xlarge", 142.416, "2026-09-01", _LIST),
        ("p6e-gb200.36xlarge", 42.328, "2026-07-09", f"{_BLOCKS}: 761.904 for an UltraServer of 18"),
        ("trn1.32xlarge", 21.5, "2026-07-28", _LIST),
        ("trn1n.32xlarge", 24.78, "2026-07-28", _LIST),
        ("trn2.3xlarge", 2.235, "2026-01-31", f"{_BLOCKS}, Melbourne"),
        ("trn2.48xlarge", 35.7608, "2026-01-31", f"{_BLOCKS}, Ohio"),
        ("g5.xlarge", 1.006, "2026-06-17", "factualminds.com, EC2 On-Demand pricing 2026: Linux, us-east-1"),
    )
)


def _instance_type(name: str) -> str:
    """The type as EC2 has it, without SageMaker's prefix. Raises: MailboxError."""
    if not _TYPE.match(bare_type(name)):
        raise MailboxError("", "is no instance type")
    return bare_type(name)


InstanceType = Annotated[str, Via(str, read=_instance_type, write=str)]
Usd = Annotated[float, Number(0, MAX_USD_PER_HOUR)]
Line = Annotated[str, Text(200, check=check_printable)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices(Record):
    """USD per hour, by instance type; also the user's own document of prices.

    `usd_per_gpu_hour` is for runs whose instance types are unknown; None: not set.

    `source` and `as_of` say where they come from; empty `as_of`: the user did not say.
    """

    instances: Annotated[Mapping[InstanceType, Usd], Items(MAX_TYPES)] = field(default_factory=dict)
    usd_per_gpu_hour: Usd | None = None
    source: Line = "set by the user"
    as_of: Line = ""

    def per_hour(self, size: JobSize) -> Maybe[float]:
        """The whole run's, per hour of wall time."""
        if not size.instances:
            return self._by_gpus(size)
        total = 0.0
        for kind, count in size.instances:
            each = self.instances.get(bare_type(kind))
            if each is None:
                return Unknown(f"no price is set for {kind}")
            total += each * count
        return Known(total)

    def _by_gpus(self, size: JobSize) -> Maybe[float]:
        if self.usd_per_gpu_hour is None:
            return Unknown("its instance types are not known, and no price per GPU-hour is set")
        if isinstance(size.gpus, Unknown):
            return size.gpus
        return Known(self.usd_per_gpu_hour * size.gpus.value)

    @classmethod
    def from_wire(cls, wire: object, *, beyond: list[str] | None = None) -> Prices:
        """The user's document, read by its fields' types; defined here for the API's error.

        Raises:
            InvalidRequest: names the field.
        """
        return cast("Prices", read(cls, wire, beyond=beyond, error=InvalidRequest, at="prices"))

    @classmethod
    def default(cls) -> Prices:
        """The shipped ones, where the user has set none."""
        return cls(
            instances={row.instance: row.usd_per_hour for row in DEFAULT_PRICES},
            source="Rekindle's default table (docs/ledger.md); set your own",
            as_of=min(row.as_of for row in DEFAULT_PRICES),
        )


NO_PRICES: Final = Prices(source="")
