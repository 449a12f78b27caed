"""What a rule is. The tables stand in `rules_*.py`; `rules.py` puts them in order."""

from __future__ import annotations

from dataclasses import dataclass

from rekindle.protocol.signals import FaultClass
from rekindle.signatures.labels import CausalClass, Label
from rekindle.signatures.responses import FirstResponse

# What the prefilter ignores: numbers change from line to line, words do not. NUL is here for UTF-16 input.
DROPPED = b"0123456789.+-\0"
_LOWER = bytes(range(256)).lower()


def skeleton(raw: bytes) -> bytes:
    """A line in lower case without its numbers: lines of one shape have one skeleton."""
    return raw.translate(_LOWER, DROPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row: `pattern` is searched in the excerpt in lower case (`is_cased`: as it is written).

    `fault`, `response` and `order` replace the label's own where this row knows better. `example` is a text that this
    row must classify; `source` says whose words they are.
    """

    name: str
    label: Label
    pattern: str
    example: str
    source: str
    is_cased: bool = False
    fault: FaultClass | None = None
    response: FirstResponse | None = None
    order: CausalClass | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Harmless:
    """A phrase that names an error and is none: it is taken out of the excerpt before the rules read it."""

    name: str
    pattern: str
    example: str
    source: str
