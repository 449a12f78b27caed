"""How many GPUs an instance type has, and how big a run is. Data, with its sources; pure.

A type that is not here is Unknown, never zero. Trainium and Inferentia are no GPUs and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from chalicelib.domain.model.codec import Record
from chalicelib.domain.model.known import Known, Maybe, Unknown

_P: Final = "EC2 instance types guide, accelerated computing (GPUs per instance)"
_G: Final = "EC2 instance types guide, accelerated computing (GPUs per instance), G family"
_SOURCE: Final = "EC2 DescribeInstanceTypes, GpuInfo.Gpus[].Count, as moto 5.2.5 recorded it"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """GPUs of one EC2 instance type; SageMaker calls the same `ml.<type>`."""

    instance: str
    gpus: int
    source: str


GPU_TABLE: Final[tuple[GpuRow, ...]] = tuple(
    GpuRow(instance=instance, gpus=gpus, source=source)
    for source, rows in (
        (
            _P,
            (
                ("p3.2xlarge", 1),
                ("p3.8xlarge", 4),
                ("p3.16xlarge", 8),
                ("p3dn.24xlarge", 8),
                ("p4d.24xlarge", 8),
                ("p4de.24xlarge", 8),
                ("p5.4xlarge", 1),
                ("p5.48xlarge", 8),
                ("p5e.48xlarge", 8),
                ("p5en.48xlarge", 8),
                ("p6-b200.48xlarge", 8),
                ("p6-b300.48xlarge", 8),
                ("p6e-gb200.36xlarge", 4),
            ),
        ),
        (
            _G,
            tuple(
                (f"{family}.{size}xlarge", gpus)
                for family in ("g5", "g6", "g6e")
                for size, gpus in (("", 1), (2, 1), (4, 1), (8, 1), (16, 1), (12, 4), (24, 4), (48, 8))
            ),
        ),
        (
            _G,
            (
                ("g4dn.xlarge", 1),
                ("g4dn.2xlarge", 1),
                ("g4dn.4xlarge", 1),
                ("g4dn.8xlarge", 1),
                ("g4dn.16xlarge", 1),
                ("g4dn.12xlarge", 4),
            ),
        ),
        (
            _SOURCE,
            tuple(
                (f"{family}.{size}xlarge", gpus)
                for family in ("g7", "g7e")
                for size, gpus in ((2, 1), (4, 1), (8, 1), (12, 2), (24, 4), (48, 8))
            ),
        ),
    )
    for instance, gpus in rows
)
_GPUS: Final[Mapping[str, int]] = {row.instance: row.gpus for row in GPU_TABLE}


def bare_type(instance_type: str) -> str:
    """The EC2 type behind a SageMaker one: `ml.p5.48xlarge` and `p5.48xlarge` are the same machine."""
    return instance_type.strip().lower().removeprefix("ml.")


def gpus_of(instance_type: str) -> Maybe[int]:
    count = _GPUS.get(bare_type(instance_type))
    if count is None:
        return Unknown(f"the table of GPUs does not hold {instance_type[:40]!r}")
    return Known(count)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSize(Record):
    """How big a run is, as found when it was registered: instances by type, and GPUs in all.

    `instances` is empty where the platform names no types.
    """

    instances: tuple[tuple[str, int], ...] = ()
    gpus: Maybe[int] = field(default_factory=lambda: Unknown("its size was not read when it was registered"))

    @classmethod
    def of_instances(cls, instances: Sequence[tuple[str, int]]) -> JobSize:
        """The size of a run whose instances are known by type and count."""
        kept = tuple((kind, count) for kind, count in instances if kind and count > 0)
        if not kept:
            return cls(gpus=Unknown("the platform names no instance types for it"))
        total = 0
        for kind, count in kept:
            each = gpus_of(kind)
            if isinstance(each, Unknown):
                return cls(instances=kept, gpus=each)
            total += each.value * count
        return cls(instances=kept, gpus=Known(total))
