"""The hardware ledger: the faults of a piece of hardware, wherever it stood. Data and judgement, pure.

A replaced node keeps its name and gets another instance id, and the machine that was taken away may come back under
both new names. Only the hardware's own marks tell: the UUIDs of its GPUs, the serial numbers of its boards and its
chassis. Where none of them is known the instance id stands in, which proves the same hardware only while it lives. A
mark that was not read is absent; none is ever made up.

Sources: docs/facts-sagemaker.md#health-agent (only the GPU UUID proves "same hardware"; PCI slots are alike on all
nodes of a type);
arXiv 2410.21680 (nodes that fail again: signals over 28 days); NVSentinel (five faults within seven days); AWS's own
kit (the same Xid three times within seven days). What is counted here are Incidents, not lines: a storm counts once, so
three in 28 days is the built-in measure.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from chalicelib.domain.model.codec import Record

# So many faults of one piece of hardware, each an Incident, within the window make it suspect.
SUSPECT_FAULTS: Final = 3
SUSPECT_WINDOW: Final = timedelta(days=28)
MAX_FAULTS: Final = 16  # kept of one piece, the newest
MAX_MARKS: Final = 24  # of one node: 16 GPUs at most (p2), their boards or its chassis
_GPU: Final = re.compile(r"GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")  # nvidia-smi -L, NVRM's lines
# Source: the kernel module's own words, "NVRM: GPU Board Serial Number: 1650923033211"
_BOARD: Final = re.compile(r"GPU Board Serial Number:\s*([0-9A-Za-z-]{4,32})")
_SERIAL: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{3,63}")
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# What firmware writes where it has no serial number: equal on every machine, so it would make strangers one.
_NO_SERIAL: Final = frozenset(
    {
        "none",
        "default string",
        "to be filled by o.e.m.",
        "not specified",
        "system serial number",
        "0123456789",
        "unknown",
    }
)


class SuspectRule(StrEnum):
    """What is done about suspect hardware (policy field `nodes.suspect_repair`)."""

    OFF = "off"
    TELL = "tell"
    REPLACE = "replace"


class MarkKind(StrEnum):
    """What a mark is; it stands before the colon of one."""

    GPU = "gpu"
    BOARD = "board"
    SERIAL = "serial"
    INSTANCE = "instance"  # no mark of the hardware, and never used beside one

    @property
    def is_of_the_hardware(self) -> bool:
        """It stays with the machine across owners."""
        return self is not MarkKind.INSTANCE


def mark(kind: MarkKind, value: str) -> str:
    """One mark, as it is kept: `gpu:GPU-…`."""
    return f"{kind}:{value}"


def kind_of(text: str) -> MarkKind:
    """The kind of a mark. Raises: ValueError."""
    return MarkKind(text.partition(":")[0])


def marks_of(*, gpus: Iterable[str] = (), serial: str | None = None) -> tuple[str, ...]:
    """The marks of a node, as far as they were read."""
    found = [mark(MarkKind.GPU, gpu) for gpu in gpus if _GPU.fullmatch(gpu)]
    if serial is not None and is_serial(serial):
        found.append(mark(MarkKind.SERIAL, serial.strip()))
    return tuple(dict.fromkeys(found))[:MAX_MARKS]


def is_serial(text: str) -> bool:
    """True for what tells one machine from another.

    What DMI shows on EC2 is the instance's own UUID, in either byte order: it goes with the instance, and is no mark of
    the hardware. Source: EC2 user guide, identify_ec2_instances.
    """
    detail = text.strip().lower()
    is_made_up = detail in _NO_SERIAL or detail.startswith("ec2") or _UUID.fullmatch(detail) or len(set(detail)) == 1
    return _SERIAL.fullmatch(text.strip()) is not None and not is_made_up


def marks_in(text: str) -> tuple[str, ...]:
    """The GPUs that a log line names by themselves; most lines name a PCI slot only, which proves nothing."""
    gpus = [mark(MarkKind.GPU, uuid) for uuid in _GPU.findall(text[:16384])]
    boards = [mark(MarkKind.BOARD, serial) for serial in _BOARD.findall(text[:16384]) if is_serial(serial)]
    return tuple(dict.fromkeys([*gpus, *boards]))[:MAX_MARKS]


def reported_marks(evidence: Mapping[str, Any]) -> tuple[str, ...]:
    """The marks in a Signal's evidence, field `marks`."""
    stated = evidence.get("marks")
    texts = (
        [text for text in stated if isinstance(text, str) and len(text) <= 80]
        if isinstance(stated, list | tuple)
        else []
    )
    return tuple(text for text in texts if _is_mark(text))[:MAX_MARKS]


def _is_mark(text: str) -> bool:
    kind, _, value = text.partition(":")
    return kind in list(MarkKind) and bool(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareFault(Record):
    """One Incident's fault, against one mark. `named`: a line named this very piece; else it is one of the node's.

    `done` is what was done about the node: reboot, replace, or empty.
    """

    at: datetime
    incident_id: str
    cluster: str
    node: str
    instance_id: str | None
    kind: str
    text: str
    named: bool = False
    done: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareRecord(Record):
    """What one mark has had: the newest faults in order, and how many there ever were."""

    mark: str
    faults: tuple[HardwareFault, ...] = ()
    total: int = 0

    def with_fault(self, fault: HardwareFault) -> HardwareRecord:
        """The same with one more; an Incident counts once, however many reports it has."""
        if any(earlier.incident_id == fault.incident_id for earlier in self.faults):
            return self
        kept = sorted((*self.faults, fault), key=lambda known: known.at)[-MAX_FAULTS:]
        return dataclasses.replace(self, faults=tuple(kept), total=self.total + 1)

    def within(self, window: timedelta, *, now: datetime, beside: str = "") -> tuple[HardwareFault, ...]:
        """Those of the last `window`, without the Incident `beside`."""
        return tuple(earlier for earlier in self.faults if now - earlier.at < window and earlier.incident_id != beside)


def suspect_among(
    records: Sequence[HardwareRecord],
    *,
    faults: int,
    window: timedelta,
    now: datetime,
    incident_id: str = "",
    fresh: bool = False,
) -> str | None:
    """The notice about the worst of `records`; None where none is suspect.

    fresh: the Incident at hand is one more fault of theirs. An instance id counts too, as long as it is there.
    """
    found = [(record, record.within(window, now=now, beside=incident_id)) for record in records]
    worst = max(found, key=lambda pair: len(pair[1]), default=None)
    if worst is None or len(worst[1]) + fresh < faults:
        return None
    record, before = worst
    places = ", ".join(dict.fromkeys(f"{fault.node} of {fault.cluster}" for fault in reversed(before)))
    return (
        f"{record.mark} has had {len(before) + fresh} faults in {window.days or 1} days"
        f"{f' (before: on {places[:200]})' if places else ''}: suspect hardware"
    )
