"""Slurm's node names ↔ instance ids ↔ groups.

On HyperPod from `resource_config.json` (shape: SageMaker developer guide, lifecycle scripts): Slurm's name derives from
`CustomerIpAddress`, not from `InstanceName`, and stays when the instance behind it is replaced. On AWS ParallelCluster
and where slurmd was started with `--instance-id` from `InstanceId=` of scontrol (24.05+). Elsewhere unknown.

GPU UUIDs and serial numbers cannot be seen from a head node by themselves. They are taken from a node's `Extra=`
field, where the node itself writes them down (rekindle.slurm_agent.base.identity, docs/hardware.md); else there are
none. `Extra=` outlives the instance that wrote it, so where the instance is known it must be the one that is named
there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rekindle.slurm_agent.reading.nodes import Node

MAX_BYTES: Final = 16 * 1024 * 1024
_INSTANCE: Final = re.compile(r"i-[0-9a-f]{8,17}")
_GPU: Final = re.compile(r"GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_INSTANCE_OF: Final = re.compile(r"(?:\A|[,;\s])instance=(i-[0-9a-f]{8,17})(?![0-9a-f])")
_SERIAL: Final = re.compile(r"(?:\A|[,;\s])serial=([0-9A-Za-z][0-9A-Za-z._-]{3,63})(?=[,;\s]|\Z)")
_ARN: Final = re.compile(r"arn:[a-z0-9-]{1,20}:sagemaker:[a-z0-9-]{1,32}:[0-9]{12}:cluster/[A-Za-z0-9-]{1,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlacement:
    """Where a node lives."""

    instance_id: str
    group: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What resource_config.json says. `by_address` and `by_name` are keyed by what a node may be known under."""

    arn: str = ""
    by_address: Mapping[str, NodePlacement] = field(default_factory=dict)
    by_name: Mapping[str, NodePlacement] = field(default_factory=dict)

    def place_of(self, node: Node) -> NodePlacement | None:
        """The node's place; None where nothing names it."""
        named = self.by_name.get(node.name) or self.by_address.get(node.address)
        if named is not None:
            return named
        return NodePlacement(instance_id=node.instance_id, group=None) if node.instance_id else None


def parse(raw: bytes) -> Resources:
    """Total: what is not as documented is passed over, for a map that is half right is better than none."""
    try:
        found = json.loads(raw[:MAX_BYTES])
    except (ValueError, RecursionError):
        return Resources()
    about = _object(_object(found).get("ClusterConfig"))
    by_address: dict[str, NodePlacement] = {}
    by_name: dict[str, NodePlacement] = {}
    for group in _list(_object(found).get("InstanceGroups")):
        name = _text(_object(group).get("Name"), 63)
        for member in _list(_object(group).get("Instances")):
            instance = _text(_object(member).get("InstanceId"), 32)
            if _INSTANCE.fullmatch(instance) is None:
                continue
            place = NodePlacement(instance_id=instance, group=name or None)
            address = _text(_object(member).get("CustomerIpAddress"), 64)
            if re.fullmatch(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}", address):
                by_address[address] = place
                by_name[f"ip-{address.replace('.', '-')}"] = place
    arn = _text(about.get("ClusterArn"), 256)
    return Resources(
        arn=arn if _ARN.fullmatch(arn) else "",
        by_address=by_address,
        by_name=by_name,
    )


class NodeMap:
    """Reads the file again when it changes."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._seen: tuple[int, int, int] | None = None
        self._held = Resources()

    def read(self) -> Resources:
        """The newest map; the one before while the file is being written or cannot be read."""
        try:
            now = self._path.stat()
            seen = (now.st_mtime_ns, now.st_size, now.st_ino)
            if seen == self._seen:
                return self._held
            fresh = parse(self._path.read_bytes())
        except OSError:
            return self._held
        if fresh.by_address or not self._held.by_address:
            self._held, self._seen = fresh, seen
        return self._held


def gpus_of(node: Node, instance_id: str | None = None) -> tuple[str, ...]:
    """GPU UUIDs in the node's `Extra=`; empty where they were not put there for the instance that stands there."""
    return tuple(dict.fromkeys(_GPU.findall(node.extra)))[:64] if _is_about(node, instance_id) else ()


def serial_of(node: Node, instance_id: str | None = None) -> str | None:
    """The machine's serial number in the node's `Extra=`; None where it was not put there for this instance."""
    found = _SERIAL.search(node.extra) if _is_about(node, instance_id) else None
    return found[1] if found is not None else None


def _is_about(node: Node, instance_id: str | None) -> bool:
    reported = _INSTANCE_OF.search(node.extra)
    return instance_id is None or (reported is not None and reported[1] == instance_id)


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any, limit: int) -> str:
    return value if isinstance(value, str) and len(value) <= limit else ""
