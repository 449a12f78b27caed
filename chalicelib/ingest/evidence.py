"""Small, clean, comparable: bounded evidence, one-line summaries and dedupe keys for Signals."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from chalicelib.domain.model.signal import MAX_EVIDENCE_BYTES, MAX_SUMMARY_CHARS

MAX_KEY_CHARS = 200  # the contract of Signal.dedupe_key
MAX_DEPTH = 6  # deeper than any payload of interest, shallow enough to be safe
MAX_ITEMS = 64
_TRUNCATED = "truncated"
_LIMITS = (1024, 512, 256, 128, 64, 32)  # characters a text may keep, tried in turn until the whole fits

# C0, DEL and C1 controls, line and paragraph separators, bidirectional overrides: they could forge lines in a terminal.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")


def one_line(text: str, limit: int = MAX_SUMMARY_CHARS) -> str:
    """The text on one line, without control characters, at most `limit` characters."""
    line = " ".join(_CONTROL.sub(" ", text[: limit * 4]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def bounded(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """The evidence as plain JSON of at most MAX_EVIDENCE_BYTES; what was shortened is marked `"truncated": true`.

    None values are left out. Non-finite numbers become text, because neither DynamoDB nor strict JSON holds them.
    """
    kept = {name: value for name, value in evidence.items() if value is not None}
    body: dict[str, Any] = {}
    for limit in _LIMITS:
        shortened = _Shortened(limit)
        body = {one_line(str(name), 64): shortened.value(value, 0) for name, value in kept.items()}
        if shortened.happened:
            body[_TRUNCATED] = True
        if _size(body) <= MAX_EVIDENCE_BYTES:
            return body
    small: dict[str, Any] = {_TRUNCATED: True}
    for name, value in body.items():  # the first-named evidence is the most telling
        if _size({**small, name: value}) <= MAX_EVIDENCE_BYTES:
            small[name] = value
    return small


class _Shortened:
    """One pass over a value with one limit; remembers whether anything was left out."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.happened = False

    def value(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return value if abs(value) < 2**63 else self.text(f"{value:.6e}" if abs(value) < 10**300 else "huge")
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        if isinstance(value, str):
            return self.text(value)
        if depth >= MAX_DEPTH:
            self.happened = True
            return "…"
        if isinstance(value, Mapping):
            self.happened |= len(value) > MAX_ITEMS
            pairs = list(value.items())[:MAX_ITEMS]
            return {one_line(str(name), 128): self.value(item, depth + 1) for name, item in pairs}
        if isinstance(value, list | tuple):
            self.happened |= len(value) > MAX_ITEMS
            return [self.value(item, depth + 1) for item in value[:MAX_ITEMS]]
        return self.text(str(value))

    def text(self, text: str) -> str:
        kept = _CONTROL.sub(lambda match: "\n" if "\n" in match[0] else " ", text[: self.limit])
        if len(text) > self.limit:
            self.happened = True
            kept = kept[:-1] + "…"
        return kept


def _size(body: Mapping[str, Any]) -> int:
    return len(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode())


def dedupe_key(*facts: object) -> str:
    """One key for one fact: equal parts give equal keys, and no two different lists of parts give the same one.

    Parts are texts, numbers, None, or times (to the millisecond). A key longer than MAX_KEY_CHARS keeps its readable
    beginning and ends in a digest of the whole.
    """
    parts = [_part(fact) for fact in facts]
    key = "|".join(parts)
    if len(key) <= MAX_KEY_CHARS:
        return key
    digest = hashlib.sha256(key.encode()).hexdigest()[:40]
    return f"{key[: MAX_KEY_CHARS - 41]}#{digest}"


def _part(fact: object) -> str:
    if fact is None:
        return "-"
    if isinstance(fact, datetime):
        return fact.isoformat(timespec="milliseconds")
    text = json.dumps(str(fact))[1:-1]  # ASCII only, control characters escaped
    return "\\-" if text == "-" else text.replace("|", "\\|").replace("#", "\\#")


def minute(moment: datetime) -> str:
    """The minute a moment lies in: what joins the several events AWS sends for one fact."""
    return moment.strftime("%Y-%m-%dT%H:%M")


def digest(value: object) -> str:
    """Twelve hex digits for a text or JSON value of any size."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
