"""The claims of a run's lives in a mailbox in S3 (rekindle/protocol/lives.py)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from rekindle.protocol.lives import ListedClaim, LivesOfAttempts, life_in, life_prefix
from rekindle.protocol.wire import MAX_MESSAGE_BYTES, Place

if TYPE_CHECKING:
    from chalicelib.aws.s3.objects import S3Objects


def lives_in(objects: S3Objects, mailbox: Place) -> LivesOfAttempts:
    """By S3's clock. Raises as S3Objects does."""

    def claims(attempt: str) -> Iterator[ListedClaim]:
        for item in objects.below(mailbox.join(life_prefix(attempt, 0)), folder=True):
            life = life_in(item.key)
            if life is not None:
                place = Place(bucket=mailbox.bucket, path=item.key)
                read = partial(objects.read, place, MAX_MESSAGE_BYTES)
                yield ListedClaim(life, read, partial(attrgetter("modified_at"), item))

    return LivesOfAttempts(claims)
