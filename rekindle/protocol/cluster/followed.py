"""Which attempts an agent follows: one object, so that an agent that lost its own memory finds them again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from rekindle.compat import Self
from rekindle.protocol.cluster.names import check_cluster, cluster_prefix, is_slurm
from rekindle.protocol.wire import Message, Reader

MAX_FOLLOWED: Final = 20_000


def followed_key(cluster: str) -> str:
    return f"{cluster_prefix(cluster)}followed.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedDoc(Message):
    """The names, in order; each one's own document says the rest."""

    LIMIT_BYTES: ClassVar[int] = 4 * 1024 * 1024

    cluster: str
    attempts: tuple[str, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        return {"cluster": self.cluster, "attempts": list(self.attempts)}

    @classmethod
    def from_reader(cls, reader: Reader) -> Self:
        attempts = reader.items("attempts", MAX_FOLLOWED)
        if not all(isinstance(one, str) and is_slurm(one) for one in attempts):
            raise reader.fail("attempts", "must be names of attempts on Slurm")
        return cls(cluster=check_cluster(reader.text("cluster", 63)), attempts=tuple(attempts))
