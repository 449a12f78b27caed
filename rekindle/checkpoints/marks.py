"""Quarantine marks: no run may resume from such a checkpoint until a person releases it.

    <prefix>/rekindle/quarantine/<sha1 of the root>.json        {"v": 1, "root", "why", "by", "at"}

The checkpoint itself stays where it is. The mark's name is made of the root, so that marking twice is marking once.

A forensic checkpoint, saved while the loss was bad for people to look into, needs no mark: it is recognized by the id
of the request that asked for it, which its manifest repeats.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from rekindle.compat import from_iso
from rekindle.protocol.mailbox import FOLDER, MAX_PATH_CHARS, WIRE_VERSION, MailboxError, Place

MAX_MARK_BYTES: Final = 16 * 1024
MAX_WHY_CHARS: Final = 1000
MAX_BY_CHARS: Final = 200
PROBLEM: Final = "quarantined"
FORENSIC: Final = "forensic"  # as a checkpoint's kind
_FORENSIC_ID: Final = re.compile(r"-f[0-9]+\Z")


def forensic_request_id(incident_id: str, number: int) -> str:
    """The id of a request for a forensic checkpoint."""
    return f"{incident_id}-f{number}"


def is_forensic(request_id: str | None) -> bool:
    """True for the id of a request made by `forensic_request_id`."""
    return request_id is not None and _FORENSIC_ID.search(request_id) is not None


def quarantine_prefix() -> str:
    return f"{FOLDER}/quarantine/"


def plain_root(root: str) -> str:
    """The one spelling of a root. Raises: MailboxError for anything that is no place."""
    return Place.parse(root, "root").uri


def mark_key(root: str) -> str:
    """The mark's key, relative to the mailbox's prefix. Raises: MailboxError."""
    digest = hashlib.sha1(plain_root(root).encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()
    return f"{quarantine_prefix()}{digest}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineMark:
    """Why a checkpoint is not to be used. `by` is an Incident's id or a person's name."""

    root: str
    why: str
    by: str
    at: datetime

    @property
    def key(self) -> str:
        return mark_key(self.root)

    @property
    def problem(self) -> str:
        """As a checkpoint's problem."""
        return f"{PROBLEM}: {self.why} ({self.by})"

    def to_json(self) -> bytes:
        """Bytes that `from_json` accepts; long texts are cut. Raises: MailboxError for a root that is no place."""
        wire = {
            "v": WIRE_VERSION,
            "root": plain_root(self.root),
            "why": self.why[:MAX_WHY_CHARS],
            "by": self.by[:MAX_BY_CHARS],
            "at": self.at.isoformat(),
        }
        return json.dumps(wire, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, raw: bytes | str) -> QuarantineMark:
        """Raises: MailboxError, and nothing else, for whatever bytes are given."""
        if len(raw) > MAX_MARK_BYTES:
            raise MailboxError("$", f"is larger than {MAX_MARK_BYTES} bytes")
        try:
            wire = json.loads(raw)
        except (ValueError, RecursionError) as err:
            raise MailboxError("$", "is not a JSON text") from err
        if not isinstance(wire, dict):
            raise MailboxError("$", "must be a JSON object")
        if wire.get("v") != WIRE_VERSION:
            raise MailboxError("v", f"is not {WIRE_VERSION}, the only version known here")
        return cls(
            root=plain_root(_text(wire, "root", 2 * MAX_PATH_CHARS)),
            why=_text(wire, "why", MAX_WHY_CHARS),
            by=_text(wire, "by", MAX_BY_CHARS),
            at=_moment(_text(wire, "at", 64)),
        )


def _text(wire: dict[str, Any], name: str, limit: int) -> str:
    value = wire.get(name)
    if not isinstance(value, str) or len(value) > limit:
        raise MailboxError(name, f"must be a string of at most {limit} characters")
    return value


def _moment(text: str) -> datetime:
    try:
        moment = from_iso(text)
    except ValueError as err:
        raise MailboxError("at", "must be an ISO 8601 time with its zone") from err
    if moment.tzinfo is None:
        raise MailboxError("at", "must be an ISO 8601 time with its zone")
    return moment
