"""What an hour of an instance costs: the user's own table, or the few prices that have a public source. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from chalicelib.domain.errors import InvalidRequest
from chalicelib.domain.instances import JobSize, bare_type
from chalicelib.domain.known import Known, Maybe, Unknown

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


# Prices differ by Region, contract and day; these are for orders of magnitude until the user sets the true ones.
DEFAULT_PRICES: Final[tuple[PriceRow, ...]] = (
    PriceRow(
        instance="p5.48xlarge",
        usd_per_hour=55.0,
        as_of="2025-12-15",
        source="AWS ML blog on checkpointless training: 256 P5 instances, 20 minutes, cost $4,693",
    ),
    PriceRow(
        instance="p4d.24xlarge",
        usd_per_hour=14.75,
        as_of="2024-12-31",
        source="aws.amazon.com/ec2/capacityblocks/pricing: effective hourly rate of a reservation, US",
    ),
    PriceRow(
        instance="trn1.32xlarge",
        usd_per_hour=15.49,
        as_of="2024-12-31",
        source="aws.amazon.com/ec2/capacityblocks/pricing: effective hourly rate of a reservation, Melbourne",
    ),
    PriceRow(
        instance="g5.xlarge",
        usd_per_hour=1.006,
        as_of="2026-06-17",
        source="factualminds.com, EC2 On-Demand pricing 2026: Linux, us-east-1",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """USD per hour. `usd_per_gpu_hour` is for runs whose instance types nobody names (Slurm); None: not set.

    `source` and `as_of` say where they come from; empty `as_of`: the user did not say.
    """

    instances: Mapping[str, float]
    usd_per_gpu_hour: float | None = None
    source: str = ""
    as_of: str = ""

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

    def to_wire(self) -> dict[str, Any]:
        """JSON form, as the document has it."""
        wire: dict[str, Any] = {
            "instances": dict(sorted(self.instances.items())),
            "source": self.source,
            "as_of": self.as_of,
        }
        if self.usd_per_gpu_hour is not None:
            wire["usd_per_gpu_hour"] = self.usd_per_gpu_hour
        return wire

    @classmethod
    def from_wire(cls, wire: object) -> Prices:
        """The user's document: `{"instances": {"ml.p5.48xlarge": 55.0}, "usd_per_gpu_hour": 6.9, "source", "as_of"}`.

        Raises:
            InvalidRequest: names the field.
        """
        if not isinstance(wire, Mapping):
            raise InvalidRequest("prices", f"must be an object, not {type(wire).__name__}")
        for name in wire:
            if name not in ("instances", "usd_per_gpu_hour", "source", "as_of"):
                raise InvalidRequest(f"prices.{str(name)[:40]}", "is no such field")
        given = wire.get("instances", {})
        if not isinstance(given, Mapping) or len(given) > MAX_TYPES:
            raise InvalidRequest("prices.instances", f"must be an object of at most {MAX_TYPES} instance types")
        instances = {}
        for kind, price in given.items():
            if not isinstance(kind, str) or not _TYPE.match(bare_type(kind)):
                raise InvalidRequest("prices.instances", f"{str(kind)[:40]!r} is no instance type")
            instances[bare_type(kind)] = _usd(f"prices.instances.{kind}", price)
        per_gpu = wire.get("usd_per_gpu_hour")
        return cls(
            instances=instances,
            usd_per_gpu_hour=None if per_gpu is None else _usd("prices.usd_per_gpu_hour", per_gpu),
            source=_words("source", wire.get("source", "set by the user")),
            as_of=_words("as_of", wire.get("as_of", "")),
        )

    @classmethod
    def default(cls) -> Prices:
        """The shipped ones, where the user has set none."""
        return cls(
            instances={row.instance: row.usd_per_hour for row in DEFAULT_PRICES},
            source="Rekindle's default table (docs/ledger.md); set your own",
            as_of=min(row.as_of for row in DEFAULT_PRICES),
        )


def _usd(field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_USD_PER_HOUR:
        raise InvalidRequest(field, f"must be a number of USD per hour from 0 to {MAX_USD_PER_HOUR:g}")
    return float(value)


def _words(field: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > 200 or not value.isprintable():
        raise InvalidRequest(f"prices.{field}", "must be a printable text of at most 200 characters")
    return value
