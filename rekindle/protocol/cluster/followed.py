"""Which attempts an agent follows: one object, so that an agent that lost its own memory finds them again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from rekindle.protocol.bounds import Items, Required
from rekindle.protocol.cluster.names import AttemptName, ClusterName, cluster_prefix
from rekindle.protocol.message import Message

MAX_FOLLOWED: Final = 20_000


def followed_key(cluster: str) -> str:
    return f"{cluster_prefix(cluster)}followed.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedDoc(Message):
    """The names, in order; each one's own document says the rest."""

    LIMIT_BYTES: ClassVar[int] = 4 * 1024 * 1024

    cluster: ClusterName
    attempts: Annotated[tuple[AttemptName, ...], Items(MAX_FOLLOWED), Required()] = ()
