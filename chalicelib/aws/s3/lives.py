"""When the lives of attempts ended, by the claims of the next ones in a mailbox (rekindle/protocol/lives.py)."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from rekindle.protocol.lives import Claim, Standing, life_in, life_prefix
from rekindle.protocol.mailbox import MAX_MESSAGE_BYTES, MailboxError, Place

if TYPE_CHECKING:
    from chalicelib.aws.s3.objects import Listed, S3Objects


class LivesOfAttempts:
    """Of one mailbox, as it is while a look lasts: each attempt's claims are listed once. Raises as S3Objects does."""

    def __init__(self, objects: S3Objects, mailbox: Place) -> None:
        self._objects, self._mailbox = objects, mailbox
        self._listed: dict[str, list[tuple[int, Listed]]] = {}
        self._ends: dict[tuple[str, int], datetime | None] = {}

    def ended_at(self, attempt: str, life: int) -> datetime | None:
        """By S3's clock; None for a life that no other has followed. One that was refused is none."""
        if (attempt, life) not in self._ends:
            later = (item for number, item in self._claims(attempt) if number > life and self._is_held(item))
            first = next(later, None)
            self._ends[attempt, life] = None if first is None else first.modified_at
        return self._ends[attempt, life]

    def _claims(self, attempt: str) -> list[tuple[int, Listed]]:
        """Rank 0's, the oldest first."""
        if attempt not in self._listed:
            found = self._objects.below(self._mailbox.join(life_prefix(attempt, 0)), folder=True)
            self._listed[attempt] = [(life, item) for item in found if (life := life_in(item.key)) is not None]
        return self._listed[attempt]

    def _is_held(self, item: Listed) -> bool:
        raw = self._objects.read(Place(bucket=self._mailbox.bucket, path=item.key), MAX_MESSAGE_BYTES)
        try:
            return Claim.from_json(raw or b"").standing is Standing.HELD
        except MailboxError:  # a rank's own rubbish makes no other's checkpoints late
            return False
