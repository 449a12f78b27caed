"""What a text with Xid records says: which code decides, under which label it is filed, what it asks for.

A few codes have a label of their own or share one of their kind. The others are distinguished by whom they ask
something of, the device or the application; the fault and the first response are the code's own (xids.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from rekindle.protocol.signals import FaultClass
from rekindle.signatures.labels import LABELS, CausalClass, Label
from rekindle.signatures.responses import FirstResponse
from rekindle.signatures.xids import XID_FAULTS, find_xids, response_from_text

# Where each code is filed that has a label of its kind. Another one is filed by what its row in the Xid table asks for;
# one that asks for nothing is not told apart from an ordinary line. Source: NVIDIA Xid catalogue, the codes' mnemonics.
XID_LABELS: Final[dict[int, Label]] = {
    79: Label.XID_79_FALLEN_OFF_BUS,
    **dict.fromkeys((48, 94, 95, 140, 156, 157, 171, 172), Label.ECC_UNCORRECTABLE),
    **dict.fromkeys((63, 64), Label.XID_63_64_ROW_REMAP),
    **dict.fromkeys((119, 120), Label.XID_119_GSP_TIMEOUT),
    **dict.fromkeys((74, 136, 155, *range(144, 151)), Label.NVLINK_ERROR),
    31: Label.XID_31_MMU_FAULT,
    **dict.fromkeys((13, 8, 11, 25, 32, 39, 40, 41, 60, *range(68, 73)), Label.XID_13_SM_EXCEPTION),
    **dict.fromkeys((109, 46), Label.CUDA_CONTEXT_TIMEOUT),
}
_HARDWARE_WITHOUT_LABEL: Final = Label.XID_GPU_FAULT
_APPLICATION_WITHOUT_LABEL: Final = Label.XID_APPLICATION_FAULT
_PREVIOUS: Final = re.compile(r"caused by previous xid (\d{1,3})\b", re.IGNORECASE)
_OF_HARDWARE: Final = (CausalClass.DEVICE, CausalClass.FABRIC)


@dataclass(frozen=True, slots=True, kw_only=True)
class XidVerdict:
    """What a text's Xid records come to."""

    xid: int
    label: Label
    fault: FaultClass
    response: FirstResponse
    order: CausalClass

    @property
    def is_hardware(self) -> bool:
        """It speaks before anything else in the same text."""
        return self.order in _OF_HARDWARE


def read_xids(text: str) -> XidVerdict | None:
    """The verdict of the most telling Xid record in a text; None where all are echoes or bookkeeping (43, 45, …).

    Xid 154's own words win over the table: they are the driver's verdict on its companion. An Xid 45 that names the Xid
    before it (github.com/NVIDIA/open-gpu-kernel-modules/issues/1150) is that one, and an NVLink error that has cost the
    process its channels is no longer news.
    """
    codes = find_xids(text)
    stated = response_from_text(text) if 154 in codes else FirstResponse.UNKNOWN
    found = [verdict for code in codes if code != 154 and (verdict := _verdict(code)) is not None]
    found += [cut for code in _PREVIOUS.findall(text[:16000]) if (cut := _torn_down(int(code))) is not None]
    best = min(found, key=lambda verdict: (verdict.order, _weight(verdict.response)), default=None)
    if stated is FirstResponse.UNKNOWN:
        return best
    if stated.needs_node_action:
        return XidVerdict(
            xid=best.xid if best else 154,
            label=best.label if best else _HARDWARE_WITHOUT_LABEL,
            fault=FaultClass.NODE_HARDWARE,
            response=stated,
            order=CausalClass.DEVICE,
        )
    if best is None:
        return None
    return XidVerdict(xid=best.xid, label=best.label, fault=best.fault, response=stated, order=best.order)


def _torn_down(code: int) -> XidVerdict | None:
    """The verdict on a link's error that tore down channels; None for any other code, whose own row says it all."""
    if XID_LABELS.get(code) is not Label.NVLINK_ERROR:
        return None
    return XidVerdict(
        xid=code,
        label=Label.NVLINK_ERROR,
        fault=FaultClass.NODE_HARDWARE,
        response=FirstResponse.REBOOT,
        order=CausalClass.FABRIC,
    )


def _verdict(code: int) -> XidVerdict | None:
    row = XID_FAULTS.get(code)
    response = row.ours if row else FirstResponse.UNKNOWN
    label = XID_LABELS.get(code)
    if label is None:
        if response.needs_node_action:
            label = _HARDWARE_WITHOUT_LABEL
        elif response is FirstResponse.RESTART_APP:
            label = _APPLICATION_WITHOUT_LABEL
        else:
            return None  # an echo, bookkeeping, or a code without a description
    order = LABELS[label].order
    if response.needs_node_action:
        order = min(order, CausalClass.DEVICE if label is not Label.NVLINK_ERROR else CausalClass.FABRIC)
        fault = FaultClass.NODE_HARDWARE
    else:
        fault = (row.fault if row else None) or LABELS[label].fault or FaultClass.UNCLEAR
        if response in (FirstResponse.MONITOR, FirstResponse.LEAVE_ALONE):
            order = CausalClass.NEWS
    return XidVerdict(xid=code, label=label, fault=fault, response=response, order=order)


def _weight(response: FirstResponse) -> int:
    """The stronger demand first, where two records are of one class."""
    strength = (FirstResponse.REPLACE, FirstResponse.REBOOT, FirstResponse.RESET_GPU, FirstResponse.RESTART_APP)
    return strength.index(response) if response in strength else len(strength)
