"""How one rank agrees with the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rekindle.monitor.mail.exchange import Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """All of it is optional; `rekindle.integrations.torch` sets it from torch.distributed.

    rank, world_size: default as the launcher says (RANK, WORLD_SIZE; Open MPI's; Slurm's).
    exchange: opens what the ranks agree through, on a separate thread (see `Exchange`); default the mailbox, which
    suits a shared directory, or S3 for up to 64 ranks.
    share: gives every rank the text that rank 0 was called with, such as a broadcast: all ranks then resume from the
    step of rank 0. Without it, ranks that resumed from different steps are detected at their first agreement, and
    saving is disabled.
    saves_alone: rank 0's save needs no other rank (each rank holds the whole model): where the ranks cannot agree,
    rank 0 saves alone. Without it such a save is refused.
    end_collectives: makes the collectives of this process end with an error, as far as that is possible; called when a
    save in which ranks wait for each other was abandoned. Then `should_stop` is set, too.
    """

    rank: int | None = None
    world_size: int | None = None
    exchange: Callable[[], Exchange | None] | None = None
    share: Callable[[str], str] | None = None
    saves_alone: bool = False
    end_collectives: Callable[[], None] | None = None
