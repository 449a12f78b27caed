"""What NVIDIA's Xid codes mean and what to do about them. Data: one row per code, the authorities side by side.

AWS's own Xid → action map inside the HyperPod health agent is internal and may change, so its recommendation wins
wherever a payload carries one; this table speaks only where none does. `ours` is the milder answer where the
authorities conflict (63, 74, 79, 119, 120, 151, 157): a wrong replacement costs more than a missed one, and the same
code on the same device after a reboot is a replacement anyway.

Source: NVIDIA Xid catalogue (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), column `nvidia`;
aws/eks-node-monitoring-agent dcgm_policies.go, `eks`; AWS's DevOps-agent skill for HyperPod, `kit`; AWS's GPU
health-check kit, `health_check`. "-" stands for "this authority says nothing".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rekindle.protocol.signals import FaultClass
from rekindle.signatures.responses import FirstResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class XidFault:
    """One Xid code: its meaning, what each authority says at first sight, and what we take from them."""

    xid: int
    meaning: str
    nvidia: str
    eks: str
    kit: str
    health_check: str
    ours: FirstResponse

    @property
    def fault(self) -> FaultClass | None:
        """The fault class this code suggests alone; None where it is only news."""
        if self.ours.needs_node_action:
            return FaultClass.NODE_HARDWARE
        return FaultClass.SOFTWARE_CRASH if self.ours is FirstResponse.RESTART_APP else None


def _rows(
    xids: tuple[int, ...], meaning: str, nvidia: str, eks: str, kit: str, health_check: str, ours: FirstResponse
) -> tuple[XidFault, ...]:
    return tuple(
        XidFault(xid=xid, meaning=meaning, nvidia=nvidia, eks=eks, kit=kit, health_check=health_check, ours=ours)
        for xid in xids
    )


_LEAVE, _WATCH, _APP = FirstResponse.LEAVE_ALONE, FirstResponse.MONITOR, FirstResponse.RESTART_APP
_RESET, _REBOOT, _REPLACE = FirstResponse.RESET_GPU, FirstResponse.REBOOT, FirstResponse.REPLACE

_TABLE: tuple[XidFault, ...] = (
    # codes, meaning, NVIDIA, EKS agent, DevOps kit, health-check kit, ours
    *_rows((13,), "graphics engine exception", "RESTART_APP", "event", "leave alone", "restart app", _APP),
    *_rows((31,), "GPU memory page fault", "RESTART_APP", "event", "leave alone", "restart app", _APP),
    *_rows((43,), "GPU stopped by the application", "IGNORE", "event", "sympathetic", "ignore", _LEAVE),
    *_rows((45,), "pre-emptive clean-up", "workflow", "event", "sympathetic", "-", _LEAVE),
    *_rows((46,), "GPU stopped processing", "RESET_GPU", "reboot", "reboot", "-", _RESET),
    *_rows((48,), "double-bit ECC error", "workflow", "reboot", "reboot; replace at SRAM threshold", "reset", _RESET),
    *_rows((54,), "auxiliary power missing", "CHECK_MECHANICALS", "reboot", "-", "isolate", _REPLACE),
    *_rows((62,), "micro-controller halt", "RESET_GPU", "reboot", "reboot", "-", _RESET),
    *_rows((63,), "row remap recorded", "IGNORE", "reboot", "monitor", "ignore", _WATCH),
    *_rows((64,), "row remap failed", "RESET_GPU", "replace", "replace", "reset", _REPLACE),
    *_rows((74,), "NVLink error", "workflow", "replace", "reboot, then replace", "configurable (reset)", _REBOOT),
    *_rows((79,), "GPU fell off the bus", "RESTART_BM", "replace", "reboot, then replace", "reboot", _REBOOT),
    *_rows((92,), "high single-bit error rate", "IGNORE", "event", "monitor", "ignore", _WATCH),
    *_rows((94,), "contained ECC error", "RESTART_APP", "event", "leave alone", "restart app", _APP),
    *_rows((95,), "uncontained ECC error", "RESET_GPU", "reboot", "reboot", "reset", _RESET),
    *_rows((109,), "context switch timeout", "RESET_GPU", "reboot", "reboot", "reset", _RESET),
    *_rows((110,), "security fault", "RESET_GPU", "reboot", "reboot", "reset", _RESET),
    *_rows((119,), "GSP RPC timeout", "RESET_GPU", "replace", "leave alone, or disable GSP", "reset", _RESET),
    *_rows((120,), "GSP error", "RESET_GPU", "replace", "leave alone, or disable GSP", "reset", _RESET),
    *_rows((136,), "ALI link training failed", "RESET_GPU", "reboot", "reboot", "reset", _RESET),
    *_rows((137,), "NVLink privilege error", "IGNORE", "event", "leave alone", "-", _LEAVE),
    *_rows((140,), "unrecovered ECC error", "RESET_GPU", "reboot", "reboot", "reset", _RESET),
    *_rows((142,), "NVENC3 error", "CONTACT_SUPPORT", "replace", "-", "-", _REPLACE),
    *_rows((143,), "GPU initialisation failed", "RESET_GPU", "reboot", "reboot", "reset", _RESET),
    *_rows(tuple(range(144, 151)), "NVLink5 error", "workflow", "event", "-", "monitor", _WATCH),
    *_rows((151,), "key rotation", "RESTART_VM", "replace", "reboot", "reboot", _REBOOT),
    *_rows(
        (154,),
        "recovery action changed",
        "follow text",
        "event",
        "follow text",
        "parse text",
        FirstResponse.FOLLOW_TEXT,
    ),
    *_rows((155,), "NVLink software error", "RESET_GPU", "reboot", "-", "reset", _RESET),
    *_rows((156,), "resource retirement", "RESET_GPU", "reboot", "monitor", "reset", _RESET),
    *_rows((157,), "resource retirement failed", "IGNORE now", "event", "replace", "-", _WATCH),
    *_rows((158,), "fatal GPU timeout", "RESET_GPU", "reboot", "reboot", "reset", _RESET),
    # NVIDIA's RESTART_APP and IGNORE buckets, without a row elsewhere (121, 126: the health-check kit agrees)
    *_rows(
        (8, 11, 25, 32, 39, 40, 41, 60, *range(68, 73), *range(75, 78), 80, *range(82, 87), 88, 89, *range(96, 106)),
        "application-level GPU error",
        "RESTART_APP",
        "-",
        "-",
        "-",
        _APP,
    ),
    *_rows((*range(126, 136), 139), "application-level GPU error", "RESTART_APP", "-", "-", "-", _APP),
    *_rows(
        (14, 37, 38, 44, 66, 67, 93, *range(106, 109), 121, 141, 152, 153, 160, 161),
        "bookkeeping record",
        "IGNORE",
        "-",
        "-",
        "-",
        _LEAVE,
    ),
    *_rows((78,), "driver or firmware out of date", "UPDATE_SWFW", "-", "-", "-", _WATCH),
    *_rows((159,), "unified memory check", "CHECK_UVM", "-", "-", "-", _WATCH),
    *_rows((168,), "error containment", "-", "-", "-", "reboot", _REBOOT),
)

XID_FAULTS: dict[int, XidFault] = {row.xid: row for row in _TABLE}

# Codes on which the authorities disagree about the node; the milder answer is taken.
CONFLICTED = frozenset({63, 74, 79, 119, 120, 151, 157})

# Xid 154's own words, strongest first, because the text names the old action and the new one.
_TEXT_VERDICTS: tuple[tuple[str, FirstResponse], ...] = (
    ("node reboot required", _REBOOT),
    ("gpu reset required", _RESET),
    ("drain and reset", _RESET),
    ("drain p2p", _WATCH),
    ("none", _LEAVE),
)
_CHANGED_TO = re.compile(r"changed from .{0,80}?\bto\b.{0,20}?\(([^)]{1,40})\)", re.IGNORECASE)
_XID = re.compile(
    r"\bXid\b[\"']?(?:[ _](?:critical )?(?:errors?|code|event"
    r"|number))?[\"']?\s{0,3}(?:\([^)\n]{0,80}\))?\s{0,3}[:=\s(#]{1,4}"
    r"(\d{1,3})\b",
    re.IGNORECASE,
)
MAX_XIDS = 64  # in one text; a burst repeats the same few


def first_response(xid: int) -> FirstResponse:
    """What this code asks for at first sight. A code outside the table is UNKNOWN, never healthy."""
    row = XID_FAULTS.get(xid)
    return row.ours if row else FirstResponse.UNKNOWN


def response_from_text(text: str) -> FirstResponse:
    """The driver's own verdict in an Xid 154 record ("… changed from 0x0 (None) to 0x2 (Node Reboot Required)").

    UNKNOWN where the text holds none of the five verdicts.
    Source: NVIDIA Xid catalogue, Xid 154 "GPU recovery action changed".
    """
    changed = _CHANGED_TO.search(text[:4000])
    detail = (changed[1] if changed else text[:4000]).lower()
    for words, response in _TEXT_VERDICTS:
        if re.search(rf"\b{words}\b", detail):
            return response
    return FirstResponse.UNKNOWN


def find_xid(text: str) -> int | None:
    """The first Xid code that a kernel line or a sentence names ("NVRM: Xid (PCI:0000:44:00): 79, …"), if any."""
    match = _XID.search(text[:16000])
    return int(match[1]) if match else None


def find_xids(text: str) -> tuple[int, ...]:
    """Every Xid code that a text names, each once, in order."""
    codes: dict[int, None] = {}
    for count, match in enumerate(_XID.finditer(text[:16000])):
        if count >= MAX_XIDS:
            break
        codes[int(match[1])] = None
    return tuple(codes)


def fault_of(xid: int, text: str = "") -> FaultClass | None:
    """The fault class a code suggests alone; Xid 154 is read from its text. None for news, UNCLEAR for unknown."""
    row = XID_FAULTS.get(xid)
    if row is None:
        return FaultClass.UNCLEAR
    if row.ours is FirstResponse.FOLLOW_TEXT:
        stated = response_from_text(text)
        if stated.needs_node_action:
            return FaultClass.NODE_HARDWARE
        return FaultClass.UNCLEAR if stated is FirstResponse.UNKNOWN else None
    return row.fault
