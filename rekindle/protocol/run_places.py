"""Where a run meets the service and where its checkpoints appear, in one spelling for agent and service."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from rekindle.protocol.bounds import Text
from rekindle.protocol.codec import Document
from rekindle.protocol.wire import MailboxError, Place


def one_spelling(uri: str, resolved: Callable[[str], str] = str) -> str:
    """The same text for the same place; empty for what is no place. `resolved` gives the real path of a directory."""
    try:
        place = Place.parse(uri) if uri else None
    except MailboxError:
        return ""
    if place is None:
        return ""
    path = re.sub("/+", "/", place.path)
    if place.bucket is not None:
        return Place(bucket=place.bucket, path=path).uri
    return resolved("/".join(part for part in path.split("/") if part != ".") or "/")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlaces(Document):
    """Both in one spelling; empty where there is none."""

    mailbox: Annotated[str, Text(4096)] = ""
    checkpoints: Annotated[str, Text(4096)] = ""

    @classmethod
    def of(cls, mailbox: str, checkpoints: str, resolved: Callable[[str], str] = str) -> RunPlaces:
        return cls(mailbox=one_spelling(mailbox, resolved), checkpoints=one_spelling(checkpoints, resolved))

    def is_shared_with(self, other: RunPlaces) -> bool:
        """By the mailbox, else by the checkpoints; two mailboxes are two runs'."""
        if self.mailbox and other.mailbox:
            return self.mailbox == other.mailbox
        return self.checkpoints == other.checkpoints != ""
