"""Quarantine marks: no run may resume from such a checkpoint until a person releases it.

    <prefix>/rekindle/quarantine/<sha1 of the root>.json        {"v": 1, "root", "why", "by", "at"}

The checkpoint itself stays where it is. The mark's name is made of the root, so that marking twice is marking once.

A forensic checkpoint, saved while the loss was bad for people to look into, needs no mark: it is recognized by the id
of the request that asked for it, which its manifest repeats.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar, Final

from rekindle.protocol.bounds import PlaceUri, Text, Via
from rekindle.protocol.message import Message
from rekindle.protocol.wire import FOLDER, Place

MAX_MARK_BYTES: Final = 16 * 1024
MAX_WHY_CHARS: Final = 1000
MAX_BY_CHARS: Final = 200
PROBLEM: Final = "quarantined"
FORENSIC: Final = "forensic"  # as a checkpoint's kind
_FORENSIC_ID: Final = re.compile(r"-f[0-9]+\Z")


def forensic_request_id(incident_id: str, number: int) -> str:
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


def _cut(limit: int) -> Via:
    """A text that is written cut to `limit` characters, and refused where it is longer."""
    return Via(Annotated[str, Text(limit)], str, lambda text: text[:limit])


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineMark(Message):
    """Why a checkpoint is not to be used. `by` is an Incident's id or a person's name."""

    LIMIT_BYTES: ClassVar[int] = MAX_MARK_BYTES

    root: Annotated[str, Via(PlaceUri, plain_root, plain_root)]
    why: Annotated[str, _cut(MAX_WHY_CHARS)]
    by: Annotated[str, _cut(MAX_BY_CHARS)]
    at: datetime

    @property
    def key(self) -> str:
        return mark_key(self.root)

    @property
    def problem(self) -> str:
        """As a checkpoint's problem."""
        return f"{PROBLEM}: {self.why} ({self.by})"
