"""Whole traces, read from a folder of the user's own; none is in the project. What is not there is left out.

Files, as their publishers or their mirrors name them (a column that is missing makes the file unreadable):
`lanl_1996_2005_node_failures.csv.gz` (LANL, LA-UR-05-7318; please acknowledge Los Alamos National Laboratory),
`bamboo_p3-trace.csv`, `bamboo_g4dn-trace.csv` (Bamboo, spot instances joining and leaving),
`skypilot_spot_traces_runs.csv.gz` (SkyPilot, availability of spot capacity).
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

from fleets.causes import HOST, MAINTENANCE, NETWORK, SOFTWARE, SPOT, Cause
from fleets.histories import History
from fleets.runs import DAY_S, Failure

LANL_FILE: Final = "lanl_1996_2005_node_failures.csv.gz"
LANL_SYSTEMS: Final = ("20", "18")  # the largest clusters of one kind: 512 and 1,024 nodes
LANL_CAUSES: Final[Mapping[str, Cause]] = {"Hardware": HOST, "Software": SOFTWARE, "Network": NETWORK}
BAMBOO_FILES: Final = ("bamboo_p3-trace.csv", "bamboo_g4dn-trace.csv")
SKYPILOT_FILE: Final = "skypilot_spot_traces_runs.csv.gz"


def histories(folder: Path | None) -> Iterator[tuple[str, History | str]]:
    """Each trace's name with its history, or with why it is left out."""
    yield from _each(
        folder, LANL_FILE, lambda path: [(f"LANL system {system}", system, path) for system in LANL_SYSTEMS], _lanl
    )
    for name in BAMBOO_FILES:
        yield from _each(folder, name, lambda path: [(f"Bamboo {path.stem[7:]}", path.stem, path)], _bamboo)
    yield from _each(folder, SKYPILOT_FILE, _skypilot_zones, _skypilot)


_Part = tuple[str, str, Path]  # name for people, which part of the file, the file


def _each(
    folder: Path | None,
    name: str,
    parts: Callable[[Path], list[_Part]],
    read: Callable[[Path, str, str], History],
) -> Iterator[tuple[str, History | str]]:
    path = folder / name if folder is not None else None
    if path is None or not path.is_file():
        yield name, "is not there"
        return
    try:
        for shown, part, file in parts(path):
            yield shown, read(file, part, shown)
    except (OSError, KeyError, ValueError, TypeError, EOFError, csv.Error, zlib.error) as err:
        yield name, f"cannot be read: {type(err).__name__}: {err}"


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt", newline="") as lines:
        yield from csv.DictReader(lines)


def _lanl(path: Path, system: str, shown: str) -> History:
    """Every node's failure of one cluster, as if one run held the whole of it."""
    found, nodes = [], 0
    for row in _rows(path):
        if row["system"] != system:
            continue
        nodes = int(float(row["n_nodes"]))
        cause = LANL_CAUSES.get(row["cause_category"], MAINTENANCE)
        found.append((datetime.fromisoformat(row["start"]), cause, int(float(row["node"] or 0))))
    if not found:
        raise ValueError(f"no failure of system {system}")
    found.sort(key=lambda failure: failure[0])
    began = found[0][0]
    failures = tuple(Failure(at_s=(at - began).total_seconds(), cause=cause, node=node) for at, cause, node in found)
    return History(
        name=f"{shown}, {nodes} nodes, {failures[-1].at_s / DAY_S:,.0f} days",
        nodes=nodes,
        wall_s=failures[-1].at_s + DAY_S,
        failures=failures,
        source="LANL LA-UR-05-7318: each failure of a node in its own time; 8 GPUs to a node and one run on the whole "
        "cluster (assumed); repairs take HyperPod's time, not LANL's; causes other than hardware, software and "
        "network count as a host that is back after a reboot.",
    )


def _bamboo(path: Path, _: str, shown: str) -> History:
    """Spot instances that join and leave: the run has half of the largest cluster seen, and needs all of that."""
    with path.open(newline="") as lines:
        events = [(float(at_ms) / 1000.0, what) for at_ms, what, _ in csv.reader(lines)]
    levels = _levels(sorted(events))
    half = max(1, max(count for _, count in levels) // 2)
    return _capacity(levels, nodes=half, shown=shown, gpus_per_node=1, source="Bamboo (NSDI 2023)")


def _levels(events: list[tuple[float, str]]) -> list[tuple[float, int]]:
    """How many instances there are from each event on."""
    levels, count = [], 0
    for at, what in events:
        count += 1 if what == "add" else -1
        levels.append((at, count))
    return levels


def _skypilot_zones(path: Path) -> list[_Part]:
    zones = sorted({row["zone_instance"] for row in _rows(path) if _is_fleet(row)})
    return [(f"SkyPilot {zone}", zone, path) for zone in zones]


def _is_fleet(row: Mapping[str, str]) -> bool:
    return row["kind"] == "availability" and row["nodes"] == "16-node"


def _skypilot(path: Path, zone: str, shown: str) -> History:
    rows = [row for row in _rows(path) if _is_fleet(row) and row["zone_instance"] == zone]
    levels = sorted((float(row["start_s"]), int(row["value"])) for row in rows)
    return _capacity(levels, nodes=8, shown=shown, gpus_per_node=1, source="SkyPilot spot traces")


def _capacity(levels: list[tuple[float, int]], *, nodes: int, shown: str, gpus_per_node: int, source: str) -> History:
    """A run of `nodes` instances: it is interrupted when fewer are left, and may start when there are as many again.

    An instance that is taken while others stand by is one failure too: one of the run's own, in proportion.
    """
    failures: list[Failure] = []
    before, carry = 0, 0.0
    began = next((at for at, count in levels if count >= nodes), None)
    if began is None:
        raise ValueError(f"there are never {nodes} instances")
    for index, (at, count) in enumerate(levels):
        if at > began and count < before:
            carry += (before - count) * min(1.0, nodes / before)
            if carry >= 1.0 or (count < nodes <= before):
                carry = 0.0
                back = next((then for then, many in levels[index:] if many >= nodes), levels[-1][0] + DAY_S)
                failures.append(Failure(at_s=at - began, cause=SPOT, node=len(failures), back_at_s=back - began))
        before = count
    wall_s = levels[-1][0] - began
    return History(
        name=f"{shown}, {nodes} spot nodes, {wall_s / DAY_S:.1f} days",
        nodes=nodes,
        wall_s=wall_s,
        failures=tuple(failures),
        gpus_per_node=gpus_per_node,
        source=f"{source}: the run needs {nodes} instances and waits for capacity like every row; a notice of two "
        "minutes comes before each loss (assumed); of several taken in one step one interruption is played.",
    )
