"""docs/signatures.md is written from the tables. After a change: `python -m tests.signatures.test_docs`."""

from __future__ import annotations

from pathlib import Path

from rekindle.signatures.harmless import HARMLESS
from rekindle.signatures.labels import LABELS, Label
from rekindle.signatures.rules import HARDWARE, OTHERS
from rekindle.signatures.xid_lines import XID_LABELS
from rekindle.signatures.xids import CONFLICTED, XID_FAULTS

PAGE = Path(__file__).parents[2] / "docs" / "signatures.md"


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def page() -> str:
    """The page: what stands before the first generated heading is kept, the tables are written."""
    kept = PAGE.read_text(encoding="utf-8").split("\n## Labels\n")[0].rstrip()
    labels = [
        f"| `{row.label}` | {row.order.name.lower()} | {f'`{row.fault}`' if row.fault else '-'} | `{row.response}` | "
        f"{_cell(row.meaning)} | {_cell(row.source)} |"
        for row in sorted(LABELS.values(), key=lambda row: (row.label is Label.BENIGN, row.order))
    ]
    rules = [f"| {rule.name} | `{rule.label}` | {_cell(rule.source)} |" for rule in (*HARDWARE, *OTHERS)]
    harmless = [f"| {row.name} | {_cell(row.example)} | {_cell(row.source)} |" for row in HARMLESS]
    xids = [
        f"| {code}{' ⚡' if code in CONFLICTED else ''} | {row.meaning} | {row.nvidia} | {row.eks} | {row.kit} | "
        f"{row.health_check} | `{row.ours}` | {f'`{XID_LABELS[code]}`' if code in XID_LABELS else '-'} |"
        for code, row in sorted(XID_FAULTS.items())
    ]
    return "\n".join(
        [
            kept,
            "",
            "## Labels",
            "",
            "Written from the tables, like all that follows, by `python -m tests.signatures.test_docs`.",
            "",
            "| label | class | fault | first response | meaning | source |",
            "|---|---|---|---|---|---|",
            *labels,
            "",
            "## Rules, in the order in which they are tried",
            "",
            "Xid records of applications stand behind the rules on hardware and before all others.",
            "",
            "| rule | label | source |",
            "|---|---|---|",
            *rules,
            "",
            "## Phrases that are taken out first",
            "",
            "| row | example | source |",
            "|---|---|---|",
            *harmless,
            "",
            "## Xids",
            "",
            "The authorities side by side; ⚡ marks where they conflict about the node: the milder answer is taken.",
            "Xid 154's own text wins over this table, the health agent's recommendation over all.",
            "",
            "| Xid | meaning | NVIDIA | EKS agent | DevOps kit | health-check kit | ours | filed under |",
            "|---|---|---|---|---|---|---|---|",
            *xids,
            "",
        ]
    )


def test_the_page_is_what_the_tables_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
