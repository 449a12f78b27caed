"""A notice as plain text, for channels that show one. Pure."""

from __future__ import annotations

from typing import Final

from chalicelib.ports import Notice, NoticeKind

MAX_TITLE_CHARS: Final = 200
MAX_BODY_CHARS: Final = 4000  # what most services show; the whole is in the Incident


def title_of(notice: Notice) -> str:
    """One line."""
    return " ".join(f"[{notice.severity}] {notice.title}".split())[:MAX_TITLE_CHARS]


def body_of(notice: Notice) -> str:
    """What happened, whose it is, and what to paste next."""
    text = notice.text if len(notice.text) <= MAX_BODY_CHARS else notice.text[: MAX_BODY_CHARS - 1] + "…"
    facts = [
        ("Job", notice.job_id),
        ("Incident", notice.incident_id),
        ("Cluster", notice.cluster),
        ("Node", notice.node),
    ]
    lines = [text, "", *(f"{label}: {value}" for label, value in facts if value)]
    if notice.kind is NoticeKind.APPROVAL:
        lines.append(f"To answer: rekindle approve {notice.incident_id} {notice.approval_id} (or: rekindle deny)")
    lines += [f"{label}: {what}" for label, what in notice.paste]
    return "\n".join(lines)
