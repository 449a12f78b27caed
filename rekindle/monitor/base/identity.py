"""Who this process is: which Job, which attempt and life of it, which rank."""

from __future__ import annotations

from dataclasses import dataclass, field


class Holding:
    """What is known of who holds the run: this process, as life number `life`, or the newer life `lost_to`.

    refusal: why this process stays silent, empty where it does not.
    """

    life: int = 0
    lost_to: int | None = None
    refusal: str = ""

    @property
    def is_open(self) -> bool:
        """Whether another process may still object to this one's claim."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """`attempt` is the platform's own name of the attempt (TRAINING_JOB_NAME on SageMaker).

    `host` is the node's own name for itself, as far as it is known. `holding` changes once the run has been claimed.
    """

    job_id: str
    attempt: str
    attempt_number: int
    rank: int
    world_size: int
    host: str = ""
    holding: Holding = field(default_factory=Holding, compare=False)

    @property
    def life(self) -> int:
        """Which start of the attempt's processes this is."""
        return self.holding.life
