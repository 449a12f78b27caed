"""One excerpt of a log -> its label, fault, first response and the rule that matched.

Total and bounded: any text or bytes get a verdict; of a long one the head and the tail are read, and no pattern here
can take more than a small multiple of the text's length. The verdict depends on the excerpt alone.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from typing import Final

from rekindle.protocol.signals import FaultClass
from rekindle.signatures.labels import LABELS, CausalClass, Label
from rekindle.signatures.prefilter import Prefilter
from rekindle.signatures.responses import FirstResponse
from rekindle.signatures.rule import Rule, skeleton
from rekindle.signatures.rules import HARDWARE, HARMLESS, OTHERS, RULES
from rekindle.signatures.xid_lines import XidVerdict, read_xids

HEAD_BYTES: Final = 4096  # a traceback's beginning, and every line that a person would print
TAIL_BYTES: Final = 4096  # its end, where the exception stands
MAX_JSON_BYTES: Final = 65_536  # a JSON record up to this size is opened whole

_ANSI: Final = re.compile(r"\x1b(?:\[[0-?]{0,32}[ -/]{0,8}[@-~]?|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)?|[@-Z\\^_])")
_XID_PLACE: Final = len(RULES)  # the prefilter's place for Xid records, behind all rules
_MESSAGE_KEYS: Final = ("message", "msg", "log", "text", "line")  # as loggers, container runtimes and data sets have it


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What an excerpt says. `fault` is None for a benign one; `xid` is the code that decided, if one did.

    `order` is its place among causes and echoes (see causes.root_cause).
    """

    label: Label
    fault: FaultClass | None
    first_response: FirstResponse
    rule: str
    order: CausalClass
    xid: int | None = None

    def to_json(self) -> dict[str, str | None]:
        """The object that `rekindle classify --json` prints."""
        return {
            "label": self.label.value,
            "fault": self.fault.value if self.fault else None,
            "first_response": self.first_response.value,
            "rule": self.rule,
        }


BENIGN: Final = Verdict(
    label=Label.BENIGN,
    fault=None,
    first_response=FirstResponse.LEAVE_ALONE,
    rule="no_rule",
    order=CausalClass.NEWS,
)


def verdict_of(rule: Rule) -> Verdict:
    """A rule's verdict: its label's row, with what the rule knows better."""
    row = LABELS[rule.label]
    return Verdict(
        label=rule.label,
        fault=rule.fault or row.fault,
        first_response=rule.response or row.response,
        rule=rule.name,
        order=rule.order or row.order,
    )


class Classifier:
    """Classifies excerpts; remembers shapes of lines (bounded), which changes its speed and nothing else."""

    def __init__(self) -> None:
        self._prefilter = Prefilter(RULES, extra=("xid",))
        self._harmless = Prefilter(HARMLESS)
        self._verdicts = tuple(verdict_of(rule) for rule in RULES)

    def classify(self, excerpt: str | bytes) -> Verdict:
        """The verdict on one excerpt, of one line or many."""
        raw = excerpt if isinstance(excerpt, bytes) else excerpt.encode("utf-8", "replace")
        if len(raw) > HEAD_BYTES + TAIL_BYTES:
            raw = _window(raw)
        candidates = self._prefilter.candidates(skeleton(raw))
        return self._read(raw, candidates) if candidates else BENIGN

    def _read(self, raw: bytes, candidates: tuple[int, ...]) -> Verdict:
        text = _clean(raw)
        if "\x1b" in text:
            text = _ANSI.sub("", text)
            candidates = self._prefilter.candidates(skeleton(text.encode("utf-8", "replace")))
            if not candidates:
                return BENIGN
        low = text.lower()
        if len(low) != len(text):  # a few letters change their length with their case; then case is given up
            text = low
        if self._first(text, low, candidates) is None:
            return BENIGN
        text, low = self._without_harmless(text, low)
        return self._first(text, low, candidates) or BENIGN

    def _first(self, text: str, low: str, candidates: tuple[int, ...]) -> Verdict | None:
        """The first rule that matches; Xid records stand between the rules on hardware and all others."""
        xid = read_xids(low) if candidates[-1] == _XID_PLACE else None
        if xid is not None and xid.is_hardware:
            return _of_xid(xid)
        for place in candidates:
            if place == _XID_PLACE or (xid is not None and place >= len(HARDWARE)):
                break
            rule = RULES[place]
            if _compiled(rule.pattern).search(text if rule.is_cased else low):
                return self._verdicts[place]
        return _of_xid(xid) if xid is not None else None

    def _without_harmless(self, text: str, low: str) -> tuple[str, str]:
        """The excerpt and its lower case, without the phrases that name an error and are none."""
        for place in self._harmless.candidates(skeleton(low.encode("utf-8", "replace"))):
            spans = [match.span() for match in _compiled(HARMLESS[place].pattern).finditer(low)]
            for start, end in reversed(spans):
                text = f"{text[:start]} {text[end:]}"
                low = f"{low[:start]} {low[end:]}"
        return text, low


def _of_xid(xid: XidVerdict) -> Verdict:
    return Verdict(
        label=xid.label,
        fault=xid.fault,
        first_response=xid.response,
        rule=f"xid_{xid.xid}",
        order=xid.order,
        xid=xid.xid,
    )


def _window(raw: bytes) -> bytes:
    """Head and tail of a long excerpt; of a JSON record of a moderate size, of its message."""
    if len(raw) <= MAX_JSON_BYTES and raw[:1] == b"{":
        message = _message(raw.decode("utf-8", "replace"))
        if message is not None:
            raw = message.encode("utf-8", "replace")
            if len(raw) <= HEAD_BYTES + TAIL_BYTES:
                return raw
    return raw[:HEAD_BYTES] + b"\n" + raw[-TAIL_BYTES:]


def _clean(raw: bytes) -> str:
    """Readable text: no NUL, one kind of line end, a JSON record opened, written-out line ends made real."""
    text = raw.replace(b"\0", b"").decode("utf-8", "replace")
    if text.startswith("{"):
        text = _message(text) or text
    if "\r" in text:
        text = text.replace("\r", "\n")
    if "\\n" in text and "\n" not in text.strip():
        text = text.replace("\\n", "\n")
    return text


def _message(text: str) -> str | None:
    """The message of a JSON log record ({"log": "…", "stream": "stderr"}); None for any other text."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict):
        return None
    return next((body[key] for key in _MESSAGE_KEYS if isinstance(body.get(key), str)), None)


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compiled at its first use, so that a cold start does not pay for it. The patterns are our own and few."""
    return re.compile(pattern)


@functools.cache
def _shared() -> Classifier:
    return Classifier()


def classify(excerpt: str | bytes) -> Verdict:
    """The verdict on one excerpt of a log, of one line or many. Total: any text or bytes have one."""
    return _shared().classify(excerpt)


__all__ = ["BENIGN", "HARDWARE", "OTHERS", "Classifier", "Verdict", "classify", "verdict_of"]
