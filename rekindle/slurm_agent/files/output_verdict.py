"""What a start's output says, as the agent takes it from the process that read it."""

from __future__ import annotations

from dataclasses import dataclass

from rekindle.protocol.cluster.documents import CauseDoc


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputVerdict:
    """What a start's output says: in a sentence for people, "" for nothing, and as fields for programs."""

    text: str = ""
    cause: CauseDoc | None = None
