"""docs/reference/signatures.md: every label, rule and Xid of the log signatures, from their tables."""

from __future__ import annotations

from typing import Final

from infra.tables import cell, code, page, table
from rekindle.signatures.harmless import HARMLESS
from rekindle.signatures.labels import LABELS, Label
from rekindle.signatures.rules import HARDWARE, OTHERS
from rekindle.signatures.xid_lines import XID_LABELS
from rekindle.signatures.xids import CONFLICTED, XID_FAULTS

PAGE: Final = "docs/reference/signatures.md"


def page_text() -> str:
    labels = [
        (
            code(row.label),
            row.order.name.lower(),
            code(row.fault) if row.fault else "-",
            code(row.response),
            cell(row.meaning),
            cell(row.source),
        )
        for row in sorted(LABELS.values(), key=lambda row: (row.label is Label.BENIGN, row.order))
    ]
    rules = [(cell(rule.name), code(rule.label), cell(rule.source)) for rule in (*HARDWARE, *OTHERS)]
    harmless = [(cell(row.name), cell(row.example), cell(row.source)) for row in HARMLESS]
    xids = [
        (
            f"{number} ⚡" if number in CONFLICTED else str(number),
            *(cell(text) for text in (row.meaning, row.nvidia, row.eks, row.kit, row.health_check)),
            code(row.ours),
            code(XID_LABELS[number]) if number in XID_LABELS else "-",
        )
        for number, row in sorted(XID_FAULTS.items())
    ]
    return page(
        "Log signatures: labels, rules, Xids",
        ["How a line gets its label: [signatures.md](../signatures.md).", "", "## Labels", ""],
        table(("label", "class", "fault", "first response", "meaning", "source"), labels),
        [
            "## Rules",
            "",
            "In the order in which they are tried. Xid records of applications come after the hardware rules",
            "and before all others.",
            "",
        ],
        table(("rule", "label", "source"), rules),
        ["## Harmless phrases", "", "Removed from a line before the rules are tried a second time.", ""],
        table(("row", "example", "source"), harmless),
        [
            "## Xids",
            "",
            "⚡ marks a code on which the authorities conflict about the node; Rekindle takes the milder response.",
            "The text of Xid 154 overrides this table, and the health agent's recommendation overrides both.",
            "",
        ],
        table(("Xid", "meaning", "NVIDIA", "EKS agent", "DevOps kit", "health-check kit", "ours", "label"), xids),
    )
